//! The files of a thread: their names, and the only way to access them.
//!
//! Two users may share a thread, and neither need trust the other. So every open, creation, rename, and
//! change of mode or owner below a thread's directory goes through here: relative to directory
//! descriptors, one path component at a time, following no links; and an opened file must be a regular
//! file with a single name, or a directory. (SQLite opens its own files; see `sqlite`.)
//!
//! New files get the group and the permission bits of `events.db`, whatever the umask and the group of the
//! creating process are, so that two users of one thread do not lock each other out.

#![expect(clippy::disallowed_methods, reason = "the one place that opens and changes a thread's files")]

mod database;
pub mod lock;
pub mod log;
mod names;
mod paths;
mod rights;
pub mod rotation;
pub mod stamp;
pub mod watch;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawMode, Stat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

pub use self::names::{COMMIT, CONTROL, DB, HANDLER_LOGS, JOURNAL, JSONL, LOG, SHM, WAL};
pub use self::paths::{absolute, absolute_location, is_same, surrounding};
pub(crate) use self::paths::{parents_to_sync, sync_dir, sync_parents};
pub use self::rights::user_entry;
use crate::error::{Error, IoContext, Result};
use crate::model::location::Location;
use crate::model::time::Moment;

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading; it must exist.
    Read,
    /// For reading and appending; created if missing.
    Append,
    /// For reading and writing; created if missing.
    Write,
}

/// The files of one thread on this machine, in its directory or its [base](crate::queue::locations), and their
/// owner, group and permissions.
#[derive(Debug, Clone)]
pub struct Files {
    location: Location,
    path: PathBuf,
    dir: Arc<OwnedFd>,
    /// Permission bits for new files.
    mode: RawMode,
    owner: u32,
    group: u32,
    /// Device and inode of `events.db`, or of the base.
    home: (u64, u64),
    /// Whether its file system ignores case in file names.
    ignores_case: bool,
}

