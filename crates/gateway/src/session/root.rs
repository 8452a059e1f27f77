//! The directory of the sessions; creating and deleting sessions.
//!
//! A session appears in one step, with its agent subscribed: it is created under a temporary name and renamed. It
//! also disappears in one step: a mark hides it before anything is changed. A deletion that is not finished,
//! because its gateway was killed, is continued by any gateway on the root. Remains of a crash under temporary
//! names are removed by a later start.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use rustix::fs::FlockOperation;
use serde_json::{Map, Value};
use thread::model::filter::Scope;
use thread::model::run::StopRequest;
use thread::model::subscription::{ConsumerId, Subscription};
use thread::queue::{NewThread, Remaining, Selection};
use thread::run::stop::Stopping;
use thread::run::wake::wake_consumer;
use thread::run::{Launcher, WakeBy};
use thread::{After, Error, Filter, NewEvent, Queue};
use thread_agent::settings::ProtocolArg;
use thread_conversation::{Entry, Fork, SELF, ending_of, is_ending};
use thread_protocol::method::MessageRef;
use thread_sessions::root::{BUSY, DELETING};
use thread_sessions::{RequestError, Result, Root, SessionId};

use super::copied::{PAGE_BYTES, copy};
use super::message_ref::seq_of;
use super::step::Step;
use crate::agents::Agents;
use crate::agents::seating::{Ready, consumer};
use crate::storage::{Object, Storage, parts};

/// Prefix of the temporary names.
const TEMPORARY: &str = ".half-";

/// Age at which a directory with a temporary name counts as left by a crash.
const STALE: Duration = Duration::from_secs(3600);

/// Why an agent cannot continue from a step.
const NO_STEP: &str = "only an agent that is a model (openai:) continues from a step: others keep what they did in their \
                       own memory; give 'before' instead";

/// How the handlers of a session that is deleted are stopped.
const STOP: StopRequest =
    StopRequest { signal: rustix::process::Signal::TERM.as_raw(), kill_after_ms: 5_000, skip: false };

/// What of a session is copied to a new one.
#[derive(Debug, Clone)]
pub struct Copying<'c> {
    /// The id of the first message that is left out.
    pub before: Option<&'c str>,
    /// The event with which a step ends: what came before that run is copied, and the run up to there, which continues.
    pub step: Option<u64>,
    /// The new title, if one is given.
    pub title: Option<String>,
    /// The title of the session that is copied.
    pub title_there: &'c str,
    /// The author of the copy.
    pub source: &'c str,
}

