//! Data types, and pure rules on them.
//!
//! Touches no file, process or table. Filters have SQLite's semantics, so SQLite checks and evaluates them,
//! but on an in-memory database.

pub mod answer;
pub mod backend;
pub mod closed;
pub mod config;
pub mod crew;
pub mod due;
pub mod duration;
pub mod event;
pub mod exponential_backoff;
pub mod figures;
pub mod filter;
mod json;
pub mod key;
pub mod ledger;
pub mod location;
pub mod position;
pub mod rows;
pub mod run;
pub mod schedule;
pub mod scheduled;
pub mod step;
pub mod subscription;
pub mod time;
pub mod window;
