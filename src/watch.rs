//! Waiting for the next commit, whoever makes it, at no cost while nothing happens.
//!
//! SQLite tells whether another connection has committed (`PRAGMA data_version`) but not when to
//! ask. A notice of the file system tells when: every commit writes to `events.db-wal`, whichever
//! program makes it. The notice comes *before* the commit can be seen, so after it the question is
//! asked again and again for a while, ever more slowly. Meanwhile notices are left to pile up: a
//! commit makes many, and a hundred waiters that woke for each would slow down the one who commits.
//! When a commit has been seen, notices that were taken since the question before may belong to the
//! next one, which cannot be seen yet; then a few more questions follow. (There is one writer at a
//! time, so notices taken before a question that found nothing belong to the commit now seen.) Beside that it is asked once a second, and where no
//! notices are to be had (the limit on watches is reached, or the system has none), every few
//! hundredths of one.
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

/// The first pause between a notice and the question; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// No pause between a notice and the commit it announced is longer.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// The first pause after a commit was seen; each is four times the one before, or until a notice.
const PAUSE_AFTER_COMMIT: Duration = Duration::from_millis(8);

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
    mood: Mood,
    /// Whether notices were taken since the last question.
    taken: bool,
    /// When it was last made sure that the thread is still at its place.
    checked: Instant,
}

/// What is expected next, and how long to pause for it.
#[derive(Clone, Copy)]
enum Mood {
    /// Nothing: only a notice, or a long time, is a reason to ask.
    Calm,
    /// A commit was announced at that time and cannot be seen yet.
    Announced(Instant, Duration),
    /// A commit was seen at that time; another may be close behind.
    Seen(Instant, Duration),
}

impl Watch {
    /// Watches from now on: what is committed after this call ends the next wait.
    pub fn start(files: &Files, store: &Store) -> Result<Watch> {
        // The first question also makes sure that there is a WAL to watch.
        store.data_version()?;
        let notices = notices_of(files).ok();
        let now = Instant::now();
        // A commit under way may have written all it has to write before the watch began.
        let mood = Mood::Seen(now, PAUSE_AFTER_COMMIT);
        Ok(Watch { notices, seen: store.data_version()?, mood, taken: false, checked: now })
    }

    /// Waits for a commit of another connection, for `deadline` (none: for ever), or for the reader
    /// of stdout to go away.
    ///
    /// # Errors
    ///
    /// The thread was moved or removed; database trouble.
    pub fn wait(&mut self, files: &Files, store: &Store, deadline: Option<Instant>) -> Result<Woken> {
        loop {
            let version = store.data_version()?;
            let now = Instant::now();
            if version != self.seen {
                self.seen = version;
                self.mood = if self.taken { Mood::Seen(now, PAUSE_AFTER_COMMIT) } else { Mood::Calm };
                self.taken = false;
                return Ok(Woken::Changed);
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(Woken::TimedOut);
            }
            if now.duration_since(self.checked) >= SLOW {
                self.checked = now;
                if !files.still_there() {
                    return Err(Failure::could_not(
                        format_args!("{} was moved or removed", files.dir().display()),
                        "start again at its new place",
                    ));
                }
            }
            let (longest, heed_notices) = self.next_pause(now);
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            if self.doze(left.map_or(longest, |left| left.min(longest)), heed_notices) {
                return Ok(Woken::ReaderGone);
            }
            self.taken = self.notices.as_ref().is_some_and(|notices| drain(notices, files));
            if self.taken {
                let now = Instant::now();
                if heed_notices {
                    self.mood = Mood::Announced(now, 2 * FIRST_PAUSE);
                    // What is written meanwhile mostly belongs to the same commit.
                    if self.doze(FIRST_PAUSE, false) {
                        return Ok(Woken::ReaderGone);
                    }
                    if let Some(notices) = &self.notices {
                        drain(notices, files);
                    }
                } else if let Mood::Announced(_, pause) = self.mood {
                    self.mood = Mood::Announced(now, pause);
                }
            }
        }
    }

    /// How long to pause before the next question, and whether a notice is to end the pause.
    fn next_pause(&mut self, now: Instant) -> (Duration, bool) {
        if self.notices.is_none() {
            return (WITHOUT_NOTICES, false);
        }
        match self.mood {
            Mood::Announced(at, pause) if now.duration_since(at) < AFTERMATH => {
                self.mood = Mood::Announced(at, (pause * 2).min(LONGEST_PAUSE));
                (pause, false)
            }
            Mood::Seen(at, pause) if now.duration_since(at) < AFTERMATH => {
                self.mood = Mood::Seen(at, pause * 4);
                (pause, true)
            }
            _ => {
                self.mood = Mood::Calm;
                (SLOW, true)
            }
        }
    }

    /// Sleeps for `time`, or until there is a notice if those are heeded; less when the reader of
    /// stdout goes away: then the answer is true.
    fn doze(&self, time: Duration, heed_notices: bool) -> bool {
        let stdout = io::stdout();
        let mut ready = vec![PollFd::new(&stdout, PollFlags::empty())];
        if let Some(notices) = self.notices.as_ref().filter(|_| heed_notices) {
            ready.push(PollFd::new(notices, PollFlags::IN));
        }
        // An interrupted doze is only a short one.
        poll(&mut ready, Timespec::try_from(time).ok().as_ref()).ok();
        ready[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
    }
}

/// Notices of what happens in the thread's directory.
#[cfg(target_os = "linux")]
fn notices_of(files: &Files) -> io::Result<OwnedFd> {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    let notices = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    watch_wal(&notices, files)?;
    // Other programs may remove the WAL and make it anew.
    add_watch(&notices, files.dir(), WatchFlags::CREATE | WatchFlags::MOVED_TO)?;
    Ok(notices)
}

/// The WAL alone: what is written to other files of the thread wakes nobody.
#[cfg(target_os = "linux")]
fn watch_wal(notices: impl AsFd, files: &Files) -> io::Result<()> {
    use rustix::fs::inotify::{WatchFlags, add_watch};
    add_watch(notices, files.wal(), WatchFlags::MODIFY)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn notices_of(_: &Files) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Takes the notices that are there; whether any concerned the database.
#[cfg(target_os = "linux")]
fn drain(notices: impl AsFd, files: &Files) -> bool {
    let mut room = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = rustix::fs::inotify::Reader::new(&notices, &mut room);
    let (mut concerned, mut made_anew) = (false, false);
    while let Ok(notice) = reader.next() {
        // One without a name is of the WAL itself, or says that some were dropped.
        let name = notice.file_name().map(|name| name.to_bytes());
        made_anew |= name == Some(b"events.db-wal");
        concerned |= name.is_none_or(|name| name.starts_with(b"events.db"));
    }
    if made_anew {
        // Where that fails, the slow question is left.
        drop(watch_wal(&notices, files));
    }
    concerned
}

#[cfg(not(target_os = "linux"))]
fn drain(_: impl AsFd, _: &Files) -> bool {
    false
}
