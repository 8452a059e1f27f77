//! Checks on the files that SQLite opens by name.
//!
//! SQLite follows no links, but writes to any other file it finds, and creates its files with the group of
//! the creating process. So SQLite may open them only if each is the thread's own file or does not exist
//! yet; and the WAL and its index get the thread's group.

use rustix::fs::{AtFlags, Gid};

use super::{Access, DB, Files, JOURNAL, SHM, WAL, refuse_odd};
use crate::error::{IoContext, Result};

impl Files {
    /// Checks the database and the files next to it. Sets the group of the WAL and its index. Must be called each
    /// time before SQLite opens them.
    ///
    /// # Errors
    ///
    /// One of them is not a regular file with a single name.
    pub(crate) fn prepare_database(&self) -> Result<()> {
        let user = rustix::process::geteuid().as_raw();
        let other_group = rustix::process::getegid().as_raw() != self.group;
        for name in [DB, JOURNAL, WAL, SHM] {
            let path = self.path_of(name);
            let is_shared = name == WAL || name == SHM;
            match self.stat(name).if_there().at("look at", &path)? {
                Some(found) => {
                    refuse_odd(&found).at("use", &path)?;
                    if is_shared && found.st_uid == user && found.st_gid != self.group {
                        // By name: closing a descriptor of it would drop the locks that SQLite has on it in
                        // this process. If the group cannot be changed, the file still works for its creator.
                        let group = Some(Gid::from_raw(self.group));
                        rustix::fs::chownat(&*self.dir, name, None, group, AtFlags::SYMLINK_NOFOLLOW).ok();
                    }
                }
                None if is_shared && other_group => drop(self.open_file(name, Access::Write)),
                None => {}
            }
        }
        Ok(())
    }
}
