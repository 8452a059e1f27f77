//! Conversations with agents, on threads.
//!
//! A conversation is a thread: every message in it, and everything the agent does in answer, is an event.
//! [`conversation`] defines the shapes of these events; [`install`](mod@install) subscribes an agent to a
//! thread; the program `thread-agent` connects one thread to one agent program.
//!
//! ```
//! use thread::Queue;
//! use thread_agent::conversation::{Entry, Message, Priority};
//!
//! # fn main() -> Result<(), thread::Error> {
//! # let root = tempfile::tempdir().unwrap();
//! # let path = root.path().join("talk");
//! Queue::init(&path)?;
//! let mut queue = Queue::open(&path)?;
//! let hello = Message { priority: Priority::Later, ..Message::text("Hello") };
//! queue.push(&hello.event("external:web:main:dm:default:ada")?)?;
//! let event = &queue.read(thread::After(0), None)?[0];
//! assert_eq!(Entry::of(event), (Some("run_1".into()), Entry::Message(hello)));
//! # Ok(())
//! # }
//! ```

pub mod adapter;
pub mod attachments;
pub mod cli;
pub mod conversation;
pub mod install;
pub mod launcher;
mod places;
pub mod processes;
pub mod program;
pub mod protocol;
pub mod settings;
pub mod store;
pub mod sub_agent;
pub mod transcript;
mod utf8;

pub use install::install;
