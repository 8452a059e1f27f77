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
pub struct Notices {
    /// `None` if no inotify instance is left: changes are then found by polling.
    queue: Option<AsyncFd<OwnedFd>>,
    /// By watch descriptor. Two followers of one session, until the surplus one ends, share a descriptor.
    bells: Mutex<HashMap<i32, Vec<Weak<Bell>>>>,
}

/// The watch on one session.
pub struct Bell {
    pub rings: Notify,
    db: PathBuf,
    wal: PathBuf,
    /// The state of the WAL at the last poll, or of the database if there was no WAL; `None` if the thread is
    /// gone.
    seen: Mutex<Option<Stamp>>,
}

type Stamp = (i64, u64, i64);

/// In place of a watch descriptor, for threads that could not be watched.
const NO_WATCH: i32 = -1;

impl Notices {
    pub fn new() -> io::Result<Arc<Notices>> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        // SAFETY: an owned descriptor stays open for as long as it is registered.
        let queue = queue.map(|queue| unsafe { AsyncFd::register(queue) }).transpose()?;
        let notices = Arc::new(Notices { queue, bells: Mutex::default() });
        tokio::spawn(hear(notices.clone()));
        tokio::spawn(look(Arc::downgrade(&notices)));
        Ok(notices)
    }

    /// Watches a thread until the returned value is dropped.
    pub fn watch(&self, queue: &Queue) -> Arc<Bell> {
        let (db, wal) = (queue.files().path_of(DB), queue.files().path_of(WAL));
        let bell = Bell { rings: Notify::new(), db, wal, seen: Mutex::default() };
        // Record the state now: a thread that is removed before the first poll has changed, too.
        bell.has_changed();
        let bell = Arc::new(bell);
        let file = queue.files().open_lock(COMMIT).ok();
        // Locked before the watch is added: inotify returns the descriptor of an existing watch on the file,
        // which must not be removed in between because its last user is gone.
        let mut bells = self.bells();
        // Changes of a thread without a watch are found by polling.
        let watch = file.and_then(|file| self.add(&file)).unwrap_or(NO_WATCH);
        bells.entry(watch).or_default().push(Arc::downgrade(&bell));
        drop(bells);
        bell
    }

    fn add(&self, file: &File) -> Option<i32> {
        // Through the descriptor: another file could be put in place under its name.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let queue = self.queue.as_ref()?;
        inotify::add_watch(queue.get_ref(), path, WatchFlags::ATTRIB | WatchFlags::MODIFY).ok()
    }

    fn bells(&self) -> std::sync::MutexGuard<'_, HashMap<i32, Vec<Weak<Bell>>>> {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes watches that have been dropped. Returns the others.
    fn kept(&self) -> Vec<Arc<Bell>> {
        let mut kept = Vec::new();
        self.bells().retain(|watch, bells| {
            bells.retain(|bell| bell.upgrade().map(|bell| kept.push(bell)).is_some());
            if let Some(queue) = self.queue.as_ref().filter(|_| bells.is_empty() && *watch != NO_WATCH) {
                // Fails if the file is gone, and the kernel's watch with it.
                inotify::remove_watch(queue.get_ref(), *watch).ok();
            }
            !bells.is_empty()
        });
        kept
    }
}

impl Bell {
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
async fn hear(notices: Arc<Notices>) {
    let Some(queue) = &notices.queue else { return };
    let mut space = [std::mem::MaybeUninit::uninit(); 4096];
    while let Ok(mut ready) = queue.readable().await {
        let mut reader = inotify::Reader::new(queue.get_ref(), &mut space);
        let mut rung = std::collections::HashSet::new();
        while let Ok(notice) = reader.next() {
            rung.insert(notice.wd());
        }
        ready.clear_ready();
        let bells = notices.bells();
        for bell in rung.iter().filter_map(|watch| bells.get(watch)).flatten().filter_map(Weak::upgrade) {
            bell.rings.notify_one();
        }
    }
}

/// Notifies followers whose WAL has changed, once a second, until [`Notices`] is dropped.
async fn look(notices: Weak<Notices>) {
    loop {
        tokio::time::sleep(thread::LOOK_EVERY).await;
        let Some(notices) = notices.upgrade() else { return };
        let looked = tokio::task::spawn_blocking(move || {
            for bell in notices.kept() {
                if bell.has_changed() {
                    bell.rings.notify_one();
                }
            }
        });
        if looked.await.is_err() {
            return;
        }
    }
}
