//! Which threads there are, and their ids.
//!
//! A session's id is its UUID, that of a sub-agent's thread `<session>~<sub-agent>`, and that of a thread of
//! `--thread` its name. An id is never a path: the directory of a sub-agent is found among those that there are.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use thread::Queue;
use thread::failure::Failure;
use thread::files;
use thread::files::stamp::{self, Stamp};
use thread::model::location::Location;
use thread_sessions::root::Listed;
use thread_sessions::{RequestError, Result, Root, SessionId};

use super::dto::ThreadKind;

/// Between the two parts of the id of a sub-agent's thread.
const OF: char = '~';

/// The name of a thread may not have more characters.
const MAX_NAME: usize = 64;

/// A name that is a path of the interface.
const RESERVED: &str = "watch";

/// The id of a thread, which may have been written in several ways.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ThreadId {
    Named(String),
    Session(SessionId),
    SubAgent(SessionId, String),
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ThreadId::Named(name) => f.write_str(name),
            ThreadId::Session(session) => session.fmt(f),
            ThreadId::SubAgent(session, name) => write!(f, "{session}{OF}{name}"),
        }
    }
}

impl ThreadId {
    pub fn kind(&self) -> ThreadKind {
        match self {
            ThreadId::Named(_) => ThreadKind::Thread,
            ThreadId::Session(_) => ThreadKind::Session,
            ThreadId::SubAgent(..) => ThreadKind::SubAgent,
        }
    }
}

/// A thread that can be looked at.
#[derive(Debug, Clone)]
pub struct Target {
    pub id: ThreadId,
    pub location: Location,
    /// Its directory, or its base.
    base: PathBuf,
}

impl Target {
    fn below_the_root(id: ThreadId, base: PathBuf) -> Target {
        Target { id, location: Location::from(&base), base }
    }

    /// Opens the thread. Operations wait for other writers for at most so long.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unknown`]: it is gone. Errors of the thread.
    pub fn open(&self, busy: Duration) -> Result<Queue> {
        Queue::open_waiting(&self.location, busy).map_err(|e| match e {
            thread::Error::NotAThread(_) => unknown(&self.id.to_string()),
            e => e.into(),
        })
    }

    /// The state of its database; `None` if it is gone.
    pub fn stamp(&self) -> Option<Stamp> {
        Stamp::of(&self.location, &self.base)
    }
}

/// There is no such thread.
fn unknown(id: &str) -> RequestError {
    RequestError::Unknown(format!("there is no thread '{}' here; see /api/v1/threads", id.escape_debug()))
}

pub struct Threads {
    root: Arc<Root>,
    named: Vec<Target>,
    /// The names of the sub-agents of sessions, with the time of their directory.
    sub_agents: Mutex<HashMap<SessionId, (SystemTime, Vec<String>)>>,
}

impl Threads {
    /// The threads of a root, and those that are given as `DIR` or `NAME=DIR`.
    ///
    /// # Errors
    ///
    /// One is no thread, or cannot be opened; a name cannot be used, or is used twice.
    pub fn new(root: Arc<Root>, given: &[PathBuf]) -> Result<Threads, Failure> {
        let mut named: Vec<Target> = Vec::new();
        for given in given {
            let (name, path) = split(given);
            let opened = files::absolute_location(&Location::from(path))
                .and_then(|location| Ok((Queue::open(&location)?.path().to_owned(), location)));
            let (base, location) = opened.map_err(|e| {
                let Failure { what, hint, .. } = e.into();
                Failure::failed(format!("--thread {}: {what}", path.display()), hint)
            })?;
            let name = name.map_or_else(|| location.name(), str::to_owned);
            let refused = |why: &str| {
                let fix = format!("give it another name: --thread NAME={}", path.display());
                Err(Failure::usage(format!("--thread: the name '{}' {why}", name.escape_debug()), fix))
            };
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if !name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                || !name.chars().all(is_plain)
            {
                return refused("has characters other than letters, digits, '.', '_' and '-'");
            }
            if name.len() > MAX_NAME {
                return refused("is longer than 64 characters");
            }
            if name == RESERVED || SessionId::parse(&name).is_some() {
                return refused("means something else here");
            }
            let id = ThreadId::Named(name.clone());
            if named.iter().any(|other| other.id == id) {
                return refused("is given twice");
            }
            named.push(Target { id, location, base });
        }
        Ok(Threads { root, named, sub_agents: Mutex::default() })
    }

