//! Data types, and pure rules on them.
//!
//! Touches no file, process or table. Filters are checked and evaluated by SQLite, whose semantics they
//! promise, but on an in-memory database.

pub mod duration;
pub mod event;
pub mod filter;
mod json;
pub mod run;
pub mod subscription;
pub mod time;
