//! Creates a thread.
//!
//! The database is built under a temporary name and renamed as the last step. So a directory is either a
//! complete thread or not a thread, and an `init` that was killed can be run again.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, IoContext, MAX_PATH, Result};
use crate::files::lock::Lock;
use crate::files::{self, Access, DB, Files, JOURNAL, JSONL, WAL};
use crate::sqlite::Sqlite;

/// How long an `init` waits for another one of the same directory. Each takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

const LOCK: &str = "run/_init.lock";
const DRAFT: &str = "run/_init.db";

/// What kind of thread to create.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewThread {
    /// Only the owner may read or write it, whatever the umask.
    pub private: bool,
    /// Its events will be small and pushed one by one, and there may be thousands of such threads: it takes less
    /// space, and batches and large events take longer.
    pub small: bool,
}

#[expect(
    clippy::disallowed_methods,
    reason = "before it is a thread, the directory and its parents are made"
)]
pub fn init(path: &Path, new: NewThread) -> Result<PathBuf> {
    let open_to_others = !new.private;
    let dir = files::absolute(path).at("find", path)?;
    let length = resolved(&dir).as_os_str().len().max(dir.as_os_str().len());
    if length > MAX_PATH {
        return Err(Error::PathTooLong { path: dir, length });
    }
    if fs::symlink_metadata(dir.join(DB)).is_ok() {
        return Err(Error::AlreadyAThread(dir));
    }
    let parents = files::parents_to_sync(&dir);
    if let Some(parent) = dir.parent() {
        DirBuilder::new().recursive(true).mode(0o775).create(parent).at("make", parent)?;
    }
    let mode = if open_to_others { 0o775 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(mode).create(&dir).at("make", &dir)?;
    let files = Files::of_new(dir.clone(), open_to_others).at("open", &dir)?;
    refuse_occupied(&files)?;
    for name in ["run", "logs"] {
        files.make_dir(name).at("make", &files.path_of(name))?;
    }
    let lock = Lock::take(&files, LOCK, LOCK_TIMEOUT)?;
    let made = refuse_occupied(&files).and_then(|()| put_in_place(&files, parents, new.small));
    // Once the database exists, the lock file can go: a process that waits for this lock, or creates a new
    // one, finds the thread. Without it, removing the file would let two processes work at once, on the old
    // and a new lock.
    if files.exists(DB) {
        drop(files.remove(LOCK));
    }
    lock.release();
    made.map(|()| dir)
}

/// Resolves links in the existing part of a path.
fn resolved(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, mut real)) = found else { return path.to_owned() };
    real.extend(path.strip_prefix(above).unwrap_or(path));
    real
}

/// Fails if the directory is a thread or contains the remains of one.
fn refuse_occupied(files: &Files) -> Result<()> {
    if files.exists(DB) {
        return Err(Error::AlreadyAThread(files.path().to_owned()));
    }
    // These files would be taken for the new database's own: SQLite would replay the stale WAL, and the next
    // push would truncate the old log.
    let sealed = crate::jsonl::sealed(files).unwrap_or_default().into_iter().next();
    let found = [WAL, JOURNAL].into_iter().find(|name| files.exists(name));
    let found = found.or_else(|| (files.size(JSONL) > 0).then_some(JSONL)).or(sealed.as_deref());
    found.map_or(Ok(()), |left| Err(Error::Leftovers(files.path_of(left))))
}

/// Builds the database under a temporary name, renames it, and syncs the directory entries of everything new.
fn put_in_place(files: &Files, parents: Vec<PathBuf>, small: bool) -> Result<()> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let stray = format!("{DRAFT}{suffix}");
        files.remove(&stray).at("remove", &files.path_of(&stray))?;
    }
    // Created before SQLite opens it, so that its mode and group are right from the start.
    let draft = files.open_file(DRAFT, Access::Write).at("make", &files.path_of(DRAFT))?;
    files.open_file(JSONL, Access::Append).at("make", &files.path_of(JSONL))?;
    // Links in the path of the thread are followed, links inside it are not.
    Sqlite::create(&resolved(files.path()).join(DRAFT), small)?;
    draft.sync_all().and_then(|()| files.rename(DRAFT, DB)).at("put in place", &files.path_of(DB))?;
    let dirs: Vec<PathBuf> = [files.path().to_owned()].into_iter().chain(parents).collect();
    files::sync_parents(&dirs, files.path())
}
