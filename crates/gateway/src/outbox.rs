//! Frames queued for one WebSocket, in order.

use std::sync::Arc;

use axum::extract::ws::Utf8Bytes;
use tokio::sync::mpsc;

use crate::follow::feed::Backlog;
use crate::protocol::Close;

pub enum Out {
    Frame(Utf8Bytes),
    /// Written last.
    Close(Close),
}

/// The sending end of a connection's queue.
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

    /// Queues a frame; drops it if the connection is ending.
    pub fn send(&self, frame: impl Into<Utf8Bytes>) {
        let frame = frame.into();
        let size = frame.len();
        if self.backlog.add(size) && self.sender.send(Out::Frame(frame)).is_err() {
            self.backlog.remove(size);
        }
    }

    /// Closes the connection once everything queued before has been written.
    pub fn close(&self, why: Close) {
        drop(self.sender.send(Out::Close(why)));
    }

    /// Waits until the writer has ended.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Waits until the backlog is small: backpressure for callers with much to send.
    pub async fn drained(&self) {
        const LITTLE: usize = 512 * 1024;
        while self.backlog.waiting() > LITTLE && !self.sender.is_closed() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}
