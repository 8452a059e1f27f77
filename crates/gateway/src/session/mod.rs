//! Sessions on disk: each is a thread in a directory of its own.
//!
//! Everything here reads and writes threads and may block on the disk, so none of it runs on the threads that
//! serve connections: see [`blocking`].

pub mod catalogue;
pub mod history;
pub mod root;
pub mod runs;
pub mod search;
pub mod speak;
pub mod tallies;

use crate::error::{RequestError, Result};

/// Runs work that may block on the disk.
///
/// # Errors
///
/// Errors of `work`.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // `work` panicked, which has been reported on stderr, or the runtime is shutting down.
        Err(_) => Err(RequestError::Failed("the gateway could not do this".into())),
    }
}
