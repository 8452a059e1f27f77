//! Durable event queues for agents, in a directory, with no daemon.
//!
//! A *thread* is a directory with one SQLite database. Programs push events into it and read them; a *consumer* has
//! a cursor in it, and may have a *handler*, a shell command that is started when there is something new. The program
//! `thread` is a command line on top of this library; both can be used on the same thread at the same time.
//!
//! ```
#![doc = include_str!("../examples/push_and_read.rs")]
//! ```
//!
//! # Store
//!
//! [`Queue::push`] stores a [`NewEvent`], and [`Queue::push_all`] any number of them in one transaction. Once they
//! return, the events survive a power cut. An event with an [`IdempotencyKey`](model::key::IdempotencyKey) is stored
//! once, however often it is pushed. Events have ids, in the order of their commits, and never change.
//!
//! # Read
//!
//! [`Queue::read`] returns the [`Event`]s [`After`] an id, all of them or those that a [`Filter`] matches: an SQL
//! condition on the columns of an event. [`Queue::read_page`] passes on a page of them at a time. A reader keeps the last id itself. [`Queue::wait`] returns when there is a
//! newer event, and a [`Watcher`] does the same for event loops.
//!
//! # Consume
//!
//! A consumer's position is kept in the thread. [`Queue::subscribe`] registers it, by a [`NewSubscription`] with an
//! optional filter; [`Queue::subscription`] returns its cursor, and [`Queue::acknowledge`] moves it. What its handler
//! failed on too often are its [dead letters](Queue::dead_letters).
//!
//! # Run handlers
//!
//! [`run::push`] stores an event and starts the handlers of the consumers that it is for, as separate processes and
//! at most one per consumer. [`run::dispatch()`] starts what is due without a push, and [`run::worker`] does so as long
//! as it runs. A [`Launcher`] says which program supervises the handlers: usually `thread`, if it is installed.
//!
//! # Maintain
//!
//! [`maintenance`] checks, repairs and copies threads, deletes old events, and [reports](maintenance::report::Report)
//! what consumers do. A [`Store`](store::Store) keeps events somewhere else than in a directory, under a
//! [scheme](queue::locations::Scheme) of its own.
//!
//! # Guarantees
//!
//! A push that has returned is never lost, and each consumer is sent everything at least once. A consumer has at most
//! one handler at a time, even if every process of `thread` is killed. `docs/DESIGN.md` in the sources says how.
//!
//! # Examples
//!
//! In the folder `examples` of the sources:
//!
//! * `push_and_read` makes a thread, pushes a message and reads it.
//! * `follow` prints events as they come, and continues where it was after a restart.
//! * `server` has a hundred clients wait on one OS thread, with tokio.
//!
//! # Errors
//!
//! All functions return [`Error`], which a program can match on; [`Error::may_pass`] says whether the same call may
//! succeed later.

// What they refuse is in `clippy.toml`. Unit tests may do all of it.
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(not(test), warn(clippy::exit, clippy::print_stderr, clippy::print_stdout))]

#[cfg(test)]
extern crate self as thread;

#[cfg(feature = "cli")]
#[doc(hidden)] // For the programs of this workspace, which have the same commands.
pub mod cli;
pub mod error;
#[doc(hidden)] // How the programs of this workspace print errors.
pub mod failure;
#[doc(hidden)] // The names of files that SPEC.md promises, for the programs and tests of this workspace.
pub mod files;
#[doc(hidden)] // For tests: `Queue` keeps the JSONL log up to date by itself.
pub mod jsonl;
pub mod maintenance;
pub mod model;
#[doc(hidden)] // `Queue::scan_pending` is for everybody; the rest is for the programs of this workspace.
pub mod pending;
pub mod queue;
pub mod run;
#[doc(hidden)] // For tests, which run against several stores.
pub mod sqlite;
pub mod store;

pub use error::{Error, Result};
pub use files::watch::{LOOK_EVERY, Watcher};
pub use model::event::{Event, NewEvent};
pub use model::filter::Filter;
pub use model::subscription::{ConsumerId, NewSubscription, Subscription};
pub use queue::{After, Queue};
pub use run::Launcher;
