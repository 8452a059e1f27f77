//! Where a consumer stands, as `thread info` and other programs show it.

use std::time::{Duration, Instant};

use chrono::Utc;
use serde_json::{Value, json};

use crate::error::Result;
use crate::model::run::Phase;
use crate::model::subscription::{NOTHING_ACKNOWLEDGED, Subscription};
use crate::model::time::{self, Time};
use crate::pending::{self, CountLimits, Counted};
use crate::queue::Queue;
use crate::run::dispatch;
use crate::run::process::{AtWork, at_work};

/// After how long it is a problem that nobody takes what waits for a consumer without a handler.
const UNTAKEN: Duration = Duration::from_secs(5 * 60);

/// How far to determine what is pending.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long to look for the oldest pending event.
    pub look_until: Option<Instant>,
    pub count: CountLimits,
    /// As in [`pending::count`].
    pub gapless: bool,
}

/// How many events a thread holds.
#[derive(Debug, Clone, Copy)]
pub struct EventRange {
    /// Without those that were pruned.
    pub count: u64,
    /// Whether they were counted; otherwise, there may be fewer.
    pub is_exact: bool,
    pub oldest: Option<i64>,
    /// The newest id ever assigned.
    pub newest: i64,
}

impl EventRange {
    /// Counts the events, unless there may be more than `most`.
    pub fn of(queue: &mut Queue, most: u64) -> Result<EventRange> {
        let store = &mut *queue.store;
        let (newest, oldest) = (store.newest()?, store.first_after(0)?);
        let ids = oldest.map_or(0, |oldest| newest.abs_diff(oldest) + 1);
        let is_exact = ids <= most;
        let count = if is_exact { store.count(0, i64::MAX)? } else { ids };
        Ok(EventRange { count, is_exact, oldest, newest })
    }

    /// Whether no id between the oldest event and the newest is known to be missing.
    pub fn is_gapless(&self) -> bool {
        self.is_exact && self.oldest.is_some_and(|oldest| self.newest.abs_diff(oldest) + 1 == self.count)
    }
}