    /// Reads an id, without looking at the disk.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unknown`]: it is none.
    pub fn parse(&self, id: &str) -> Result<ThreadId> {
        let named = ThreadId::Named(id.to_owned());
        if self.named.iter().any(|target| target.id == named) {
            return Ok(named);
        }
        let (session, sub_agent) = match id.split_once(OF) {
            Some((session, name)) => (session, Some(name)),
            None => (id, None),
        };
        let session = SessionId::parse(session).ok_or_else(|| unknown(id))?;
        Ok(match sub_agent {
            None => ThreadId::Session(session),
            Some(name) => ThreadId::SubAgent(session, name.to_owned()),
        })
    }

    /// The thread with an id.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unknown`]: there is none. [`RequestError::NotNow`]: it is being deleted.
    pub fn find(&self, id: &ThreadId) -> Result<Target> {
        if let ThreadId::Session(session) | ThreadId::SubAgent(session, _) = id {
            self.root.refuse_deleted(*session)?;
        }
        let found = match id {
            ThreadId::Named(_) => self.named.iter().find(|target| target.id == *id).cloned(),
            ThreadId::Session(session) => Some(self.session(*session)),
            ThreadId::SubAgent(session, name) => {
                let is_there = names_in(&self.agents_of(*session)).contains(name);
                is_there.then(|| self.sub_agent(*session, name))
            }
        };
        found.ok_or_else(|| unknown(&id.to_string()))
    }

    /// The thread with an id, if it exists.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unknown`]: there is none.
    pub fn find_existing(&self, id: &ThreadId) -> Result<Target> {
        let target = self.find(id)?;
        if target.stamp().is_some() { Ok(target) } else { Err(unknown(&target.id.to_string())) }
    }

    /// The threads of `--thread`.
    pub fn named(&self) -> &[Target] {
        &self.named
    }

    /// All sessions and their sub-agents, the most recently active session first.
    ///
    /// # Errors
    ///
    /// The root cannot be read.
    pub fn below_the_root(&self) -> Result<Vec<(Target, Listed)>> {
        let sessions = self.root.entries().map_err(|e| self.root.failed(e))?;
        let mut known = self.sub_agents.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *known);
        let mut all = Vec::with_capacity(sessions.len());
        for listed in sessions {
            let id = listed.id;
            all.push((self.session(id), listed));
            let dir = self.agents_of(id);
            let Ok(changed) = fs::symlink_metadata(&dir).and_then(|about| about.modified()) else { continue };
            let names = match before.remove(&id) {
                Some((then, names)) if then == changed && !stamp::is_fresh(changed) => names,
                _ => names_in(&dir),
            };
            all.extend(names.iter().map(|name| (self.sub_agent(id, name), listed)));
            known.insert(id, (changed, names));
        }
        Ok(all)
    }

    fn agents_of(&self, session: SessionId) -> PathBuf {
        self.root.path_of(session).join("agents")
    }

    fn session(&self, session: SessionId) -> Target {
        Target::below_the_root(ThreadId::Session(session), self.root.path_of(session))
    }

    fn sub_agent(&self, parent: SessionId, name: &str) -> Target {
        let base = self.agents_of(parent).join(name);
        Target::below_the_root(ThreadId::SubAgent(parent, name.to_owned()), base)
    }
}

/// The name and the path of `NAME=DIR` or `DIR`. If there is a slash before the sign, the whole is a path.
fn split(given: &Path) -> (Option<&str>, &Path) {
    let bytes = given.as_os_str().as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=').filter(|at| at + 1 < bytes.len());
    let name = at.and_then(|at| std::str::from_utf8(&bytes[..at]).ok()).filter(|name| !name.contains('/'));
    match (name, at) {
        (Some(name), Some(at)) => (Some(name), Path::new(OsStr::from_bytes(&bytes[at + 1..]))),
        _ => (None, given),
    }
}

