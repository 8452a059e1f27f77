//! Errors as users of a command line see them: what failed, how to fix it, and an exit code.
//!
//! This is the only place that turns the library's errors into advice.

use std::fmt;
use std::io;

use crate::error::{Code, DatabaseErrorKind as Kind, Error};
use crate::model::key::RESERVED;

pub type Result<T> = std::result::Result<T, Failure>;

/// A failed command: one line for people, an exit code for programs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} - {hint}")]
pub struct Failure {
    /// What went wrong, and what did or did not happen because of it.
    pub what: String,
    /// How to fix it.
    pub hint: String,
    /// Which error it is.
    pub code: Code,
    /// 1: the operation failed; 2: usage error; 3: nothing came in time.
    pub exit: u8,
}

impl Failure {
    pub fn new(exit: u8, code: Code, what: impl fmt::Display, hint: impl fmt::Display) -> Failure {
        Failure { what: what.to_string(), hint: hint.to_string(), code, exit }
    }

    /// The operation failed (exit 1); there is no more specific code.
    pub fn failed(what: impl fmt::Display, hint: impl fmt::Display) -> Failure {
        Failure::new(1, Code::Failed, what, hint)
    }

    /// An exit code alone: what it means was said already.
    pub fn said(exit: u8) -> Failure {
        Failure::new(exit, Code::Failed, "", "")
    }

    /// A usage error (exit 2).
    pub fn usage(what: impl fmt::Display, hint: impl fmt::Display) -> Failure {
        Failure::new(2, Code::Usage, what, hint)
    }

    /// A usage error as the argument parser renders it, in one line.
    pub fn of_usage(rendered: &str, hint: impl fmt::Display) -> Failure {
        // The first paragraph is the error, sometimes followed by a list.
        let what = rendered.split("\n\n").next().unwrap_or_default().lines().map(str::trim);
        let what = what.collect::<Vec<_>>().join(" ");
        Failure::usage(what.strip_prefix("error: ").unwrap_or(&what), hint)
    }
}

/// Fails with exit 1.
pub fn failed<T>(code: Code, what: impl fmt::Display, hint: impl fmt::Display) -> Result<T> {
    Err(Failure::new(1, code, what, hint))
}

/// Fails with exit 2: a usage error.
pub fn usage<T>(what: impl fmt::Display, hint: impl fmt::Display) -> Result<T> {
    Err(Failure::usage(what, hint))
}

/// Fails with exit 3: nothing came in time.
pub fn timed_out<T>(what: impl fmt::Display, hint: impl fmt::Display) -> Result<T> {
    Err(Failure::new(3, Code::TimedOut, what, hint))
}

/// Adds a hint to an error of the system, at the call site that knows the fix.
pub trait WithHint<T> {
    /// Fails with exit code 1 as `<what>: <cause> - <hint>`.
    fn with_hint(self, what: impl fmt::Display, hint: impl fmt::Display) -> Result<T>;
}

impl<T> WithHint<T> for io::Result<T> {
    fn with_hint(self, what: impl fmt::Display, hint: impl fmt::Display) -> Result<T> {
        self.or_else(|cause| failed(Code::of_io(&cause), format_args!("{what}: {cause}"), hint))
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        let error = error.into();
        let exit = match error {
            Error::InvalidEvent(_)
            | Error::InvalidLine { .. }
            | Error::InvalidFilter(_)
            | Error::OtherStep { .. }
            | Error::ReservedKey(_) => 2,
            _ => 1,
        };
        Failure { what: error.to_string(), hint: hint(&error), code: error.code(), exit }
    }
}

