//! Advisory locks on files in `run/`.
//!
//! A lock belongs to an open file description, not to a process: it is shared by every copy of the
//! descriptor, survives exec, and goes when the last copy closes or anyone who shares it unlocks.
//! That is what keeps a consumer exclusive even when its supervisor is killed: the handler holds a
//! copy. And it is why the end of a run must *unlock* and not merely close: a process that the
//! handler left in the background would otherwise keep the consumer busy for ever.
//!
//! Nobody takes a lock to see whether it is free, because whoever tries meanwhile would be turned
//! away and go home. Whoever did hold one looks again after releasing it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{OrFix, Result};
use crate::files::Files;

/// A held lock. Dropping it closes this copy; [`Lock::release`] unlocks for everybody.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Takes the lock on a file that was opened for this purpose, if it is free.
    pub fn try_take(file: File) -> io::Result<Option<Lock>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    /// Takes the lock on a file of a thread, if it is free.
    pub fn try_take_in(files: &Files, path: &Path) -> Result<Option<Lock>> {
        let taken = files.open_lock(path).and_then(Lock::try_take);
        taken.or_fix(format_args!("cannot lock {}", path.display()), "check the permissions of run/")
    }

    /// Takes the lock, waiting for at most `patience`. Nothing when it stayed taken.
    pub fn take(file: File, patience: Duration) -> io::Result<Option<Lock>> {
        let began = Instant::now();
        let mut pause = Duration::from_micros(100);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Lock(file))),
                Err(TryLockError::Error(e)) => return Err(e),
                Err(TryLockError::WouldBlock) if began.elapsed() >= patience => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// Adopts a lock that whoever started this process holds and passed on as descriptor `fd`.
    /// Nothing when that descriptor is not the lock file at `path`.
    pub fn adopt(fd: RawFd, path: &Path) -> Option<Lock> {
        if fd <= 2 {
            return None;
        }
        // SAFETY: whether the descriptor is open is checked first, and nothing else in this
        // process owns it: it runs before anything but the standard descriptors is opened.
        let file = unsafe {
            if libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) == -1 {
                return None;
            }
            File::from(OwnedFd::from_raw_fd(fd))
        };
        let (ours, there) = (file.metadata().ok()?, std::fs::metadata(path).ok()?);
        let same = ours.dev() == there.dev() && ours.ino() == there.ino();
        // Taking it again through the same description succeeds, unless somebody else has it.
        (same && file.try_lock().is_ok()).then_some(Lock(file))
    }

    /// Unlocks, for every process that shares this lock.
    pub fn release(self) {
        // Closing follows in any case; a file that cannot be unlocked is not locked.
        drop(self.0.unlock());
    }

    pub fn file(&self) -> &File {
        &self.0
    }

    /// The descriptor, for a child that is to hold the lock as well.
    pub fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
