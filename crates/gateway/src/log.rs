//! Lines for the operator of the gateway, on stderr.

use std::fmt;

/// Writes a line. No token and no signed address may be in it.
pub fn log(text: impl fmt::Display) {
    // It may hold what somebody else's server said.
    let line = text.to_string().replace(char::is_control, " ");
    eprintln!("[{}] {line}", thread::model::time::now());
}
