//! Errors, as reported to the operator at startup and to clients.

use std::fmt;

/// Why the gateway cannot start, and how to fix it.
#[derive(Debug)]
pub struct StartError {
    pub what: String,
    pub fix: String,
    /// Whether this is a usage error.
    pub usage: bool,
}

impl StartError {
    pub fn usage(what: impl Into<String>, fix: impl Into<String>) -> StartError {
        StartError { what: what.into(), fix: fix.into(), usage: true }
    }

    pub fn failed(what: impl Into<String>, fix: impl Into<String>) -> StartError {
        StartError { what: what.into(), fix: fix.into(), usage: false }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error: {} - {}", self.what, self.fix)
    }
}

/// Why a request was refused. The connection stays.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("unknown method '{0}'")]
    UnknownMethod(String),
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
    #[error("the client is connected already")]
    Connected,
    /// The text says whether anything was stored.
    #[error("{0}")]
    Thread(thread::Error),
    #[error("{0}")]
    Failed(String),
}

impl From<thread::Error> for RequestError {
    fn from(error: thread::Error) -> RequestError {
        match error {
            // The session was deleted while a client was in it.
            thread::Error::NotAThread(path) | thread::Error::Moved(path) => RequestError::UnknownSession(
                path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            ),
            thread::Error::InvalidEvent(e) => RequestError::BadParams(format!("the message {e}")),
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
