//! This machine, among those that share a thread.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use sha1::{Digest, Sha1};
use thread::{Error, Result};

use crate::clock::now;
use crate::location::Target;

/// Where locks hold: one user of one machine, since that was started.
pub struct Machine {
    id: String,
    /// For what was seen of leases.
    dir: PathBuf,
}

impl Machine {
    pub fn of(target: &Target) -> Result<Machine> {
        let dir = target.base()?.join("run");
        let failed = |source| Error::Io { doing: "make", path: dir.clone(), source };
        std::fs::create_dir_all(&dir).map_err(failed)?;
        let about = dir.metadata().map_err(failed)?;
        // Containers of one machine share its boot, but no directory, unless they share the locks in it too.
        let whole = format!("{} {} {}", thread::files::boot_id(), about.dev(), about.ino());
        let id = Sha1::digest(whole.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Machine { id, dir })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its name, for people.
    pub fn host(&self) -> String {
        thread::files::host()
    }

    /// When any process of this machine first saw this epoch and renewal of a lease: now, if none has seen it before.
    /// Called after they were read.
    pub fn first_seen(&self, lease: &str, epoch: i64, renewal: i64) -> i64 {
        let now = now();
        let name: String = Sha1::digest(lease.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
        let path = self.dir.join(format!("{name}.lease"));
        let seen = format!("{epoch} {renewal} {}", self.id);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        // A line that is only half there is no time.
        if let Some((before, at)) = text.rsplit_once(' ')
            && before == seen
            && let Some(Ok(at)) = at.strip_suffix('\n').map(str::parse::<i64>)
            && at <= now
        {
            return at;
        }
        drop(std::fs::write(&path, format!("{seen} {now}\n")));
        now
    }
}
