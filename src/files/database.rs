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
    /// Looks at the database and the files beside it before SQLite opens them, and has the WAL and its
    /// index be of the thread's group. To be called before each opening.
    ///
    /// # Errors
    ///
    /// One of them is not a regular file with one name.
    pub(crate) fn prepare_database(&self) -> Result<()> {
        let user = rustix::process::geteuid().as_raw();
        let other_group = rustix::process::getegid().as_raw() != self.group;
        for name in [DB, JOURNAL, WAL, SHM] {
            let path = self.path_of(name);
            let is_shared = name == WAL || name == SHM;
            match self.stat(name) {
                Ok(found) => {
                    refuse_odd(&found).at("use", &path)?;
                    if is_shared && found.st_uid == user && found.st_gid != self.group {
                        // By its name: to open it here would drop the locks that SQLite has on it in this
                        // process. Where it may not be changed, it serves at least its maker.
                        let group = Some(Gid::from_raw(self.group));
                        rustix::fs::chownat(&*self.dir, name, None, group, AtFlags::SYMLINK_NOFOLLOW).ok();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    if is_shared && other_group {
                        drop(self.open_file(name, Access::Write));
                    }
                }
                Err(e) => return Err(e).at("look at", &path),
            }
        }
        Ok(())
    }
}
