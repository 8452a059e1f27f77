//! How a consumer's handler is to be run, as its subscription says.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How events reach a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Deliver {
    /// The handler is only started, and pops for itself.
    #[default]
    Wake,
    /// The handler gets events as NDJSON on stdin, and exit 0 acknowledges them.
    Stdin,
    /// The handler is kept, gets each event as a line on stdin, and answers on stdout.
    Ndjson,
}

impl Deliver {
    pub const ALL: [Deliver; 3] = [Deliver::Wake, Deliver::Stdin, Deliver::Ndjson];

    pub fn as_str(self) -> &'static str {
        match self {
            Deliver::Wake => "wake",
            Deliver::Stdin => "stdin",
            Deliver::Ndjson => "ndjson",
        }
    }
}

/// As the maximum number of attempts: no limit. A number, because earlier versions read one.
pub const UNLIMITED: u32 = u32::MAX;

/// Options of a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    pub deliver: Deliver,
    /// Maximum events per run with [`Deliver::Stdin`], and unanswered ones with [`Deliver::Ndjson`]; at least 1.
    pub batch_size: u64,
    /// Runs without progress before giving up, at least 1; [`UNLIMITED`] for no limit.
    pub max_attempts: u32,
    /// Dead letters in a row, without a success between them, after which no more are made and the consumer
    /// stalls; `None` for no limit. Events that were judged bad do not count.
    pub stall_after: Option<u32>,
    /// How long after its last run a stalled consumer tries again, with one event; `None` for never.
    pub probe: Option<Duration>,
    /// Waits between attempts; the last one repeats. Never empty.
    pub backoff: Vec<Duration>,
    /// How long a handler with [`Deliver::Ndjson`] is kept while it has nothing to do.
    pub idle: Duration,
    /// Maximum duration of a run. With [`Deliver::Ndjson`], how long the oldest unanswered event may take, counted from
    /// when it was given or from the last answer, whichever is later.
    pub timeout: Option<Duration>,
    /// Additional environment variables of the handler.
    pub env: BTreeMap<String, String>,
    /// Pass only a few basic variables of the dispatcher's environment to the handler.
    pub clear_env: bool,
    /// The consumer is never started; it reads by itself. With `concurrency`, programs take its events.
    pub no_handler: bool,
    /// The places of a pool: how many runs there may be at once, each with its own events, or, without a handler, how many
    /// events may be taken at once; at least 1. `None`: one run, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// An SQL expression over an event's columns. Events for which it has the same value, as text, are handled in the
    /// order of their ids, never two at once; those for which it is NULL, or fails, are free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// How many unfinished events there may be that were looked at, where events finish singly; at least 1.
    #[serde(skip_serializing_if = "is_default_ahead")]
    pub ahead: u64,
}

/// How many events a consumer has in hand at most, unless its subscription says so.
pub const AHEAD: u64 = 10_000;

fn is_default_ahead(ahead: &u64) -> bool {
    *ahead == AHEAD
}

impl Default for Options {
    fn default() -> Self {
        Options {
            deliver: Deliver::Wake,
            batch_size: 100,
            max_attempts: 5,
            stall_after: Some(10),
            probe: Some(Duration::from_secs(600)),
            backoff: [1, 5, 30, 120, 600].map(Duration::from_secs).to_vec(),
            idle: Duration::from_secs(600),
            timeout: None,
            env: BTreeMap::new(),
            clear_env: false,
            no_handler: false,
            concurrency: None,
            key: None,
            ahead: AHEAD,
        }
    }
}

impl Options {
    /// The wait after the given number of failed attempts.
    pub fn wait_after(&self, attempts: u32) -> Duration {
        let step = (attempts.max(1) - 1) as usize;
        self.backoff.get(step).or(self.backoff.last()).copied().unwrap_or_default()
    }

    /// Whether the consumer finishes each event by itself, instead of all up to its cursor.
    pub fn finishes_singly(&self) -> bool {
        (self.deliver == Deliver::Ndjson && !self.no_handler) || self.is_pool()
    }

    /// Whether programs take its events by themselves, each for a time.
    pub fn is_taken_from(&self) -> bool {
        self.no_handler && self.is_pool()
    }

    /// Whether dead letters can be given again, and not only events past the cursor.
    pub fn retries_dead_letters(&self) -> bool {
        self.deliver != Deliver::Wake || self.is_taken_from()
    }

    /// Whether several runs at once are possible.
    pub fn is_pool(&self) -> bool {
        self.concurrency.is_some()
    }

    /// Where events finish singly: whether one that waits still holds back all after it.
    pub fn is_in_order(&self) -> bool {
        self.batch_size == 1 && self.key.is_none() && !self.is_pool()
    }

    pub fn longest_wait(&self) -> Duration {
        self.backoff.iter().max().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_finish_singly_with_a_handler_that_is_kept_and_in_pools() {
        use Deliver::{Ndjson, Stdin, Wake};
        // Finishes singly, is taken from, retries dead letters.
        for (deliver, no_handler, concurrency, expected) in [
            (Wake, false, None, [false, false, false]),
            (Wake, true, None, [false, false, false]),
            (Stdin, false, None, [false, false, true]),
            (Ndjson, false, None, [true, false, true]),
            (Ndjson, true, None, [false, false, true]),
            (Stdin, false, Some(2), [true, false, true]),
            (Ndjson, false, Some(2), [true, false, true]),
            (Wake, true, Some(2), [true, true, true]),
        ] {
            let options = Options { deliver, no_handler, concurrency, ..Options::default() };
            let found = [options.finishes_singly(), options.is_taken_from(), options.retries_dead_letters()];
            assert_eq!(found, expected, "{options:?}");
        }
    }

    #[test]
    fn one_handler_with_one_event_and_no_key_has_all_in_order() {
        let one = Options { batch_size: 1, ..Options::default() };
        assert!(one.is_in_order());
        assert!(!Options { batch_size: 2, ..one.clone() }.is_in_order());
        assert!(!Options { key: Some("source".into()), ..one.clone() }.is_in_order());
        assert!(!Options { concurrency: Some(1), ..one }.is_in_order());
    }
}
