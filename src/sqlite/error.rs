//! Classifies SQLite's errors by what can be done about them.

use rusqlite::{ErrorCode, ffi};

use crate::error::{DatabaseErrorKind, Error, database, is_too_many_files};

/// Adds the operation to an SQLite error; other errors stay unchanged.
pub trait Doing<T> {
    /// `what` completes "while …".
    fn doing(self, what: &'static str) -> crate::Result<T>;
}

impl<T, E: Into<Failed>> Doing<T> for Result<T, E> {
    fn doing(self, what: &'static str) -> crate::Result<T> {
        self.map_err(|e| match e.into() {
            Failed::Sqlite(e) => failed(e, what),
            Failed::Other(e) => e,
        })
    }
}

/// Why work in a transaction failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum Failed {
    Sqlite(#[from] rusqlite::Error),
    Other(#[from] Error),
}

pub fn failed(error: rusqlite::Error, doing: &'static str) -> Error {
    // Every failure to open a file has this one code in SQLite; only the system call's error has the cause. A
    // result with another extended code was not caused by a failed call.
    let system = std::io::Error::last_os_error();
    let cannot_open = error.sqlite_error().is_some_and(|e| e.extended_code == ffi::SQLITE_CANTOPEN);
    if cannot_open && is_too_many_files(&system) {
        return Error::TooManyFiles(format!("while {doing}"));
    }
    database(kind_of(&error), doing, error)
}

/// Classifies the failure of a commit. A full disk or a failed write occurs before the commit is complete in
/// the WAL. Anything else may occur after that (growing the WAL index, for example), and then the next
/// process finds the commit and keeps it.
pub fn commit(error: rusqlite::Error, doing: &'static str) -> Error {
    use DatabaseErrorKind::{Full, Locked, OutcomeUnknown, ReadOnly, Write};
    let kind = kind_of(&error);
    let kind = if matches!(kind, Locked | Full | ReadOnly | Write) { kind } else { OutcomeUnknown };
    database(kind, doing, error)
}

fn kind_of(error: &rusqlite::Error) -> DatabaseErrorKind {
    let extended = error.sqlite_error().map_or(0, |e| e.extended_code);
    match error.sqlite_error_code() {
        _ if matches!(extended, ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC) => {
            DatabaseErrorKind::OutcomeUnknown
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => DatabaseErrorKind::Locked,
        Some(ErrorCode::DiskFull) => DatabaseErrorKind::Full,
        Some(ErrorCode::SystemIoFailure) if extended == ffi::SQLITE_IOERR_WRITE => DatabaseErrorKind::Write,
        Some(ErrorCode::SystemIoFailure) if extended == ffi::SQLITE_IOERR_SHMSIZE => {
            DatabaseErrorKind::NoRoom
        }
        Some(ErrorCode::ReadOnly) => DatabaseErrorKind::ReadOnly,
        Some(ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => DatabaseErrorKind::Permission,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => DatabaseErrorKind::Damaged,
        Some(ErrorCode::TooBig) => DatabaseErrorKind::TooLarge,
        Some(ErrorCode::OutOfMemory) => DatabaseErrorKind::OutOfMemory,
        _ => DatabaseErrorKind::Other,
    }
}
