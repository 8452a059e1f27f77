//! What is stored of a thread, as far as the model knows it: the consumers with their cursors, runs, claims and waits.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Microseconds since 1970.
pub type Time = i64;

/// A thread as it is stored at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Thread {
    /// The newest event.
    pub newest: i64,
    pub consumers: BTreeMap<String, Consumer>,
}

/// How a consumer gets its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// Its handler takes them by itself, and moves the cursor.
    #[default]
    Wake,
    /// A run has some of them, the oldest first, and its exit code answers for all.
    Runs,
    /// A handler that is kept answers for each.
    Kept,
    /// Several runs, each with its own, which are claimed.
    Pool,
    /// Programs claim them, each for a time.
    Claims,
}

impl Kind {
    /// Whether events finish in any order.
    pub fn is_singly(self) -> bool {
        matches!(self, Kind::Kept | Kind::Pool | Kind::Claims)
    }
}

/// What its subscription says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Options {
    pub kind: Kind,
    pub batch: i64,
    /// `None`: no limit.
    pub attempts: Option<i64>,
    pub stall_after: Option<i64>,
    pub places: i64,
    pub backoff: Vec<Time>,
    pub probe: Option<Time>,
}

impl Options {
    /// The wait after so many failures.
    pub fn backoff(&self, failures: i64) -> Time {
        let at = usize::try_from(failures - 1).unwrap_or(0);
        self.backoff.get(at).or(self.backoff.last()).copied().unwrap_or(0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    #[default]
    Idle,
    Running,
    Waiting,
    Stalled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    Wake,
    /// Several events up to this one, or this one alone.
    Batch(i64),
    Single(i64),
    Letter(i64),
    Pool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Wait {
    pub attempts: i64,
    pub deferred: i64,
    pub since: Time,
    pub until: Time,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Claim {
    /// 0 if a program has it.
    pub place: i64,
    pub since: Time,
    /// Of a program: its token, and when it ends, in milliseconds since the machine was started.
    pub token: Option<(String, i64)>,
    pub is_letter: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Letter {
    pub attempts: i64,
    pub retry: bool,
}

/// An event that a consumer is to have.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Event {
    pub key: Option<String>,
    /// When it was stored.
    pub at: Time,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Consumer {
    pub options: Rc<Options>,
    /// Those that it is to have.
    pub events: Rc<BTreeMap<i64, Event>>,
    /// Tells one subscription from the next.
    pub token: String,
    /// How often what is stored of its runs was changed.
    pub changes: i64,
    /// How often the cursor was moved back.
    pub rewinds: i64,
    pub cursor: i64,
    /// The finished events past the cursor.
    pub done: BTreeSet<i64>,
    pub waits: BTreeMap<i64, Wait>,
    pub claims: BTreeMap<i64, Claim>,
    pub letters: BTreeMap<i64, Letter>,
    /// How many runs have ended and are kept.
    pub runs: i64,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    Stopped,
    GaveUp,
}

/// What is known of its runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct State {
    pub phase: Phase,
    pub paused: bool,
    /// Why it is stalled.
    pub reason: Option<Why>,
    pub attempts: i64,
    pub deferred: i64,
    pub next_try: Option<Time>,
    pub supervisor: Option<String>,
    pub handler: Option<String>,
    /// When the run or the wait began.
    pub since: Option<Time>,
    /// When the last run ended.
    pub ended: Option<Time>,
    pub task: Option<Task>,
    pub batch: i64,
    pub start_cursor: i64,
    pub start_rewinds: i64,
    pub start_newest: i64,
    pub single_upto: i64,
    pub dead_streak: i64,
    pub judged_streak: i64,
    /// A stop was asked for, and whether the events are to be skipped.
    pub stop: Option<bool>,
    pub succeeded: i64,
    pub failed: i64,
    pub dead: i64,
}

/// A run that has ended, or an event that was not handled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ended {
    pub number: i64,
    pub began: Time,
    pub ended: Time,
    pub attempt: i64,
    pub events: Option<i64>,
    pub upto: i64,
    pub result: String,
    pub exit: Option<i64>,
}

impl Consumer {
    /// Whether an event is finished, as far as that is stored.
    pub fn is_done(&self, id: i64) -> bool {
        id <= self.cursor || self.done.contains(&id)
    }

    /// The unfinished events, the oldest first.
    pub fn open(&self) -> impl Iterator<Item = i64> + '_ {
        let past = self.events.range(self.cursor + 1..).map(|(id, _)| *id);
        past.filter(|id| !self.done.contains(id))
    }

    pub fn has_retry(&self) -> bool {
        self.options.kind != Kind::Wake && self.letters.values().any(|letter| letter.retry)
    }

    /// Events up to this one are given alone.
    pub fn single_upto(&self) -> i64 {
        if self.rewinds == self.state.start_rewinds { self.state.single_upto } else { 0 }
    }
}

impl Consumer {
    /// What holds in every state.
    pub fn must_be_sound(&self, newest: i64) -> Result<(), &'static str> {
        let s = &self.state;
        let is_open = |id: &i64| self.events.contains_key(id) && !self.is_done(*id);
        let rules = [
            (self.cursor <= newest, "the cursor is past the newest event"),
            (
                self.done.first().is_none_or(|first| self.open().next().is_some_and(|open| open < *first)),
                "the cursor is before what is finished",
            ),
            (self.waits.keys().all(is_open), "something waits that is finished"),
            (
                self.claims.iter().all(|(id, claim)| claim.is_letter || is_open(id)),
                "something is claimed that is finished",
            ),
            (self.is_one_of_each_key(), "two of a key are claimed"),
            (
                s.phase != Phase::Running
                    || (s.supervisor.is_some() && s.since.is_some() && s.task.is_some()),
                "a run of nobody",
            ),
            (
                s.phase != Phase::Waiting || (s.next_try.is_some() && s.since.is_some()),
                "a wait without an end",
            ),
            (s.phase != Phase::Stalled || s.reason.is_some(), "a stall without a reason"),
            (self.claims.len() as i64 <= self.options.places * self.options.batch, "so many claims"),
            (s.start_cursor <= newest && s.start_newest <= newest, "it has seen more than there is"),
        ];
        rules.into_iter().try_for_each(|(holds, what)| if holds { Ok(()) } else { Err(what) })
    }

    fn is_one_of_each_key(&self) -> bool {
        let mut places: BTreeMap<&String, i64> = BTreeMap::new();
        let key = |id: &i64| self.events.get(id).and_then(|event| event.key.as_ref());
        self.claims.keys().filter_map(key).all(|key| places.insert(key, 1).is_none())
    }
}
