//! Advisory locks on files in `run/`.
//!
//! A lock belongs to an open file description: it is shared by every copy of the descriptor, survives exec,
//! and is released when the last copy is closed or any process that shares it unlocks. So a consumer stays
//! exclusive even if its supervisor is killed, because the handler holds a copy. And a run must end with an
//! explicit *unlock*, because a process that the handler left in the background may hold a copy too, and
//! would keep the consumer busy forever. A process that has held a lock, even briefly, must look again for
//! pending events after releasing it, so no process takes a lock just to see whether it is free.
//!
//! A supervisor that has several runs to supervise gives each run its own open file description, without a gap
//! between them: its lock is *shared*, which excludes exclusive locks, as all other processes take, and can be
//! taken a second time before the first is released.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Access, Files, identity};
use crate::error::{Error, IoContext, Result};
use crate::model::exponential_backoff::ExponentialBackoff;

/// A held lock. Dropping it closes this copy; [`Lock::release`] unlocks all copies.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Takes the lock on a file of a thread; `None` if another process holds it.
    pub fn try_take(files: &Files, name: impl AsRef<Path>) -> Result<Option<Lock>> {
        let name = name.as_ref();
        let taken = files.open_lock(name).and_then(Lock::try_take_file);
        taken.at("lock", &files.path_of(name))
    }

    /// Takes the lock, waiting for at most `timeout`.
    ///
    /// # Errors
    ///
    /// [`Error::LockTimeout`] if it was held by others all the time.
    pub fn take(files: &Files, name: impl AsRef<Path>, timeout: Duration) -> Result<Lock> {
        let name = name.as_ref();
        let path = files.path_of(name);
        let file = match files.open_lock(name) {
            // Readers need no more; writers fail on their first write.
            Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem => files.open_file(name, Access::Read),
            opened => opened,
        };
        let file = file.at("lock", &path)?;
        let began = Instant::now();
        let mut backoff = ExponentialBackoff::new(Duration::from_micros(100), Duration::from_millis(5));
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock(file)),
                Err(TryLockError::Error(e)) => return Err(e).at("lock", &path),
                Err(TryLockError::WouldBlock) if began.elapsed() >= timeout => {
                    return Err(Error::LockTimeout(path));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(backoff.pause()),
            }
        }
    }

    pub(crate) fn try_take_file(file: File) -> io::Result<Option<Lock>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e),
        }
    }

    /// Adopts the lock on `name` that the parent process holds and passed on as descriptor `fd`; `None` if
    /// that descriptor is not this lock.
    ///
    /// # Safety
    ///
    /// Nothing else in this process may own the descriptor.
    pub unsafe fn adopt(fd: RawFd, files: &Files, name: impl AsRef<Path>) -> Option<Lock> {
        if fd <= 2 {
            return None;
        }
        // SAFETY: fcntl fails unless the descriptor is open, and the caller guarantees that nothing else owns
        // it.
        let file = unsafe {
            if libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) == -1 {
                return None;
            }
            File::from(OwnedFd::from_raw_fd(fd))
        };
        let (passed, named) = (rustix::fs::fstat(&file).ok()?, files.stat(name).ok()?);
        let same = identity(&passed) == identity(&named);
        // Locking again through the same description succeeds, unless another process holds the lock.
        (same && file.try_lock().is_ok()).then_some(Lock(file))
    }

    /// Turns the lock into one that [`Lock::again`] can add to. Other processes are still excluded, because
    /// [`Lock::try_take`] and [`Lock::take`] are exclusive. `None` if another process took it during the
    /// change, which systems other than Linux do not rule out.
    pub fn shared(self) -> Option<Lock> {
        self.0.try_lock_shared().is_ok().then_some(self)
    }

    /// Takes a [shared](Lock::shared) lock a second time, through an open file description of its own. Once the
    /// first is released, its copies hold nothing, and the file was never unlocked.
    pub fn again(&self, files: &Files, name: impl AsRef<Path>) -> Result<Lock> {
        let name = name.as_ref();
        let taken = files.open_lock(name).and_then(|file| {
            file.try_lock_shared().map_err(io::Error::from)?;
            let (own, other) = (rustix::fs::fstat(&self.0)?, rustix::fs::fstat(&file)?);
            if identity(&own) != identity(&other) {
                return Err(io::Error::other("it was replaced"));
            }
            Ok(Lock(file))
        });
        taken.at("lock", &files.path_of(name))
    }

    /// Unlocks for every process that shares this lock.
    pub fn release(self) {
        // The file is closed in any case. Unlocking fails only if there is no lock.
        drop(self.0.unlock());
    }

    /// The lock file, to read and write its contents or to pass it to a child.
    pub fn file(&self) -> &File {
        &self.0
    }
}
