//! Fixtures of the property tests: threads in temporary directories, and events made of a few fixed values,
//! so that random filters match some of them.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use rusqlite::Connection;
use tempfile::TempDir;
use thread::error::Result;
use thread::files::DB;
use thread::model::event::NewEvent;
use thread::model::filter::{Filter, Scope};
use thread::model::run::Options;
use thread::model::subscription::{ConsumerId, NewSubscription, Subscription};
use thread::pending::{self, PendingScan};
use thread::store::Moved;
use thread::{After, Event, Queue, jsonl};
use thread_testkit::long;

/// A configuration with a fixed seed.
pub fn cases(cases: u32) -> Config {
    let cases = if long() { cases * 10 } else { cases };
    Config { cases, rng_seed: RngSeed::Fixed(20_260_318), failure_persistence: None, ..Config::default() }
}

/// A thread in a temporary directory that is removed on drop.
pub struct Place {
    pub queue: Queue,
    _folder: TempDir,
}

impl Place {
    pub fn new() -> Place {
        // In memory where possible: these tests do not depend on a disk, and syncs take time.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let dir = Queue::init(folder.path().join("inbox")).unwrap();
        Place { queue: Queue::open(dir).unwrap(), _folder: folder }
    }

    pub fn path(&self, name: impl AsRef<Path>) -> std::path::PathBuf {
        self.queue.files().path_of(name)
    }

    pub fn reopen(&mut self) {
        self.queue = Queue::open(self.queue.path()).unwrap();
    }

    /// A plain connection, as other programs open it.
    pub fn plain(&self) -> Connection {
        Connection::open(self.path(DB)).unwrap()
    }

    /// Subscribes a consumer with a dummy handler.
    pub fn subscribe(
        &mut self,
        consumer: &ConsumerId,
        filter: Option<&str>,
        from: Option<i64>,
    ) -> Result<Option<Moved>> {
        self.queue.subscribe(&NewSubscription {
            consumer: consumer.clone(),
            handler_cmd: "true".to_owned(),
            filter: filter.map(str::to_owned),
            cwd: None,
            options: Options::default(),
            from,
            replace: false,
        })
    }

    pub fn subscription(&mut self, consumer: &ConsumerId) -> Subscription {
        self.queue.subscription(consumer).unwrap()
    }

    /// Stores events in one transaction, without updating the JSONL log.
    pub fn store(&mut self, parts: &[Parts]) {
        let store = self.queue.store();
        store.append(&mut |put| parts.iter().try_for_each(|parts| put(&[parts.event()]).map(drop))).unwrap();
    }

    pub fn catch_up(&mut self) -> Result<()> {
        let files = self.queue.files().clone();
        jsonl::catch_up(&files, self.queue.store(), Duration::MAX, &mut |_| {})
    }

    /// Looks for pending events, without a deadline.
    pub fn look(&mut self, subscription: &Subscription) -> PendingScan {
        pending::scan(self.queue.store(), subscription, None, true).unwrap()
    }

    /// Ids of the matching events after `after`.
    pub fn read(&mut self, after: i64, filter: Option<&Filter>) -> Vec<i64> {
        self.queue.read(After(after), filter).unwrap().into_iter().map(|event| event.id).collect()
    }
}

/// The fields of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    pub source: String,
    pub kind: &'static str,
    pub subtype: Option<String>,
    pub content: String,
}

impl Parts {
    pub fn record(content: impl Into<String>) -> Parts {
        Parts { source: "s".into(), kind: "record", subtype: None, content: content.into() }
    }

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

/// A random event.
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

/// Ids of the matching events, evaluated one by one on a plain connection. An event on which the filter fails
/// does not match. If it fails because a text is not JSON, it is evaluated as for a single event.
pub fn matching(conn: &Connection, filter: Option<&str>) -> Vec<i64> {
    let ids: Vec<i64> = {
        let mut all = conn.prepare("SELECT id FROM events ORDER BY id").unwrap();
        all.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let Some(filter) = filter else { return ids };
    let mut one = conn.prepare(&format!("SELECT 1 FROM events WHERE id = ? AND (\n{filter}\n)")).unwrap();
    let mut matches = |id: &i64| match one.exists([id]) {
        Err(e) if e.to_string().contains("malformed JSON") => matches_alone(conn, filter, *id),
        result => result.unwrap_or(false),
    };
    ids.into_iter().filter(|id| matches(id)).collect()
}

fn matches_alone(conn: &Connection, filter: &str, id: i64) -> bool {
    let sql = "SELECT created_at, source, type, subtype, content, metadata FROM events WHERE id = ?";
    let event = |row: &rusqlite::Row<'_>| {
        Ok(Event {
            id,
            created_at: row.get(0)?,
            source: row.get(1)?,
            kind: row.get(2)?,
            subtype: row.get(3)?,
            content: row.get(4)?,
            metadata: row.get(5)?,
        })
    };
    let event = conn.query_row(sql, [id], event).unwrap();
    let filter = Filter::new(filter, Scope::Reading).unwrap().unwrap();
    filter.matches(&event.row()).unwrap_or(false)
}
