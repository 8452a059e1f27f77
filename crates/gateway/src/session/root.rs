//! The directory of the sessions; creating and deleting sessions.
//!
//! A session appears in one step, with its agent subscribed: it is created under a temporary name and
//! renamed. It disappears in one step, too. What a crash leaves under temporary names is removed by a later
//! start.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use thread::model::run::StopRequest;
use thread::model::subscription::ConsumerId;
use thread::{Error, Queue};

use crate::agent::Agent;
use crate::error::{RequestError, Result};
use crate::session_id::SessionId;

/// Prefix of the temporary names.
const TEMPORARY: &str = ".half-";

/// Age at which a directory with a temporary name counts as left by a crash.
const STALE: Duration = Duration::from_secs(3600);

/// How the handlers of a session that is deleted are stopped.
const STOP: StopRequest =
    StopRequest { signal: rustix::process::Signal::TERM.as_raw(), kill_after_ms: 5_000, skip: false };

pub struct Root {
    dir: PathBuf,
}

/// A session and the state of its log.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub id: SessionId,
    /// When its JSONL log was last written.
    pub active: SystemTime,
    pub size: u64,
}

impl Root {
    /// # Errors
    ///
    /// The directory cannot be created or read.
    pub fn open(dir: &Path) -> io::Result<Root> {
        // Sessions are private to their owner, unless the directory was made for others, too.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let root = Root { dir: dir.canonicalize()? };
        for entry in fs::read_dir(&root.dir)?.flatten() {
            let temporary = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
            let age = entry.metadata().and_then(|about| about.modified()).map(|at| at.elapsed());
            if temporary && matches!(age, Ok(Ok(age)) if age > STALE) {
                drop(fs::remove_dir_all(entry.path()));
            }
        }
        Ok(root)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn path_of(&self, id: SessionId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// Opens a session's thread.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`]; errors of the thread.
    pub fn queue(&self, id: SessionId) -> Result<Queue> {
        Queue::open(self.path_of(id)).map_err(|e| match e {
            Error::NotAThread(_) => RequestError::UnknownSession(id.to_string()),
            e => e.into(),
        })
    }

    /// Creates a session under an id that may exist already; then it does nothing.
    ///
    /// # Errors
    ///
    /// As [`Root::create`].
    pub fn create_if_missing(&self, id: SessionId, agent: Option<&Agent>) -> Result<()> {
        if self.path_of(id).join(thread::files::DB).exists() { Ok(()) } else { self.create(id, agent) }
    }

    /// Creates a session. If another gateway creates it at the same time, the first one stays.
    ///
    /// # Errors
    ///
    /// Errors of creating the thread and of subscribing the agent: then there is no session. The root cannot
    /// be synced: then there is one, but it may not survive a power cut.
    pub fn create(&self, id: SessionId, agent: Option<&Agent>) -> Result<()> {
        let failed =
            |what: &str, e: io::Error| RequestError::Failed(format!("the session cannot be {what}: {e}"));
        let temporary = self.dir.join(format!("{TEMPORARY}{}", SessionId::random()));
        // Not with its parents: a root that has vanished must not be created again.
        fs::create_dir(&temporary)
            .map_err(|e| failed("made", io::Error::new(e.kind(), format!("{}: {e}", self.dir.display()))))?;
        let made = Queue::init(&temporary).map_err(RequestError::from).and_then(|_| match agent {
            Some(agent) => agent.install(&mut Queue::open(&temporary)?),
            None => Ok(()),
        });
        let placed = made.and_then(|()| match fs::rename(&temporary, self.path_of(id)) {
            Ok(()) => {
                fs::File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(|e| failed("synced", e))
            }
            // Another gateway created it first.
            Err(_) if self.queue(id).is_ok() => {
                drop(fs::remove_dir_all(&temporary));
                Ok(())
            }
            Err(e) => Err(failed("made", e)),
        });
        if placed.is_err() {
            drop(fs::remove_dir_all(&temporary));
        }
        placed
    }

    /// Stops the handlers of a session, then deletes it.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`]; a handler cannot be stopped, or the directory not be renamed: then
    /// the session stays.
    pub fn delete(&self, id: SessionId) -> Result<()> {
        drop(self.queue(id)?);
        let dir = self.path_of(id);
        // The session's agent first, so that it starts no further sub-agents.
        for thread in std::iter::once(dir.clone()).chain(thread_agent::sub_agent::threads_in(&dir)) {
            stop_all(&thread)?;
        }
        let temporary = self.dir.join(format!("{TEMPORARY}{}", SessionId::random()));
        fs::rename(self.path_of(id), &temporary)
            .and_then(|()| fs::remove_dir_all(&temporary))
            .map_err(|e| RequestError::Failed(format!("cannot remove the session: {e}")))
    }

    /// The entry of one session.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`]; the root cannot be read.
    pub fn entry(&self, id: SessionId) -> Result<Entry> {
        let dir = fs::File::open(&self.dir)
            .map_err(|e| RequestError::Failed(format!("cannot read the sessions: {e}")))?;
        stat(&dir, id).ok_or_else(|| RequestError::UnknownSession(id.to_string()))
    }

    /// All sessions, most recently active first.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let dir = fs::File::open(&self.dir)?;
        let ids: Vec<SessionId> = fs::read_dir(&self.dir)?
            .flatten()
            .filter_map(|entry| SessionId::parse(entry.file_name().to_str()?))
            .collect();
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

/// Pauses all consumers of a thread and stops their handlers.
fn stop_all(thread: &Path) -> Result<()> {
    let mut queue = Queue::open(thread)?;
    for subscription in queue.store().subscriptions()? {
        let consumer: &ConsumerId = &subscription.consumer;
        thread::run::control::pause(&mut queue, consumer)?;
        thread::run::stop::stop(&mut queue, consumer, STOP)?;
    }
    Ok(())
}

/// The state of a session's log. One system call as a rule, since there may be ten thousand sessions.
fn stat(root: &fs::File, id: SessionId) -> Option<Entry> {
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
    Some(Entry { id, active, size: u64::try_from(about.st_size).unwrap_or_default() })
}
