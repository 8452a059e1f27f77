//! Waiting for the next commit, whoever makes it, at no cost while nothing happens.
//!
//! SQLite tells whether another connection has committed (`PRAGMA data_version`) but not when to
//! ask. A notice of the file system tells when: every commit writes to `events.db-wal`, whichever
//! program makes it. The notice comes *before* the commit can be seen, so after the last one the
//! question is asked again and again for a while, ever more slowly. Beside that it is asked once a
//! second, and where no notices are to be had (the limit on watches is reached, or the system has
//! none), every few hundredths of one.
//!
//! Whoever waits also watches its own stdout: a reader that has gone ends the waiting, also when
//! nothing comes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Failure, Result};
use crate::files::Files;
use crate::store::Store;

/// How long after the last notice a commit may still become visible.
const AFTERMATH: Duration = Duration::from_millis(200);

/// The first pause between two questions after a notice; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// How often the question is asked without a notice.
const SLOW: Duration = Duration::from_secs(1);

/// The same where there are no notices at all.
const WITHOUT_NOTICES: Duration = Duration::from_millis(50);

/// Why a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Somebody has committed something.
    Changed,
    /// The time is up.
    TimedOut,
    /// Nobody reads our output any more.
    ReaderGone,
}

/// Watches one thread for commits.
pub struct Watch {
    notices: Option<OwnedFd>,
    seen: i64,
}

impl Watch {
    /// Watches from now on: what is committed after this call ends the next wait.
    pub fn start(files: &Files, store: &Store) -> Result<Watch> {
        let notices = notices_of(files).ok();
        Ok(Watch { notices, seen: store.data_version()? })
    }

    /// Waits for a commit of another connection, for `deadline` (none: for ever), or for the reader
    /// of stdout to go away.
    ///
    /// # Errors
    ///
    /// The thread was moved or removed; database trouble.
    pub fn wait(&mut self, files: &Files, store: &Store, deadline: Option<Instant>) -> Result<Woken> {
        let mut noticed: Option<Instant> = None;
        let mut pause = FIRST_PAUSE;
        let mut checked = Instant::now();
        loop {
            let version = store.data_version()?;
            if version != self.seen {
                self.seen = version;
                return Ok(Woken::Changed);
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(Woken::TimedOut);
            }
            if now.duration_since(checked) >= SLOW {
                checked = now;
                if !files.still_there() {
                    return Err(Failure::could_not(
                        format_args!("{} was moved or removed", files.dir().display()),
                        "start again at its new place",
                    ));
                }
            }
            let mut longest = if self.notices.is_some() { SLOW } else { WITHOUT_NOTICES };
            if noticed.is_some_and(|at| at.elapsed() < AFTERMATH) {
                longest = pause;
                pause *= 2;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            match self.doze(left.map_or(longest, |left| left.min(longest))) {
                Dozed::ReaderGone => return Ok(Woken::ReaderGone),
                Dozed::Noticed => (noticed, pause) = (Some(Instant::now()), FIRST_PAUSE),
                Dozed::Through => {}
            }
        }
    }

    /// Sleeps until a notice, the reader's going, or the end of `time`.
    fn doze(&self, time: Duration) -> Dozed {
        let stdout = io::stdout();
        let mut ready = vec![PollFd::new(&stdout, PollFlags::empty())];
        if let Some(notices) = &self.notices {
            ready.push(PollFd::new(notices, PollFlags::IN));
        }
        // An interrupted doze is only a short one.
        poll(&mut ready, Timespec::try_from(time).ok().as_ref()).ok();
        if ready[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return Dozed::ReaderGone;
        }
        match &self.notices {
            Some(notices) if drain(notices) => Dozed::Noticed,
            _ => Dozed::Through,
        }
    }
}

enum Dozed {
    Through,
    Noticed,
    ReaderGone,
}

/// Notices of what happens in the thread's directory.
#[cfg(target_os = "linux")]
fn notices_of(files: &Files) -> io::Result<OwnedFd> {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    let notices = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    // The directory rather than the file: other programs may remove the WAL and make it anew.
    add_watch(&notices, files.dir(), WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO)?;
    Ok(notices)
}

#[cfg(not(target_os = "linux"))]
fn notices_of(_: &Files) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Takes the notices that are there; whether any concerned the database.
#[cfg(target_os = "linux")]
fn drain(notices: impl AsFd) -> bool {
    let mut room = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = rustix::fs::inotify::Reader::new(notices, &mut room);
    let mut concerned = false;
    while let Ok(notice) = reader.next() {
        // A notice without a name says that some were dropped.
        concerned |= notice.file_name().is_none_or(|name| name.to_bytes().starts_with(b"events.db"));
    }
    concerned
}

#[cfg(not(target_os = "linux"))]
fn drain(_: impl AsFd) -> bool {
    false
}
