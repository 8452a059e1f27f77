//! One attempt to answer one message: what is known of it while it is under way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::agenda::Verdict;
use crate::conversation::{Choice, Run, Status};
use crate::protocol::Done;

/// When a program that does not stop is sent TERM, and when KILL: five seconds after it was told the turn is
/// to be another's.
const TERM_AFTER: Duration = Duration::from_secs(2);
const KILL_AFTER: Duration = Duration::from_millis(4800);

/// How long another process may keep the stdout of a program that has ended.
pub const LAST_WORDS: Duration = Duration::from_secs(2);

/// How much a program that has ended may have left in its pipe and in the adapter's channel, in bytes: a pipe
/// holds no more unless root wants it so.
pub const LONGEST_PIPE: usize = 2 * 1024 * 1024;

/// How long somebody has to answer a request for permission.
const PERMISSION: Duration = Duration::from_secs(5 * 60);

#[derive(Debug)]
pub struct Attempt {
    pub run: Run,
    pub message_id: String,
    pub began: Instant,
    pub last_output: Instant,
    /// The answer so far.
    pub text: String,
    pub status: Option<Status>,
    /// Calls that were told and have no result yet, by their ids.
    pub calls: BTreeSet<String>,
    /// What the program said at last.
    pub done: Option<Done>,
    /// It is being ended.
    pub ending: Option<Ending>,
    /// What the program waits for.
    pub asked: Vec<Asked>,
    /// How many requests for permission there were.
    pub requests: u64,
    /// Processes that earlier runs have left in the background, for good reasons.
    pub spared: BTreeSet<u32>,
}

/// Why and since when an attempt is being ended.
#[derive(Debug)]
pub struct Ending {
    pub why: Why,
    since: Instant,
    rung: Rung,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    Verdict(Verdict),
    Failed {
        error: String,
        retryable: bool,
    },
    /// Somebody else has written the ending.
    Ended,
    /// The adapter is to end.
    Stopped,
}

/// How a program was told to stop, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    Asked,
    Terminated,
    Killed,
}

/// A request for permission that waits for its answer.
#[derive(Debug, Clone)]
pub struct Asked {
    /// As the thread knows it.
    pub request_id: String,
    /// As the program knows it.
    pub theirs: String,
    pub choices: Vec<Choice>,
    pub until: Instant,
}

impl Asked {
    pub fn new(request_id: String, theirs: String, choices: Vec<Choice>) -> Asked {
        Asked { request_id, theirs, choices, until: Instant::now() + PERMISSION }
    }
}

impl Attempt {
    pub fn new(run: Run, number: u64) -> Attempt {
        let now = Instant::now();
        Attempt {
            message_id: format!("msg_{}_{number}", run.reply_to),
            run,
            began: now,
            last_output: now,
            text: String::new(),
            status: None,
            calls: BTreeSet::new(),
            done: None,
            ending: None,
            asked: Vec::new(),
            requests: 0,
            spared: BTreeSet::new(),
        }
    }
}

impl Ending {
    /// The program has just been told.
    pub fn new(why: Why) -> Ending {
        Ending { why, since: Instant::now(), rung: Rung::Asked }
    }

    /// The next rung, if it is time for it.
    pub fn climb(&mut self) -> Option<Rung> {
        let due = match self.since.elapsed() {
            waited if waited >= KILL_AFTER => Rung::Killed,
            waited if waited >= TERM_AFTER => Rung::Terminated,
            _ => Rung::Asked,
        };
        (due > self.rung).then(|| {
            self.rung = due;
            due
        })
    }

    /// When to look again.
    pub fn next_rung(&self) -> Option<Instant> {
        match self.rung {
            Rung::Asked => Some(self.since + TERM_AFTER),
            Rung::Terminated => Some(self.since + KILL_AFTER),
            Rung::Killed => None,
        }
    }
}
