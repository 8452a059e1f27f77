//! Durable event queues for agents, in a directory, with no daemon.
//!
//! A *thread* is a directory with one SQLite database, a JSONL log for people, lock files and logs.
//! Programs push events into it; consumers subscribe with a shell command and an SQL filter; a push
//! starts the handlers of the consumers that have something new, one process per consumer.
//!
//! ```
#![doc = include_str!("../examples/push_and_read.rs")]
//! ```
//!
//! The modules use one another in one direction only: `cli → maintenance → run → queue → {sqlite, jsonl, pending} →
//! {store, files} → model`. Only `cli` deals with terminals and the environment.
//!
//! # Guarantees, and where they are implemented
//!
//! * An acknowledged push is never lost: [`sqlite`], by WAL with full sync.
//! * The JSONL log matches the table exactly: [`jsonl`], by writing lines from the table, never from a
//!   pusher's memory.
//! * At most one handler per consumer: [`files::lock`], by a lock that the handler itself holds.
//! * No wake-up is lost: [`run::supervisor`] and [`mod@run::wake`], by looking again after releasing the
//!   lock.

#[cfg(feature = "cli")]
pub mod cli;
pub mod error;
pub mod failure;
pub mod files;
pub mod jsonl;
pub mod maintenance;
pub mod model;
pub mod pending;
pub mod queue;
pub mod run;
pub mod sqlite;
pub mod store;

pub use error::{Error, Result};
pub use files::watch::{LOOK_EVERY, Watcher};
pub use model::event::{Event, NewEvent};
pub use model::filter::Filter;
pub use queue::{After, Queue};
