//! The directory of the sessions; creating and deleting sessions.
//!
//! A session appears in one step, with its agent subscribed: it is created under a temporary name and
//! renamed. It disappears in one step, too. What a crash leaves under temporary names is removed by a later
//! start.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use thread::model::filter::Scope;
use thread::model::run::StopRequest;
use thread::model::subscription::ConsumerId;
use thread::queue::{Remaining, Selection};
use thread::{Error, Event, Filter, NewEvent, Queue};
use thread_agent::conversation::{Entry, end_key, is_ending};
use thread_protocol::method::Place;

use super::jobs::BUSY;
use super::place::place;
use crate::agent::Agent;
use crate::error::{RequestError, Result};
use crate::session_id::SessionId;
use crate::storage::{Object, Storage, parts};

/// Prefix of the temporary names.
const TEMPORARY: &str = ".half-";

/// Age at which a directory with a temporary name counts as left by a crash.
const STALE: Duration = Duration::from_secs(3600);

/// About how many bytes of messages are copied at a time.
const PAGE_BYTES: usize = 1024 * 1024;

/// How the handlers of a session that is deleted are stopped.
const STOP: StopRequest =
    StopRequest { signal: rustix::process::Signal::TERM.as_raw(), kill_after_ms: 5_000, skip: false };

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
    /// Opens the directory, and makes it if there is none. Also returns whether others may read it.
    ///
    /// # Errors
    ///
    /// The directory cannot be created or read, or others may write to it.
    pub fn open(dir: &Path) -> io::Result<(Root, bool)> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let dir = dir.canonicalize()?;
        let about = fs::metadata(&dir)?;
        let (mode, identity) = (about.mode(), (about.dev(), about.ino()));
        let root = Root { dir, identity };
        if mode & 0o022 != 0 {
            // Who may put a session there may have any command run.
            let error = format!("others may write to it (its mode is {:o})", mode & 0o7777);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
        }
        for entry in fs::read_dir(&root.dir)?.flatten() {
            let temporary = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
            let age = entry.metadata().and_then(|about| about.modified()).map(|at| at.elapsed());
            if temporary && matches!(age, Ok(Ok(age)) if age > STALE) {
                drop(fs::remove_dir_all(entry.path()));
            }
        }
        Ok((root, mode & 0o055 != 0))
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

    /// Opens a session's thread.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`]; errors of the thread.
    pub fn queue(&self, id: SessionId) -> Result<Queue> {
        Queue::open_waiting(self.path_of(id), BUSY).map_err(|e| match e {
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
        self.create_with(id, agent, |_| Ok(0))
    }

    /// Creates a session with the messages and answers of another, up to the message `before` (all of them if
    /// none is given). Its agent gets them as the conversation so far.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`], there is no such message; as [`Root::create`].
    pub fn fork(
        &self,
        from: SessionId,
        id: SessionId,
        before: Option<&str>,
        agent: Option<&Agent>,
        storage: &Storage,
    ) -> Result<()> {
        let mut queue = self.queue(from)?;
        let end = match before {
            Some(before) => place(&mut queue, &Place::Id(before.to_owned()))?,
            None => i64::MAX,
        };
        // What the messages show is kept for both. Others may have put names of files there that are not theirs.
        let mut keep = |metadata: &Map<String, Value>| -> io::Result<()> {
            let own = |object: &Object| storage.is_claimed(object, from);
            parts::named(metadata).into_iter().filter(own).try_for_each(|object| {
                match storage.claim(&object, id) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                    _ => Ok(()),
                }
            })
        };
        self.create_with(id, agent, |new| copy_messages(&mut queue, end, new, &mut keep))
    }

    /// Creates a session. `fill` puts its first events there, and returns how many.
    fn create_with(
        &self,
        id: SessionId,
        agent: Option<&Agent>,
        fill: impl FnOnce(&mut Queue) -> Result<i64>,
    ) -> Result<()> {
        let temporary = self.dir.join(format!("{TEMPORARY}{}", SessionId::random()));
        // Not with its parents: a root that has vanished must not be created again.
        fs::DirBuilder::new().mode(0o700).create(&temporary).map_err(|e| self.failed(e))?;
        let make = || {
            Queue::init_private(&temporary)?;
            let mut queue = Queue::open(&temporary)?;
            let said = fill(&mut queue)?;
            if let Some(agent) = agent {
                agent.install(&mut queue, said)?;
            }
            drop(queue);
            match fs::rename(&temporary, self.path_of(id)) {
                Ok(()) => {
                    fs::File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(|e| self.failed(e))
                }
                // Another gateway created it first.
                Err(_) if self.queue(id).is_ok() => {
                    drop(fs::remove_dir_all(&temporary));
                    Ok(())
                }
                Err(e) => Err(self.failed(e)),
            }
        };
        let made = make();
        if made.is_err() {
            drop(fs::remove_dir_all(&temporary));
        }
        made
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
            .map_err(|e| self.failed(e))
    }

    /// The entry of one session.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`]; the root cannot be read.
    pub fn entry(&self, id: SessionId) -> Result<Listed> {
        let dir = fs::File::open(&self.dir).map_err(|e| self.failed(e))?;
        stat(&dir, id).ok_or_else(|| RequestError::UnknownSession(id.to_string()))
    }

    /// All sessions, most recently active first.
    pub fn entries(&self) -> io::Result<Vec<Listed>> {
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

/// Copies the messages and answers before an event to an empty thread, page by page. `keep` is called with the
/// metadata of each before it is stored. Returns how many.
fn copy_messages(
    from: &mut Queue,
    end: i64,
    to: &mut Queue,
    keep: &mut dyn FnMut(&Map<String, Value>) -> io::Result<()>,
) -> Result<i64> {
    let filter = Filter::new("type = 'message'", Scope::Reading)?;
    let mut selection = Selection { after: 0, limit: None, filter };
    let (mut ids, mut copied) = (HashMap::new(), 0);
    loop {
        let (mut page, mut size) = (Vec::new(), 0);
        let remaining = from.read_page(&mut selection, &mut |row| {
            if row.id >= end {
                return ControlFlow::Break(());
            }
            size += row.content.len();
            page.push(row.to_event());
            if size < PAGE_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let mut copies = Vec::with_capacity(page.len());
        for event in page {
            copied += 1;
            ids.insert(event.id, copied);
            let is_ending = is_ending(from, event.id, &Entry::of(&event).1)?;
            copies.push(copy(event, &ids, is_ending, keep)?);
        }
        if copies.is_empty() {
            return Ok(copied);
        }
        to.push_all(&mut |put| put(&copies).map(drop))?;
        if remaining == Remaining::None {
            return Ok(copied);
        }
    }
}

/// A copy of a message or answer for another thread. `ids` are the new ids of the events that are copied.
fn copy(
    event: Event,
    ids: &HashMap<i64, i64>,
    is_ending: bool,
    keep: &mut dyn FnMut(&Map<String, Value>) -> io::Result<()>,
) -> Result<NewEvent<'static>> {
    let mut metadata: Map<String, Value> =
        event.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    keep(&metadata).map_err(|e| RequestError::Failed(format!("an attachment cannot be kept: {e}")))?;
    let reply_to = metadata.get("reply_to").and_then(Value::as_i64).and_then(|id| ids.get(&id).copied());
    match reply_to {
        Some(id) => drop(metadata.insert("reply_to".into(), id.into())),
        None => drop(metadata.shift_remove("reply_to")),
    }
    let mut copy = NewEvent::message(event.source, event.content).map_err(Error::from)?;
    copy.metadata = (!metadata.is_empty()).then(|| Value::Object(metadata).to_string().into());
    copy.idempotency_key = reply_to.filter(|_| is_ending).map(|id| end_key(id).into());
    Ok(copy)
}

/// Pauses all consumers of a thread and stops their handlers.
fn stop_all(thread: &Path) -> Result<()> {
    let mut queue = Queue::open_waiting(thread, BUSY)?;
    for subscription in queue.subscriptions()? {
        let consumer: &ConsumerId = &subscription.consumer;
        thread::run::control::pause(&mut queue, consumer)?;
        thread::run::stop::stop(&mut queue, consumer, STOP)?;
    }
    Ok(())
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
