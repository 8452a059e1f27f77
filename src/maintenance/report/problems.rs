//! Why a consumer needs attention: the rule of `thread info --check`, and of all that flags a consumer.

use std::time::Duration;

use super::{ConsumerState, ConsumerStatus, HOLDS_RETENTION};
use crate::model::duration;
use crate::model::time::Time;
use crate::pending::Counted;

/// How long an event may be pending with nothing running or waiting.
const UNATTENDED: Duration = Duration::from_secs(60);

/// So many attempts in an hour, if none succeeds.
const FAILING: u64 = 3;

/// A reason why a consumer needs attention: a word for programs, and details, which may be empty.
pub type Problem = (&'static str, String);

impl ConsumerStatus {
    /// Why it needs attention; nothing if it does not. Whether it fails all the time is known only after
    /// [`count_last_hour`](ConsumerStatus::count_last_hour).
    pub fn problems(&self, now: Time) -> Vec<Problem> {
        let s = &self.subscription;
        let mut problems = Vec::new();
        let mut report = |word, about: String| problems.push((word, about));
        if let ConsumerState::Stalled { reason, .. } = &self.state {
            report("stalled", reason.clone().unwrap_or_default());
        }
        if s.state.paused {
            report("paused", String::new());
        }
        if self.is_failing() {
            let failed = self.last_hour.failed;
            report("failing", format!("{failed} attempts failed in the last hour, and none succeeded"));
        }
        let age = self.oldest_age(now).unwrap_or_default();
        let unattended = (s.has_handler() && self.state == ConsumerState::Idle) || self.is_unattended();
        if unattended && age > UNATTENDED {
            let (pending, age) = (self.pending_text(), duration::rough(age));
            report(
                "unattended",
                format!("{pending} pending for {age}, and nothing is running it or waiting to retry it"),
            );
        }
        if let Some(since) = self.untaken_since(now) {
            let age = duration::rough((now - since).to_std().unwrap_or_default());
            report("unattended", format!("{} pending, and not taken for {age}", self.pending_text()));
        }
        if self.holds_retention {
            report("retention", HOLDS_RETENTION.to_owned());
        }
        if s.dead > 0 {
            report("dead", format!("{}, see `thread dead list`", events_text(s.dead.unsigned_abs())));
        }
        if s.filter_errors > 0 {
            let (failed, last) = (events_text(s.filter_errors.unsigned_abs()), s.filter_error_id);
            let what = match (s.filter_text(), &s.options.key) {
                (None, Some(_)) => "the key",
                (Some(_), Some(_)) => "it or the key",
                (_, None) => "it",
            };
            report(
                "filter",
                format!("{what} failed on {failed}, the last of them {last}; thread.log says why"),
            );
        }
        problems
    }

    /// Whether it is at work on something, and has failed all the time. One that was given up is stalled.
    fn is_failing(&self) -> bool {
        let has_work = match self.state {
            ConsumerState::Running { .. } | ConsumerState::Waiting { .. } => true,
            ConsumerState::Idle => self.in_hand.as_ref().is_some_and(|in_hand| in_hand.waiting > 0),
            ConsumerState::Stalled { .. } | ConsumerState::Paused => false,
        };
        has_work && self.last_hour.handled == 0 && self.last_hour.failed >= FAILING
    }

    /// How many events are pending, for people.
    pub(crate) fn pending_text(&self) -> String {
        match self.pending {
            Counted { events: count, at_least: true } => format!("at least {}", events_text(count)),
            Counted { events: count, .. } => events_text(count),
        }
    }
}

/// So many events, for people.
pub(crate) fn events_text(count: u64) -> String {
    if count == 1 { "1 event".to_owned() } else { format!("{count} events") }
}
