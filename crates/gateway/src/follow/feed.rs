//! What a follower hands to one client: events in their order, and how much of it waits.

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

/// A stored event that is on its way to clients.
pub struct Told {
    pub event: Event,
    pub run_id: Option<String>,
    pub entry: Entry,
    /// Who caused it, if it was a client and clients are told of it.
    client: Option<String>,
    /// The frame for others, and the one for the client that caused it.
    frames: Option<(Utf8Bytes, Option<Utf8Bytes>)>,
}

impl Told {
    pub fn new(storage: &Storage, session: SessionId, event: Event) -> Told {
        let (run_id, entry) = Entry::of(&event);
        let shown = Shown::of(storage, &event, run_id.clone(), &entry);
        let frames = shown.as_ref().map(|shown| {
            let own = shown.client.as_ref().map(|_| shown.frame(session, event.id, true).into());
            (shown.frame(session, event.id, false).into(), own)
        });
        Told { event, run_id, entry, client: shown.and_then(|shown| shown.client), frames }
    }

    /// The frame for a client; `None` if it is not told of this.
    pub fn frame_for(&self, client: &str) -> Option<Utf8Bytes> {
        let (others, own) = self.frames.as_ref()?;
        let is_own = self.client.as_deref() == Some(client);
        Some(own.as_ref().filter(|_| is_own).unwrap_or(others).clone())
    }

    /// About how many bytes it keeps from being freed.
    pub fn size(&self) -> usize {
        self.frames.as_ref().map_or(0, |(frame, _)| frame.len()) + self.event.content.len() + 256
    }
}

/// Messages in the order in which they get their turn, the one whose run is under way first.
pub struct Order {
    /// What had been read of the thread.
    pub upto: i64,
    pub ids: Vec<i64>,
}

/// What reaches a client of a session.
#[derive(Clone)]
pub enum Live {
    Event(Arc<Told>),
    /// The order of turns has changed.
    Order(Arc<Order>),
    /// Something that is no event of the session's thread.
    Notice(Utf8Bytes),
    /// The session was removed.
    Deleted,
}

/// One frame may be larger than all that may wait, and has to get through with others behind it.
const MOST_COUNTED: usize = MAX_BACKLOG / 2;

/// How many bytes wait for a client, wherever they do.
#[derive(Default)]
pub struct Backlog {
    bytes: AtomicUsize,
    over: AtomicBool,
    /// Told once it is too much.
    pub overflow: Notify,
}

impl Backlog {
    /// Counts bytes that wait. Returns whether they still may.
    pub fn add(&self, bytes: usize) -> bool {
        let counted = bytes.min(MOST_COUNTED);
        let waiting = self.bytes.fetch_add(counted, Ordering::Relaxed) + counted;
        if waiting > MAX_BACKLOG && !self.over.swap(true, Ordering::Relaxed) {
            self.overflow.notify_one();
        }
        !self.over.load(Ordering::Relaxed)
    }

    pub fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes.min(MOST_COUNTED), Ordering::Relaxed);
    }

    pub fn waiting(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The follower's end.
pub struct Sink {
    pub sender: mpsc::UnboundedSender<Live>,
    pub backlog: Arc<Backlog>,
}

impl Sink {
    /// Hands something over. Returns false when nobody wants any more.
    pub fn send(&self, live: Live) -> bool {
        let size = size_of(&live);
        if !self.backlog.add(size) {
            return false;
        }
        if self.sender.send(live).is_err() {
            self.backlog.remove(size);
            return false;
        }
        true
    }
}

pub fn size_of(live: &Live) -> usize {
    match live {
        Live::Event(told) => told.size(),
        Live::Order(order) => order.ids.len() * 8,
        Live::Notice(frame) => frame.len(),
        Live::Deleted => 0,
    }
}

/// The client's end.
pub struct Feed {
    pub receiver: mpsc::UnboundedReceiver<Live>,
    pub backlog: Arc<Backlog>,
}

impl Feed {
    pub async fn next(&mut self) -> Option<Live> {
        let live = self.receiver.recv().await?;
        self.backlog.remove(size_of(&live));
        Some(live)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.receiver.close();
        while let Ok(live) = self.receiver.try_recv() {
            self.backlog.remove(size_of(&live));
        }
    }
}
