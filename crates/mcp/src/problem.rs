//! What went wrong, and what to do about it, for an LLM.

use std::fmt::Display;

use thread::error::Code;
use thread::failure::hint;
use thread_sessions::RequestError;

/// The longest explanation of what went wrong, in bytes.
const LONGEST: usize = 500;

/// Why a tool did nothing.
#[derive(Debug)]
pub enum Problem {
    Told { what: String, fix: String },
    Request(RequestError),
}

pub type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    pub fn new(what: impl Display, fix: impl Display) -> Problem {
        Problem::Told { what: what.to_string(), fix: fix.to_string() }
    }

    /// The text. Only callers on this machine, `is_local`, get paths and the like.
    pub fn text(&self, is_local: bool) -> String {
        let (what, fix) = match self {
            Problem::Told { what, fix } => (what.clone(), fix.clone()),
            Problem::Request(error) => of_request(error, is_local),
        };
        // It may name what was given.
        let shown = &what[..what.floor_char_boundary(LONGEST)];
        format!("{shown} - {fix}")
    }

    /// Which error it is, for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Problem::Told { .. } => Code::Failed.as_str(),
            Problem::Request(error) => error.code(),
        }
    }

    /// Whether a filter took too long for a single event.
    pub fn is_slow_filter(&self) -> bool {
        matches!(self, Problem::Request(RequestError::Thread(thread::Error::SlowFilter { .. })))
    }

    /// Tells the operator of the gateway, if it is for that one.
    pub fn log(&self) {
        if let Problem::Request(error) = self {
            error.log("a tool");
        }
    }
}

fn of_request(error: &RequestError, is_local: bool) -> (String, String) {
    let fix = match error {
        RequestError::Thread(e) => return of_thread(error, e, is_local),
        RequestError::BadParams(_) => "see the tool's inputSchema",
        RequestError::UnknownSession(_) | RequestError::NoSession => {
            "`sessions_list` shows those that there are"
        }
        RequestError::UnknownRun(_) => "`process_list` shows those that there are",
        RequestError::KeyConflict(_) => "use a new key for a new message",
        RequestError::Locked => "try again in a moment",
        _ => "try again later, or ask the server's operator",
    };
    (error.to_string(), fix.to_owned())
}

fn of_thread(error: &RequestError, e: &thread::Error, is_local: bool) -> (String, String) {
    use thread::Error;
    let fix = match e {
        Error::UnknownConsumer(_) => "`info` shows those that there are",
        Error::AlreadySubscribed(_) => "choose another name",
        Error::KeyConflict { .. } => "use a new key for a new message; nothing was stored",
        Error::InvalidEvent(_)
        | Error::InvalidFilter(_)
        | Error::SlowFilter { .. }
        | Error::ReservedKey(_) => {
            return (e.to_string(), hint(e));
        }
        e if e.is_locked() => return (error.to_string(), "try again in a moment".to_owned()),
        _ if is_local => return (e.to_string(), hint(e)),
        _ => return (error.to_string(), "ask the server's operator".to_owned()),
    };
    (e.to_string(), fix.to_owned())
}

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Problem {
        Problem::Request(error)
    }
}

impl From<thread::Error> for Problem {
    fn from(error: thread::Error) -> Problem {
        Problem::Request(error.into())
    }
}
