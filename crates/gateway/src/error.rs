//! Errors, as reported to the operator at startup and to clients.

use std::fmt;

pub use thread_sessions::error::{RequestError, Result};

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