/// The state of a consumer, and what is pending for it.
pub struct ConsumerStatus {
    /// The number of its filter's failures includes those that were found just now.
    pub subscription: Subscription,
    /// In one word: idle, running, waiting, stalled or paused.
    pub state: &'static str,
    /// Details of the state, in the order they are shown.
    pub facts: Vec<(&'static str, Value)>,
    pub pending: Counted,
    /// Id of the oldest pending event, and when it was stored.
    pub oldest: Option<(i64, Option<String>)>,
}

impl ConsumerStatus {
    /// Determines where a consumer stands. `progress` is called with how many ids are to be counted, and what it
    /// returns with the number that were counted since its last call.
    pub fn of(
        queue: &mut Queue,
        mut subscription: Subscription,
        limits: Limits,
        progress: &dyn Fn(u64) -> Box<dyn FnMut(u64)>,
    ) -> Result<ConsumerStatus> {
        let at_work = loop {
            // Holding the lock between runs does not count as running.
            let at_work = match subscription.state.phase {
                Phase::Running | Phase::Waiting => at_work(queue.files(), &subscription),
                Phase::Idle | Phase::Stalled => AtWork::Nobody,
            };
            if at_work != AtWork::Nobody {
                break at_work;
            }
            // The run may have ended after the row was read, so read the row again if it has changed.
            match queue.store.subscription(&subscription.consumer)? {
                Some(now) if (&now.token, now.revision) != (&subscription.token, subscription.revision) => {
                    subscription = now;
                }
                _ => break at_work,
            }
        };
        let (mut pending, mut oldest) = (Counted::default(), None);
        let broken = match pending::checked_filter(&subscription) {
            Err(e) => Some(e),
            Ok(_) => {
                // The look stores the scan watermark and finds the first match, where the count starts.
                let scan = queue.scan_pending(&subscription, limits.look_until)?;
                pending.at_least = scan.cut_short;
                subscription.filter_errors += scan.failures.len() as i64;
                if let Some(last) = scan.failures.last() {
                    subscription.filter_error_id = last.id;
                }
                if let Some(first) = scan.first {
                    let mut advance = progress(scan.newest.abs_diff(first));
                    pending = pending::count(
                        &mut *queue.store,
                        &subscription,
                        first,
                        limits.gapless,
                        limits.count,
                        &mut *advance,
                    )?;
                    oldest = Some((first, queue.store.stored_at(first)?));
                }
                dispatch::check(queue.files(), &subscription).err()
            }
        };
        let state = &subscription.state;
        let time = |time: Option<Time>| json!(time.map(time::format));
        let attempt = ("attempt", json!(state.attempts));
        let interrupted = ("reason", json!("interrupted"));
        let elsewhere = match &subscription.held_by {
            Some(host) => ("host", json!(host)),
            None => ("namespace", json!("other")),
        };
        let (word, mut facts) = match state.phase {
            Phase::Running if at_work != AtWork::Nobody => {
                let who = match at_work {
                    AtWork::Process(pid) => ("pid", json!(pid)),
                    _ => elsewhere,
                };
                ("running", vec![who, ("since", time(state.since)), attempt])
            }
            _ if state.paused => ("paused", Vec::new()),
            _ if broken.is_some() => ("stalled", vec![("reason", json!(broken.map(|e| e.to_string())))]),
            Phase::Stalled => ("stalled", vec![("reason", json!(state.reason)), attempt]),
            Phase::Waiting => {
                let mut facts = vec![attempt, ("next_try", time(state.next_try))];
                match at_work {
                    AtWork::Elsewhere => facts.push(elsewhere),
                    // Without a recorded supervisor, the consumer is between a run and its wait.
                    AtWork::Nobody if state.supervisor.is_some() => facts.push(interrupted.clone()),
                    _ => {}
                }
                ("waiting", facts)
            }
            // The supervisor was killed; the next dispatch continues.
            Phase::Running if pending != Counted::default() => {
                let due = state.since.map(|since| since + subscription.options.wait_after(state.attempts));
                ("waiting", vec![attempt, ("next_try", time(due)), interrupted.clone()])
            }
            Phase::Running | Phase::Idle => ("idle", Vec::new()),
        };
        // Where nobody is at work, a time that has passed says nothing: it is due at the next dispatch.
        let is_past = |value: &Value| value.as_str().and_then(time::parse).is_some_and(|at| at <= Utc::now());
        if facts.contains(&interrupted) {
            facts.retain(|(name, value)| *name != "next_try" || !is_past(value));
        }
        facts.retain(|(_, value)| !value.is_null());
        Ok(ConsumerStatus { subscription, state: word, facts, pending, oldest })
    }

    /// When the oldest pending event was stored. `None` if nothing is pending.
    fn oldest_at(&self) -> Option<Time> {
        time::parse(self.oldest.as_ref()?.1.as_deref()?)
    }

    /// Age of the oldest pending event; 0 if the clock was set back. `None` if there is none.
    pub fn oldest_age(&self, now: Time) -> Option<Duration> {
        Some((now - self.oldest_at()?).to_std().unwrap_or_default())
    }

    /// Since when nobody has taken what waits for a consumer without a handler, if that is a while ago.
    pub fn untaken_since(&self, now: Time) -> Option<Time> {
        if self.subscription.has_handler() || self.state != "idle" {
            return None;
        }
        let moved = self.subscription.updated_at.as_deref().and_then(time::parse);
        let since = self.oldest_at()?.max(moved.unwrap_or_default());
        (now - since).to_std().is_ok_and(|age| age >= UNTAKEN).then_some(since)
    }

    /// What to say about the consumer's last runs, for people.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.state == "stalled" && self.subscription.state.phase == Phase::Stalled {
            notes.push(format!("`thread resume {}` starts it again", self.subscription.consumer));
        }
        if self.is_unattended() {
            notes.push("nobody is waiting to retry it: run `thread dispatch`, or keep a worker".to_owned());
        }
        if self.subscription.acknowledged_nothing() {
            notes.push(NOTHING_ACKNOWLEDGED.to_owned());
        }
        notes
    }

    /// Whether its supervisor was killed, by a reboot for instance, so that nobody ends its wait: only the next push or
    /// dispatch does, or a worker.
    pub fn is_unattended(&self) -> bool {
        self.fact("reason") == Some("interrupted")
    }

    /// A detail of the state; `None` if it is missing or not text.
    pub fn fact(&self, name: &str) -> Option<&str> {
        self.facts.iter().find(|(known, _)| *known == name)?.1.as_str()
    }
}
