//! Sessions on disk: each is a thread in a directory of its own.
//!
//! Everything here reads and writes threads and may wait for the disk, so none of it runs on a thread
//! that serves connections: see [`blocking`].

pub mod catalogue;
pub mod history;
pub mod root;
pub mod runs;
pub mod search;
pub mod speak;
pub mod tallies;

use crate::error::{RequestError, Result};

/// Runs what may wait for the disk.
///
/// # Errors
///
/// Those of `work`.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // A panic has been reported on stderr; the runtime is going down otherwise.
        Err(_) => Err(RequestError::Failed("the gateway could not do this".into())),
    }
}
