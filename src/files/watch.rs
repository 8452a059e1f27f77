//! Notices that a file of a thread was touched, at no cost while nothing happens.
//!
//! A push touches `run/_commit` once its event is visible to all readers, so waiters look once
//! after each notice. A commit by another program touches nothing, so waiters also look once a second.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Files, stamp};

/// How often to look without a notice.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often to look at many files without notices: if the system has none, or its limit is reached.
pub const WITHOUT_NOTICES: Duration = Duration::from_millis(50);

/// The first pause between looks at a single file without notices. Pauses double until the file is touched.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// How long to wait after a notice, so that the process that caused it can finish first: a hundred waiters
/// would compete with it for the processors.
pub const PAUSE: Duration = Duration::from_millis(3);

/// Watches files of threads, with one descriptor.
#[derive(Debug)]
pub struct Watcher {
    /// The inotify descriptor; `None` if there are no notices.
    notices: Option<OwnedFd>,
    /// The file to look at instead.
    polled: Option<Polled>,
}

/// A file that is looked at, in growing pauses.
#[derive(Debug)]
struct Polled {
    file: File,
    /// When it was last touched.
    seen: Cell<Option<SystemTime>>,
    /// It was touched so recently that another touch might not have changed its time.
    is_fresh: Cell<bool>,
    pause: Cell<Duration>,
}

impl Polled {
    fn new(file: File) -> Polled {
        let polled =
            Polled { file, seen: Cell::default(), is_fresh: Cell::default(), pause: FIRST_PAUSE.into() };
        polled.was_touched();
        polled
    }

