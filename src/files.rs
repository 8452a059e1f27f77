//! The files of a thread: where they are, and how new ones are made.
//!
//! A file made later takes the permission bits of `events.db`, whatever the umask says, so that two
//! users of one thread do not lock each other out.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// The paths of one thread, and the owner and permissions its files have.
#[derive(Debug, Clone)]
pub struct Files {
    dir: PathBuf,
    /// Permission bits for new files.
    mode: u32,
    owner: u32,
    group: u32,
    /// Device and inode of `events.db`: is the thread at this path still the same one?
    identity: (u64, u64),
}

impl Files {
    /// The files of the thread in `dir`, which is absolute. Nothing when there is no `events.db`.
    pub fn of(dir: PathBuf) -> Option<Files> {
        let db = fs::metadata(dir.join("events.db")).ok().filter(fs::Metadata::is_file)?;
        Some(Files {
            dir,
            mode: db.mode() & 0o664,
            owner: db.uid(),
            group: db.gid(),
            identity: (db.dev(), db.ino()),
        })
    }

    /// The files of a copy of this thread in `dir`: the same permissions and owner, but never so
    /// that he could not write them himself.
    pub fn of_copy(&self, dir: PathBuf) -> Files {
        Files { dir, mode: self.mode | 0o600, ..self.clone() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn db(&self) -> PathBuf {
        self.dir.join("events.db")
    }

    pub fn wal(&self) -> PathBuf {
        self.dir.join("events.db-wal")
    }

    pub fn jsonl(&self) -> PathBuf {
        self.dir.join("events.jsonl")
    }

    pub fn log(&self) -> PathBuf {
        self.dir.join("logs").join("thread.log")
    }

    /// The output of a consumer's handler.
    pub fn handler_log(&self, consumer: &crate::subscription::ConsumerId) -> PathBuf {
        self.dir.join("logs").join("handlers").join(format!("{}.log", consumer.file_stem()))
    }

    /// A file in `run/`. Names that begin with `_` are this program's own.
    pub fn run(&self, name: &str) -> PathBuf {
        self.dir.join("run").join(name)
    }

    pub fn consumer_lock(&self, consumer: &crate::subscription::ConsumerId) -> PathBuf {
        self.run(&format!("{}.lock", consumer.file_stem()))
    }

    /// Whether the user of this process owns the thread, and so may start handlers.
    pub fn is_owner(&self) -> bool {
        rustix::process::geteuid().as_raw() == self.owner
    }

    /// Whether the same thread is still at its path: neither moved, removed nor replaced.
    pub fn still_there(&self) -> bool {
        fs::metadata(self.db()).is_ok_and(|db| (db.dev(), db.ino()) == self.identity)
    }

    /// Opens a file with `options`, making it (but no directory) if it is missing.
    pub fn open(&self, path: &Path, options: &mut OpenOptions) -> io::Result<File> {
        match options.create(false).open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
        match options.clone().create_new(true).mode(self.mode).open(path) {
            Ok(file) => {
                // The umask may have taken bits away, and root makes files for their owner. What
                // may not be changed stays as it is: the file serves at least its maker.
                drop(file.set_permissions(fs::Permissions::from_mode(self.mode)));
                if rustix::process::geteuid().is_root() && self.owner != 0 {
                    drop(std::os::unix::fs::fchown(&file, Some(self.owner), Some(self.group)));
                }
                Ok(file)
            }
            // Somebody else made it meanwhile.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => options.create(false).open(path),
            failed => failed,
        }
    }

    /// Makes a directory of the thread, open to whom `events.db` is open to.
    pub fn make_dir(&self, path: &Path) -> io::Result<()> {
        // Who may read may also enter. Never more than that, not even for a moment.
        let mode = self.mode | (self.mode & 0o444) >> 2;
        match DirBuilder::new().mode(mode).create(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            made => made?,
        }
        drop(fs::set_permissions(path, fs::Permissions::from_mode(mode)));
        if rustix::process::geteuid().is_root() && self.owner != 0 {
            drop(std::os::unix::fs::chown(path, Some(self.owner), Some(self.group)));
        }
        Ok(())
    }

    /// Changes when somebody writes to the database.
    pub fn database_stamp(&self) -> (u64, i64, i64) {
        fs::metadata(self.wal()).map(|wal| (wal.len(), wal.mtime(), wal.mtime_nsec())).unwrap_or_default()
    }

    /// Opens a lock file. Locking does not need the right to write.
    pub fn open_lock(&self, path: &Path) -> io::Result<File> {
        match self.open(path, OpenOptions::new().read(true).write(true)) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => File::open(path),
            done => done,
        }
    }
}

/// Makes a directory (and its parents) that nobody but owner and group may write. Existing ones
/// are left as they are.
pub fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o775).create(path)
}

/// The directories that get a new entry when `path` is made with all its parents. Its own is among
/// them in any case: whoever made it before may not have come to sync that.
pub fn parents_to_sync(path: &Path) -> Vec<PathBuf> {
    // The first that is there holds the name of the first that is new.
    let parents = || path.ancestors().skip(1);
    let new = parents().take_while(|above| !above.exists()).count();
    parents().take(new + 1).map(Path::to_owned).collect()
}

/// Makes an empty file that nobody but owner and group may write. An existing one is left alone.
pub fn make_empty(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o664).open(path).map(drop)
}

/// Syncs a file or directory, its contents and its entries.
pub fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The same for a directory, as far as that can be: not everybody may read it, and not every file
/// system can sync one.
pub fn sync_if_possible(dir: &Path) -> io::Result<()> {
    match sync(dir) {
        Err(e) if matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput) => Ok(()),
        done => done,
    }
}

/// The absolute, lexically normalised form of a path: `.` and `..` resolved, symlinks not followed.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    let mut normal = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    Ok(normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_lexically() {
        for (given, normal) in
            [("/a/b/../c/./d", "/a/c/d"), ("/..", "/"), ("//a//b/", "/a/b"), ("/a/../../b", "/b")]
        {
            assert_eq!(absolute(Path::new(given)).unwrap(), Path::new(normal));
        }
    }
}
