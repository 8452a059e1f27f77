//! Notifications of changes in all followed sessions.
//!
//! A push touches `run/_commit` of its thread once its event can be read. One inotify instance covers all
//! followed sessions, since a user may have few instances and many watches. A commit by another program does
//! not touch the file; it shows in the stamp of the database, which is polled once a second.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use thread::files::COMMIT;
use thread::files::stamp::Stamp;
use thread::files::watch::Notice;
use thread::model::location::Location;
use thread::{Queue, Watcher};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// Notifies the followers of sessions that have changed.
pub struct ChangeWatcher(Mutex<Watches>);

struct Watches {
    watcher: Watcher,
    /// By watch descriptor. Two followers of one session, until the surplus one ends, share a descriptor.
    followers: HashMap<i32, Vec<Weak<SessionWatch>>>,
}

/// The watch on one session.
pub struct SessionWatch {
    pub changed: Notify,
    location: Location,
    path: PathBuf,
    /// As of the last poll; `None` if the thread is gone.
    seen: Mutex<Option<Stamp>>,
}

/// In place of a watch descriptor, for threads that could not be watched.
const NO_DESCRIPTOR: i32 = -1;

impl ChangeWatcher {
    pub fn new() -> io::Result<Arc<ChangeWatcher>> {
        let watcher = Watcher::open();
        let notices = watcher.notices().map(|notices| notices.try_clone_to_owned()).transpose()?;
        // SAFETY: an owned descriptor stays open for as long as it is registered.
        let notices = notices.map(|notices| unsafe { AsyncFd::register(notices) }).transpose()?;
        let watcher = Arc::new(ChangeWatcher(Mutex::new(Watches { watcher, followers: HashMap::new() })));
        if let Some(notices) = notices {
            tokio::spawn(pass_on(watcher.clone(), notices));
        }
        tokio::spawn(poll(Arc::downgrade(&watcher)));
        Ok(watcher)
    }

    /// Watches a thread until the returned value is dropped.
    pub fn watch(&self, queue: &Queue) -> Arc<SessionWatch> {
        let files = queue.files();
        let (location, path) = (files.location().clone(), files.path().to_owned());
        let watch = SessionWatch { changed: Notify::new(), location, path, seen: Mutex::default() };
        // Record the state now: a thread that is removed before the first poll has changed, too.
        watch.has_changed();
        let watch = Arc::new(watch);
        // Locked before the watch is added: the descriptor of an existing watch on the file is returned, which must
        // not be removed in between by its last user.
        let mut watches = self.watches();
        // Changes of a thread without a watch are found by polling.
        let descriptor = watches.watcher.add(files, COMMIT).unwrap_or(NO_DESCRIPTOR);
        watches.followers.entry(descriptor).or_default().push(Arc::downgrade(&watch));
        drop(watches);
        watch
    }

    fn watches(&self) -> MutexGuard<'_, Watches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes watches that have been dropped. Returns the others.
    fn live_watches(&self) -> Vec<Arc<SessionWatch>> {
        let mut live = Vec::new();
        let Watches { watcher, followers } = &mut *self.watches();
        followers.retain(|descriptor, watches| {
            watches.retain(|watch| watch.upgrade().map(|watch| live.push(watch)).is_some());
            if watches.is_empty() && *descriptor != NO_DESCRIPTOR {
                watcher.remove(*descriptor);
            }
            !watches.is_empty()
        });
        live
    }
}

impl SessionWatch {
    /// Whether the database has changed since the last poll.
    fn has_changed(&self) -> bool {
        let stamp = Stamp::of(&self.location, &self.path);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *seen, stamp) != stamp
    }
}

/// Notifies the followers of what was touched, forever.
async fn pass_on(watcher: Arc<ChangeWatcher>, notices: AsyncFd<OwnedFd>) {
    while let Ok(mut ready) = notices.readable().await {
        let watches = watcher.watches();
        let mut touched = HashSet::new();
        for notice in watches.watcher.take() {
            match notice {
                Notice::Touched(descriptor) | Notice::Gone(descriptor) => drop(touched.insert(descriptor)),
                Notice::Overflow => touched.extend(watches.followers.keys().copied()),
            }
        }
        ready.clear_ready();
        let changed = touched.iter().filter_map(|descriptor| watches.followers.get(descriptor)).flatten();
        for watch in changed.filter_map(Weak::upgrade) {
            watch.changed.notify_one();
        }
    }
}

/// Notifies followers whose thread has changed, once a second, until [`ChangeWatcher`] is dropped.
async fn poll(watcher: Weak<ChangeWatcher>) {
    loop {
        tokio::time::sleep(thread::LOOK_EVERY).await;
        let Some(watcher) = watcher.upgrade() else { return };
        let polled = tokio::task::spawn_blocking(move || {
            for watch in watcher.live_watches() {
                if watch.has_changed() {
                    watch.changed.notify_one();
                }
            }
        });
        if polled.await.is_err() {
            return;
        }
    }
}
