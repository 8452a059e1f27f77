//! Conversations with agents, on threads.
//!
//! A conversation is a thread: every message in it, and everything the agent does in answer, is an event.
//! [`thread_conversation`] defines the shapes of these events; [`install`](mod@install) subscribes an agent to a
//! thread; the program `thread-agent` connects one thread to one agent program.
//!
//! ```
#![doc = include_str!("../tests/agent/example.rs")]
//! ```

pub mod adapter;
pub mod attachments;
pub mod cli;
mod history;
pub mod install;
pub mod launcher;
mod lines;
mod memory;
pub mod model;
mod notes;
pub mod processes;
pub mod program;
pub mod protocol;
pub mod seat;
pub mod settings;
#[cfg(all(test, target_os = "linux"))]
mod simulated;
mod slots;
pub mod store;
pub mod sub_agent;
pub mod transcript;
mod utf8;

pub use install::install;