impl Files {
    /// Opens the directory of the thread in `path`.
    ///
    /// # Errors
    ///
    /// [`Error::NotAThread`] if there is no file `events.db`; [`Error::Io`] if it is a link or a special
    /// file, or has a second name.
    pub fn open(path: &Path) -> Result<Files> {
        let path = absolute(path).map_err(|_| Error::NotAThread(path.to_owned()))?;
        let dir = match open_dir(rustix::fs::CWD, &path, OFlags::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL | Errno::NAMETOOLONG) => {
                return Err(Error::NotAThread(path));
            }
            dir => dir.at("open", &path)?,
        };
        let db = rustix::fs::statat(&dir, DB, AtFlags::SYMLINK_NOFOLLOW).if_there();
        let db = db.at("look at", &path.join(DB))?;
        let Some(db) = db.filter(|db| !FileType::from_raw_mode(db.st_mode).is_dir()) else {
            return Err(Error::NotAThread(path));
        };
        refuse_odd(&db).at("use", &path.join(DB))?;
        let capitals = rustix::fs::statat(&dir, DB.to_ascii_uppercase(), AtFlags::SYMLINK_NOFOLLOW);
        let ignores_case = capitals.is_ok_and(|found| identity(&found) == identity(&db));
        Ok(Files { ignores_case, ..Files::like(Location::from(&path), path, dir, &db) })
    }

    /// The files of a thread that is not in a directory, in its base, which is created if missing, for this
    /// user alone.
    pub(crate) fn at_base(location: &Location, base: &Path) -> Result<Files> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(base).at("make", base)?;
        let dir = open_dir(rustix::fs::CWD, base, OFlags::empty()).at("open", base)?;
        let about = rustix::fs::fstat(&dir).at("look at", base)?;
        let files = Files::like(location.clone(), base.to_owned(), dir, &about);
        for name in ["run", "logs"] {
            files.make_dir(name).at("make", &files.path_of(name))?;
        }
        Ok(files)
    }

    /// The files of a directory that will become a thread. Without `open_to_others` only the owner may access
    /// them; with it, the umask applies. If the directory's group may write to it, it is shared already, and
    /// its files get that group.
    pub(crate) fn of_new(path: PathBuf, open_to_others: bool) -> io::Result<Files> {
        let dir = open_dir(rustix::fs::CWD, &path, OFlags::empty())?;
        let found = rustix::fs::fstat(&dir)?;
        let shared = found.st_mode & 0o020 != 0;
        let group = if shared { found.st_gid } else { rustix::process::getegid().as_raw() };
        Ok(Files {
            mode: if open_to_others { 0o664 & !rights::umask() } else { 0o600 },
            owner: rustix::process::geteuid().as_raw(),
            group,
            home: (0, 0),
            ..Files::like(Location::from(&path), path, dir, &found)
        })
    }

    fn like(location: Location, path: PathBuf, dir: OwnedFd, like: &Stat) -> Files {
        Files {
            location,
            path,
            dir: Arc::new(dir),
            mode: like.st_mode & 0o664,
            owner: like.st_uid,
            group: like.st_gid,
            home: identity(like),
            ignores_case: false,
        }
    }

    /// The same owner and permissions in another directory, except that the owner may always read and write.
    pub(crate) fn of_copy(&self, path: PathBuf, dir: OwnedFd) -> Files {
        let location = Location::from(&path);
        Files { location, path, dir: Arc::new(dir), mode: self.mode | 0o600, ..self.clone() }
    }

    /// The thread's location.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// The thread's directory, or its base: absolute, with `.` and `..` resolved, links not followed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file, for messages and for SQLite.
    pub fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Identifies this thread among copies of it: device and inode of its database, or of its base.
    pub fn home(&self) -> (u64, u64) {
        self.home
    }

    /// Whether the user of this process owns the thread, and so may start handlers.
    pub fn is_owner(&self) -> bool {
        rustix::process::geteuid().as_raw() == self.owner
    }

    /// Whether this thread is still at its path: not moved, removed or replaced.
    pub fn still_there(&self) -> bool {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(home) = simulated::system().and_then(|system| system.home(&self.path)) {
            return home == Some(self.home);
        }
        let has_database = self.location.backend().has_database_file;
        let anchor = if has_database { self.path.join(DB) } else { self.path.clone() };
        rustix::fs::lstat(anchor).is_ok_and(|found| identity(&found) == self.home)
    }

    /// # Errors
    ///
    /// [`Error::Moved`] unless it is [still there](Files::still_there).
    pub fn must_be_there(&self) -> Result<()> {
        if self.still_there() { Ok(()) } else { Err(Error::Moved(self.location.clone())) }
    }

    /// Opens a file, creating it (but not its directory) if `access` says so.
    ///
    /// # Errors
    ///
    /// System errors; also for a link, a directory, a FIFO, a device, or a file with a second name.
    pub fn open_file(&self, name: impl AsRef<Path>, access: Access) -> io::Result<File> {
        self.open_with_mode(name, access, self.mode)
    }

    /// Like [`Files::open_file`]; a new file gets these permission bits.
    fn open_with_mode(&self, name: impl AsRef<Path>, access: Access, mode: RawMode) -> io::Result<File> {
        let (dir, name) = self.parent(name.as_ref())?;
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Append => OFlags::RDWR | OFlags::APPEND,
            Access::Write => OFlags::RDWR,
        };
        // Without NONBLOCK, opening a FIFO would block until its other end is opened.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        loop {
            match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
                Ok(file) => return checked(file),
                Err(Errno::NOENT) if access != Access::Read => {}
                Err(e) => return Err(explained(e)),
            }
            let new = flags | OFlags::CREATE | OFlags::EXCL;
            match rustix::fs::openat(&dir, name, new, Mode::from_raw_mode(mode)) {
                Ok(file) => {
                    self.adopt(&file, mode);
                    return checked(file);
                }
                // Another process created it in the meantime.
                Err(Errno::EXIST) => continue,
                Err(e) => return Err(explained(e)),
            }
        }
    }

    /// Opens a lock file, creating it if missing. Only users who may write to the thread may open one, because a
    /// process that can open a file can lock it and block all others. An existing file gets these permissions.
    pub fn open_lock(&self, name: impl AsRef<Path>) -> io::Result<File> {
        let group = if self.mode & 0o020 != 0 { 0o060 } else { 0 };
        let mode = self.mode & 0o600 | group;
        let file = self.open_with_mode(name, Access::Write, mode)?;
        let found = rustix::fs::fstat(&file)?;
        // Without a group that shares the thread, another user's file would be closed to the owner too.
        if found.st_mode & 0o777 != mode && (group != 0 || found.st_uid == self.owner) {
            // Only the file's owner can change it.
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).ok();
        }
        Ok(file)
    }

    /// Opens a file that is touched to notify its watchers, creating it if missing; read-only without write
    /// permission.
    pub fn open_watched(&self, name: impl AsRef<Path>) -> io::Result<File> {
        let name = name.as_ref();
        match self.open_file(name, Access::Write) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => self.open_file(name, Access::Read),
            opened => opened,
        }
    }

    /// Creates an unnamed file in a directory of the thread, for reading and writing.
    pub fn make_unnamed_file(&self, dir: impl AsRef<Path>) -> io::Result<File> {
        #[cfg(target_os = "linux")]
        return tempfile::tempfile_in(path_of_open(&self.open_dir(dir)?));
        #[cfg(not(target_os = "linux"))]
        tempfile::tempfile_in(self.path_of(dir))
    }

    /// Creates a directory of the thread, unless it exists, accessible to the same users as `events.db`.
    pub fn make_dir(&self, name: impl AsRef<Path>) -> io::Result<()> {
        let path = name.as_ref();
        let (dir, name) = self.parent(path)?;
        // Search permission for everyone with read permission.
        let mode = self.mode | (self.mode & 0o444) >> 2;
        match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(mode)) {
            Err(Errno::EXIST) => return Ok(()),
            made => made?,
        }
        let made = self.open_dir(path)?;
        // Keep a setgid bit inherited from the parent.
        let inherited = rustix::fs::fstat(&made)?.st_mode & 0o2000;
        self.adopt(&made, mode | inherited);
        Ok(())
    }

    /// Renames a file, replacing any file that has the new name.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (from_dir, from) = self.parent(from.as_ref())?;
        let (to_dir, to) = self.parent(to.as_ref())?;
        Ok(rustix::fs::renameat(&from_dir, from, &to_dir, to)?)
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, name: impl AsRef<Path>) -> io::Result<()> {
        let (dir, name) = self.parent(name.as_ref())?;
        rustix::fs::unlinkat(&dir, name, AtFlags::empty()).if_there().map(drop)
    }

    /// The metadata of a file or directory (`""` is the root), links not followed.
    pub fn stat(&self, name: impl AsRef<Path>) -> io::Result<Stat> {
        let (dir, name) = self.parent(name.as_ref())?;
        Ok(rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The size of a file in bytes; 0 if it does not exist.
    pub fn size(&self, name: impl AsRef<Path>) -> u64 {
        self.stat(name).map_or(0, |file| u64::try_from(file.st_size).unwrap_or(0))
    }

    /// Whether a file of any kind has that name.
    pub fn exists(&self, name: impl AsRef<Path>) -> bool {
        self.stat(name).is_ok()
    }

    /// The names in a directory of the thread (`""` is its root), in no particular order; empty if there is
    /// no such directory.
    pub fn list(&self, dir: impl AsRef<Path>) -> io::Result<Vec<OsString>> {
        let Some(opened) = self.open_dir(dir).if_there()? else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(opened)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    /// Opens a directory of the thread (`""` is its root) to list or sync it.
    pub fn open_dir(&self, name: impl AsRef<Path>) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (dir, name) = self.parent(name.as_ref())?;
        rustix::fs::openat(&dir, name, flags, Mode::empty()).map_err(explained)
    }

    /// Sets the times of a file to now, creating it if missing. This notifies processes that watch it.
    pub fn touch(&self, name: impl AsRef<Path>) -> io::Result<()> {
        #[cfg(all(test, target_os = "linux"))]
        if simulated::system().is_some_and(|system| system.touch(&self.path, name.as_ref())) {
            return Ok(());
        }
        let file = self.open_file(name, Access::Write)?;
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        Ok(rustix::fs::futimens(&file, &times)?)
    }

    /// The directory that contains `name`, opened one component at a time, and the last component; `.` for
    /// the root, `""`.
    fn parent<'n>(&self, name: &'n Path) -> io::Result<(Arc<OwnedFd>, &'n OsStr)> {
        if name.as_os_str().is_empty() {
            return Ok((Arc::clone(&self.dir), OsStr::new(".")));
        }
        #[cfg(all(test, target_os = "linux"))]
        if simulated::system().is_some() {
            // There are no links.
            return Ok((Arc::clone(&self.dir), name.as_os_str()));
        }
        let last = name.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut dir = Arc::clone(&self.dir);
        for part in name.parent().into_iter().flat_map(Path::components) {
            let Component::Normal(part) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
            dir = Arc::new(open_dir(&dir, Path::new(part), OFlags::NOFOLLOW).map_err(explained)?);
        }
        Ok((dir, last))
    }
}

