//! Threads in a PostgreSQL database: places such as `postgres://queue@db.example/agents#inbox`.
//!
//! The program `thread-postgres` is the command line of `thread` with this [`SCHEME`]. One schema of a database,
//! `thread` unless the place says otherwise, holds any number of threads.
//!
//! | module | owns |
//! |---|---|
//! | `place` | what a place says, and the folder on this machine that belongs to it |
//! | `settings` | the settings of a connection, from where libpq takes them |
//! | `environment`, `passfile`, `service` | the variables, the password file and the service file |
//! | `tls` | TLS, as `sslmode` says |
//! | `connection` | connecting, and one idle connection for each server |
//! | `error` | the server's errors, by what can be done about them |
//! | `migrate` | the schema and its versions |
//! | `link` | an open thread's connection, transactions, and statements |
//! | `store` | the store, which passes on to what follows |
//! | `append`, `copy` | storing events, many of them by COPY |
//! | `read` | reading events, and evaluating filters on pages of them |
//! | `consumers` | subscriptions, cursors, runs |
//! | `dead_letters`, `prune` | as they are called |
//! | `lease`, `machine`, `clock` | which machine has a consumer's runs for itself |
//! | `listen` | announcements between machines |
//!
//! # Guarantees, and where they are implemented
//!
//! * Ids are in the order of commits, without gaps: `append`, by one counter row for each thread that is locked
//!   until the commit.
//! * Whoever changes a consumer has read what is there: `link`, by locks of the transaction on its name.
//! * At most one machine runs a consumer's handlers, and one that was away cannot write about them: `lease`.
//! * Filters mean what they mean in a directory: `read`, by SQLite.

mod append;
mod clock;
mod connection;
mod consumers;
mod copy;
mod dead_letters;
mod environment;
mod error;
mod json;
mod lease;
mod link;
mod listen;
mod machine;
mod migrate;
mod passfile;
pub mod place;
mod prune;
mod read;
mod service;
pub mod settings;
mod store;
mod tls;

use std::path::PathBuf;
use std::time::Duration;

use thread::Result;
use thread::model::place::Place;
use thread::queue::places::Scheme;
use thread::store::Store;

use crate::place::Target;
use crate::store::Postgres;

/// What makes threads in PostgreSQL known to a program: see [`places::add`](thread::queue::places::add).
pub const SCHEME: Scheme = Scheme { name: "postgres", base, open, init, threads, listen: listen::listen };

/// The channel on which commits to the threads of a schema are announced.
///
/// # Errors
///
/// It is no such place.
pub fn channel(place: &Place) -> Result<String> {
    Ok(listen::channel(&Target::of(place)?))
}

fn base(place: &Place) -> Result<PathBuf> {
    Target::of(place)?.base()
}

fn open(place: &Place, busy_limit: Duration) -> Result<Box<dyn Store>> {
    Ok(Box::new(Postgres::open(place, busy_limit)?))
}

fn init(place: &Place) -> Result<()> {
    Postgres::create(place)
}

fn threads(place: &Place) -> Option<Result<Vec<Place>>> {
    // What is wrong with a place is said when it is used.
    let target = Target::of_any(place).ok().filter(|target| target.thread.is_empty())?;
    Some(Postgres::threads(&target))
}
