//! Lines for the operator of the gateway, on stderr.

use std::fmt;

/// Writes a line. Callers leave out tokens and signed URLs.
pub fn log(text: impl fmt::Display) {
    // May contain text from a remote server.
    let line = text.to_string().replace(char::is_control, " ");
    eprintln!("[{}] {line}", thread::model::time::now());
}
