//! The folder of the sessions: which there are, and opening them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use thread::{Error, Queue};

use crate::error::{RequestError, Result};
use crate::session_id::SessionId;

/// How long a job waits inside SQLite for another writer.
pub const BUSY: Duration = Duration::from_millis(100);

/// How long after its last event a hidden session is kept.
const HIDDEN_KEPT: Duration = Duration::from_secs(5 * 60);

/// The folder in the root with an empty file for each session that is being deleted, named by its id. Such a
/// session is not listed and cannot be opened.
pub const DELETING: &str = "deleting";

/// The folder of the sessions.
pub struct Root {
    dir: PathBuf,
    /// Device and inode, by which it is recognized.
    identity: (u64, u64),
}

/// A session and the state of its log.
#[derive(Debug, Clone, Copy)]
pub struct Listed {
    pub id: SessionId,
    /// When its JSONL log was last written.
    pub active: SystemTime,
    pub size: u64,
}

impl Root {
    /// Opens the folder. Also returns whether others may read it.
    ///
    /// # Errors
    ///
    /// The folder cannot be read, or others may write to it.
    pub fn open(dir: &Path) -> io::Result<(Root, bool)> {
        let dir = dir.canonicalize()?;
        let about = fs::metadata(&dir)?;
        let (mode, identity) = (about.mode(), (about.dev(), about.ino()));
        if !about.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        if mode & 0o022 != 0 {
            // Anyone who can put a session there can run any command.
            let error = format!("others may write to it (its mode is {:o})", mode & 0o7777);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
        }
        Ok((Root { dir, identity }, mode & 0o055 != 0))
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// An error of the directory.
    pub fn failed(&self, error: io::Error) -> RequestError {
        RequestError::Disk(self.dir.clone(), error)
    }

    /// Whether the directory is still where it was.
    pub fn is_there(&self) -> bool {
        fs::metadata(&self.dir).is_ok_and(|about| (about.dev(), about.ino()) == self.identity)
    }

    pub fn path_of(&self, id: SessionId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// The file that marks a session as being deleted.
    pub fn deletion_mark(&self, id: SessionId) -> PathBuf {
        self.dir.join(DELETING).join(id.to_string())
    }

    /// # Errors
    ///
    /// [`RequestError::NotNow`]: the session is being deleted.
    pub fn refuse_deleted(&self, id: SessionId) -> Result<()> {
        if self.deletion_mark(id).exists() {
            return Err(RequestError::NotNow(format!("session '{id}' is being deleted")));
        }
        Ok(())
    }

    /// The sessions that are being deleted.
    pub fn being_deleted(&self) -> HashSet<SessionId> {
        let marks = fs::read_dir(self.dir.join(DELETING)).into_iter().flatten().flatten();
        marks.filter_map(|mark| SessionId::parse_name(&mark.file_name())).collect()
    }

    /// Opens a session's thread.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`], [`RequestError::NotNow`]; errors of the thread.
    pub fn queue(&self, id: SessionId) -> Result<Queue> {
        self.refuse_deleted(id)?;
        Queue::open_waiting(self.path_of(id), BUSY).map_err(|e| match e {
            Error::NotAThread(_) => RequestError::UnknownSession(id.to_string()),
            e => e.into(),
        })
    }

    /// The entry of one session.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`], [`RequestError::NotNow`]; the root cannot be read.
    pub fn entry(&self, id: SessionId) -> Result<Listed> {
        self.refuse_deleted(id)?;
        let dir = fs::File::open(&self.dir).map_err(|e| self.failed(e))?;
        stat(&dir, id).ok_or_else(|| RequestError::UnknownSession(id.to_string()))
    }

    fn ids(&self) -> io::Result<impl Iterator<Item = SessionId>> {
        let entries = fs::read_dir(&self.dir)?.flatten();
        Ok(entries.filter_map(|entry| SessionId::parse(entry.file_name().to_str()?)))
    }

    /// The hidden sessions that nobody needs any more.
    pub fn forgotten(&self) -> io::Result<Vec<SessionId>> {
        let dir = fs::File::open(&self.dir)?;
        let is_old = |id: SessionId| {
            stat(&dir, id).is_some_and(|listed| listed.active.elapsed().is_ok_and(|age| age > HIDDEN_KEPT))
        };
        Ok(self.ids()?.filter(|id| id.is_hidden() && is_old(*id)).collect())
    }

    /// All sessions but hidden ones, most recently active first.
    pub fn entries(&self) -> io::Result<Vec<Listed>> {
        let dir = fs::File::open(&self.dir)?;
        let deleted = self.being_deleted();
        let ids: Vec<SessionId> = self.ids()?.filter(|id| !id.is_hidden() && !deleted.contains(id)).collect();
        // Most of the time goes into `stat`: with many sessions, two threads share the work.
        let stat_all = |ids: &[SessionId]| ids.iter().filter_map(|id| stat(&dir, *id)).collect::<Vec<_>>();
        let (first, second) = ids.split_at(if ids.len() < 1000 { 0 } else { ids.len() / 2 });
        let (mut entries, more) = std::thread::scope(|scope| {
            let first = (!first.is_empty()).then(|| scope.spawn(|| stat_all(first)));
            let second = stat_all(second);
            (first.and_then(|first| first.join().ok()).unwrap_or_default(), second)
        });
        entries.extend(more);
        entries.sort_unstable_by(|a, b| b.active.cmp(&a.active).then(a.id.cmp(&b.id)));
        Ok(entries)
    }
}

/// The state of a session's log. One system call as a rule, since there may be ten thousand sessions.
fn stat(root: &fs::File, id: SessionId) -> Option<Listed> {
    let about = rustix::fs::statat(
        root,
        format!("{id}/{}", thread::files::JSONL),
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    );
    // While the log is being sealed there is none for a moment.
    let about = about.or_else(|_| {
        rustix::fs::statat(root, format!("{id}/{}", thread::files::DB), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
    });
    let about = about.ok()?;
    let seconds = Duration::from_secs(u64::try_from(about.st_mtime).unwrap_or_default());
    let active = SystemTime::UNIX_EPOCH + seconds + Duration::from_nanos(about.st_mtime_nsec);
    Some(Listed { id, active, size: u64::try_from(about.st_size).unwrap_or_default() })
}
