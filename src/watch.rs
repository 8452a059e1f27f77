//! Waiting for the next commit, whoever makes it, at no cost while nothing happens.
//!
//! SQLite tells whether another connection has committed (`PRAGMA data_version`) but not when to
//! ask. Notices of the file system tell when, and there are two kinds.
//!
//! A program that closes `events.db-wal` has committed what it had to. So does every command of ours
//! soon after its commit, and one question is then enough. That is what most of those who wait for a
//! thread listen to: a hundred of them are woken once, when the one who pushed is done.
//!
//! A program that keeps the database open only writes to the WAL. That notice comes *before* the
//! commit can be seen, so after it the question is asked again and again for a while, ever more
//! slowly; meanwhile notices are left to pile up, for a commit makes many. It is too much for all,
//! so one of those who wait, the one that holds the lock `run/_waiters.lock`, does it for the others.
//! When it has seen a commit and nobody closes the WAL, it opens and closes it, which wakes them.
//!
//! When a commit has been seen, notices that were taken since the question before may belong to the
//! next one, which cannot be seen yet; then a few more questions follow. (There is one writer at a
//! time, so notices taken before a question that found nothing belong to the commit now seen.)
//!
//! Beside that it is asked once a second, and where no notices are to be had (the limit on watches
//! is reached, or the system has none), every few hundredths of one. Once a second, too, the others
//! look whether the one is still there.
//!
//! Whoever waits also watches its own stdout: a reader that has gone ends the waiting, also when
//! nothing comes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Failure, Result};
use crate::files::Files;
use crate::store::Store;

/// How long after the last notice of writing a commit may still become visible.
const AFTERMATH: Duration = Duration::from_millis(200);

/// The first pause between such a notice and the question; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// No pause between a notice and the commit it announced is longer.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// The first pause after a commit was seen; each is four times the one before, or until a notice.
const PAUSE_AFTER_COMMIT: Duration = Duration::from_millis(8);

/// How long after a commit its program has for closing the WAL, which then wakes everybody.
const TIME_TO_CLOSE: Duration = Duration::from_millis(3);

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
    /// The lock of the one that listens for the others; none where this process could not wake them.
    lock: Option<File>,
    /// Whether notices of writing are asked for.
    hears_writing: bool,
    seen: i64,
    mood: Mood,
    /// Notices that were taken since the last question.
    taken: Taken,
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

/// What notices have told.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    /// Somebody writes to the WAL, or it is not known what happened.
    written: bool,
    /// Somebody has closed the WAL.
    closed: bool,
}

impl Watch {
    /// Watches from now on: what is committed after this call ends the next wait.
    pub fn start(files: &Files, store: &Store) -> Result<Watch> {
        // The first question also makes sure that there is a WAL to watch.
        store.data_version()?;
        let may_write = rustix::fs::access(files.wal(), rustix::fs::Access::WRITE_OK).is_ok();
        let lock = may_write.then(|| files.open_lock(&files.run("_waiters.lock")).ok()).flatten();
        let hears_writing = true;
        let notices = notices_of(files, hears_writing).ok();
        let now = Instant::now();
        // A commit under way may have written all it has to write before the watch began.
        let mood = Mood::Seen(now, PAUSE_AFTER_COMMIT);
        let (seen, taken) = (store.data_version()?, Taken::default());
        Ok(Watch { notices, lock, hears_writing, seen, mood, taken, checked: now })
    }

    /// Waits for a commit of another connection, for `deadline` (none: for ever), or for the reader
    /// of stdout to go away.
    ///
    /// # Errors
    ///
    /// The thread was moved or removed; database trouble.
    pub fn wait(&mut self, files: &Files, store: &Store, deadline: Option<Instant>) -> Result<Woken> {
        self.take_role(files);
        let woken = self.wait_in_role(files, store, deadline);
        // Whoever prints meanwhile, to a slow reader perhaps, must not keep the others waiting.
        if let Some(lock) = &self.lock {
            drop(lock.unlock());
        }
        woken
    }

