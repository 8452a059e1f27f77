//! The names of a thread's files.

use std::ffi::OsString;
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

    /// The lock that is held while a run of a pool is at work at this place.
    pub fn place_lock(&self, consumer: &ConsumerId, place: u32) -> PathBuf {
        Path::new("run").join(format!("{}~{place}.lock", self.stem_of(consumer)))
    }

    /// The places of a pool that ever had a run.
    pub fn places(&self, consumer: &ConsumerId) -> Vec<u32> {
        let stem = format!("{}~", self.stem_of(consumer));
        let place = |name: OsString| name.to_str()?.strip_prefix(&stem)?.strip_suffix(".lock")?.parse().ok();
        let mut places: Vec<u32> =
            self.list("run").unwrap_or_default().into_iter().filter_map(place).collect();
        places.sort_unstable();
        places
    }

    /// All locks of a consumer's handlers.
    pub fn locks_of(&self, consumer: &ConsumerId) -> Vec<PathBuf> {
        let places = self.places(consumer).into_iter().map(|place| self.place_lock(consumer, place));
        std::iter::once(self.consumer_lock(consumer)).chain(places).collect()
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
