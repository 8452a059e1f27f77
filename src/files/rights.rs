//! Permissions of a thread's files: new files are accessible to the same users as `events.db`.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Gid, Mode, OFlags, RawMode, Stat, Uid};

use super::{Files, explained, refuse_odd};

impl Files {
    /// Sets the group and mode of a newly created file or directory and, if root created it, the thread's
    /// owner. Failures are ignored: the file still works for its creator.
    pub(crate) fn adopt(&self, file: impl AsFd, mode: RawMode) {
        let root = rustix::process::geteuid().is_root();
        let owner = (root && self.owner != 0).then(|| Uid::from_raw(self.owner));
        let file = file.as_fd();
        if rustix::fs::fstat(file).is_ok_and(|made| made.st_gid != self.group || owner.is_some()) {
            rustix::fs::fchown(file, owner, Some(Gid::from_raw(self.group))).ok();
        }
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).ok();
    }

    /// Sets the permission bits of a file or directory (`""` is the root) and, if given, its owner and group, as
    /// `decide` returns them for its current metadata. Uses one descriptor throughout, so that the file cannot be
    /// swapped in between.
    ///
    /// # Errors
    ///
    /// As [`Files::open_file`], but for directories.
    pub(crate) fn change(
        &self,
        name: impl AsRef<Path>,
        decide: impl FnOnce(&Stat) -> (RawMode, Option<(u32, u32)>),
    ) -> io::Result<()> {
        // PATH needs no permission on the file, and closing such a descriptor releases no lock that SQLite
        // has on it in this process.
        #[cfg(target_os = "linux")]
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        #[cfg(not(target_os = "linux"))]
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (dir, name) = self.parent(name.as_ref())?;
        let file = rustix::fs::openat(&dir, name, flags, Mode::empty()).map_err(explained)?;
        let found = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            refuse_odd(&found)?;
        }
        let (mode, owner) = decide(&found);
        let mode = Mode::from_raw_mode(mode);
        if let Some((user, group)) = owner {
            let (user, group) = (Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
            #[cfg(target_os = "linux")]
            rustix::fs::chownat(&file, "", user, group, rustix::fs::AtFlags::EMPTY_PATH)?;
            #[cfg(not(target_os = "linux"))]
            rustix::fs::fchown(&file, user, group)?;
        }
        // fchmod does not accept a PATH descriptor.
        #[cfg(target_os = "linux")]
        rustix::fs::chmod(super::path_of_open(&file), mode)?;
        #[cfg(not(target_os = "linux"))]
        rustix::fs::fchmod(&file, mode)?;
        Ok(())
    }
}

/// The fields of this user's entry in the list of users.
pub fn user_entry() -> Option<Vec<String>> {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let list = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut entries = list.lines().map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>());
    entries.find(|entry| entry.get(2) == Some(&uid))
}

/// The umask of this process: permission bits that its new files do not get.
pub fn umask() -> RawMode {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| RawMode::from_str_radix(mask.trim(), 8).ok()).unwrap_or_else(|| {
        // Without `/proc`, it can only be read by setting it.
        let mask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(mask);
        mask.as_raw_mode()
    })
}
