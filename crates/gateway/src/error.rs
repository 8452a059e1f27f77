//! Errors, as reported to clients.

pub use thread_sessions::error::{RequestError, Result};

/// Why a gateway that only shows refuses a request, and what to do.
pub const READ_ONLY: &str = "this gateway was started with --read-only and changes nothing; use `thread` on its machine, \
     or start it without --read-only";
