//! Whether the root can be read, found out without waiting for any other work.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use thread_sessions::{Root, catalogue};
use tokio::sync::oneshot;

/// How long the root may take before it counts as unreadable.
const READABLE_WITHIN: Duration = Duration::from_secs(5);

/// How many requests may wait for one look at the root.
const ASKED: usize = 1024;

/// Checks the root on a dedicated thread, so that it does not wait for other work.
pub struct Health(mpsc::SyncSender<oneshot::Sender<bool>>);

impl Health {
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(root: Arc<Root>) -> std::io::Result<Health> {
        let (sender, asked) = mpsc::sync_channel::<oneshot::Sender<bool>>(ASKED);
        let work = move || {
            while let Ok(first) = asked.recv() {
                // One check answers all requests that came before it.
                let others: Vec<_> = asked.try_iter().collect();
                let is_readable = catalogue::readable(&root).is_ok();
                for one in std::iter::once(first).chain(others) {
                    // Fails if that client has left.
                    one.send(is_readable).ok();
                }
            }
        };
        std::thread::Builder::new().name("health".to_owned()).spawn(work)?;
        Ok(Health(sender))
    }

    /// Whether it can be read within [`READABLE_WITHIN`].
    pub async fn is_readable(&self) -> bool {
        let (sender, answer) = oneshot::channel();
        self.0.try_send(sender).is_ok()
            && matches!(tokio::time::timeout(READABLE_WITHIN, answer).await, Ok(Ok(true)))
    }
}
