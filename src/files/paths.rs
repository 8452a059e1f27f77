//! Paths outside a thread: resolving them, finding a surrounding thread, and syncing parent directories.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::{DB, Files};
use crate::error::{Error, IoContext, Result};
use crate::model::location::Location;

impl Files {
    /// Makes a path absolute; a relative path is relative to the thread's directory.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        normalised(&self.path.join(path))
    }

    /// Makes an absolute path relative to the thread's directory.
    pub fn relative(&self, path: &Path) -> PathBuf {
        let common = self.path.components().zip(path.components()).take_while(|(a, b)| a == b).count();
        let up = self.path.components().skip(common).map(|_| Component::ParentDir);
        let relative: PathBuf = up.chain(path.components().skip(common)).collect();
        if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative }
    }

    /// Syncs the entries of a directory of the thread (`""` is its root), if that is possible: this user may
    /// not be allowed to read it, and some file systems cannot sync directories.
    pub fn sync_dir(&self, name: impl AsRef<Path>) -> io::Result<()> {
        if_possible(self.open_dir(name).and_then(|dir| Ok(rustix::fs::fsync(dir)?)))
    }
}

/// Whether two paths lead to the same file or directory.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().ok().map(|about| (about.dev(), about.ino()));
    id(one).is_some_and(|one| Some(one) == id(other))
}

/// Syncs the entries of any directory, if that is possible; see [`Files::sync_dir`].
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    if_possible(File::open(path).and_then(|dir| dir.sync_all()))
}

fn if_possible(synced: io::Result<()>) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied};
    match synced {
        Err(e) if matches!(e.kind(), PermissionDenied | InvalidInput) => Ok(()),
        done => done,
    }
}

/// The directories that get a new entry when `path` is created with all its parents. Always includes the
/// direct parent, even if `path` exists: the process that created it may not have synced it.
pub(crate) fn parents_to_sync(path: &Path) -> Vec<PathBuf> {
    // The first existing one gets the entry of the first new one.
    let parents = || path.ancestors().skip(1);
    let new = parents().take_while(|above| !above.exists()).count();
    parents().take(new + 1).map(Path::to_owned).collect()
}

/// This directory or its nearest ancestor that is a thread owned by this user, on the same file system: a
/// thread that another user planted in `/tmp` must not collect this user's pushes.
pub fn surrounding(dir: &Path) -> Option<PathBuf> {
    let device = dir.metadata().ok()?.dev();
    let user = rustix::process::geteuid().as_raw();
    dir.ancestors()
        .take_while(|dir| dir.metadata().is_ok_and(|about| about.dev() == device))
        .find(|dir| {
            let owned = |path: &Path| path.symlink_metadata().is_ok_and(|about| about.uid() == user);
            let db = dir.join(DB);
            owned(dir) && owned(&db) && db.is_file()
        })
        .map(Path::to_owned)
}

/// Syncs the directories that got a new entry when `made` was created.
pub(crate) fn sync_parents(parents: &[PathBuf], made: &Path) -> Result<()> {
    parents.iter().try_for_each(|parent| sync_dir(parent)).map_err(|source| {
        Error::Other(format!(
            "{} was created, but its directory could not be synced ({source}), so whether it survives a power cut is unknown",
            made.display()
        ))
    })
}

/// The absolute, lexically normalised form of a path: `.` and `..` are resolved, links not followed.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    Ok(normalised(&std::path::absolute(path)?))
}

/// The same location; for a directory, by its absolute path.
pub fn absolute_location(location: &Location) -> Result<Location> {
    match location.dir() {
        Some(dir) => absolute(dir).at("find", dir).map(Location::from),
        None => Ok(location.clone()),
    }
}

fn normalised(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}
