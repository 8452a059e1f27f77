//! The follower of one session: reads its new events and sends them to the clients in it.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use thread::queue::{Remaining, Selection};
use thread::run::Launcher;
use thread::{After, Event, Queue};
use thread_agent::conversation::Entry;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::feed::{Backlog, Delivery, Feed, Order, Sink, Update};
use super::sub_agents;
use super::watcher::{ChangeWatcher, SessionWatch};
use crate::error::{RequestError, Result};
use crate::log::log;
use crate::session::root::Root;
use crate::session::runs::{self, Runs};
use crate::session::{blocking, history, speak};
use crate::session_id::SessionId;
use crate::storage::Storage;

/// How long a database stays open after the last event.
const LINGER: Duration = Duration::from_secs(3);

/// About how many bytes a page has.
const PAGE_BYTES: usize = 256 * 1024;

/// How long to wait after a failed read.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// What all followers share.
pub struct Context {
    pub root: Arc<Root>,
    pub launcher: Launcher,
    pub watcher: Arc<ChangeWatcher>,
    pub storage: Arc<Storage>,
}

pub struct Follower {
    pub session: SessionId,
    watch: Arc<SessionWatch>,
    inner: Mutex<Inner>,
}

struct Inner {
    /// All members have been sent the events up to this id.
    upto: i64,
    runs: Runs,
    members: Vec<Member>,
    next_key: u64,
    /// The ids of tool calls that have no result yet.
    calls: HashSet<String>,
    /// Whether a task relays the output of sub-agents that work for these calls.
    relaying: bool,
    /// Set once the follower stops accepting members.
    ended: bool,
}

struct Member {
    key: u64,
    sink: Sink,
}

/// A client's place in a session; dropping it leaves the session.
pub struct Membership {
    pub session: SessionId,
    /// Events after this id come by the feed.
    pub upto: i64,
    pub feed: Feed,
    follower: Arc<Follower>,
    key: u64,
}

impl Membership {
    pub fn follower(&self) -> &Arc<Follower> {
        &self.follower
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut inner = self.follower.inner();
        inner.members.retain(|member| member.key != self.key);
        if inner.members.is_empty() {
            self.follower.watch.changed.notify_one();
        }
    }
}

impl Follower {
    /// Starts to follow a session, and wakes its consumers: a gateway may have been killed between storing a
    /// message and starting them.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`]; errors of the thread.
    pub async fn new(context: &Arc<Context>, session: SessionId) -> Result<(Arc<Follower>, Queue)> {
        let own = context.clone();
        blocking(move || {
            let mut queue = own.root.queue(session)?;
            // Watch before reading, so that events stored in between are noticed.
            let watch = own.watcher.watch(&queue);
            let (runs, upto) = Runs::of(&mut queue)?;
            speak::wake(&mut queue, &own.launcher, "self");
            let calls = open_calls(&mut queue, upto)?;
            let inner =
                Inner { upto, runs, members: Vec::new(), next_key: 0, calls, relaying: false, ended: false };
            Ok((Arc::new(Follower { session, watch, inner: Mutex::new(inner) }), queue))
        })
        .await
    }

    /// Adds a member; `None` if the follower has ended.
    pub fn enter(self: &Arc<Follower>, backlog: Arc<Backlog>) -> Option<Membership> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut inner = self.inner();
        if inner.ended {
            return None;
        }
        let key = inner.next_key;
        inner.next_key += 1;
        let sink = Sink { sender, backlog: backlog.clone() };
        inner.members.push(Member { key, sink });
        let upto = inner.upto;
        drop(inner);
        let feed = Feed { receiver, backlog };
        Some(Membership { session: self.session, upto, feed, follower: self.clone(), key })
    }

    /// How many clients are in the session; one with two connections counts twice.
    pub fn clients(&self) -> usize {
        self.inner().members.len()
    }

    /// Gives access to the session's runs.
    pub fn with_runs<T>(&self, read: impl FnOnce(&Runs) -> T) -> T {
        read(&self.inner().runs)
    }

    /// Sends frames that are not events of the thread to all members.
    pub fn notice(&self, frames: Vec<Utf8Bytes>) {
        let mut inner = self.inner();
        for frame in frames {
            inner.send(&Update::Notice(frame));
        }
    }

    /// The tool calls that have no result yet. `None` if there are none or no members are left; then the
    /// relay of sub-agents' output counts as ended.
    pub fn open_calls(&self) -> Option<HashSet<String>> {
        let mut inner = self.inner();
        inner.relaying = !inner.calls.is_empty() && !inner.members.is_empty() && !inner.ended;
        inner.relaying.then(|| inner.calls.clone())
    }

    /// Whether the relay of sub-agents' output has to be started; from then on it counts as running.
    fn claim_relay(&self) -> bool {
        let mut inner = self.inner();
        let new = !inner.relaying && !inner.calls.is_empty() && !inner.members.is_empty();
        inner.relaying |= new;
        new
    }

    /// Tells all members that the session is gone, and ends the follower.
    pub fn deleted(&self) {
        let mut inner = self.inner();
        inner.send(&Update::Deleted);
        inner.ended = true;
        inner.members.clear();
        self.watch.changed.notify_one();
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the follower has ended. Ends it if no members are left.
    fn end_if_empty(&self) -> bool {
        let mut inner = self.inner();
        inner.ended |= inner.members.is_empty();
        inner.ended
    }

    /// Sends a page to all members.
    fn send_page(&self, storage: &Storage, page: Page) {
        let deliveries: Vec<Arc<Delivery>> = page
            .events
            .into_iter()
            .map(|event| Arc::new(Delivery::new(storage, self.session, event)))
            .collect();
        let mut inner = self.inner();
        let mut changed = false;
        for delivery in deliveries {
            changed |= inner
                .runs
                .apply_entry(&delivery.event, delivery.run_id.as_deref(), &delivery.entry)
                .is_some();
            match &delivery.entry {
                Entry::ToolCall(call) => drop(inner.calls.insert(call.call_id.clone())),
                Entry::ToolResult(result) => drop(inner.calls.remove(&result.call_id)),
                entry if entry.ends().is_some() => inner.calls.clear(),
                _ => {}
            }
            inner.send(&Update::Event(delivery));
        }
        inner.upto = inner.upto.max(page.upto);
        if let Some(cursor) = page.cursor {
            inner.runs.acknowledged(cursor);
        }
        if changed {
            let order = Order { upto: inner.upto, ids: inner.runs.in_order() };
            inner.send(&Update::Order(Arc::new(order)));
        }
    }
}

