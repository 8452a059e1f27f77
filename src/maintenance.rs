//! Maintenance of a thread: checking and repairing it, backing it up, moving it, deleting old events, and reporting the state
//! of its consumers.

pub mod backup;
pub mod below;
pub mod doctor;
pub mod moving;
pub mod prune;
pub mod report;
