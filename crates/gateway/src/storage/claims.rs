//! Which sessions an attachment belongs to, and its end.
//!
//! Next to an uploaded file is the folder [`CLAIMS`], with an empty file for each session that shows it, named by
//! the session's id. A claim is made before the message that needs it is stored, and removed with the session. The
//! file is deleted with its last claim, or if it was never claimed, after [`UNSENT`].
//!
//! A process that deletes a file removes its folder of claims first. That fails while there is a claim, and after
//! it no claim can be made: two gateways need no other coordination. A deletion interrupted by a crash is continued
//! by the next [`sweep`](Storage::sweep). A folder without claims, of an earlier version, is left alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use futures_util::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::path::Path as ObjectPath;
use rustix::fs::{AtFlags, Mode, OFlags};
use thread_sessions::SessionId;

use super::{BUCKET, Object, Storage};

/// The folder of claims. No object can have this name.
pub(super) const CLAIMS: &str = ".sessions";

/// Prefix of the folders whose files are being deleted.
const DELETED: &str = ".deleted-";

/// How long a file is kept after its upload, or after a change of its claims, while it has no session.
const UNSENT: Duration = Duration::from_secs(24 * 3600);

impl Storage {
    /// Claims an object for a session, durably.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`]: it was deleted, or never uploaded. Other errors of the file system.
    pub fn claim(&self, object: &Object, session: SessionId) -> io::Result<()> {
        let claims = self.claims_of(object).ok_or(io::ErrorKind::NotFound)?;
        let dir = rustix::fs::openat(&self.folder, claims, FOLDER, Mode::empty())?;
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(&dir, session.to_string(), flags, Mode::from_raw_mode(0o600))?;
        Ok(rustix::fs::fsync(&dir)?)
    }

    /// Whether a session has claimed an object.
    pub fn is_claimed(&self, object: &Object, session: SessionId) -> bool {
        self.claims_of(object).is_some_and(|claims| {
            let claim = claims.join(session.to_string());
            rustix::fs::statat(&self.folder, claim, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        })
    }

    /// Removes the claims of a session that was deleted, and the objects that no other session has claimed.
    /// What cannot be removed now is logged; a later sweep removes it.
    pub async fn release(self: &Arc<Storage>, session: SessionId) {
        let id = session.to_string();
        self.delete_each(move |claims| fs::remove_file(claims.join(&id)).is_ok()).await;
    }

    /// Removes the objects that have had no session for a day, and what crashes have left.
    pub async fn sweep(self: &Arc<Storage>, is_session: impl Fn(SessionId) -> bool + Send + 'static) {
        self.delete_each(move |claims| {
            let unchanged = fs::metadata(claims).and_then(|about| about.modified()).map(|at| at.elapsed());
            if !matches!(unchanged, Ok(Ok(age)) if age > UNSENT) {
                return false;
            }
            let Ok(listed) = fs::read_dir(claims) else { return false };
            let claimants = listed.flatten().map(|claim| (SessionId::parse_name(&claim.file_name()), claim));
            let (theirs, nobodys): (Vec<_>, Vec<_>) =
                claimants.partition(|(session, _)| session.is_some_and(&is_session));
            if theirs.is_empty() {
                for (_, claim) in nobodys {
                    drop(fs::remove_file(claim.path()));
                }
            }
            theirs.is_empty()
        })
        .await;
    }

    /// Deletes the objects that are `over`, as it says of their folders of claims, and have no claims.
    async fn delete_each(self: &Arc<Storage>, over: impl Fn(&Path) -> bool + Send + 'static) {
        let bucket = self.dir.join(BUCKET);
        let own = bucket.clone();
        let marked = self.blocking(move || mark_deleted(&own, over)).await;
        let failed = |e: &dyn std::fmt::Display| tracing::error!("an attachment cannot be deleted: {e}");
        let marked = match marked {
            Ok(marked) => marked,
            // Nothing was ever uploaded.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            Err(e) => return failed(&e),
        };
        for name in marked {
            if let Err(e) = self.delete_remote(&name).await {
                failed(&e);
                continue;
            }
            let folder = bucket.join(format!("{DELETED}{name}"));
            match self.blocking(move || fs::remove_dir_all(folder)).await {
                Err(e) if e.kind() != io::ErrorKind::NotFound => failed(&e),
                _ => {}
            }
        }
    }

    /// Deletes what the remote store has below a folder.
    async fn delete_remote(&self, name: &str) -> Result<(), object_store::Error> {
        let Some(remote) = &self.remote else { return Ok(()) };
        let prefix = ObjectPath::from(format!("{BUCKET}/{name}"));
        let mut found = remote.list(Some(&prefix));
        while let Some(object) = found.try_next().await? {
            match remote.delete(&object.location).await {
                Err(object_store::Error::NotFound { .. }) => {}
                deleted => deleted?,
            }
        }
        Ok(())
    }

    /// The folder of an object's claims, below the storage.
    fn claims_of(&self, object: &Object) -> Option<PathBuf> {
        let (folder, _) = object.path.split_once('/')?;
        Some(Path::new(&object.bucket).join(folder).join(CLAIMS))
    }
}

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Renames the folders of objects that are `over` and have no claims, so that their files are found no more.
/// Returns their names, and those that were renamed earlier.
fn mark_deleted(bucket: &Path, over: impl Fn(&Path) -> bool) -> io::Result<Vec<String>> {
    let mut marked = Vec::new();
    for entry in fs::read_dir(bucket)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if let Some(earlier) = name.strip_prefix(DELETED) {
            marked.push(earlier.to_owned());
            continue;
        }
        let folder = bucket.join(&name);
        let claims = folder.join(CLAIMS);
        if over(&claims) && fs::remove_dir(&claims).is_ok() {
            fs::rename(&folder, bucket.join(format!("{DELETED}{name}")))?;
            marked.push(name);
        }
    }
    Ok(marked)
}