/// Opens the directory, and makes it if there is none. Also returns whether others may read it.
///
/// # Errors
///
/// The directory cannot be created or read, or others may write to it.
pub fn open(dir: &Path) -> io::Result<(Root, bool)> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let (root, readable) = Root::open(dir)?;
    for entry in fs::read_dir(root.dir())?.flatten() {
        let temporary = entry.file_name().to_string_lossy().starts_with(TEMPORARY);
        let age = entry.metadata().and_then(|about| about.modified()).map(|at| at.elapsed());
        if temporary && matches!(age, Ok(Ok(age)) if age > STALE) {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
    Ok((root, readable))
}

/// Creates a session, with the agent that `agent` returns, under an id that may exist already; then it does nothing.
///
/// # Errors
///
/// As [`create`].
pub fn create_if_missing(
    root: &Root,
    id: SessionId,
    agent: impl FnOnce() -> Result<Option<Ready>>,
) -> Result<()> {
    root.refuse_deleted(id)?;
    match root.path_of(id).join(thread::files::DB).exists() {
        true => Ok(()),
        false => create(root, id, agent()?.as_ref()),
    }
}

/// Creates a session. If another gateway creates it at the same time, the first one stays.
///
/// # Errors
///
/// Errors of creating the thread and of subscribing the agent: then there is no session. The root cannot
/// be synced: then there is one, but it may not survive a power cut.
pub fn create(root: &Root, id: SessionId, agent: Option<&Ready>) -> Result<()> {
    create_with(root, id, agent, |_| Ok(0))
}

/// Creates a session that begins with these messages and answers. Its agent gets them as the conversation so far.
///
/// # Errors
///
/// As [`create`].
pub fn create_with_messages(
    root: &Root,
    id: SessionId,
    agent: Option<&Ready>,
    said: &[NewEvent<'_>],
) -> Result<()> {
    root.refuse_deleted(id)?;
    create_with(root, id, agent, |new| {
        if !said.is_empty() {
            new.push_all(&mut |put| put(said).map(drop))?;
        }
        Ok(said.len() as i64)
    })
}

/// Creates a session with the messages of another before the message `before` (all of them if none is given)
/// and their answers. It has the same agent, which gets them as the conversation so far. Its title is by default that of the
/// other, or none if nothing was copied: then its first message names it. With a step, the run continues from there.
/// Returns the title.
///
/// # Errors
///
/// [`RequestError::UnknownSession`], there is no such message or step, or the agent cannot continue from a step; as
/// [`create`].
pub fn fork(
    root: &Root,
    from: SessionId,
    id: SessionId,
    Copying { before, step, title, title_there, source }: Copying<'_>,
    agents: &Agents,
    storage: &Storage,
) -> Result<String> {
    let mut queue = root.queue(from)?;
    let agent = agents.seat_like(&mut queue, id)?;
    let protocol = agent.as_ref().and_then(|ready| ready.install.protocol());
    let step = match step {
        Some(_) if before.is_some() => {
            return Err(RequestError::BadParams("'before' and 'step' cannot both be given".into()));
        }
        Some(_) if !protocol.is_some_and(ProtocolArg::goes_on_from_a_step) => {
            return Err(RequestError::BadParams(NO_STEP.into()));
        }
        Some(end) => Some(Step::of(&mut queue, i64::try_from(end).unwrap_or(i64::MAX))?),
        None => None,
    };
    let end = match (&step, before) {
        (Some(step), _) => step.message,
        (None, Some(before)) => seq_of(&mut queue, &MessageRef::Id(before.to_owned()))?,
        (None, None) => i64::MAX,
    };
    // Attachments of the messages are kept for both. The names may be forged: other programs can write them.
    let mut keep = |metadata: &Map<String, Value>| -> io::Result<()> {
        let own = |object: &Object| storage.is_claimed(object, from);
        parts::named(metadata).into_iter().filter(own).try_for_each(|object| {
            match storage.claim(&object, id) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            }
        })
    };
    let fork = Fork {
        session_id: from.to_string(),
        title: title_there.to_owned(),
        before: Some(end).filter(|end| *end < i64::MAX),
    };
    let mut title = title.unwrap_or_default();
    create_with(root, id, agent.as_ref(), |new| {
        let mut said = copy_messages(&mut queue, end, new, &mut keep)?;
        if title.is_empty() && (said > 0 || step.is_some()) {
            title = title_there.to_owned();
        }
        let mut about = vec![thread_conversation::forked(source, &fork).map_err(Error::from)?];
        if !title.is_empty() {
            about.push(thread_conversation::title(source, &title).map_err(Error::from)?);
        }
        if let Some(step) = &step {
            // Copies keep the order of their times.
            let at = queue.event(step.message)?.map(|event| event.created_at);
            about.iter_mut().for_each(|event| event.created_at = at.clone().map(Into::into));
        }
        said += about.len() as i64;
        new.push_all(&mut |put| put(&about).map(drop))?;
        if let Some(step) = &step {
            step.copy(&mut queue, said, new, &mut keep)?;
        }
        Ok(said)
    })?;
    // If this fails, it is noticed as any other event that nobody has begun to handle.
    if let Some(agent) = agent.filter(|_| step.is_some()) {
        drop(root.queue(id).map(|mut queue| wake_consumer(&mut queue, &agent.launcher, &consumer())));
    }
    Ok(title)
}

/// Creates a session. `fill` puts its first events there, and returns how many.
fn create_with(
    root: &Root,
    id: SessionId,
    agent: Option<&Ready>,
    fill: impl FnOnce(&mut Queue) -> Result<i64>,
) -> Result<()> {
    let temporary = root.dir().join(format!("{TEMPORARY}{}", SessionId::random()));
    // Not with its parents: a root that has vanished must not be created again.
    fs::DirBuilder::new().mode(0o700).create(&temporary).map_err(|e| root.failed(e))?;
    let make = || {
        Queue::init_as(&temporary, NewThread { private: true, small: true })?;
        let mut queue = Queue::open(&temporary)?;
        let said = fill(&mut queue)?;
        if let Some(agent) = agent {
            // It is started where the session will be, not here.
            let launcher = Launcher { waking: WakeBy::Nobody, ..agent.launcher.clone() };
            Ready { launcher, ..agent.clone() }.install(&mut queue, said, false)?;
        }
        drop(queue);
        match fs::rename(&temporary, root.path_of(id)) {
            Ok(()) => fs::File::open(root.dir()).and_then(|dir| dir.sync_all()).map_err(|e| root.failed(e)),
            // Another gateway created it first.
            Err(_) if root.queue(id).is_ok() => {
                drop(fs::remove_dir_all(&temporary));
                Ok(())
            }
            Err(e) => Err(root.failed(e)),
        }
    };
    let made = make();
    if made.is_err() {
        drop(fs::remove_dir_all(&temporary));
    }
    made
}

/// Marks a session as deleted, or continues a deletion that was begun before. The mark stays until
/// [`Deletion::done`].
///
/// # Errors
///
/// [`RequestError::UnknownSession`]; [`RequestError::NotNow`] if another process is deleting it; it cannot be
/// marked: then the session stays.
pub fn begin_deletion(root: &Root, id: SessionId) -> Result<Deletion> {
    if !root.deletion_mark(id).exists() {
        drop(root.queue(id)?);
    }
    let (mark, folder) = (root.deletion_mark(id), root.dir().join(DELETING));
    let failed = |e| root.failed(e);
    // Not with its parents: a root that has vanished must not be created again.
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    let lock = options.write(true).create(true).mode(0o600).open(&mark).map_err(failed)?;
    let is_locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    // The previous holder of the lock may have finished.
    if !is_locked || lock.metadata().map_err(failed)?.nlink() == 0 {
        return Err(RequestError::NotNow(format!("session '{id}' is being deleted")));
    }
    for dir in [&folder, root.dir()] {
        fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
    }
    Ok(Deletion { session: id, mark, _lock: lock, stops: HashMap::new() })
}

/// Stops the handlers of a session, then removes its directory: does one step, without waiting. Returns whether
/// it was the last.
///
/// # Errors
///
/// A handler cannot be stopped, or the directory not be removed: then the session stays marked; try again
/// later.
pub fn delete(root: &Root, deletion: &mut Deletion) -> Result<bool> {
    let dir = root.path_of(deletion.session);
    if !dir.exists() {
        return Ok(true);
    }
    // The session's agent first, so that it starts no further sub-agents.
    for thread in std::iter::once(dir.clone()).chain(thread_agent::sub_agent::threads_in(&dir)) {
        if !deletion.stop_all(&thread)? {
            return Ok(false);
        }
    }
    let temporary = root.dir().join(format!("{TEMPORARY}{}", SessionId::random()));
    fs::rename(&dir, &temporary).and_then(|()| fs::remove_dir_all(&temporary)).map_err(|e| root.failed(e))?;
    Ok(true)
}

/// A session that is being deleted; exclusive while it exists.
pub struct Deletion {
    pub session: SessionId,
    mark: PathBuf,
    _lock: fs::File,
    /// The handlers that were asked to end, until they have.
    stops: HashMap<(PathBuf, ConsumerId), Option<Stopping>>,
}

impl Deletion {
    /// Nothing is left of the session: its id may be used again.
    ///
    /// # Errors
    ///
    /// The mark cannot be removed; try again later.
    pub fn done(&self) -> io::Result<()> {
        fs::remove_file(&self.mark)
    }

    /// Pauses all consumers of a thread and asks their handlers to end. Returns whether they have.
    fn stop_all(&mut self, thread: &Path) -> Result<bool> {
        let mut queue = Queue::open_waiting(thread, BUSY)?;
        let mut are_over = true;
        for Subscription { consumer, .. } in queue.subscriptions()? {
            let stopping = match self.stops.entry((thread.to_owned(), consumer.clone())) {
                Occupied(known) => known.into_mut(),
                Vacant(new) => {
                    thread::run::control::pause(&mut queue, &consumer)?;
                    new.insert(Some(Stopping::new(&mut queue, &consumer, STOP)?))
                }
            };
            if let Some(under_way) = stopping {
                match under_way.step(&mut queue)? {
                    Some(_) => *stopping = None,
                    None => are_over = false,
                }
            }
        }
        Ok(are_over)
    }
}

/// What was said: messages, answers, and those that were stopped.
const SAID: &str = "type = 'message' OR type = 'record' AND subtype = 'cancelled'";

/// Copies the messages before an event, and their answers, to an empty thread, page by page. If the event is a
/// message, the answers to earlier ones may come after it: messages queue. `keep` is called with the metadata of
/// each before it is stored. Returns how many.
fn copy_messages(
    from: &mut Queue,
    end: i64,
    to: &mut Queue,
    keep: &mut dyn FnMut(&Map<String, Value>) -> io::Result<()>,
) -> Result<i64> {
    let filter = Filter::new(SAID, Scope::Reading)?;
    let mut selection = Selection { after: 0, limit: None, filter };
    let mut cuts_runs = false;
    let mut at_end = Selection { limit: Some(1), ..After(end.saturating_sub(1)).into() };
    // Longer texts cannot be equal, and are not read.
    from.read_page_capped(&mut at_end, 64, &mut |capped| {
        cuts_runs =
            capped.row.id == end && capped.row.kind == b"message" && capped.row.source != SELF.as_bytes();
        ControlFlow::Break(())
    })?;
    // The new ids of what is copied, and the messages that have no answer yet.
    let (mut ids, mut open, mut copied) = (HashMap::new(), BTreeSet::new(), 0);
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
        let is_over = page.is_empty() || remaining == Remaining::None;
        let mut copies = Vec::with_capacity(page.len());
        for event in page {
            let entry = Entry::of(&event);
            let is_ending = is_ending(from, event.id, &entry)?;
            let is_of_copied = entry.ends().is_some_and(|message| ids.contains_key(&message));
            if matches!(entry, Entry::Cancelled { .. }) && !(is_ending && is_of_copied) {
                continue;
            }
            copied += 1;
            ids.insert(event.id, copied);
            match entry.ends() {
                Some(message) if is_ending => drop(open.remove(&message)),
                _ if matches!(entry, Entry::Message(_)) => drop(open.insert(event.id)),
                _ => {}
            }
            copies.push(copy(event, &ids, is_ending, keep)?);
        }
        if !copies.is_empty() {
            to.push_all(&mut |put| put(&copies).map(drop))?;
        }
        if is_over {
            break;
        }
    }
    if !cuts_runs {
        return Ok(copied);
    }
    let mut later = Vec::new();
    for message in open {
        later.extend(ending_of(from, message)?.map(|event| event.id).filter(|id| *id > end));
    }
    // As they were answered.
    later.sort_unstable();
    let mut later = later.into_iter().peekable();
    while later.peek().is_some() {
        let (mut answers, mut size) = (Vec::new(), 0);
        while let Some(id) = later.next_if(|_| size < PAGE_BYTES) {
            let Some(event) = from.event(id)? else { continue };
            let entry = Entry::of(&event);
            if matches!(entry, Entry::Answer { .. } | Entry::Cancelled { .. }) && is_ending(from, id, &entry)?
            {
                size += event.content.len();
                answers.push(copy(event, &ids, true, keep)?);
            }
        }
        copied += answers.len() as i64;
        to.push_all(&mut |put| put(&answers).map(drop))?;
    }
    Ok(copied)
}
