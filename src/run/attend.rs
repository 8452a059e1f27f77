//! Who attends to the waits of a thread: its [timer](super::timer), or a worker in its place.

use super::launcher::Launcher;
use super::process::Liveness;
use crate::error::Result;
use crate::files::lock::Lock;
use crate::files::{Access, COMMIT, CONTROL, Files};
use crate::model::run::ProcessId;

/// The lock of the process that attends to the waits, with its identity in it.
pub(super) const TIMER_LOCK: &str = "run/_timer.lock";

/// Makes sure that a process attends to the waits of a thread, and knows of those that are new.
///
/// # Errors
///
/// It cannot be started.
pub(super) fn attend(files: &Files, launcher: &Launcher) -> Result<()> {
    match Lock::try_take(files, TIMER_LOCK)? {
        Some(lock) => launcher.start_timer(files, &lock),
        None => {
            drop(files.touch(CONTROL));
            // For a worker that has its place.
            drop(files.touch(COMMIT));
            Ok(())
        }
    }
}

/// Says in the lock file that this process attends to the waits.
pub(super) fn sign(lock: &Lock) {
    let text = serde_json::to_string(&ProcessId::own()).unwrap_or_default();
    let write = || {
        use std::os::unix::fs::FileExt;
        lock.file().set_len(0)?;
        lock.file().write_all_at(text.as_bytes(), 0)
    };
    // Only for others to see.
    drop::<std::io::Result<()>>(write());
}

/// Whether a process attends to the waits, as far as that can be known here.
pub fn attendance(files: &Files) -> Liveness {
    let file = files.open_file(TIMER_LOCK, Access::Read).ok();
    let process = file.and_then(|file| serde_json::from_reader::<_, ProcessId>(file).ok());
    process.map_or(Liveness::Dead, |process| process.liveness())
}