/// How to fix an error of the library.
pub fn hint(error: &Error) -> String {
    match error {
        Error::NotAThread(path) => {
            let path = crate::run::notifier::quoted(&path.to_string_lossy());
            return format!("make one with `thread init {path}`, or choose another with --thread");
        }
        Error::AlreadyAThread(_) => "use it as it is, or choose another path",
        Error::Leftovers(_) => "move the remains of the old thread away, or choose another path",
        Error::ForeignDatabase(_) => "name a directory made by `thread init <path>`; nothing was changed",
        Error::NewerSchema { .. } => "use a newer version of thread; nothing was changed",
        Error::NoWal { .. } => "keep the thread on a local file system",
        Error::PathTooLong { .. } => "choose a shorter path; nothing was made or changed",
        Error::Moved(_) => "run the command again with its new path",
        Error::MovedTo(to) => return format!("use it there: --thread '{to}', or THREAD_DIR"),
        Error::ImportUnfinished => {
            "complete it with the same `thread import` or `thread clone`, or delete this thread and begin again"
        }
        Error::InvalidExport { .. } => {
            "export it again with `thread export`; a file whose end is missing was cut off; nothing was stored"
        }
        Error::Unstorable { .. } => "leave it where it is, or export it and change these rows; nothing was stored",
        Error::NotEmpty(_) => "name a new thread",
        Error::NotOwner(_) => "run this as that user: only the owner may start and stop handlers",
        Error::UnknownScheme(scheme) => {
            return format!("install the program thread-{scheme}, or name the thread's directory");
        }
        Error::OnlyInDirectory(_) => "use the tools of the location where the thread is",
        Error::UnknownConsumer(_) => "see `thread info` for those that are, or `thread subscribe` it",
        Error::NotHeard(_) => "stop it there; if that is gone, the next push or `thread dispatch` takes over",
        Error::Unresponsive { supervisor, .. } => {
            return format!(
                "continue it with `kill -CONT {supervisor}`, or kill it, and stop the consumer again"
            );
        }
        Error::NotEnded { .. } => "it ends once the kernel lets it, as when a file system answers again; see `ps`",
        Error::TooManyFiles(_) => "close some, or raise the limit (`ulimit -n`), then try again",
        Error::Fenced(_) => "stop here: that machine continues, and repeats what was not acknowledged",
        Error::AlreadySubscribed(_) => {
            "`thread unsubscribe` it first, or change it with --replace; its cursor stays"
        }
        Error::InvalidEvent(_) => "see `thread push --help`; nothing was stored",
        Error::InvalidLine { .. } => "fix that line and push the whole batch again; nothing was stored",
        Error::InvalidFilter(_) => {
            "write one SQL condition over id, created_at, source, type, subtype, content and metadata"
        }
        Error::ClaimOver { .. } => {
            "somebody else may have it by now; `thread pop --claim` takes what is next, and `thread ack` without --claim \
             finishes an event in any case"
        }
        Error::OtherStep { .. } => {
            "give each step of a handler a name of its own; if the handler was changed, see `thread step --forget`"
        }
        Error::StepOver { .. } => "the other run continues with the event",
        Error::UnknownStep { .. } => "see `thread step --list`",
        Error::NoClaims(_) => "subscribe it with --no-handler --concurrency N",
        Error::NotItsEvent { .. } => "see `thread peek` for the events, and `thread info` for the consumer's filter",
        Error::StillPending { .. } => "`thread resume` starts a consumer that waits or has stalled",
        Error::PopsForItself(_) => {
            "`thread unsubscribe` it and subscribe it with --deliver stdin, or move its cursor with `thread seek`"
        }
        Error::NotPending { .. } => "see `thread info` for the cursor, and `thread peek` for the event",
        Error::SlowFilter { .. } => "simplify it, or narrow down the events with a comparison before it",
        Error::BrokenFilter { .. } => {
            "`thread unsubscribe` it, then `thread subscribe` it with another filter"
        }
        Error::BrokenSubscription(_) => "fix that, or `thread unsubscribe` it and subscribe it again",
        Error::KeyConflict { .. } | Error::ScheduledKeyConflict { .. } => "use a new key for a new event; nothing was stored",
        Error::ReservedKey(_) => {
            return format!(
                "keys that begin with '{RESERVED}' are made by the programs; choose another; nothing was stored"
            );
        }
        Error::Advised { advice, .. } => return advice.clone(),
        Error::Database(e) if e.advice.is_some() => e.advice.unwrap_or_default(),
        Error::Database(e) => match e.kind {
            Kind::Locked => "find the program that keeps a transaction open on events.db, then try again",
            Kind::Full | Kind::NoRoom => "free some space, then try again",
            Kind::Write => "check the disk, then try again",
            Kind::ReadOnly | Kind::Permission => {
                "check who owns the thread's directory and events.db, and their permissions"
            }
            Kind::Missing => "create it, or name another",
            Kind::Damaged => {
                "restore the thread from a backup, or salvage it with `sqlite3 events.db .recover`"
            }
            Kind::TooLarge => "store the payload in a file and push its path",
            Kind::OutOfMemory => "free some memory, then try again",
            Kind::OutcomeUnknown => {
                "check the disk, then look with `thread peek --tail` or `thread info` before trying again"
            }
            Kind::Unreachable => "try again",
            Kind::Other => "check the disk and the thread's permissions",
        },
        Error::Io { .. } => "check the path, its permissions and the space on the disk",
        Error::LogAhead(_) => "run `thread doctor --fix`",
        Error::Occupied(_) => "name a new directory",
        Error::InsideThread(_) => "name a directory elsewhere, best on another disk",
        Error::LockTimeout(_) => "stop the process that holds it, then try again",
        Error::Spawn { .. } => "check the limits on processes and memory, then run `thread dispatch`",
        Error::Other(_) => "see logs/thread.log",
    }
    .to_owned()
}
