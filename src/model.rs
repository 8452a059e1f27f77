//! The nouns, and the rules that need nothing but them.
//!
//! No file, process or table is touched here. A filter is checked and asked by SQLite, because
//! SQLite's meaning of an expression is the promised one, but on a database in memory.

pub mod duration;
pub mod event;
pub mod filter;
mod json;
pub mod run;
pub mod subscription;
pub mod time;
