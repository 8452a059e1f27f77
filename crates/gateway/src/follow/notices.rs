//! One watch on many sessions: hearing that something was stored in one.
//!
//! A push touches `run/_commit` of its thread when its event can be read. One queue of inotify covers
//! all sessions that somebody is in, since a user may have few such queues and many watches. What
//! gives no notice, a commit by another program, shows on the WAL, which is looked at once a second.

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

/// Rings the bells of those sessions in which something happened.
pub struct Notices {
    /// None where the system has no such notices left: all is found by looking.
    queue: Option<AsyncFd<OwnedFd>>,
    /// By watch. Two that follow one session, for as long as one of them is to end again, share a watch.
    bells: Mutex<HashMap<i32, Vec<Weak<Bell>>>>,
}

/// One session's bell.
pub struct Bell {
    pub rings: Notify,
    db: PathBuf,
    wal: PathBuf,
    /// The state of the WAL when it was last looked at, of the database where there is none; `None` if the
    /// thread is gone.
    seen: Mutex<Option<Stamp>>,
}

type Stamp = (i64, u64, i64);

/// In place of a watch, for threads that could not be watched.
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

    /// Watches a thread for as long as the bell is kept.
    pub fn watch(&self, queue: &Queue) -> Arc<Bell> {
        let (db, wal) = (queue.files().path_of(DB), queue.files().path_of(WAL));
        let bell = Bell { rings: Notify::new(), db, wal, seen: Mutex::default() };
        // A thread that goes before the first look has changed, too.
        bell.has_changed();
        let bell = Arc::new(bell);
        let file = queue.files().open_lock(COMMIT).ok();
        // One that is forgotten meanwhile must not take the watch with it.
        let mut bells = self.bells();
        // A thread without a watch is found by looking.
        let watch = file.and_then(|file| self.add(&file)).unwrap_or(NO_WATCH);
        bells.entry(watch).or_default().push(Arc::downgrade(&bell));
        drop(bells);
        bell
    }

    fn add(&self, file: &File) -> Option<i32> {
        // By its descriptor: by its name, somebody could put another file in its place.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let queue = self.queue.as_ref()?;
        inotify::add_watch(queue.get_ref(), path, WatchFlags::ATTRIB | WatchFlags::MODIFY).ok()
    }

    fn bells(&self) -> std::sync::MutexGuard<'_, HashMap<i32, Vec<Weak<Bell>>>> {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the bells that nobody keeps any more. Returns the others.
    fn kept(&self) -> Vec<Arc<Bell>> {
        let mut kept = Vec::new();
        self.bells().retain(|watch, bells| {
            bells.retain(|bell| bell.upgrade().map(|bell| kept.push(bell)).is_some());
            if let Some(queue) = self.queue.as_ref().filter(|_| bells.is_empty() && *watch != NO_WATCH) {
                // Fails where the file is gone, and the watch with it.
                inotify::remove_watch(queue.get_ref(), *watch).ok();
            }
            !bells.is_empty()
        });
        kept
    }
}

impl Bell {
    /// Whether the WAL has changed since the last look.
    fn has_changed(&self) -> bool {
        let stamp = rustix::fs::lstat(&self.wal)
            .or_else(|_| rustix::fs::lstat(&self.db))
            .ok()
            .map(|wal| (wal.st_mtime, u64::from(wal.st_mtime_nsec as u32), wal.st_size));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *seen, stamp) != stamp
    }
}

/// Rings with each notice, for ever.
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

/// Rings where the WAL has changed, once a second, for as long as there are notices.
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