    /// Whether the file may have been touched since the last call.
    fn was_touched(&self) -> bool {
        let touched = self.file.metadata().and_then(|about| about.modified()).ok();
        let was_fresh = self.is_fresh.replace(touched.is_some_and(stamp::is_fresh));
        if self.seen.replace(touched) != touched {
            self.pause.set(FIRST_PAUSE);
            return true;
        }
        was_fresh && !self.is_fresh.get()
    }
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
        Watcher { notices: queue(), polled: None }
    }

    /// Watches one file from now on, creating it if missing.
    pub fn new(files: &Files, name: &str) -> Watcher {
        let watcher = Watcher::open();
        if watcher.add(files, name).is_some() {
            return watcher;
        }
        Watcher { notices: None, polled: files.open_watched(name).ok().map(Polled::new) }
    }

    /// The descriptor that becomes readable with a notice, for an event loop; `None` if there are no
    /// notices. Call [`Watcher::clear`] before looking, and also look once a second.
    pub fn notices(&self) -> Option<BorrowedFd<'_>> {
        self.notices.as_ref().map(AsFd::as_fd)
    }

    /// Discards pending notices. Returns whether there were any; without notices, whether the file may have
    /// been touched.
    pub fn clear(&self) -> bool {
        match (&self.notices, &self.polled) {
            (Some(_), _) => !self.take().is_empty(),
            (None, Some(polled)) => polled.was_touched(),
            (None, None) => true,
        }
    }

    /// Waits until a notice, `timeout`, or an event on one of `others`, whichever comes first. To wait for commits
    /// by any program, pass at most [`LOOK_EVERY`]. Returns whether there was a notice, as
    /// [`Watcher::clear`] does.
    pub fn wait<'fd>(&self, timeout: Duration, others: impl IntoIterator<Item = PollFd<'fd>>) -> bool {
        let mut polled: Vec<PollFd<'_>> = others.into_iter().collect();
        polled.extend(self.notices.iter().map(|notices| PollFd::new(notices, PollFlags::IN)));
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = super::simulated::system() {
            system.wait(timeout);
            return self.clear();
        }
        // `None` where the end is too far away to be a time.
        let end = Instant::now().checked_add(timeout);
        let noticed = loop {
            let left = end.map_or(timeout, |end| end.saturating_duration_since(Instant::now()));
            let pause = match (&self.notices, &self.polled) {
                (Some(_), _) => left,
                (None, Some(polled)) => polled.pause.get().min(left),
                (None, None) => WITHOUT_NOTICES.min(left),
            };
            // If a signal interrupts it, the wait is merely shorter.
            let ready = poll(&mut polled, Timespec::try_from(pause).ok().as_ref());
            // A notice is read after the pause: until then, a hundred waiters do as little as they can.
            let noticed = match &self.notices {
                Some(_) => polled.last().is_some_and(|notices| notices.revents().contains(PollFlags::IN)),
                None => self.clear(),
            };
            if noticed || ready != Ok(0) || pause == left {
                break noticed;
            }
            if let Some(polled) = &self.polled {
                polled.pause.set((pause * 2).min(LOOK_EVERY));
            }
        };
        if noticed {
            std::thread::sleep(PAUSE);
            self.clear();
        }
        noticed
    }

    /// Waits until `timeout`, a notice, or an event on one of `others`.
    pub(crate) fn poll<'fd>(&self, timeout: Duration, others: impl IntoIterator<Item = PollFd<'fd>>) {
        let mut polled: Vec<PollFd<'_>> = others.into_iter().collect();
        polled.extend(self.notices.iter().map(|notices| PollFd::new(notices, PollFlags::IN)));
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = super::simulated::system() {
            return system.wait(timeout);
        }
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

        #[cfg(all(test, target_os = "linux"))]
        if let Some(watch) = super::simulated::system().and_then(|system| system.watch(files.path(), name)) {
            return watch;
        }
        let notices = self.notices.as_ref()?;
        let file = files.open_watched(name).ok()?;
        add_watch(notices, super::path_of_open(&file), WatchFlags::ATTRIB | WatchFlags::MODIFY).ok()
    }

    pub fn remove(&self, watch: i32) {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = super::simulated::system() {
            system.unwatch(watch);
        }
        if let Some(notices) = &self.notices {
            // Fails if the file is gone, which ended the watch.
            rustix::fs::inotify::remove_watch(notices, watch).ok();
        }
    }

    /// Takes the pending notices.
    pub fn take(&self) -> Vec<Notice> {
        use rustix::fs::inotify::{ReadFlags, Reader};

        #[cfg(all(test, target_os = "linux"))]
        if let Some(taken) = super::simulated::system().and_then(|system| system.take_notices()) {
            return taken;
        }
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

    #[cfg(all(test, target_os = "linux"))]
    if let Some(notices) = super::simulated::notices() {
        return Some(notices);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn without_notices() -> (File, Watcher) {
        let file = tempfile::tempfile().unwrap();
        let polled = Some(Polled::new(file.try_clone().unwrap()));
        (file, Watcher { notices: None, polled })
    }

    fn touch(file: &File) {
        file.set_modified(SystemTime::now()).unwrap();
    }

    #[test]
    fn each_touch_is_found_without_notices() {
        let (file, watcher) = without_notices();
        for _ in 0..50 {
            watcher.clear();
            touch(&file);
            assert!(watcher.wait(LOOK_EVERY, None));
            // The clock may not have moved since the first change: the second is then found once its time is old
            // enough.
            touch(&file);
            assert!(watcher.wait(LOOK_EVERY, None));
        }
    }

    #[test]
    fn pauses_grow_while_nothing_happens_and_a_touch_begins_again() {
        let (file, watcher) = without_notices();
        let pause = || watcher.polled.as_ref().unwrap().pause.get();
        // The file is new, which may be found once.
        while watcher.wait(Duration::from_millis(200), None) {}
        let before = pause();
        assert!(before > 4 * FIRST_PAUSE, "{before:?}");
        assert!(!watcher.wait(LOOK_EVERY, None));
        assert!(!watcher.wait(LOOK_EVERY, None));
        assert_eq!(pause(), LOOK_EVERY);
        touch(&file);
        assert!(watcher.clear());
        assert_eq!(pause(), FIRST_PAUSE);
    }
}
