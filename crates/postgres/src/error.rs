//! The server's errors, by what can be done about them.

use std::error::Error as _;

use postgres::error::{DbError, SqlState};
use thread::error::{Code, DatabaseError, DatabaseErrorKind as Kind};
use thread::{Error, Result};

/// Adds the operation to an error of the server or of the connection to it.
pub trait Doing<T> {
    /// `what` completes "while …".
    fn doing(self, what: &'static str) -> Result<T>;
}

impl<T> Doing<T> for Result<T, postgres::Error> {
    fn doing(self, what: &'static str) -> Result<T> {
        self.map_err(|e| failed(&e, what))
    }
}

/// A failure with advice of its own.
pub fn problem(code: Code, what: impl Into<String>, advice: &str) -> Error {
    Error::Advised { code, what: what.into(), advice: advice.to_owned() }
}

/// A location, or a setting of its connection, that cannot be used.
pub fn invalid(what: impl Into<String>, advice: &str) -> Error {
    problem(Code::LocationInvalid, what, advice)
}

pub fn failed(error: &postgres::Error, doing: &'static str) -> Error {
    let (kind, advice) = assess(error);
    database(kind, doing, message(error), advice)
}

/// The failure of a commit: without an answer of the server, the outcome is unknown.
pub fn commit(error: &postgres::Error, doing: &'static str) -> Error {
    match error.as_db_error() {
        Some(_) if !is_unreachable(error) => failed(error, doing),
        _ => database(Kind::OutcomeUnknown, doing, message(error), UNKNOWN),
    }
}

pub const UNKNOWN: &str =
    "check with `thread peek --tail` or `thread info` once the server is back, before trying again";

pub const TOO_LARGE: &str = "store the payload elsewhere and push where it is";

pub const READ_ONLY: &str =
    "this server is a standby: name the primary, or several hosts with target_session_attrs=read-write";

pub fn database(kind: Kind, doing: &'static str, message: String, advice: &'static str) -> Error {
    DatabaseError { kind, doing, message, advice: Some(advice) }.into()
}

/// Whether the statement was not executed because there is no server, or it is about to stop.
pub fn is_unreachable(error: &postgres::Error) -> bool {
    assess(error).0 == Kind::Unreachable
}

/// The server's message, or that of the system.
pub fn message(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => db.message().to_owned(),
        None => match error.source() {
            Some(source) => source.to_string(),
            None => error.to_string(),
        },
    }
}

fn assess(error: &postgres::Error) -> (Kind, &'static str) {
    match error.as_db_error() {
        Some(db) => assess_code(db),
        None => (Kind::Unreachable, "check that the server runs, and host, port and sslmode"),
    }
}

fn assess_code(db: &DbError) -> (Kind, &'static str) {
    let code = db.code();
    match code.code() {
        "55P03" | "40001" | "40P01" => {
            (Kind::Locked, "find the program that keeps a transaction open, then try again")
        }
        "25P03" | "57014" => (Kind::Locked, "try again"),
        "53100" => (Kind::Full, "free some space on the server, then try again"),
        "53200" => (Kind::OutOfMemory, "free some memory on the server, then try again"),
        "53300" => (Kind::Unreachable, "raise max_connections on the server, or put a pooler before it"),
        "57P01" | "57P02" | "57P03" | "57P05" => {
            (Kind::Unreachable, "wait until the server is ready, then try again")
        }
        "25006" => (Kind::ReadOnly, READ_ONLY),
        "28P01" | "28000" => (
            Kind::Permission,
            "check user and password: PGPASSWORD, ~/.pgpass or the service file, and pg_hba.conf on the server",
        ),
        "3D000" => (Kind::Missing, "create it with `createdb`, or name another"),
        _ if *code == SqlState::INSUFFICIENT_PRIVILEGE => {
            (Kind::Permission, "ask for the rights that `Many machines` in SPEC.md lists")
        }
        "54000" => (Kind::TooLarge, TOO_LARGE),
        "XX001" | "XX002" => (Kind::Damaged, "restore the database from a backup"),
        other if other.starts_with("08") => (Kind::Unreachable, "check that the server runs, then try again"),
        _ => (Kind::Other, "see the log of the server"),
    }
}

/// An event is longer than a column of a COPY may be.
pub fn too_large() -> Error {
    database(Kind::TooLarge, "storing", "an event is larger than 2 GiB".to_owned(), TOO_LARGE)
}

/// The thread was removed from the database by another process.
pub fn gone() -> Error {
    database(
        Kind::Other,
        "storing",
        "the thread is no longer in the database".to_owned(),
        "create it again with `thread init`",
    )
}
