//! Paths outside of a thread: where it is, what is around it, and syncing the directories that name it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::{DB, Files, cannot_sync};
use crate::error::{Error, Result};

impl Files {
    /// A path that is absolute or relative to the thread's directory, as an absolute one.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        normalised(&self.path.join(path))
    }

    /// An absolute path as one relative to the thread's directory.
    pub fn relative(&self, path: &Path) -> PathBuf {
        let common = self.path.components().zip(path.components()).take_while(|(a, b)| a == b).count();
        let up = self.path.components().skip(common).map(|_| Component::ParentDir);
        let relative: PathBuf = up.chain(path.components().skip(common)).collect();
        if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative }
    }
}

/// Syncs a directory anywhere, its entries, as far as that can be done.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    match File::open(path).and_then(|dir| dir.sync_all()) {
        Err(e) if cannot_sync(&e) => Ok(()),
        done => done,
    }
}

/// The directories that get a new entry when `path` is made with all its parents. Its own is always
/// among them: the process that made it may not have got to syncing that.
pub(crate) fn parents_to_sync(path: &Path) -> Vec<PathBuf> {
    // The first that is there holds the name of the first that is new.
    let parents = || path.ancestors().skip(1);
    let new = parents().take_while(|above| !above.exists()).count();
    parents().take(new + 1).map(Path::to_owned).collect()
}

/// This directory or the nearest parent that is a thread of this user's own, on the same file system: a
/// thread that somebody else planted in `/tmp` collects nobody's pushes.
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

/// Syncs the directories that got a new entry when `made` was made.
pub(crate) fn sync_parents(parents: &[PathBuf], made: &Path) -> Result<()> {
    parents.iter().try_for_each(|parent| sync_dir(parent)).map_err(|source| {
        Error::Other(format!(
            "{} was made, but the disk failed to sync its directory ({source}), so whether it lasts is unknown",
            made.display()
        ))
    })
}

/// The absolute, lexically normalised form of a path: `.` and `..` resolved, links not followed.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    Ok(normalised(&std::path::absolute(path)?))
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
