//! Waiting for the next commit, whoever makes it, at no cost while nothing happens.
//!
//! SQLite tells whether another connection has committed (`PRAGMA data_version`) but not when to
//! ask. Notices of the file system tell when: a commit is written to `events.db-wal`, whichever
//! program makes it. That notice comes *before* the commit can be seen, so after it the question is
//! asked again and again for a while, ever more slowly; meanwhile notices are left to pile up, for a
//! commit makes many.
//!
//! It would be too much for a hundred who wait for the same thread, and whoever pushes would feel it.
//! So one of them does it for all: the leader, who holds the lock on `run/_waiters.lock`. It also has
//! that file open for writing, and closing it is the bell that the others listen to. It leaves its
//! place with every commit that it has seen, and rings a little later, when the program that
//! committed will be done. Should it be killed, the system closes the file and so rings for it.
//!
//! Nobody misses a commit: whoever is about to sleep first finds that there is a leader, then asks
//! once more. A later commit is seen by that leader, who then rings; or he has left before, and rings.
//! After a bell without news the place may be free, and it is tried again. A leader that rings no
//! more, stopped on somebody's terminal perhaps, is found out by two commits that he did not tell of;
//! then they listen for themselves until he rings again.
//!
//! Beside that it is asked once a second, and where no notices are to be had (the limit on watches
//! is reached, or the system has none), every few hundredths of one.
//!
//! Whoever waits also watches its own stdout: a reader that has gone ends the waiting, also when
//! nothing comes.

#[cfg(target_os = "linux")]
use std::ffi::CStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
#[cfg(target_os = "linux")]
use rustix::fs::inotify::{ReadFlags, Reader, WatchFlags, add_watch, remove_watch};
use rustix::fs::{Access, access};

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

/// How long after a commit the program that made it has for the rest of its work, before all who
/// wait are woken.
const TIME_TO_FINISH: Duration = Duration::from_millis(4);

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
    notices: Option<Notices>,
    /// The leader's lock, not open for writing; none for who can neither lead nor be told.
    lock: Option<File>,
    /// Open for writing while this process leads.
    bell: Option<File>,
    /// Whether it was found that there is a leader since the last bell.
    placed: bool,
    /// Commits in a row that no bell told of.
    untold: u32,
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
    /// A leader has left.
    rung: bool,
}

impl Watch {
    /// Watches from now on: what is committed after this call ends the next wait.
    pub fn start(files: &Files, store: &Store) -> Result<Watch> {
        // The first question also makes sure that there is a WAL to watch.
        let seen = store.data_version()?;
        let path = files.run("_waiters.lock");
        let mut notices = Notices::begin().ok();
        let lock = notices.as_mut().and_then(|notices| {
            let lock = File::open(&path).or_else(|_| files.open_lock(&path).and_then(|_| File::open(&path)));
            let lock = lock.and_then(|lock| notices.hear_bell(&path).map(|()| lock)).ok();
            // Who cannot ring must not lead, not for a moment.
            lock.filter(|_| access(&path, Access::WRITE_OK).is_ok())
        });
        Ok(Watch {
            notices,
            lock,
            bell: None,
            placed: false,
            untold: 0,
            seen,
            mood: Mood::Calm,
            taken: Taken::default(),
            checked: Instant::now(),
        })
    }

    /// Waits for a commit of another connection, for `deadline` (none: for ever), or for the reader
    /// of stdout to go away.
    ///
    /// # Errors
    ///
    /// The thread was moved or removed; database trouble.
    pub fn wait(&mut self, files: &Files, store: &Store, deadline: Option<Instant>) -> Result<Woken> {
        let woken = self.wait_in_place(files, store, deadline);
        // Whoever prints meanwhile, to a slow reader perhaps, must not keep the others waiting.
        self.leave(matches!(woken, Ok(Woken::Changed)));
        woken
    }

