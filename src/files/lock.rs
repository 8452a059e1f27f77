//! Advisory locks on files in `run/`.
//!
//! A lock belongs to an open file description: it is shared by every copy of the descriptor, survives exec, and
//! goes when the last copy closes or anyone who shares it unlocks. So a consumer stays exclusive even when its
//! supervisor is killed, because the handler holds a copy; and the end of a run must *unlock* and not merely
//! close, or a process that the handler left in the background would keep the consumer busy for ever. Nobody
//! takes a lock to see whether it is free: a process that held one looks again after releasing it.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Access, Files};
use crate::error::{Error, IoContext, Result};

/// A held lock. Dropping it closes this copy; [`Lock::release`] unlocks for everybody.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Takes the lock on a file of a thread; `None` if somebody else holds it.
    pub fn try_take(files: &Files, name: impl AsRef<Path>) -> Result<Option<Lock>> {
        let name = name.as_ref();
        let taken = files.open_lock(name).and_then(Lock::try_take_file);
        taken.at("lock", &files.path_of(name))
    }

    /// Takes the lock, waiting for at most `patience`.
    ///
    /// # Errors
    ///
    /// [`Error::LockTimeout`] when somebody else held it all the time.
    pub fn take(files: &Files, name: impl AsRef<Path>, patience: Duration) -> Result<Lock> {
        let name = name.as_ref();
        let path = files.path_of(name);
        let file = match files.open_lock(name) {
            // Whoever only looks needs no more; whoever goes on to write will be told then.
            Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem => files.open_file(name, Access::Read),
            opened => opened,
        };
        let file = file.at("lock", &path)?;
        let began = Instant::now();
        let mut pause = Duration::from_micros(100);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock(file)),
                Err(TryLockError::Error(e)) => return Err(e).at("lock", &path),
                Err(TryLockError::WouldBlock) if began.elapsed() >= patience => {
                    return Err(Error::LockTimeout(path));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    pub(crate) fn try_take_file(file: File) -> io::Result<Option<Lock>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    /// Adopts the lock on `name` that the process that started this one holds and passed on as descriptor
    /// `fd`; `None` when that descriptor is not this lock.
    ///
    /// # Safety
    ///
    /// Nothing else in this process may own the descriptor.
    pub unsafe fn adopt(fd: RawFd, files: &Files, name: impl AsRef<Path>) -> Option<Lock> {
        if fd <= 2 {
            return None;
        }
        // SAFETY: whether the descriptor is open is checked first; the caller owns it.
        let file = unsafe {
            if libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) == -1 {
                return None;
            }
            File::from(OwnedFd::from_raw_fd(fd))
        };
        let (ours, there) = (file.metadata().ok()?, files.stat(name).ok()?);
        let same = (ours.dev(), ours.ino()) == super::identity(&there);
        // Taking it again through the same description succeeds, unless somebody else has it.
        (same && file.try_lock().is_ok()).then_some(Lock(file))
    }

    /// Unlocks, for every process that shares this lock.
    pub fn release(self) {
        // Closing follows in any case; a file that cannot be unlocked is not locked.
        drop(self.0.unlock());
    }

    /// The file, for what is noted in it, and for a child that is to hold the lock as well.
    pub fn file(&self) -> &File {
        &self.0
    }
}
