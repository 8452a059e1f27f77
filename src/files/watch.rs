//! Notices that a file of a thread was touched, at no cost while nothing happens.
//!
//! A push touches `run/_commit` once its event is visible to all readers, so waiters look once
//! after each notice. A commit by another program touches nothing, so waiters also look once a second.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Files;

/// How often to look without a notice.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often to look without notices: if the system has none, or its limit is reached.
pub const WITHOUT_NOTICES: Duration = Duration::from_millis(50);

/// How long to wait after a notice, so that the process that caused it can finish first: a hundred waiters
/// would compete with it for the processors.
pub const PAUSE: Duration = Duration::from_millis(3);

/// Watches files of threads, with one descriptor.
#[derive(Debug)]
pub struct Watcher {
    /// The inotify descriptor; `None` if there are no notices.
    notices: Option<OwnedFd>,
}

/// A notice from a [`Watcher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The file of this watch was touched.
    Touched(i32),
    /// The file of this watch was removed, and the watch with it.
    Gone(i32),
    /// The system dropped notices: any file may have been touched.
    Overflow,
}

impl Watcher {
    /// A watcher without any files.
    pub fn open() -> Watcher {
        Watcher { notices: queue() }
    }

    /// Watches one file from now on, creating it if missing.
    pub fn new(files: &Files, name: &str) -> Watcher {
        let watcher = Watcher::open();
        let watch = watcher.add(files, name);
        Watcher { notices: watcher.notices.filter(|_| watch.is_some()) }
    }

    /// The descriptor that becomes readable with a notice, for an event loop; `None` if there are no
    /// notices. Call [`Watcher::clear`] before looking, and also look once a second.
    pub fn notices(&self) -> Option<BorrowedFd<'_>> {
        self.notices.as_ref().map(AsFd::as_fd)
    }

    /// Discards pending notices. Returns whether there were any; always true without notices.
    pub fn clear(&self) -> bool {
        self.notices.is_none() || !self.take().is_empty()
    }

    /// Waits until a notice, `timeout`, the time for a look without a notice, or an event on one of `others`,
    /// whichever comes first. Returns whether there was a notice; always true without notices.
    pub fn wait<'fd>(&self, timeout: Duration, others: impl IntoIterator<Item = PollFd<'fd>>) -> bool {
        let longest = if self.notices.is_some() { LOOK_EVERY } else { WITHOUT_NOTICES };
        self.poll(timeout.min(longest), others);
        let noticed = self.clear();
        if noticed && self.notices.is_some() {
            std::thread::sleep(PAUSE);
            self.clear();
        }
        noticed
    }

    /// Waits until `timeout`, a notice, or an event on one of `others`.
    pub(crate) fn poll<'fd>(&self, timeout: Duration, others: impl IntoIterator<Item = PollFd<'fd>>) {
        let mut polled: Vec<PollFd<'_>> = others.into_iter().collect();
        polled.extend(self.notices.iter().map(|notices| PollFd::new(notices, PollFlags::IN)));
        // If a signal interrupts it, the wait is merely shorter.
        poll(&mut polled, Timespec::try_from(timeout).ok().as_ref()).ok();
    }
}

#[cfg(target_os = "linux")]
impl Watcher {
    /// Watches one more file from now on, creating it if missing, and returns the watch; `None` if there are
    /// no notices for it. Keeps no descriptor of the file.
    pub fn add(&self, files: &Files, name: &str) -> Option<i32> {
        use rustix::fs::inotify::{WatchFlags, add_watch};

        let notices = self.notices.as_ref()?;
        let file = files.open_watched(name).ok()?;
        add_watch(notices, super::path_of_open(&file), WatchFlags::ATTRIB | WatchFlags::MODIFY).ok()
    }

    pub fn remove(&self, watch: i32) {
        if let Some(notices) = &self.notices {
            // Fails if the file is gone, which ended the watch.
            rustix::fs::inotify::remove_watch(notices, watch).ok();
        }
    }

    /// Takes the pending notices.
    pub fn take(&self) -> Vec<Notice> {
        use rustix::fs::inotify::{ReadFlags, Reader};

        let mut taken = Vec::new();
        let Some(notices) = &self.notices else { return taken };
        let mut room = [std::mem::MaybeUninit::<u8>::uninit(); 4096];
        let mut reader = Reader::new(notices, &mut room);
        while let Ok(event) = reader.next() {
            taken.push(match event.events() {
                events if events.contains(ReadFlags::QUEUE_OVERFLOW) => Notice::Overflow,
                events if events.contains(ReadFlags::IGNORED) => Notice::Gone(event.wd()),
                _ => Notice::Touched(event.wd()),
            });
        }
        taken
    }
}

#[cfg(target_os = "linux")]
fn queue() -> Option<OwnedFd> {
    use rustix::fs::inotify::{CreateFlags, init};

    init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()
}

/// Other systems have no notices.
#[cfg(not(target_os = "linux"))]
impl Watcher {
    pub fn add(&self, _: &Files, _: &str) -> Option<i32> {
        None
    }

    pub fn remove(&self, _: i32) {}

    pub fn take(&self) -> Vec<Notice> {
        Vec::new()
    }
}

#[cfg(not(target_os = "linux"))]
fn queue() -> Option<OwnedFd> {
    None
}
