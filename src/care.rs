//! Looking after a thread: is it whole, a copy of it, and deleting old events.

pub mod backup;
pub mod doctor;
pub mod prune;
