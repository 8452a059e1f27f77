//! Notifications of changes in all followed sessions.
//!
//! A push touches `run/_commit` of its thread once its event can be read. One inotify instance covers all
//! followed sessions, since a user may have few instances and many watches. A commit by another program does
//! not touch the file; it shows in the WAL, which is polled once a second.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use thread::Queue;
use thread::files::{COMMIT, DB, WAL};
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// Notifies the followers of sessions that have changed.
pub struct ChangeWatcher {
    /// `None` if no inotify instance is left: changes are then found by polling.
    instance: Option<AsyncFd<OwnedFd>>,
    /// By watch descriptor. Two followers of one session, until the surplus one ends, share a descriptor.
    watches: Mutex<HashMap<i32, Vec<Weak<SessionWatch>>>>,
}

/// The watch on one session.
pub struct SessionWatch {
    pub changed: Notify,
    db: PathBuf,
    wal: PathBuf,
    /// The state of the WAL at the last poll, or of the database if there was no WAL; `None` if the thread is
    /// gone.
    seen: Mutex<Option<Stamp>>,
}

type Stamp = (i64, u64, i64);

/// In place of a watch descriptor, for threads that could not be watched.
const NO_DESCRIPTOR: i32 = -1;

impl ChangeWatcher {
    pub fn new() -> io::Result<Arc<ChangeWatcher>> {
        let instance = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        // SAFETY: an owned descriptor stays open for as long as it is registered.
        let instance = instance.map(|instance| unsafe { AsyncFd::register(instance) }).transpose()?;
        let watcher = Arc::new(ChangeWatcher { instance, watches: Mutex::default() });
        tokio::spawn(read_inotify(watcher.clone()));
        tokio::spawn(poll(Arc::downgrade(&watcher)));
        Ok(watcher)
    }

    /// Watches a thread until the returned value is dropped.
    pub fn watch(&self, queue: &Queue) -> Arc<SessionWatch> {
        let (db, wal) = (queue.files().path_of(DB), queue.files().path_of(WAL));
        let watch = SessionWatch { changed: Notify::new(), db, wal, seen: Mutex::default() };
        // Record the state now: a thread that is removed before the first poll has changed, too.
        watch.has_changed();
        let watch = Arc::new(watch);
        let file = queue.files().open_lock(COMMIT).ok();
        // Locked before the watch is added: inotify returns the descriptor of an existing watch on the file,
        // which must not be removed in between because its last user is gone.
        let mut watches = self.watches();
        // Changes of a thread without a watch are found by polling.
        let descriptor = file.and_then(|file| self.add(&file)).unwrap_or(NO_DESCRIPTOR);
        watches.entry(descriptor).or_default().push(Arc::downgrade(&watch));
        drop(watches);
        watch
    }

    fn add(&self, file: &File) -> Option<i32> {
        // Through the descriptor: another file could be put in place under its name.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let instance = self.instance.as_ref()?;
        inotify::add_watch(instance.get_ref(), path, WatchFlags::ATTRIB | WatchFlags::MODIFY).ok()
    }

    fn watches(&self) -> std::sync::MutexGuard<'_, HashMap<i32, Vec<Weak<SessionWatch>>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes watches that have been dropped. Returns the others.
    fn live_watches(&self) -> Vec<Arc<SessionWatch>> {
        let mut live = Vec::new();
        self.watches().retain(|descriptor, watches| {
            watches.retain(|watch| watch.upgrade().map(|watch| live.push(watch)).is_some());
            if let Some(instance) =
                self.instance.as_ref().filter(|_| watches.is_empty() && *descriptor != NO_DESCRIPTOR)
            {
                // Fails if the file is gone, and the kernel's watch with it.
                inotify::remove_watch(instance.get_ref(), *descriptor).ok();
            }
            !watches.is_empty()
        });
        live
    }
}

impl SessionWatch {
    /// Whether the WAL has changed since the last poll.
    fn has_changed(&self) -> bool {
        let stamp = rustix::fs::lstat(&self.wal)
            .or_else(|_| rustix::fs::lstat(&self.db))
            .ok()
            .map(|wal| (wal.st_mtime, u64::from(wal.st_mtime_nsec as u32), wal.st_size));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *seen, stamp) != stamp
    }
}

/// Notifies followers of each inotify event, forever.
async fn read_inotify(watcher: Arc<ChangeWatcher>) {
    let Some(instance) = &watcher.instance else { return };
    let mut space = [std::mem::MaybeUninit::uninit(); 4096];
    while let Ok(mut ready) = instance.readable().await {
        let mut reader = inotify::Reader::new(instance.get_ref(), &mut space);
        let mut descriptors = std::collections::HashSet::new();
        while let Ok(event) = reader.next() {
            descriptors.insert(event.wd());
        }
        ready.clear_ready();
        let watches = watcher.watches();
        let changed = descriptors.iter().filter_map(|descriptor| watches.get(descriptor)).flatten();
        for watch in changed.filter_map(Weak::upgrade) {
            watch.changed.notify_one();
        }
    }
}

/// Notifies followers whose WAL has changed, once a second, until [`ChangeWatcher`] is dropped.
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