/// The directories of threads in a directory. Links lead elsewhere, and names that are not UTF-8 have no id.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let threads = dirs.filter(|entry| entry.path().join(files::DB).exists());
    let mut names: Vec<String> = threads.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::root;

    fn dirs() -> (tempfile::TempDir, Arc<Root>) {
        let dir = tempfile::tempdir().unwrap();
        let (root, _) = root::open(&dir.path().join("root")).unwrap();
        Queue::init(dir.path().join("inbox")).unwrap();
        Queue::init(dir.path().join("other/inbox")).unwrap();
        (dir, Arc::new(root))
    }

    #[test]
    fn threads_have_the_names_of_their_directories_unless_others_are_given() {
        let (dir, root) = dirs();
        let at = |path: &str| dir.path().join(path);
        let named = |name: &str, path: &str| {
            let mut given = std::ffi::OsString::from(format!("{name}="));
            given.push(at(path));
            PathBuf::from(given)
        };
        let odd = dir.path().join(OsStr::from_bytes(b"a=b\xff"));
        Queue::init(&odd).unwrap();
        let given = [
            at("inbox"),
            named("more", "other/inbox"),
            PathBuf::from([OsStr::new("odd="), odd.as_os_str()].join(OsStr::new(""))),
        ];
        let threads = Threads::new(root.clone(), &given).unwrap();
        let ids: Vec<String> = threads.named().iter().map(|target| target.id.to_string()).collect();
        assert_eq!(ids, ["inbox", "more", "odd"]);
        assert_eq!(
            threads.find(&threads.parse("more").unwrap()).unwrap().location,
            Location::from(at("other/inbox"))
        );
        let refusal = |given: &[PathBuf]| Threads::new(root.clone(), given).err().unwrap().to_string();
        for (given, why) in [
            (vec![at("inbox"), at("other/inbox")], "is given twice - give it another name: --thread NAME="),
            (vec![named("watch", "inbox")], "means something else"),
            (vec![named("1b4e28ba-2fa1-41d2-883f-0016d3cca427", "inbox")], "means something else"),
            (vec![named("..", "inbox")], "characters"),
            (vec![named("", "inbox")], "characters"),
            (vec![named("a b", "inbox")], "characters"),
            (vec![at("root")], "thread init"),
            (vec![at("nowhere")], "thread init"),
        ] {
            assert!(refusal(&given).contains(why), "{given:?}: {}", refusal(&given));
        }
    }

    #[test]
    fn an_id_leads_nowhere_else() {
        let (dir, root) = dirs();
        let session = SessionId::random();
        root::create(&root, session, None).unwrap();
        Queue::init(root.path_of(session).join("agents/helper-1")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("inbox"), root.path_of(session).join("agents/link"))
            .unwrap();
        let threads = Threads::new(root.clone(), &[dir.path().join("inbox")]).unwrap();
        let find = |id: &str| threads.parse(id).and_then(|id| threads.find(&id));
        let found = |id: &str| find(id).ok().map(|target| target.id.kind());
        assert_eq!(found("inbox"), Some(ThreadKind::Thread));
        assert_eq!(found(&session.to_string()), Some(ThreadKind::Session));
        assert_eq!(found(&format!("{session}~helper-1")), Some(ThreadKind::SubAgent));
        for id in ["", "..", ".", "other", "inbox/", "~", "~helper-1", "/etc", "INBOX"] {
            assert_eq!(found(id), None, "{id}");
        }
        for name in ["", ".", "..", "link", "../..", "../../../inbox", "helper-1/", "/"] {
            assert_eq!(found(&format!("{session}~{name}")), None, "{name}");
        }
        assert!(find(&SessionId::random().to_string()).unwrap().open(Duration::ZERO).is_err());
        // An id is the same however it is written.
        let parsed = |id: String| threads.parse(&id).unwrap();
        assert_eq!(parsed(session.to_string().to_uppercase()), ThreadId::Session(session));
        let upper = format!("{}~helper-1", session.to_string().to_uppercase());
        assert_eq!(parsed(upper).to_string(), format!("{session}~helper-1"));
        let all = threads.below_the_root().unwrap();
        let ids: Vec<String> = all.iter().map(|(target, _)| target.id.to_string()).collect();
        assert_eq!(ids, [session.to_string(), format!("{session}~helper-1")]);
    }
}
