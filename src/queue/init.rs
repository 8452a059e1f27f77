//! Making a thread.
//!
//! The database is built under another name and moved into place as the very last step, so a
//! directory either is a whole thread or is none, and an `init` that was killed can be run again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, IoContext, Result};
use crate::files::lock::Lock;
use crate::files::{self, DB, JSONL};
use crate::sqlite::Sqlite;

/// How long an `init` waits for another of the same directory. Each takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// SQLite takes no path of more than 511 bytes, that of its own files included.
const MAX_PATH: usize = 480;

pub fn init(path: &Path) -> Result<PathBuf> {
    let dir = files::absolute(path).at("find", path)?;
    if dir.as_os_str().as_bytes().len() > MAX_PATH {
        return Err(Error::Other(format!(
            "the path is {} bytes long, and SQLite takes no more than {MAX_PATH}",
            dir.as_os_str().as_bytes().len()
        )));
    }
    refuse_occupied(&dir)?;
    let parents = files::parents_to_sync(&dir);
    for made in [&dir, &dir.join("run"), &dir.join("logs")] {
        DirBuilder::new().recursive(true).mode(0o775).create(made).at("make", made)?;
    }
    let lock_path = dir.join("run/_init.lock");
    let lock = make_empty(&lock_path)
        .and_then(|()| Lock::take_file(File::open(&lock_path)?, PATIENCE))
        .at("lock", &lock_path)?
        .ok_or_else(|| Error::LockTimeout(lock_path.clone()))?;
    let made = refuse_occupied(&dir).and_then(|()| put_in_place(&dir, &parents));
    // Whoever waits for this lock, or makes a new one, finds what has been made. Where nothing was, a
    // new one would let two work at once.
    if dir.join(DB).exists() {
        drop(fs::remove_file(&lock_path));
    }
    lock.release();
    made.map(|()| dir)
}

/// Refuses a directory that is a thread, or holds the remains of one.
fn refuse_occupied(dir: &Path) -> Result<()> {
    if fs::symlink_metadata(dir.join(DB)).is_ok() {
        return Err(Error::AlreadyAThread(dir.to_owned()));
    }
    // A new database would be taken for the one these belonged to: the old WAL would be played into
    // it, and the old JSONL log cut.
    let remains = ["events.db-wal", "events.db-journal"].map(|name| dir.join(name));
    let log = dir.join(JSONL);
    let has_lines = fs::symlink_metadata(&log).is_ok_and(|file| file.len() > 0);
    let found = remains.into_iter().find(|path| path.exists()).or_else(|| has_lines.then_some(log));
    match found.or_else(|| sealed_file(dir)) {
        Some(left) => Err(Error::Leftovers(left)),
        None => Ok(()),
    }
}

fn sealed_file(dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let stamp = name.strip_prefix("events-").and_then(|name| name.strip_suffix(".jsonl"));
        stamp.is_some_and(|stamp| stamp.len() == 15 && stamp.bytes().all(|b| b.is_ascii_digit() || b == b'-'))
    })
}

/// Builds the database under another name, moves it into place, and syncs the names of all that is new.
fn put_in_place(dir: &Path, parents: &[PathBuf]) -> Result<()> {
    let (db, draft) = (dir.join(DB), dir.join("run/_init.db"));
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut stray = draft.clone().into_os_string();
        stray.push(suffix);
        match fs::remove_file(&stray) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e).at("remove", Path::new(&stray)),
            _ => {}
        }
    }
    // Made before SQLite opens it, so that its mode is right from the beginning.
    make_empty(&draft).and_then(|()| make_empty(&dir.join(JSONL))).at("make files in", dir)?;
    Sqlite::create(&draft)?;
    File::open(&draft)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&draft, &db))
        .at("put in place", &db)?;
    let synced = File::open(dir)
        .and_then(|dir| dir.sync_all())
        .and_then(|()| parents.iter().try_for_each(|parent| files::sync_dir(parent)));
    synced.map_err(|source| {
        Error::Other(format!(
            "{} was made, but the disk failed to sync the directory ({source}), so whether it lasts is unknown",
            dir.display()
        ))
    })
}

/// Makes an empty file that nobody but owner and group may write. An existing one is left alone.
fn make_empty(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o664).custom_flags(libc::O_NOFOLLOW);
    options.open(path).map(drop)
}