impl Inner {
    fn send(&mut self, update: &Update) {
        self.members.retain(|member| member.sink.send(update.clone()));
    }
}

/// New events of a thread.
struct Page {
    events: Vec<Event>,
    upto: i64,
    /// The agent's cursor; only read if a run may have ended.
    cursor: Option<i64>,
    remaining: Remaining,
}

/// The tool calls that have no result yet, according to the last events.
fn open_calls(queue: &mut Queue, upto: i64) -> Result<HashSet<String>> {
    const LOOKED_AT: usize = 50;
    let mut calls = HashSet::new();
    let ids = history::newest_matching(queue, "subtype IN ('toolcall', 'toolresult')", upto, LOOKED_AT)?;
    for id in ids.into_iter().rev() {
        match history::event(queue, id)?.map(|event| Entry::of(&event).1) {
            Some(Entry::ToolCall(call)) => drop(calls.insert(call.call_id)),
            Some(Entry::ToolResult(result)) => drop(calls.remove(&result.call_id)),
            _ => {}
        }
    }
    Ok(calls)
}

fn read(queue: &mut Queue, after: i64) -> Result<Page> {
    let mut selection = Selection::from(After(after));
    let (mut events, mut size) = (Vec::new(), 0);
    let mut remaining = queue.read_page(&mut selection, &mut |row| {
        size += row.content.len();
        events.push(row.to_event());
        if size < PAGE_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    if size >= PAGE_BYTES {
        remaining = Remaining::Some;
    }
    let ended = |event: &Event| {
        event.kind == "message" || matches!(event.subtype.as_deref(), Some("error" | "cancelled"))
    };
    let cursor = if events.iter().any(ended) { runs::cursor(queue)? } else { None };
    Ok(Page { events, upto: selection.after, cursor, remaining })
}

/// Reads new events and sends them to the members, until there are none left.
pub async fn follow(context: &Arc<Context>, follower: &Arc<Follower>, queue: Queue) {
    let session = follower.session;
    let mut queue = Some(queue);
    // The client that caused the start is about to enter.
    timeout(LINGER, follower.watch.changed.notified()).await.ok();
    while !follower.end_if_empty() {
        let after = follower.inner().upto;
        let (own, taken) = (context.clone(), queue.take());
        let read = blocking(move || {
            let mut queue = match taken {
                Some(queue) => queue,
                None => own.root.queue(session)?,
            };
            if !queue.files().still_there() {
                return Err(RequestError::UnknownSession(session.to_string()));
            }
            let page = read(&mut queue, after)?;
            Ok((queue, page))
        });
        let remaining = match read.await {
            Ok((open, page)) => {
                queue = Some(open);
                let remaining = page.remaining;
                follower.send_page(&context.storage, page);
                if follower.claim_relay() {
                    let (calls, relay) = (follower.clone(), follower.clone());
                    tokio::spawn(sub_agents::follow(
                        session,
                        context.root.path_of(session),
                        move || calls.open_calls(),
                        move |frames| relay.notice(frames),
                    ));
                }
                remaining
            }
            Err(RequestError::UnknownSession(_)) => {
                follower.deleted();
                break;
            }
            Err(e) => {
                log(format_args!("session {session}: cannot be read: {e}"));
                tokio::time::sleep(RETRY_DELAY).await;
                Remaining::Some
            }
        };
        if remaining == Remaining::None && timeout(LINGER, follower.watch.changed.notified()).await.is_err() {
            // Idle: the database is closed until the next event.
            queue = None;
            follower.watch.changed.notified().await;
        }
    }
    // Closing the database may write to the disk, too.
    drop(tokio::task::spawn_blocking(move || drop(queue)).await);
}
