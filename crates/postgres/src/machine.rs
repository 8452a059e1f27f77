//! This machine, among those that share a thread.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use sha1::{Digest, Sha1};
use thread::{Error, Result};

use crate::clock::now;
use crate::holders::{NEW, replace};
use crate::location::Target;

/// The extension of the files with what was seen of a lease, and after how long they are removed. They are written again
/// with each renewal, so an old one is that of a lease that is over.
const SEEN: &str = "lease";
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

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
        self.seen_since(lease, epoch, renewal, now())
    }

    /// The same, for a process that has seen them since then.
    pub fn seen_since(&self, lease: &str, epoch: i64, renewal: i64, since: i64) -> i64 {
        let name: String = Sha1::digest(lease.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
        let path = self.dir.join(format!("{name}.{SEEN}"));
        let seen = format!("{epoch} {renewal} {}", self.id);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        // What is no line is no time.
        if let Some((before, at)) = text.rsplit_once(' ')
            && before == seen
            && let Some(Ok(at)) = at.strip_suffix('\n').map(str::parse::<i64>)
            && at <= since
        {
            return at;
        }
        if text.is_empty() {
            self.forget_old();
        }
        // Who reads half of it would begin to wait for the lease's end, after others were told of that.
        drop(replace(&path, &format!("{seen} {since}\n")));
        since
    }

    /// Removes what was seen of leases that nobody has renewed for long, or looked at.
    fn forget_old(&self) {
        for path in std::fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let is_old = || {
                let modified = path.metadata().and_then(|about| about.modified()).ok()?;
                Some(SystemTime::now().duration_since(modified).ok()? >= FORGOTTEN_AFTER)
            };
            let is_seen = path.extension().is_some_and(|extension| extension == SEEN || extension == NEW);
            if is_seen && is_old() == Some(true) {
                drop(std::fs::remove_file(path));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn what_was_seen_of_a_lease_is_read_whole_while_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine { id: "here".to_owned(), dir: dir.path().to_owned() };
        let is_over = AtomicBool::new(false);
        machine.seen_since("bot", 1, 1, 2000);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut latest = 0;
                while !is_over.load(Ordering::Relaxed) {
                    latest = latest.max(machine.seen_since("bot", 1, 1, i64::MAX));
                }
                latest
            });
            // Each has seen it a little earlier.
            for since in (0..2000).rev() {
                assert_eq!(machine.seen_since("bot", 1, 1, since), since);
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() <= 2000);
        });
        assert_eq!(machine.first_seen("bot", 1, 1), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
