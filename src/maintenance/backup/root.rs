//! Copies a directory with threads in it that may be in use, such as the root of a gateway.
//!
//! Threads come first, each as it was at one moment, and then the other files: what a thread refers to was there
//! before it. Files that disappear in the meantime are left out.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use super::{copy_to, delete_abandoned, draft_beside, put_in_place, refuse_inside, refuse_occupied};
use crate::error::{DatabaseErrorKind, Error, IoContext, Result};
use crate::files::{self, DB};
use crate::maintenance::below::entries;
use crate::queue::Queue;

/// A completed backup of a root.
#[derive(Debug)]
pub struct RootBackup {
    /// Its absolute path.
    pub path: PathBuf,
    /// How many threads it has.
    pub threads: u64,
    /// How many other files it has.
    pub files: u64,
    /// The threads that could not be copied, and why; the backup has nothing of them.
    pub failed: Vec<(PathBuf, Error)>,
}

/// The file in an unfinished backup of a root, by which it is known.
const UNFINISHED: &str = ".backup-of-a-root";

/// Copies every thread below `root`, however deep, and the other files outside of threads to `location`, which
/// must not exist or be an empty directory, outside `root`. Names directly in `root` that begin with a dot, and
/// links, are left out. Everything is synced when this returns. `progress` is called with the number of events
/// copied since the last call.
///
/// # Errors
///
/// [`Error::Occupied`], [`Error::InsideThread`]; file system errors. Nothing was created at `location` then.
pub fn backup_root(root: &Path, location: &Path, progress: &mut dyn FnMut(u64)) -> Result<RootBackup> {
    let location = files::absolute(location).at("find", location)?;
    let root = root.canonicalize().at("find", root)?;
    refuse_occupied(&location)?;
    refuse_inside(&root, &location)?;
    let parents = files::parents_to_sync(&location);
    delete_abandoned(location.parent().unwrap_or(&location), |path| {
        // Empty if it was killed at the very beginning.
        path.join(UNFINISHED).exists() || fs::read_dir(path).is_ok_and(|mut inside| inside.next().is_none())
    });
    let (draft, _lock) = draft_beside(&location)?;
    let note = draft.path().join(UNFINISHED);
    File::create(&note).at("make", &note)?;

    let made = RootBackup { path: location.clone(), threads: 0, files: 0, failed: Vec::new() };
    let mut copy = Copy { made, progress };
    copy.threads(&root, draft.path(), true)?;
    copy.files(&root, draft.path(), true)?;
    adopt(draft.path(), &fs::metadata(&root).at("look at", &root)?)?;
    fs::remove_file(&note).at("delete", &note)?;
    put_in_place(draft, &location, &parents)?;
    Ok(copy.made)
}

struct Copy<'a> {
    made: RootBackup,
    progress: &'a mut dyn FnMut(u64),
}

impl Copy<'_> {
    /// Copies the threads below a directory, and makes the directories that they are in.
    fn threads(&mut self, from: &Path, to: &Path, is_root: bool) -> Result<()> {
        for (name, about) in entries(from, is_root)? {
            let (from, to) = (from.join(&name), to.join(&name));
            if !about.is_dir() || from.join(DB).exists() && !self.thread(&from, &to)? {
                continue;
            }
            self.threads(&from, &to, false)?;
            if to.exists() {
                adopt(&to, &about)?;
            }
        }
        Ok(())
    }

    /// Copies a thread. Returns whether it was there and could be read.
    fn thread(&mut self, from: &Path, to: &Path) -> Result<bool> {
        let copied = Queue::open(from).and_then(|mut queue| {
            make_dir(to)?;
            copy_to(&mut queue, to, self.progress)
        });
        let Err(error) = copied else {
            self.made.threads += 1;
            return Ok(true);
        };
        fs::remove_dir_all(to).if_there().at("delete", to)?;
        if is_full(&error) {
            return Err(error);
        }
        if from.join(DB).exists() {
            self.made.failed.push((from.to_owned(), error));
        }
        Ok(false)
    }

    /// Copies the files below a directory that are in no thread.
    fn files(&mut self, from: &Path, to: &Path, is_root: bool) -> Result<()> {
        for (name, about) in entries(from, is_root)? {
            let (from, to) = (from.join(&name), to.join(&name));
            if about.is_dir() && !from.join(DB).exists() {
                make_dir(&to)?;
                self.files(&from, &to, false)?;
                adopt(&to, &about)?;
            } else if about.is_file() {
                let Some(mut file) = File::open(&from).if_there().at("open", &from)? else { continue };
                let mut options = OpenOptions::new();
                let mut copy = options.write(true).create_new(true).mode(0o600).open(&to).at("make", &to)?;
                io::copy(&mut file, &mut copy).at("copy", &from)?;
                adopt(&to, &about)?;
                self.made.files += 1;
            }
        }
        Ok(())
    }
}

/// Makes a directory that only this user may access, and its parents; does nothing if there is one.
fn make_dir(dir: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).at("make", dir)
}

/// Gives a copy the access of its original, and syncs it.
fn adopt(copy: &Path, original: &Metadata) -> Result<()> {
    // Only root may give files away.
    if rustix::process::geteuid().is_root() {
        chown(copy, Some(original.uid()), Some(original.gid())).at("change the owner of", copy)?;
    }
    fs::set_permissions(copy, Permissions::from_mode(original.mode() & 0o775)).at("change", copy)?;
    File::open(copy).and_then(|file| file.sync_all()).at("sync", copy)
}

/// Whether there is no room for the copy.
fn is_full(error: &Error) -> bool {
    match error {
        Error::Database(e) => e.kind == DatabaseErrorKind::Full,
        Error::Io { source, .. } => {
            matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        }
        _ => false,
    }
}
