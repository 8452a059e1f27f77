//! A thread: a directory with a database and what belongs to it.
//!
//! Owns making and opening one. `init` builds the database under another name and moves it into
//! place as its very last step, so a directory either is a whole thread or is none, and an `init`
//! that was killed can simply be run again.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Failure, OrFix, Result};
use crate::files::{self, Files};
use crate::journal;
use crate::lock::Lock;
use crate::log::{self, Level};
use crate::spawn;
use crate::store::Store;

/// How long an `init` waits for another of the same directory. Each takes milliseconds.
const INIT_PATIENCE: Duration = Duration::from_secs(60);

/// An open thread.
pub struct Thread {
    pub files: Files,
    pub store: Store,
}

impl Thread {
    /// Makes a thread in `path` (and its parents), beside whatever is there already. Answers with
    /// its absolute path.
    pub fn init(path: &Path) -> Result<PathBuf> {
        let dir = absolute(path)?;
        refuse_occupied(&dir)?;
        let fix = "check the path and its permissions";
        let parents = files::parents_to_sync(&dir);
        for made in [&dir, &dir.join("run"), &dir.join("logs")] {
            files::make_dir(made).or_fix(format_args!("cannot make {}", made.display()), fix)?;
        }
        let lock_path = dir.join("run").join("_init.lock");
        let lock = files::make_empty(&lock_path)
            .and_then(|()| Lock::take(File::open(&lock_path)?, INIT_PATIENCE))
            .or_fix(format_args!("cannot lock {}", lock_path.display()), fix)?
            .ok_or_else(|| {
                Failure::could_not(
                    format_args!("another init of {} does not come to an end", dir.display()),
                    "end it, then try again",
                )
            })?;
        let made = refuse_occupied(&dir).and_then(|()| put_in_place(&dir, &parents));
        // Whoever waits for this lock, or makes a new one, finds what has been made. Where nothing
        // was, a new one would let two work at once.
        if dir.join("events.db").exists() {
            drop(fs::remove_file(&lock_path));
        }
        lock.release();
        made.map(|()| dir)
    }

    /// Opens the thread in `path`.
    pub fn open(path: &Path) -> Result<Thread> {
        let dir = absolute(path)?;
        let files = Files::of(dir.clone()).ok_or_else(|| missing(&dir))?;
        let store = Store::open(&files.db())?;
        Ok(Thread { files, store })
    }

    pub fn dir(&self) -> &Path {
        self.files.dir()
    }

    /// Writes a line to the thread's log.
    pub fn log(&self, level: Level, text: impl fmt::Display) {
        log::write(&self.files, level, text);
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    files::absolute(path).or_fix("the current directory cannot be found", "change to one that exists")
}

/// Refuses a directory that is a thread, or holds the remains of one.
fn refuse_occupied(dir: &Path) -> Result<()> {
    if fs::symlink_metadata(dir.join("events.db")).is_ok() {
        return Err(Failure::could_not(
            format_args!("{} is a thread already", dir.display()),
            "use it as it is, or choose another path",
        ));
    }
    // A new database would be taken for the one these belonged to: the old log would be played
    // into it, and the old JSONL copy overwritten.
    let remains = ["events.db-wal", "events.db-journal"].map(|name| dir.join(name));
    let remains = remains.into_iter().find(|path| path.exists()).or_else(|| journal::lines_in(dir));
    match remains {
        Some(left) => Err(Failure::could_not(
            format_args!("{} is there but events.db is not", left.display()),
            "move the remains of the old thread away, or choose another path",
        )),
        None => Ok(()),
    }
}

/// Builds the database under another name, moves it into place, and syncs the names of all that is new.
fn put_in_place(dir: &Path, parents: &[PathBuf]) -> Result<()> {
    let fix = "check the permissions of the directory and the space on the disk";
    let (db, draft) = (dir.join("events.db"), dir.join("run").join("_init.db"));
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut stray = draft.clone().into_os_string();
        stray.push(suffix);
        match fs::remove_file(&stray) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(e).or_fix(format_args!("cannot remove {}", Path::new(&stray).display()), fix);
            }
            _ => {}
        }
    }
    // Made before SQLite opens it, so that its mode is right from the beginning.
    files::make_empty(&draft)
        .and_then(|()| files::make_empty(&dir.join("events.jsonl")))
        .or_fix(format_args!("cannot make files in {}", dir.display()), fix)?;
    Store::create(&draft)?;
    files::sync(&draft)
        .and_then(|()| fs::rename(&draft, &db))
        .or_fix(format_args!("cannot put {} in place", db.display()), fix)?;
    let synced =
        files::sync(dir).and_then(|()| parents.iter().try_for_each(|parent| files::sync_if_possible(parent)));
    synced.or_fix(
        format_args!(
            "{} was made, but the disk failed to sync the directory, so whether it lasts is unknown",
            dir.display()
        ),
        "check the disk, then use the thread, or remove it and try again",
    )
}

/// What is said of a directory that is no thread.
pub fn missing(dir: &Path) -> Failure {
    Failure::could_not(
        format_args!("{} is not a thread (it has no events.db)", dir.display()),
        format_args!("make one with `thread init {}`, or name another with --thread", spawn::quoted(dir)),
    )
}
