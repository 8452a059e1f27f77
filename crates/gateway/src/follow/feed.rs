//! The queue from a follower to one client: events in order, and how many bytes are waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::extract::ws::Utf8Bytes;
use thread::Event;
use thread_agent::conversation::Entry;
use tokio::sync::{Notify, mpsc};

use crate::protocol::MAX_BACKLOG;
use crate::protocol::event::Shown;
use crate::session_id::SessionId;
use crate::storage::Storage;

/// A stored event on its way to clients.
pub struct Delivery {
    pub event: Event,
    pub run_id: Option<String>,
    pub entry: Entry,
    /// The client that caused it, if it was a client and the event is one that clients see.
    client: Option<String>,
    /// The frame for others, and the one for the client that caused it. `None` if clients do not see it.
    frames: Option<(Utf8Bytes, Option<Utf8Bytes>)>,
}

impl Delivery {
    pub fn new(storage: &Storage, session: SessionId, event: Event) -> Delivery {
        let (run_id, entry) = Entry::of(&event);
        let shown = Shown::of(storage, &event, run_id.clone(), &entry);
        let frames = shown.as_ref().map(|shown| {
            let own = shown.client.as_ref().map(|_| shown.frame(session, event.id, true).into());
            (shown.frame(session, event.id, false).into(), own)
        });
        Delivery { event, run_id, entry, client: shown.and_then(|shown| shown.client), frames }
    }

    /// The frame for a client; `None` if clients do not see the event.
    pub fn frame_for(&self, client: &str) -> Option<Utf8Bytes> {
        let (others, own) = self.frames.as_ref()?;
        let is_own = self.client.as_deref() == Some(client);
        Some(own.as_ref().filter(|_| is_own).unwrap_or(others).clone())
    }

    /// About how many bytes of memory it takes.
    pub fn size(&self) -> usize {
        self.frames.as_ref().map_or(0, |(frame, _)| frame.len()) + self.event.content.len() + 256
    }
}

/// Messages in the order of their runs, the active one first.
pub struct Order {
    /// The id up to which the thread had been read.
    pub upto: i64,
    pub ids: Vec<i64>,
}

/// An update for a client in a session.
#[derive(Clone)]
pub enum Update {
    Event(Arc<Delivery>),
    /// The order of runs has changed.
    Order(Arc<Order>),
    /// A frame that is not an event of the session's thread.
    Notice(Utf8Bytes),
    /// The session was removed.
    Deleted,
}

/// At most this much of one frame is counted: it may exceed the whole limit, and must get through with
/// others behind it.
const MAX_COUNTED: usize = MAX_BACKLOG / 2;

/// How many bytes are waiting for a client, in its feed and its outbox.
#[derive(Default)]
pub struct Backlog {
    bytes: AtomicUsize,
    over: AtomicBool,
    /// Notified once the limit is exceeded.
    pub overflow: Notify,
}

impl Backlog {
    /// Adds waiting bytes. Returns false once the limit has been exceeded.
    pub fn add(&self, bytes: usize) -> bool {
        let counted = bytes.min(MAX_COUNTED);
        let waiting = self.bytes.fetch_add(counted, Ordering::Relaxed) + counted;
        if waiting > MAX_BACKLOG && !self.over.swap(true, Ordering::Relaxed) {
            self.overflow.notify_one();
        }
        !self.over.load(Ordering::Relaxed)
    }

    pub fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes.min(MAX_COUNTED), Ordering::Relaxed);
    }

    pub fn waiting(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The follower's end of a feed.
pub struct Sink {
    pub sender: mpsc::UnboundedSender<Update>,
    pub backlog: Arc<Backlog>,
}

impl Sink {
    /// Queues an update. Returns false if the client is gone, or reads too slowly.
    pub fn send(&self, update: Update) -> bool {
        let size = size_of(&update);
        if !self.backlog.add(size) {
            return false;
        }
        if self.sender.send(update).is_err() {
            self.backlog.remove(size);
            return false;
        }
        true
    }
}

pub fn size_of(update: &Update) -> usize {
    match update {
        Update::Event(delivery) => delivery.size(),
        Update::Order(order) => order.ids.len() * 8,
        Update::Notice(frame) => frame.len(),
        Update::Deleted => 0,
    }
}

/// The client's end of a feed.
pub struct Feed {
    pub receiver: mpsc::UnboundedReceiver<Update>,
    pub backlog: Arc<Backlog>,
}

impl Feed {
    pub async fn next(&mut self) -> Option<Update> {
        let update = self.receiver.recv().await?;
        self.backlog.remove(size_of(&update));
        Some(update)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.receiver.close();
        while let Ok(update) = self.receiver.try_recv() {
            self.backlog.remove(size_of(&update));
        }
    }
}
