//! Hearing that a file of the thread was touched, at no cost while nothing happens.
//!
//! A push touches `run/_commit` when its event can be read everywhere, so waiters look once
//! after each notice. A commit by another program touches nothing: waiters also look once a second.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Files;

/// How often to look without a notice.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often to look where there are no notices: the system has none, or its limit is reached.
pub const WITHOUT_NOTICES: Duration = Duration::from_millis(50);

/// How long to let the process that gave a notice finish first: a hundred waiters would take the
/// processors from it.
pub const PAUSE: Duration = Duration::from_millis(3);

/// Watches files of threads, with one descriptor.
#[derive(Debug)]
pub struct Watcher {
    /// Notices of the file system; none where they cannot be had.
    notices: Option<OwnedFd>,
}

/// What a [`Watcher`] tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The file of this watch was touched.
    Touched(i32),
    /// It is there no longer, and neither is the watch.
    Gone(i32),
    /// There were more than the system keeps: any file may have been touched.
    Overflow,
}

impl Watcher {
    /// Watches no file yet.
    pub fn open() -> Watcher {
        Watcher { notices: queue() }
    }

    /// Watches the file from now on, making it first if need be.
    pub fn new(files: &Files, name: &str) -> Watcher {
        let watcher = Watcher::open();
        let watch = watcher.add(files, name);
        Watcher { notices: watcher.notices.filter(|_| watch.is_some()) }
    }

    /// The descriptor that becomes readable with a notice, for an event loop; `None` where there are
    /// no notices. Call [`Watcher::clear`] before looking, and look once a second besides.
    pub fn notices(&self) -> Option<BorrowedFd<'_>> {
        self.notices.as_ref().map(AsFd::as_fd)
    }

    /// Takes the notices that are there. Returns whether there were any, or may have been.
    pub fn clear(&self) -> bool {
        self.notices.is_none() || !self.take().is_empty()
    }

    /// Waits for a notice, for `timeout`, or for the time after which to look without one, whichever
    /// is first, or until something happens to one of `others`. Returns whether there was a notice, or
    /// may have been.
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

    /// Waits for `timeout`, or until there is a notice or something happens to one of `others`.
    pub(crate) fn poll<'fd>(&self, timeout: Duration, others: impl IntoIterator<Item = PollFd<'fd>>) {
        let mut polled: Vec<PollFd<'_>> = others.into_iter().collect();
        polled.extend(self.notices.iter().map(|notices| PollFd::new(notices, PollFlags::IN)));
        // An interrupted wait is only a short one.
        poll(&mut polled, Timespec::try_from(timeout).ok().as_ref()).ok();
    }
}

#[cfg(target_os = "linux")]
impl Watcher {
    /// Watches one more file from now on, making it first if need be, and returns the watch; `None` where
    /// there are no notices. Keeps no descriptor of the file.
    pub fn add(&self, files: &Files, name: &str) -> Option<i32> {
        use rustix::fs::inotify::{WatchFlags, add_watch};

        let notices = self.notices.as_ref()?;
        let file = files.open_lock(name).ok()?;
        add_watch(notices, super::path_of_open(&file), WatchFlags::ATTRIB | WatchFlags::MODIFY).ok()
    }

    pub fn remove(&self, watch: i32) {
        if let Some(notices) = &self.notices {
            // A file that is gone is not watched any more.
            rustix::fs::inotify::remove_watch(notices, watch).ok();
        }
    }

    /// Takes the notices that are there.
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

/// Elsewhere there are no notices.
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
