//! What can go wrong, told in two halves: what happened, and what to do about it.
//!
//! Every failure a user sees is a [`Failure`]. It is raised where the remedy is known, names the
//! path, id or line concerned, and carries the exit code. Trouble that only deserves a warning
//! (the JSONL copy, the waking) travels as `anyhow::Error` and never becomes a `Failure`.

use std::fmt;

pub type Result<T> = std::result::Result<T, Failure>;

/// A failed request: one line for people, an exit code for programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong, and what did or did not happen because of it.
    pub what: String,
    /// What the caller can do about it.
    pub fix: String,
    /// 1: it could not be done; 2: it was asked wrongly.
    pub code: u8,
}

impl Failure {
    /// The request was fine but could not be carried out (exit 1).
    pub fn could_not(what: impl fmt::Display, fix: impl fmt::Display) -> Self {
        Failure { what: what.to_string(), fix: fix.to_string(), code: 1 }
    }

    /// The request itself is malformed (exit 2).
    pub fn asked_wrongly(what: impl fmt::Display, fix: impl fmt::Display) -> Self {
        Failure { what: what.to_string(), fix: fix.to_string(), code: 2 }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} - {}", self.what, self.fix)
    }
}

impl std::error::Error for Failure {}

/// Turns any error into a [`Failure`] with a remedy, at the call that knows both.
pub trait OrFix<T> {
    /// Fails with exit code 1 as `<what>: <cause> - <fix>`.
    fn or_fix(self, what: impl fmt::Display, fix: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> OrFix<T> for std::result::Result<T, E> {
    fn or_fix(self, what: impl fmt::Display, fix: impl fmt::Display) -> Result<T> {
        self.map_err(|cause| Failure::could_not(format_args!("{what}: {cause}"), fix))
    }
}

/// Describes a database error in the user's terms. `doing` completes "while …".
pub fn database(error: &rusqlite::Error, doing: &str) -> Failure {
    use rusqlite::ErrorCode::*;
    let code = error.sqlite_error_code();
    let extended = error.sqlite_error().map_or(0, |e| e.extended_code);
    if matches!(extended, rusqlite::ffi::SQLITE_IOERR_FSYNC | rusqlite::ffi::SQLITE_IOERR_DIR_FSYNC) {
        return unknown("the disk failed to sync", error, doing);
    }
    let (what, fix) = match code {
        Some(DatabaseBusy | DatabaseLocked) => (
            format!("the database stayed locked too long while {doing}; nothing was changed"),
            "find the program that keeps a transaction open on events.db, then try again",
        ),
        Some(DiskFull) => (
            format!("the disk is full while {doing}; nothing was changed"),
            "free some space, then try again",
        ),
        Some(SystemIoFailure) if extended == rusqlite::ffi::SQLITE_IOERR_WRITE => (
            format!("the disk failed to write while {doing}; nothing was changed ({error})"),
            "check the disk, then try again",
        ),
        Some(SystemIoFailure) if extended == rusqlite::ffi::SQLITE_IOERR_SHMSIZE => (
            format!("there is no room for events.db-shm while {doing} ({error})"),
            "free some space, then try again",
        ),
        Some(ReadOnly) => return read_only(doing),
        Some(PermissionDenied | CannotOpen) => {
            (format!("no permission for the database while {doing}: {error}"), PERMISSIONS)
        }
        Some(DatabaseCorrupt | NotADatabase) => (
            format!("the database is damaged or not a database ({error}), seen while {doing}"),
            "restore the thread from a backup, or salvage it with `sqlite3 events.db .recover`",
        ),
        Some(TooBig) => (
            format!("the event is larger than a database row may be while {doing}; nothing was changed"),
            "store the payload in a file and push its path",
        ),
        _ => (
            format!("the database failed while {doing}: {error}"),
            "check the disk and the thread's permissions",
        ),
    };
    Failure::could_not(what, fix)
}

/// What can be done about a database that may not be used.
const PERMISSIONS: &str = "check who owns the thread's directory and events.db, and their permissions";

/// A database that may be read but not written.
pub fn read_only(doing: &str) -> Failure {
    Failure::could_not(
        format_args!("no permission for the database while {doing}; nothing was changed"),
        PERMISSIONS,
    )
}

/// Describes the failure of a commit. A full disk or a failed write comes before the commit is
/// whole in the log. Anything else may come after: growing the log's index does, for one, and then
/// the next process finds the commit and takes it for good.
pub fn commit(error: &rusqlite::Error, doing: &str) -> Failure {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull, ReadOnly};
    let extended = error.sqlite_error().map_or(0, |e| e.extended_code);
    match error.sqlite_error_code() {
        Some(DatabaseBusy | DatabaseLocked | DiskFull | ReadOnly) => database(error, doing),
        _ if extended == rusqlite::ffi::SQLITE_IOERR_WRITE => database(error, doing),
        _ if extended == rusqlite::ffi::SQLITE_IOERR_FSYNC => database(error, doing),
        _ => unknown("the database failed", error, doing),
    }
}

fn unknown(what: &str, error: &rusqlite::Error, doing: &str) -> Failure {
    Failure::could_not(
        format_args!("{what} while {doing}, so whether it was stored is unknown ({error})"),
        "check the disk, then look with `thread peek --tail` or `thread info` before trying again",
    )
}
