//! What a consumer has in hand past its cursor, where events finish singly.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::error::Result;
use crate::model::ledger::Claim;
use crate::model::run::{Deliver, Phase};
use crate::model::subscription::Subscription;
use crate::model::time::{self, Time};
use crate::pending::checked_key;
use crate::queue::Queue;

/// How many waits are shown at most.
const SHOWN: usize = 20;

/// The events that a consumer has in hand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct InHand {
    /// Those that handlers have, as far as that is stored, or programs that took them.
    pub in_flight: u64,
    /// Those that wait before they are tried again.
    pub waiting: u64,
    /// Ids past the cursor at which nothing is unfinished any more.
    pub finished_ahead: u64,
    /// The first of those that wait, by the end of their waits.
    pub waits: Vec<WaitingEvent>,
    /// So many are unfinished that nothing new starts.
    pub is_full: bool,
}

/// An event that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingEvent {
    pub event_id: i64,
    /// What it has in common with those that it holds back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Failed attempts so far.
    pub attempt: u32,
    /// Because its handler said so.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asleep: bool,
    /// Without it, when another event comes.
    #[serde(serialize_with = "time::serialize")]
    pub next_try: Option<Time>,
}

impl InHand {
    /// `None` if the consumer finishes all events up to its cursor at once.
    pub fn of(queue: &mut Queue, subscription: &Subscription, is_full: bool) -> Result<Option<InHand>> {
        let options = &subscription.options;
        if !options.finishes_singly() {
            return Ok(None);
        }
        let ledger = queue.store.ledger(&subscription.consumer)?;
        let in_flight = match options.deliver {
            Deliver::Ndjson if subscription.state.phase == Phase::Running => subscription.state.batch,
            _ => {
                let now = queue.store.clock()?;
                let is_over = |claim: &Claim| claim.taken.is_some() && claim.taken_by(None, &now).is_none();
                ledger.claims().values().filter(|claim| !is_over(claim)).count() as u64
            }
        };
        let finished = ledger.finished().map(|(first, last)| last.abs_diff(first) + 1);
        let waits = ledger.waits().iter().filter(|(id, _)| !ledger.claims().contains_key(id));
        let mut waits: Vec<_> = waits.collect();
        waits.sort_by_key(|(id, wait)| (wait.until, **id));
        let key = checked_key(subscription).ok().flatten();
        let mut shown = Vec::new();
        for &(&event_id, wait) in waits.iter().take(SHOWN) {
            let mut value = None;
            if let Some(key) = &key {
                queue.store.read(event_id - 1, event_id, 1, &mut |row| {
                    value = key.value(&row).ok().flatten();
                    ControlFlow::Break(())
                })?;
            }
            let (attempt, asleep) = (wait.attempts, wait.is_asleep());
            let next_try = wait.shown_until(chrono::Utc::now());
            shown.push(WaitingEvent { event_id, key: value, attempt, asleep, next_try });
        }
        Ok(Some(InHand {
            in_flight,
            waiting: waits.len() as u64,
            finished_ahead: finished.sum(),
            waits: shown,
            is_full,
        }))
    }
}
