//! What a consumer does, as types.

use chrono::Utc;
use serde::Serialize;

use crate::model::ledger::EventWait;
use crate::model::run::{Phase, is_zero};
use crate::model::subscription::Subscription;
use crate::model::time::{self, Time};
use crate::run::process::AtWork;

/// The process that works for a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Worker {
    Pid(u32),
    /// On another machine, by its name.
    Host(String),
    /// Perhaps in another container.
    Namespace(Namespace),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Namespace {
    Other,
}

/// What a consumer does. As JSON, the details in the order in which they are shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ConsumerState {
    Idle,
    Running {
        #[serde(flatten)]
        worker: Worker,
        #[serde(serialize_with = "time::serialize", skip_serializing_if = "Option::is_none")]
        since: Option<Time>,
        attempt: u32,
    },
    Waiting {
        attempt: u32,
        /// How often in a row it was put off without an attempt.
        #[serde(skip_serializing_if = "is_zero")]
        deferred: u32,
        /// Because the handler said so.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        asleep: bool,
        /// Without it, at the next dispatch, or, if it is asleep, when another event comes.
        #[serde(serialize_with = "time::serialize", skip_serializing_if = "Option::is_none")]
        next_try: Option<Time>,
        /// Who waits, if that is not a process here.
        #[serde(flatten)]
        elsewhere: Option<Worker>,
        /// Why nothing ends the wait: "interrupted" if the supervisor was killed, by a reboot for instance. Only the
        /// next push or dispatch ends it then, or a worker.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'static str>,
    },
    Stalled {
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Unless it cannot be started at all.
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
    },
    Paused,
}

impl ConsumerState {
    /// All words for states.
    pub const WORDS: [&str; 5] = ["idle", "running", "waiting", "stalled", "paused"];

    /// The state in one word.
    pub fn word(&self) -> &'static str {
        ConsumerState::WORDS[match self {
            ConsumerState::Idle => 0,
            ConsumerState::Running { .. } => 1,
            ConsumerState::Waiting { .. } => 2,
            ConsumerState::Stalled { .. } => 3,
            ConsumerState::Paused => 4,
        }]
    }

    /// Why it is stalled, or nothing ends its wait.
    pub fn reason(&self) -> Option<&str> {
        match self {
            ConsumerState::Stalled { reason, .. } => reason.as_deref(),
            ConsumerState::Waiting { reason, .. } => *reason,
            _ => None,
        }
    }

    /// `broken`: why it cannot be started.
    pub(super) fn of(
        s: &Subscription,
        at_work: AtWork,
        broken: Option<String>,
        is_pending: bool,
        event_wait: Option<&EventWait>,
        is_attended: bool,
    ) -> ConsumerState {
        let state = &s.state;
        // Where events finish singly, they are counted for each event.
        let tried = event_wait.map(|wait| (wait.attempts, wait.deferred));
        let (attempt, deferred) = tried.unwrap_or((state.attempts, state.deferred));
        let worker = match (at_work, &s.held_by) {
            (AtWork::Process(pid), _) => Worker::Pid(pid),
            (_, Some(host)) => Worker::Host(host.clone()),
            (_, None) => Worker::Namespace(Namespace::Other),
        };
        let now = Utc::now();
        let sleep = state.asleep.values().next().filter(|_| state.phase == Phase::Waiting);
        let asleep = sleep.is_some() || event_wait.is_some_and(EventWait::is_asleep);
        let interrupted = |next_try: Option<Time>| ConsumerState::Waiting {
            attempt,
            deferred,
            asleep,
            // If nothing is running, a time in the past means that the run is due at the next dispatch.
            next_try: next_try.filter(|at| *at > now),
            elsewhere: None,
            reason: Some("interrupted"),
        };
        match state.phase {
            Phase::Running if at_work != AtWork::Nobody => {
                ConsumerState::Running { worker, since: state.since, attempt }
            }
            _ if state.paused => ConsumerState::Paused,
            _ if broken.is_some() => ConsumerState::Stalled { reason: broken, attempt: None },
            Phase::Stalled => ConsumerState::Stalled { reason: state.reason.clone(), attempt: Some(attempt) },
            Phase::Waiting if at_work == AtWork::Nobody && !is_attended => interrupted(state.next_try),
            Phase::Waiting => {
                let elsewhere = (at_work == AtWork::Elsewhere).then_some(worker);
                ConsumerState::Waiting {
                    attempt,
                    deferred,
                    asleep,
                    next_try: state.next_try.filter(|_| sleep.is_none_or(|sleep| !sleep.is_endless(now))),
                    elsewhere,
                    reason: None,
                }
            }
            Phase::Idle if event_wait.is_some() => {
                let wait = event_wait.cloned().unwrap_or_default();
                ConsumerState::Waiting {
                    attempt,
                    deferred,
                    asleep,
                    next_try: wait.shown_until(now),
                    elsewhere: (at_work == AtWork::Elsewhere).then_some(worker),
                    reason: (!is_attended).then_some("interrupted"),
                }
            }
            // The supervisor was killed; the next dispatch continues.
            Phase::Running if is_pending => {
                interrupted(state.since.map(|since| since + s.options.wait_after(attempt)))
            }
            Phase::Running | Phase::Idle => ConsumerState::Idle,
        }
    }
}
