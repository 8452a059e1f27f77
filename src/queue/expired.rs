//! Events that have expired before a consumer was given them.

use std::ops::ControlFlow;

use chrono::Utc;

use super::{Queue, Remaining, Selection};
use crate::error::Result;
use crate::files::log::log;
use crate::model::event::{LONGEST_EXPIRING, Row};
use crate::model::run::RunState;
use crate::model::subscription::Subscription;
use crate::pending::checked_filter;
use crate::store::RunUpdate;

/// The longest text that is read to see whether an event expires.
const LONGEST: u64 = LONGEST_EXPIRING as u64;

impl Subscription {
    /// Whether an event has expired before this consumer, which does not finish events singly, was given it.
    pub(crate) fn passes_over(&self, row: &Row<'_>) -> bool {
        // The clock is read for those alone that may expire.
        row.id > self.state.given_upto && row.expires_at().is_some_and(|at| at <= Utc::now())
    }
}

impl Queue {
    /// Whether a consumer is to pass over the event `first`, its oldest pending one.
    pub(crate) fn has_expired(&mut self, consumer: &Subscription, first: i64) -> Result<bool> {
        let mut is_expired = false;
        self.store.read_capped(first - 1, first, 1, LONGEST, &mut |capped| {
            is_expired = consumer.passes_over(&capped.row);
            ControlFlow::Break(())
        })?;
        Ok(is_expired)
    }

    /// Passes over the oldest pending events of a consumer as long as they have expired. `None` if none has, or if the
    /// consumer has changed since `seen` was read.
    pub(crate) fn pass_over(&mut self, seen: &Subscription) -> Result<Option<Subscription>> {
        let after = seen.scanned_upto(seen.last_acked_id);
        let mut selection = Selection { after, limit: None, filter: checked_filter(seen)? };
        let (mut count, mut last, mut is_over) = (0, None, false);
        while !is_over
            && self.read_page_capped(&mut selection, LONGEST, &mut |capped| {
                if !seen.passes_over(&capped.row) {
                    is_over = true;
                    return ControlFlow::Break(());
                }
                (count, last) = (count + 1, Some(capped.row.id));
                ControlFlow::Continue(())
            })? == Remaining::Some
        {}
        let Some(upto) = last else { return Ok(None) };
        let state = RunState { expired: seen.state.expired + count, ..seen.state.clone() };
        let update = RunUpdate { acknowledge: Some(upto), ..RunUpdate::state(state) };
        let passed = self.store.update_run(seen, &update)?;
        if passed.is_some() {
            log!(self, Info, "expired: consumer={} passed over count={count} upto={upto}", seen.consumer);
        }
        Ok(passed)
    }

    /// Notes that a consumer was given events up to this one, some of which expire.
    pub fn note_given(&mut self, consumer: &Subscription, upto: i64) -> Result<()> {
        let mut seen = Some(consumer.clone());
        while let Some(current) = seen.filter(|current| current.state.given_upto < upto) {
            let state = RunState { given_upto: upto, ..current.state.clone() };
            if self.store.update_run(&current, &RunUpdate::state(state))?.is_some() {
                break;
            }
            seen = self.store.subscription(&consumer.consumer)?;
        }
        Ok(())
    }
}