    fn wait_in_place(&mut self, files: &Files, store: &Store, deadline: Option<Instant>) -> Result<Woken> {
        let mut overslept = false;
        loop {
            let version = store.data_version()?;
            let now = Instant::now();
            let taken = std::mem::take(&mut self.taken);
            if version != self.seen {
                self.seen = version;
                self.mood = if taken.written { Mood::Seen(now, PAUSE_AFTER_COMMIT) } else { Mood::Calm };
                self.untold += u32::from(overslept && !taken.rung);
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
                // A leader that was killed may have rung before the system let go of its lock.
                self.placed &= self.lock.is_none() || self.bell.is_some();
            }
            if !self.placed {
                self.take_place(files);
                continue;
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
            overslept = self.lock.is_some() && self.bell.is_none() && now.elapsed() >= SLOW;
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

    /// Leads, if nobody else does. Listens to the WAL unless somebody else does that for all.
    fn take_place(&mut self, files: &Files) {
        self.placed = true;
        if self.notices.is_none() {
            return;
        }
        match self.lock.as_ref().map(File::try_lock) {
            Some(Err(TryLockError::WouldBlock)) if self.untold < 2 => {
                if let Some(notices) = &mut self.notices {
                    notices.leave_wal();
                }
                return;
            }
            // One that tells nothing is left to itself until it rings again.
            Some(Err(TryLockError::WouldBlock)) => {}
            Some(Ok(())) => {
                self.bell = OpenOptions::new().write(true).open(files.run("_waiters.lock")).ok();
                if self.bell.is_none() {
                    self.lock = None;
                }
            }
            Some(Err(TryLockError::Error(_))) => self.lock = None,
            None => {}
        }
        if let Some(notices) = &mut self.notices
            && let Ok(new) = notices.hear_wal(files)
        {
            if new {
                // A commit under way may have written all it has to write before.
                self.mood = Mood::Seen(Instant::now(), PAUSE_AFTER_COMMIT);
            }
        } else {
            self.leave(false);
            (self.notices, self.lock, self.placed) = (None, None, true);
        }
    }

    /// Makes room for another leader and lets the others know, a little later where they will find
    /// a commit that was made just now.
    fn leave(&mut self, after_commit: bool) {
        self.placed = false;
        let Some(bell) = self.bell.take() else { return };
        if let Some(lock) = &self.lock {
            drop(lock.unlock());
        }
        if after_commit {
            // Where no thread can be had, the bell goes with what it would have done, at once.
            let later = std::thread::Builder::new();
            drop(later.spawn(move || {
                std::thread::sleep(TIME_TO_FINISH);
                drop(bell);
            }));
        }
    }

    fn take_notices(&mut self, files: &Files) {
        if let Some(notices) = &mut self.notices {
            notices.take(files, &mut self.taken);
        }
        if self.taken.rung {
            self.untold = 0;
            self.placed &= self.bell.is_some() || self.lock.is_none();
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
                self.mood = Mood::Seen(at, (pause * 4).min(AFTERMATH));
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
            ready.push(PollFd::new(&notices.queue, PollFlags::IN));
        }
        // An interrupted doze is only a short one.
        poll(&mut ready, Timespec::try_from(time).ok().as_ref()).ok();
        ready[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL)
    }
}

/// Notices of the file system.
#[cfg(target_os = "linux")]
struct Notices {
    queue: OwnedFd,
    /// The bell, the WAL, and the directory of the WAL.
    bell: Option<i32>,
    wal: Option<i32>,
    dir: Option<i32>,
}

#[cfg(target_os = "linux")]
impl Notices {
    fn begin() -> io::Result<Notices> {
        use rustix::fs::inotify::{CreateFlags, init};
        let queue = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Notices { queue, bell: None, wal: None, dir: None })
    }

    fn hear_bell(&mut self, path: &Path) -> io::Result<()> {
        self.bell = Some(add_watch(&self.queue, path, WatchFlags::CLOSE_WRITE)?);
        Ok(())
    }

    /// The WAL alone: what is written to other files of the thread wakes nobody. Answers whether it
    /// was not listened to before.
    fn hear_wal(&mut self, files: &Files) -> io::Result<bool> {
        if self.wal.is_some() {
            return Ok(false);
        }
        // Other programs may remove the WAL and make it anew.
        self.dir = Some(add_watch(&self.queue, files.dir(), WatchFlags::CREATE | WatchFlags::MOVED_TO)?);
        self.wal = Some(add_watch(&self.queue, files.wal(), WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE)?);
        Ok(true)
    }

    fn leave_wal(&mut self) {
        for watched in [self.wal.take(), self.dir.take()].into_iter().flatten() {
            // It may be gone with its file.
            remove_watch(&self.queue, watched).ok();
        }
    }

    /// Takes the notices that are there and adds what they tell.
    fn take(&mut self, files: &Files, taken: &mut Taken) {
        let mut room = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.queue, &mut room);
        let mut made_anew = false;
        while let Ok(notice) = reader.next() {
            let about = Some(notice.wd());
            if notice.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                // Anything may be among those that were dropped.
                *taken = Taken { written: self.wal.is_some(), closed: false, rung: true };
            } else if about == self.bell {
                taken.rung = true;
            } else if about == self.wal {
                let closed = notice.events().contains(ReadFlags::CLOSE_WRITE);
                taken.closed |= closed;
                taken.written |= !closed;
            } else if about == self.dir
                && let Some(name) = notice.file_name().map(CStr::to_bytes)
            {
                made_anew |= name == b"events.db-wal";
                taken.written |= name.starts_with(b"events.db");
            }
        }
        if made_anew {
            // Where that fails, the slow question is left.
            let watched = add_watch(&self.queue, files.wal(), WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE);
            self.wal = watched.ok().or(self.wal);
        }
    }
}

/// Notices of the file system, of which this system has none that are known here.
#[cfg(not(target_os = "linux"))]
struct Notices {
    queue: OwnedFd,
}

#[cfg(not(target_os = "linux"))]
impl Notices {
    fn begin() -> io::Result<Notices> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn hear_bell(&mut self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn hear_wal(&mut self, _: &Files) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn leave_wal(&mut self) {}

    fn take(&mut self, _: &Files, _: &mut Taken) {}
}
