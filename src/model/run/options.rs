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
}

impl Deliver {
    pub fn as_str(self) -> &'static str {
        match self {
            Deliver::Wake => "wake",
            Deliver::Stdin => "stdin",
        }
    }
}

/// Options of a subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    pub deliver: Deliver,
    /// Maximum events per run with [`Deliver::Stdin`], at least 1.
    pub batch_size: u64,
    /// Runs without progress before giving up, at least 1.
    pub max_attempts: u32,
    /// Dead letters in a row, without a success between them, after which no more are made and the consumer
    /// stalls; `None` for no limit. Events that were judged bad do not count.
    pub stall_after: Option<u32>,
    /// Waits between attempts; the last one repeats. Never empty.
    pub backoff: Vec<Duration>,
    /// Maximum duration of a run.
    pub timeout: Option<Duration>,
    /// Additional environment variables of the handler.
    pub env: BTreeMap<String, String>,
    /// Pass only a few basic variables of the dispatcher's environment to the handler.
    pub clear_env: bool,
    /// The consumer is never started; it reads by itself.
    pub no_handler: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            deliver: Deliver::Wake,
            batch_size: 100,
            max_attempts: 5,
            stall_after: Some(10),
            backoff: [1, 5, 30, 120, 600].map(Duration::from_secs).to_vec(),
            timeout: None,
            env: BTreeMap::new(),
            clear_env: false,
            no_handler: false,
        }
    }
}

impl Options {
    /// The wait after the given number of failed attempts.
    pub fn wait_after(&self, attempts: u32) -> Duration {
        let step = (attempts.max(1) - 1) as usize;
        self.backoff.get(step).or(self.backoff.last()).copied().unwrap_or_default()
    }

    pub fn longest_wait(&self) -> Duration {
        self.backoff.iter().max().copied().unwrap_or_default()
    }
}
