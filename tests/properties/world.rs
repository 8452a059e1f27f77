//! What the laws stand on: threads in a folder of their own, and events made of few parts, so that
//! random filters have something to tell apart.

use std::path::PathBuf;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use rusqlite::Connection;
use tempfile::TempDir;
use thread::event::NewEvent;
use thread::journal::Prepared;
use thread::rule::Policy;
use thread::store::{NewSubscription, Reading, Subscribed};
use thread::subscription::ConsumerId;
use thread::thread::Thread;

/// That many cases, the same ones every time.
pub fn cases(cases: u32) -> Config {
    Config { cases, rng_seed: RngSeed::Fixed(20_260_318), failure_persistence: None, ..Config::default() }
}

/// A thread that goes with its folder.
pub struct Place {
    pub thread: Thread,
    _folder: TempDir,
}

impl Place {
    pub fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let dir = Thread::init(&folder.path().join("inbox")).unwrap();
        Place { thread: Thread::open(&dir).unwrap(), _folder: folder }
    }

    pub fn dir(&self) -> PathBuf {
        self.thread.dir().to_owned()
    }

    /// A connection as any other program would open it.
    pub fn plain(&self) -> Connection {
        Connection::open(self.thread.files.db()).unwrap()
    }

    /// Subscribes a consumer whose handler is of no interest.
    pub fn subscribe(&mut self, consumer: &ConsumerId, filter: Option<&str>) -> Subscribed {
        self.subscribe_from(consumer, filter, None)
    }

    /// The same, with its cursor set.
    pub fn subscribe_from(
        &mut self,
        consumer: &ConsumerId,
        filter: Option<&str>,
        from: Option<i64>,
    ) -> Subscribed {
        let policy = Policy::default();
        let (handler_cmd, cwd) = ("true", "/".as_ref());
        let new = NewSubscription { consumer, handler_cmd, filter, cwd, policy: &policy, from };
        self.thread.store.subscribe(&new).unwrap()
    }

    /// Stores these in one transaction.
    pub fn push(&mut self, parts: &[Parts]) {
        self.thread
            .store
            .append(|inserter| parts.iter().try_for_each(|parts| inserter.insert(&parts.event()).map(drop)))
            .unwrap();
    }

    /// The same, with their lines for the copy prepared meanwhile.
    pub fn push_prepared(&mut self, parts: &[Parts]) -> Option<Prepared> {
        let room = self.dir().join("run");
        let mut prepared = None;
        let stored = self.thread.store.append(|inserter| {
            let (next, created_at) = inserter.next()?;
            let prepared = prepared.insert(Prepared::new(&room, next, created_at).unwrap());
            parts.iter().try_for_each(|parts| {
                prepared.add(&parts.event());
                inserter.insert_soon(&parts.event())
            })
        });
        prepared.and_then(|prepared| prepared.of(&stored.unwrap()))
    }

    /// The ids a reading gives.
    pub fn read(&mut self, reading: Reading<'_>) -> Vec<i64> {
        self.thread.store.read_all(reading).unwrap().into_iter().map(|event| event.id).collect()
    }
}

/// What an event is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    pub source: String,
    pub kind: &'static str,
    pub subtype: Option<String>,
    pub content: String,
}

impl Parts {
    pub fn event(&self) -> NewEvent<'_> {
        let subtype = self.subtype.as_deref().map(Into::into);
        NewEvent::new(self.source.as_str(), self.kind, subtype, self.content.as_str()).unwrap()
    }
}

pub const SOURCES: &[&str] = &[
    "self",
    "internal:dm:default:warden",
    "external:telegram:tg:group:g/t:alice",
    "50%_off",
    "Self",
    "é*[a]",
];
pub const SUBTYPES: &[&str] = &["toolcall", "decision", "", "10"];
pub const CONTENTS: &[&str] = &[
    r#"{"n":1,"k":"a"}"#,
    r#"{"n":7,"k":"b"}"#,
    r#"{"n":"7"}"#,
    r#"{"n":null,"k":["a"]}"#,
    r#"{"n":"#,
    "[1,2]",
    "null",
    "",
    "10",
    "9",
    "plain 'text'",
    "Plain %text_",
    "a\0b",
    "ünïcode ☃",
];

/// An event of those parts.
pub fn parts() -> impl Strategy<Value = Parts> + Clone {
    let source = prop::sample::select(SOURCES);
    let kind = prop::sample::select(&["message", "record"][..]);
    let subtype = prop::option::of(prop::sample::select(SUBTYPES));
    (source, kind, subtype, prop::sample::select(CONTENTS)).prop_map(|(source, kind, subtype, content)| {
        Parts {
            source: source.to_owned(),
            kind,
            subtype: subtype.map(str::to_owned),
            content: content.to_owned(),
        }
    })
}

/// The ids on which the filter holds, asked one event at a time on a plain connection. An event on
/// which it errs does not match.
pub fn matching(conn: &Connection, filter: Option<&str>) -> Vec<i64> {
    let ids: Vec<i64> = {
        let mut all = conn.prepare("SELECT id FROM events ORDER BY id").unwrap();
        all.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let Some(filter) = filter else { return ids };
    let mut one = conn.prepare(&format!("SELECT 1 FROM events WHERE id = ? AND (\n{filter}\n)")).unwrap();
    ids.into_iter().filter(|id| one.exists([id]).unwrap_or(false)).collect()
}
