//! What waits to be written to one WebSocket, in order.

use std::sync::Arc;

use axum::extract::ws::Utf8Bytes;
use tokio::sync::mpsc;

use crate::follow::feed::Backlog;
use crate::protocol::Close;

pub enum Out {
    Frame(Utf8Bytes),
    /// The last thing that is written.
    Close(Close),
}

/// Where a connection's tasks put what is to be written.
#[derive(Clone)]
pub struct Outbox {
    sender: mpsc::UnboundedSender<Out>,
    pub backlog: Arc<Backlog>,
}

impl Outbox {
    pub fn new() -> (Outbox, mpsc::UnboundedReceiver<Out>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Outbox { sender, backlog: Arc::default() }, receiver)
    }

    /// Queues a frame. What cannot be queued belongs to a connection that is ending.
    pub fn send(&self, frame: impl Into<Utf8Bytes>) {
        let frame = frame.into();
        let size = frame.len();
        if self.backlog.add(size) && self.sender.send(Out::Frame(frame)).is_err() {
            self.backlog.remove(size);
        }
    }

    /// Ends the connection when all that was queued before is written.
    pub fn close(&self, why: Close) {
        drop(self.sender.send(Out::Close(why)));
    }

    /// Waits until nothing more is written.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Waits until little is left to be written: for callers with much to send.
    pub async fn drained(&self) {
        const LITTLE: usize = 512 * 1024;
        while self.backlog.waiting() > LITTLE && !self.sender.is_closed() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}
