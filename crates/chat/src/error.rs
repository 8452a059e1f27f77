//! A failure as reported to the user: what failed, how to fix it, and the exit code.

use std::borrow::Cow;
use std::fmt::Display;

use thread_protocol::client::usage;

pub type Result<T> = std::result::Result<T, Failure>;

#[derive(Debug)]
pub struct Failure {
    pub what: String,
    pub fix: String,
    /// Which error it is: a word of docs/CHAT.md, or the one that the gateway gives.
    pub code: Cow<'static, str>,
    pub exit: u8,
}

impl Failure {
    /// An operation that failed: exit 1.
    pub fn new(code: impl Into<Cow<'static, str>>, what: impl Display, fix: impl Display) -> Failure {
        Failure { what: what.to_string(), fix: fix.to_string(), code: code.into(), exit: 1 }
    }

    /// A usage error: exit 2.
    pub fn usage(what: impl Display, fix: impl Display) -> Failure {
        Failure { exit: 2, ..Failure::new("usage", what, fix) }
    }

    /// A usage error found by clap, on one line.
    pub fn of_usage(error: &clap::Error) -> Failure {
        Failure::usage(usage(&error.render().to_string()), "see `thread chat --help`")
    }
}
