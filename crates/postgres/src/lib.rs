//! Threads in a PostgreSQL database: locations such as `postgres://queue@db.example/agents#inbox`.
//!
//! The program `thread-postgres` is the command line of `thread` with this [`SCHEME`]. One schema of a database,
//! `thread` unless the location says otherwise, holds any number of threads.
//!
//! | module | owns |
//! |---|---|
//! | `location` | the parts of a location, and the folder on this machine that belongs to it |
//! | `settings` | the settings of a connection, from where libpq takes them |
//! | `environment`, `passfile`, `service` | the variables, the password file and the service file |
//! | `tls` | TLS, according to `sslmode` |
//! | `connection`, `slots` | connecting, idle connections, and how many a machine has for its handlers |
//! | `error` | the server's errors, by what can be done about them |
//! | `migrate` | the schema and its versions |
//! | `link` | an open thread's connection, transactions, and statements |
//! | `store` | the store, which passes on to what follows |
//! | `append`, `copy` | storing events, many of them by COPY |
//! | `read` | reading events, and evaluating filters on pages of them |
//! | `consumers` | subscriptions, cursors, runs |
//! | `config`, `dead_letters`, `prune` | as they are called |
//! | `lease`, `machine`, `clock` | which machine has a consumer's runs for itself |
//! | `holders` | renewing the leases of all processes of this machine |
//! | `changes` | in which threads of a schema something has happened |
//! | `listen` | announcements between machines |
//! | `rows` | reading and writing rows as they are, to move a thread |
//! | `steps` | what handlers have done for events |
//! | `workers` | which processes start handlers |
//!
//! # Guarantees, and where they are implemented
//!
//! * Ids are in the order of commits, without gaps: `append`, by one counter row for each thread that is locked
//!   until the commit.
//! * A change of a consumer is based on its current state: `link`, by locks of the transaction on its name.
//! * At most one machine runs a consumer's handlers, and one that was away cannot write about them: `lease`.
//! * Filters mean what they mean in a directory: `read`, by SQLite.

mod append;
mod changes;
mod clock;
mod config;
mod connection;
mod consumers;
mod copy;
mod dead_letters;
mod due;
mod environment;
mod error;
mod figures;
mod holders;
mod json;
mod known;
mod lease;
mod ledger;
mod link;
mod listen;
pub mod location;
mod machine;
mod migrate;
mod passfile;
mod prune;
mod read;
mod revision;
mod rows;
mod scheduled;
mod service;
pub mod settings;
mod slots;
mod steps;
mod store;
mod tls;
mod workers;

use thread::Result;
use thread::model::location::Location;
use thread::queue::locations::Scheme;

use crate::location::Target;

/// What makes threads in PostgreSQL known to a program: see [`locations::add`](thread::queue::locations::add).
pub const SCHEME: Scheme = Scheme {
    name: "postgres",
    base: |location| Target::of(location)?.base(),
    open: store::open,
    init: store::create,
    threads: store::threads,
    changes: changes::changes,
    listen: listen::listen,
    leave: workers::leave,
    spare: connection::spare,
};

/// The channel on which commits to the threads of a schema are announced.
///
/// # Errors
///
/// It is no such location.
pub fn channel(location: &Location) -> Result<String> {
    Ok(listen::channel(&Target::of(location)?))
}