/// Opens a directory for lookups in it; that needs no permission to list it.
pub(crate) fn open_dir(at: impl AsFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    let access = OFlags::PATH;
    #[cfg(not(target_os = "linux"))]
    let access = OFlags::RDONLY;
    rustix::fs::openat(at, path, flags | access | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// A path that refers to an open file itself: under its name, another user could put a link or another file
/// in its place.
#[cfg(target_os = "linux")]
fn path_of_open(file: &impl std::os::fd::AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The device and inode of a file.
#[allow(clippy::unnecessary_cast, reason = "other systems have other types")]
pub(crate) fn identity(file: &Stat) -> (u64, u64) {
    (file.st_dev as u64, file.st_ino as u64)
}

fn checked(file: OwnedFd) -> io::Result<File> {
    refuse_odd(&rustix::fs::fstat(&file)?)?;
    Ok(File::from(file))
}

/// Returns an error for anything but a regular file with a single name.
pub(crate) fn refuse_odd(file: &Stat) -> io::Result<()> {
    let kind = match FileType::from_raw_mode(file.st_mode) {
        FileType::RegularFile if file.st_nlink > 1 => "it has a second name elsewhere (a hard link)",
        FileType::RegularFile => return Ok(()),
        FileType::Symlink => "it is a symbolic link",
        FileType::Directory => "it is a directory",
        FileType::Fifo => "it is a FIFO",
        FileType::Socket => "it is a socket",
        _ => "it is a device",
    };
    Err(io::Error::other(format!("{kind}, not a file of the thread's own")))
}

/// Replaces the system's messages about links and special files by clearer ones.
fn explained(e: Errno) -> io::Error {
    match e {
        Errno::LOOP => io::Error::other("it is a symbolic link, not a file of the thread's own"),
        Errno::NXIO => io::Error::other("it is a FIFO or a device, not a file of the thread's own"),
        Errno::ISDIR => io::Error::other("it is a directory, not a file of the thread's own"),
        Errno::NOTDIR => io::Error::other("one of its directories is not the thread's own"),
        e => e.into(),
    }
}

/// The time since this machine was booted, which also passes while it is suspended.
pub fn since_boot() -> Moment {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let now = clock_gettime(clock);
    Moment { clock: boot_id(), at: now.tv_sec * 1000 + now.tv_nsec / 1_000_000 }
}

/// The id of this boot. Empty on systems without one.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// The name of this machine, for people.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod simulated;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_regular_files_is_opened() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        std::fs::write(path("events.db"), "").unwrap();
        std::fs::create_dir(path("run")).unwrap();
        let files = Files::open(root.path()).unwrap();
        std::fs::write(path("outside"), "kept").unwrap();
        std::os::unix::fs::symlink("../outside", path("run/link")).unwrap();
        std::fs::hard_link(path("outside"), path("run/hard")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("run/fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        std::os::unix::fs::symlink("run", path("linked")).unwrap();
        for name in ["run/link", "run/hard", "run/fifo", "run", "linked/x"] {
            for access in [Access::Read, Access::Append, Access::Write] {
                assert!(files.open_file(name, access).is_err(), "{name}");
            }
        }
        assert!(files.open_file("run/../outside", Access::Read).is_err());
        assert_eq!(std::fs::read(path("outside")).unwrap(), b"kept");
        let open_to_all = |_: &Stat| (0o777, None);
        for name in ["run/link", "run/hard", "run/fifo", "linked/x"] {
            assert!(files.change(name, open_to_all).is_err(), "{name}");
        }
        let mode = |name: &str| files.stat(name).unwrap().st_mode & 0o777;
        assert_ne!(mode("run/hard"), 0o777);
        for name in ["", "run", "events.db"] {
            files.change(name, open_to_all).unwrap();
            assert_eq!(mode(name), 0o777, "{name}");
        }
        files.open_file("run/new", Access::Append).unwrap();
        files.touch("run/new").unwrap();
    }
}
