//! The files that SQLite opens itself, by name: what has to be right about them before it does.
//!
//! SQLite follows no link, but it writes to whatever else it finds, and makes its files with the group
//! of whoever comes first. So it is let at them only when each is a file of the thread's own, or none
//! and will have the thread's group.

use std::io;

use rustix::fs::{AtFlags, Gid};

use super::{Access, DB, Files, JOURNAL, SHM, WAL, refuse_odd};
use crate::error::{IoContext, Result};

impl Files {
    /// Looks at the database and the files beside it before SQLite opens them, and gives the WAL and
    /// its index the thread's group. To be called before each opening.
    ///
    /// # Errors
    ///
    /// One of them is not a regular file with one name.
    pub(crate) fn prepare_database(&self) -> Result<()> {
        for name in [DB, WAL, SHM, JOURNAL] {
            let path = self.path_of(name);
            match self.stat(name) {
                Ok(found) => refuse_odd(&found).at("use", &path)?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e).at("look at", &path),
            }
        }
        self.share_wal();
        Ok(())
    }

    /// Has the WAL and its index be of the thread's group. One that is there is not opened here, which
    /// would drop the locks that SQLite has on it in this process. What may not be changed stays: it
    /// serves at least its maker.
    fn share_wal(&self) {
        let user = rustix::process::geteuid().as_raw();
        let other_group = rustix::process::getegid().as_raw() != self.group;
        for name in [WAL, SHM] {
            match rustix::fs::statat(&*self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) if found.st_uid == user && found.st_gid != self.group => {
                    let group = Some(Gid::from_raw(self.group));
                    rustix::fs::chownat(&*self.dir, name, None, group, AtFlags::SYMLINK_NOFOLLOW).ok();
                }
                Err(rustix::io::Errno::NOENT) if other_group => drop(self.open_file(name, Access::Write)),
                _ => {}
            }
        }
    }
}
