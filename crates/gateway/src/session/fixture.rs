//! A session with a thread in a temporary directory, for tests. Nothing reads it unless a test does.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use thread::model::subscription::{NO_HANDLER, NewSubscription};
use thread::{NewEvent, Queue};
use thread_conversation::{Answer, Message, Run, ToolCall};
use thread_sessions::{ChangeWatcher, Kind, SessionId, open_runs};

use super::blocking_pool::{BlockingPool, SESSIONS};
use super::context::Context;
use super::cursor::{Cursor, Next};
use super::event::SessionEvent;
use super::live_session::{Following, LiveSession, Present};
use super::page_reader::Reader;
use super::root;
use crate::agents::seating::consumer;
use crate::storage::Storage;

/// Who speaks to the agent in tests.
pub const THEM: &str = "external:web:a:dm:b:c";

/// How long something may take that happens in another task or thread.
pub const LIMIT: Duration = Duration::from_secs(60);

/// What a reader that has caught up gets, with the notices from a number on, and the number of the next one.
pub fn present(live: &LiveSession, notices_from: u64) -> (Present, u64) {
    match live.following(i64::MAX, notices_from) {
        Following::Nothing(present, next) => (present, next),
        _ => panic!("the session is gone"),
    }
}

pub struct Fixture {
    pub context: Arc<Context>,
    pub session: SessionId,
    /// What events are pushed through.
    pub queue: Queue,
    dir: tempfile::TempDir,
}

impl Fixture {
    /// A session without an agent. Call it within a runtime.
    pub fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let (root, _) = root::open(dir.path()).unwrap();
        let session = SessionId::random();
        root::create(&root, session, None).unwrap();
        let queue = root.queue(session).unwrap();
        let storage = Storage::open(dir.path(), "http://gateway".into(), None, Vec::new()).unwrap();
        let context = Context {
            root: Arc::new(root),
            storage: Arc::new(storage),
            watcher: ChangeWatcher::new().unwrap(),
            pool: BlockingPool::new(SESSIONS),
            budget: Default::default(),
        };
        Fixture { context: Arc::new(context), session, queue, dir }
    }

    /// A session whose agent has begun the run of a message and made these calls; and the message.
    pub fn with_calls(ids: &[&str]) -> (Fixture, i64) {
        let mut fixture = Fixture::new();
        fixture.subscribe(None, None);
        let message = fixture.say("x");
        fixture.begin(message);
        for id in ids {
            fixture.push(&run(message).tool_call(&call(id)));
        }
        (fixture, message)
    }

    /// The files of the thread are removed.
    pub fn remove(&self) {
        std::fs::remove_dir_all(self.dir.path().join(self.session.to_string())).unwrap();
    }

    /// Subscribes an agent that is never started, or moves its cursor.
    pub fn subscribe(&mut self, filter: Option<&str>, from: Option<i64>) {
        let new = NewSubscription {
            consumer: consumer(),
            handler_cmd: NO_HANDLER.into(),
            filter: filter.map(str::to_owned),
            cwd: None,
            options: Default::default(),
            from,
            replace: true,
        };
        self.queue.subscribe(&new).unwrap();
    }

    pub fn push(&mut self, event: &NewEvent<'_>) -> i64 {
        self.queue.push(event).unwrap().id
    }

    pub fn say(&mut self, text: impl Into<String>) -> i64 {
        self.push(&Message::text(text).event(THEM).unwrap())
    }

    /// Pushes so many messages.
    pub fn say_times(&mut self, times: usize) {
        for number in 0..times {
            self.say(format!("{number}"));
        }
    }

    pub fn begin(&mut self, message: i64) -> i64 {
        self.push(&run(message).started())
    }

    pub fn answer(&mut self, message: i64, text: impl Into<String>) -> i64 {
        self.push(&run(message).answer(&Answer { content: text.into(), ..Answer::default() }))
    }

    /// The session as [`Hub::enter`](super::hub::Hub::enter) makes it, but without its task: it advances when
    /// the test says so.
    pub async fn live(&self) -> (Arc<LiveSession>, Reader) {
        let (root, session) = (self.context.root.clone(), self.session);
        let mut queue = root.queue(session).unwrap();
        let watch = self.context.watcher.watch(&queue);
        let (agent, runs, upto) = open_runs(&mut queue).unwrap();
        let live = LiveSession::new(session, self.context.clone(), watch, runs, upto);
        (Arc::new(live), Reader { queue: Some(queue), agent: Some(agent), once: false })
    }

    /// The session, with everything from its beginning in the ring that has room there.
    pub async fn live_from_start(&self) -> (Arc<LiveSession>, Reader) {
        let mut queue = self.context.root.queue(self.session).unwrap();
        let watch = self.context.watcher.watch(&queue);
        let (agent, _, _) = open_runs(&mut queue).unwrap();
        let live =
            Arc::new(LiveSession::new(self.session, self.context.clone(), watch, Default::default(), 0));
        let reader = advance(&live, Reader { queue: Some(queue), agent: Some(agent), once: false }).await;
        (live, reader)
    }

    /// Reads an event as it is stored.
    pub async fn stored(&self, id: i64) -> SessionEvent {
        let root = self.context.root.clone();
        let session = self.session;
        let read = move || {
            Ok(super::history::event(&mut root.queue(session)?, id)?.expect("there is such an event"))
        };
        self.context.pool.run(session, Kind::Read, read).await.unwrap()
    }
}

pub fn call(id: &str) -> ToolCall {
    ToolCall::new(id, "t", Default::default())
}

/// The run of a message that names none.
pub fn run(message: i64) -> Run {
    Run { run_id: format!("run_{message}"), reply_to: message, attempt: 1, is_own: false }
}

/// Reads everything that is stored.
pub async fn advance(live: &LiveSession, mut reader: Reader) -> Reader {
    loop {
        let more;
        (reader, more) = live.advance(reader).await.unwrap();
        if !more {
            return reader;
        }
    }
}

/// What the cursor has next, if it can tell without waiting for something that is still to happen.
pub fn now<T>(next: impl Future<Output = T>) -> Option<T> {
    let mut next = std::pin::pin!(next);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match next.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

/// The next event.
pub async fn event(cursor: &mut Cursor) -> Arc<SessionEvent> {
    match tokio::time::timeout(LIMIT, cursor.next()).await.expect("something comes") {
        Next::Event(event) => event,
        Next::CaughtUp(_) => panic!("no event after {}", cursor.position()),
        Next::Gone => panic!("gone"),
    }
}

/// Reads on until the cursor has everything. Returns the ids of the events, and what is for those who have
/// caught up.
pub async fn drain(cursor: &mut Cursor) -> (Vec<i64>, Present) {
    let mut ids = Vec::new();
    loop {
        match tokio::time::timeout(LIMIT, cursor.next()).await.expect("something comes") {
            Next::Event(event) => {
                assert_eq!(cursor.position(), event.id());
                ids.push(event.id());
            }
            Next::CaughtUp(present) => return (ids, present),
            Next::Gone => panic!("gone"),
        }
    }
}

/// The frames that readers got, by event: each reader must get the same ones.
#[derive(Default)]
pub struct Seen(BTreeMap<i64, [String; 2]>);

impl Seen {
    pub fn check(&mut self, cursor: &Cursor, event: &SessionEvent) {
        let frames = cursor.frames(event).expect("clients see the event");
        let frames = ["me", "them"].map(|client| frames.for_client(client).to_string());
        let first = self.0.entry(event.id()).or_insert_with(|| frames.clone());
        assert_eq!(*first, frames, "event {} has other frames than before", event.id());
    }
}
