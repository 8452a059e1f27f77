//! Who may read and write a thread's files: those made later are open to the same users as `events.db`.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, Gid, Mode, OFlags, RawMode, Stat, Uid};

use super::{Files, explained, refuse_odd};

impl Files {
    /// Gives a file or directory that was just made the group, the mode and, where root made it, the
    /// owner of the thread. What may not be changed stays: it serves at least its maker.
    pub(crate) fn adopt(&self, file: impl AsFd, mode: RawMode) {
        let root = rustix::process::geteuid().is_root();
        let owner = (root && self.owner != 0).then(|| Uid::from_raw(self.owner));
        let file = file.as_fd();
        if rustix::fs::fstat(file).is_ok_and(|made| made.st_gid != self.group || owner.is_some()) {
            rustix::fs::fchown(file, owner, Some(Gid::from_raw(self.group))).ok();
        }
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).ok();
    }

    /// Gives a file or directory (`""` is the root) the permission bits and, if there is one, the owner
    /// and group that `decide` makes of what is there: of what was opened, so that nobody can put
    /// anything else in its place meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Files::open_file`], but for directories.
    pub(crate) fn change(
        &self,
        name: impl AsRef<Path>,
        decide: impl FnOnce(&Stat) -> (RawMode, Option<(u32, u32)>),
    ) -> io::Result<()> {
        // Opened only as a place: that needs no permission, and closing it releases no lock that SQLite
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
        // A descriptor of a place cannot be given to fchmod.
        #[cfg(target_os = "linux")]
        rustix::fs::chmod(super::path_of_open(&file), mode)?;
        #[cfg(not(target_os = "linux"))]
        rustix::fs::fchmod(&file, mode)?;
        Ok(())
    }
}

/// Permission bits that new files of this process do not get.
pub fn umask() -> RawMode {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let told = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    told.and_then(|mask| RawMode::from_str_radix(mask.trim(), 8).ok()).unwrap_or_else(|| {
        // Elsewhere it can be read only by setting it.
        let mask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(mask);
        mask.as_raw_mode()
    })
}
