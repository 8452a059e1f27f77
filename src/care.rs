//! Maintenance of a thread: checking and repairing it, backing it up, and deleting old events.

pub mod backup;
pub mod doctor;
pub mod prune;
