//! Sessions on disk, each a thread in its own directory, and their readers.
//!
//! Reading and writing threads may block on the disk, so it never runs on the threads that serve connections: see
//! [`blocking_pool`].

pub mod bell;
pub mod blocking_pool;
pub mod budget;
pub mod context;
mod copied;
pub mod cursor;
pub mod event;
#[cfg(test)]
mod fixture;
pub mod frames;
pub mod history;
pub mod hub;
pub mod live_session;
pub mod message_ref;
mod page_reader;
mod read_failures;
pub mod root;
pub mod run_log;
#[cfg(test)]
mod runs_tests;
mod step;
pub mod stream;
mod sub_agents;
pub mod tallies;
pub mod write;