    fn wait_in_role(&mut self, files: &Files, store: &Store, deadline: Option<Instant>) -> Result<Woken> {
        loop {
            let version = store.data_version()?;
            let now = Instant::now();
            let taken = std::mem::take(&mut self.taken);
            if version != self.seen {
                self.seen = version;
                self.mood = if taken.written { Mood::Seen(now, PAUSE_AFTER_COMMIT) } else { Mood::Calm };
                if !taken.closed && self.wakes_others() {
                    return Ok(self.wake_others(files));
                }
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
                self.take_role(files);
            }
            if taken.closed && matches!(self.mood, Mood::Calm) {
                // Somebody else may have closed it just before the one who commits.
                self.mood = Mood::Seen(now, PAUSE_AFTER_COMMIT);
            }
            let (longest, heed_notices) = self.next_pause(now);
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            if self.doze(left.map_or(longest, |left| left.min(longest)), heed_notices) {
                return Ok(Woken::ReaderGone);
            }
            self.take_notices(files);
            if self.taken.written && !self.taken.closed {
                let now = Instant::now();
                if heed_notices {
                    self.mood = Mood::Announced(now, 2 * FIRST_PAUSE);
                    // What is written meanwhile mostly belongs to the same commit.
                    if self.doze(FIRST_PAUSE, false) {
                        return Ok(Woken::ReaderGone);
                    }
                    self.take_notices(files);
                } else if let Mood::Announced(_, pause) = self.mood {
                    self.mood = Mood::Announced(now, pause);
                }
            }
        }
    }

    /// Listens to writing if nobody else does it for all.
    fn take_role(&mut self, files: &Files) {
        let leads = self.lock.as_ref().is_none_or(|lock| lock.try_lock().is_ok());
        if let Some(notices) = &self.notices
            && leads != self.hears_writing
            && watch_wal(notices, files, leads).is_ok()
        {
            self.hears_writing = leads;
            if leads {
                // A commit under way may have written all it has to write before.
                self.mood = Mood::Seen(Instant::now(), PAUSE_AFTER_COMMIT);
            }
        }
    }

    fn wakes_others(&self) -> bool {
        self.hears_writing && self.lock.is_some() && self.notices.is_some()
    }

    /// Wakes the others after a commit, unless the program that made it does.
    fn wake_others(&mut self, files: &Files) -> Woken {
        let until = Instant::now() + TIME_TO_CLOSE;
        while !self.taken.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(OpenOptions::new().write(true).open(files.wal()));
                break;
            }
            if self.doze(left, true) {
                return Woken::ReaderGone;
            }
            self.take_notices(files);
        }
        Woken::Changed
    }

    fn take_notices(&mut self, files: &Files) {
        if let Some(notices) = &self.notices {
            drain(notices, files, self.hears_writing, &mut self.taken);
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
fn notices_of(files: &Files, writing: bool) -> io::Result<OwnedFd> {
    use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
    let notices = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    watch_wal(&notices, files, writing)?;
    // Other programs may remove the WAL and make it anew.
    add_watch(&notices, files.dir(), WatchFlags::CREATE | WatchFlags::MOVED_TO)?;
    Ok(notices)
}

/// The WAL alone: what is written to other files of the thread wakes nobody.
#[cfg(target_os = "linux")]
fn watch_wal(notices: impl AsFd, files: &Files, writing: bool) -> io::Result<()> {
    use rustix::fs::inotify::{WatchFlags, add_watch};
    let writing = if writing { WatchFlags::MODIFY } else { WatchFlags::empty() };
    add_watch(notices, files.wal(), WatchFlags::CLOSE_WRITE | writing)?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn notices_of(_: &Files, _: bool) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn watch_wal(_: impl AsFd, _: &Files, _: bool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Takes the notices that are there and adds what they tell of the database.
#[cfg(target_os = "linux")]
fn drain(notices: impl AsFd, files: &Files, writing: bool, taken: &mut Taken) {
    use rustix::fs::inotify::ReadFlags;
    let mut room = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = rustix::fs::inotify::Reader::new(&notices, &mut room);
    let mut made_anew = false;
    while let Ok(notice) = reader.next() {
        // One without a name is of the WAL itself, or says that some were dropped.
        match notice.file_name().map(|name| name.to_bytes()) {
            None if notice.events().contains(ReadFlags::CLOSE_WRITE) => taken.closed = true,
            None => taken.written = true,
            Some(name) => {
                made_anew |= name == b"events.db-wal";
                taken.written |= name.starts_with(b"events.db");
            }
        }
    }
    if made_anew {
        // Where that fails, the slow question is left.
        drop(watch_wal(&notices, files, writing));
    }
}

#[cfg(not(target_os = "linux"))]
fn drain(_: impl AsFd, _: &Files, _: bool, _: &mut Taken) {}
