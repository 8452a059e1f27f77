//! The names of a thread's files.

use std::path::{Path, PathBuf};

use super::Files;
use crate::model::subscription::ConsumerId;

pub const DB: &str = "events.db";
pub const WAL: &str = "events.db-wal";
pub const SHM: &str = "events.db-shm";
/// Created only by other programs: this one keeps the database in WAL mode.
pub const JOURNAL: &str = "events.db-journal";
pub const JSONL: &str = "events.jsonl";
pub const LOG: &str = "logs/thread.log";
/// Touched after each commit; waiters watch it.
pub const COMMIT: &str = "run/_commit";
/// The directory of the logs of handlers.
pub const HANDLER_LOGS: &str = "logs/handlers";

/// Touched after a request to a supervisor; supervisors watch it.
pub const CONTROL: &str = "run/_control";

impl Files {
    /// The lock that is held while a consumer's handler runs.
    pub fn consumer_lock(&self, consumer: &ConsumerId) -> PathBuf {
        Path::new("run").join(format!("{}.lock", self.stem_of(consumer)))
    }

    /// The log of a consumer's handler.
    pub fn handler_log(&self, consumer: &ConsumerId) -> PathBuf {
        Path::new(HANDLER_LOGS).join(format!("{}.log", self.stem_of(consumer)))
    }

    /// The prefix of that log's rotated files. No consumer's file name can contain `~`, so they cannot collide with
    /// another's.
    pub fn rotated_handler_logs(&self, consumer: &ConsumerId) -> String {
        format!("{}~", self.stem_of(consumer))
    }

    /// The stem of the names of a consumer's files.
    pub fn stem_of(&self, consumer: &ConsumerId) -> String {
        consumer.file_stem(self.ignores_case)
    }
}
