//! Why something cannot be done in a session, for the caller.

use std::path::PathBuf;

use thread::error::{Code, DatabaseErrorKind, is_too_many_files};
use thread::model::location::Location;
use thread_protocol::code;

/// Why a request was refused. The connection stays.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("bad params: {0}")]
    BadParams(String),
    #[error("unknown session '{0}'")]
    UnknownSession(String),
    #[error("no session is open: name one, or send a message first")]
    NoSession,
    #[error("no run '{0}' is under way or queued in this session")]
    UnknownRun(String),
    #[error("there is no permission request '{0}' in this session")]
    UnknownPermission(String),
    /// The key was used before, with a different message.
    #[error("the idempotencyKey '{0}' belongs to a different message of this session")]
    KeyConflict(String),
    /// There is nothing of that name.
    #[error("{0}")]
    Unknown(String),
    /// It cannot be done as things are.
    #[error("{0}")]
    NotNow(String),
    /// The database was locked by another program for a minute.
    #[error("the session is locked by another program; nothing was stored")]
    Locked,
    #[error("{}", for_clients(.0))]
    Thread(thread::Error),
    #[error("{}", disk_for_clients(.1))]
    Disk(PathBuf, std::io::Error),
    #[error("{0}")]
    Failed(String),
}

impl RequestError {
    /// Which error it is, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            RequestError::BadParams(_) => code::BAD_PARAMS,
            RequestError::UnknownSession(_) => code::UNKNOWN_SESSION,
            RequestError::NoSession => code::NO_SESSION,
            RequestError::UnknownRun(_) => code::UNKNOWN_RUN,
            RequestError::UnknownPermission(_) => code::UNKNOWN_PERMISSION,
            RequestError::KeyConflict(_) => Code::IdempotencyConflict.as_str(),
            RequestError::Unknown(_) => code::NOT_FOUND,
            RequestError::NotNow(_) => code::CONFLICT,
            RequestError::Locked => Code::Locked.as_str(),
            RequestError::Thread(e) => e.code().as_str(),
            RequestError::Disk(_, e) => Code::of_io(e).as_str(),
            RequestError::Failed(_) => Code::Failed.as_str(),
        }
    }

    /// Writes the whole reason to the log, if it is one for the operator.
    pub fn log(&self, doing: &str) {
        match self {
            RequestError::Thread(e) => tracing::error!("{doing}: {e}"),
            RequestError::Disk(path, e) => tracing::error!("{doing}: {}: {e}", path.display()),
            RequestError::Locked | RequestError::Failed(_) => tracing::error!("{doing}: {self}"),
            _ => {}
        }
    }
}

/// An error of a thread without details for the operator, such as paths; those are in the log. States whether
/// anything was stored.
fn for_clients(error: &thread::Error) -> String {
    match error {
        thread::Error::Database(e) => match e.kind {
            DatabaseErrorKind::Permission | DatabaseErrorKind::Other => {
                "the session's database cannot be opened or used now; nothing was stored".to_owned()
            }
            _ => e.to_string(),
        },
        thread::Error::TooManyFiles(_) => TOO_MANY_FILES.to_owned(),
        thread::Error::Io { source, .. } | thread::Error::Spawn { source, .. } => disk_for_clients(source),
        thread::Error::InvalidFilter(_) | thread::Error::SlowFilter { .. } => error.to_string(),
        _ => "the session cannot be used now; its operator finds the reason in the gateway's log".to_owned(),
    }
}

const TOO_MANY_FILES: &str = "the gateway has too many files open; try again later";

/// An error of the disk without the path.
fn disk_for_clients(error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    match error.kind() {
        _ if is_too_many_files(error) => TOO_MANY_FILES.to_owned(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "the disk is full; nothing was stored".to_owned()
        }
        ErrorKind::NotFound => "the sessions are gone: their directory was removed".to_owned(),
        kind => format!("the sessions cannot be read or written: {kind}"),
    }
}

impl From<thread::Error> for RequestError {
    fn from(error: thread::Error) -> RequestError {
        match error {
            // The session was deleted while a client was in it.
            thread::Error::NotAThread(path) => RequestError::UnknownSession(Location::from(path).name()),
            thread::Error::Moved(location) => RequestError::UnknownSession(location.name()),
            thread::Error::InvalidEvent(e) => RequestError::BadParams(format!("the message {e}")),
            error @ thread::Error::ReservedKey(_) => {
                RequestError::BadParams(format!("{error} - {}", thread::failure::hint(&error)))
            }
            error => RequestError::Thread(error),
        }
    }
}

impl From<thread::model::filter::FilterError> for RequestError {
    fn from(error: thread::model::filter::FilterError) -> RequestError {
        thread::Error::from(error).into()
    }
}

pub type Result<T, E = RequestError> = std::result::Result<T, E>;
