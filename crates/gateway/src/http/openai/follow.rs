//! Reads a run, as far as a client is shown it.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::asked::{Begun, link};
use super::error::Result;
use super::pieces::{Piece, Shown};
use crate::gateway::Gateway;
use crate::http::sse;
use crate::session::cursor::{Cursor, Next};
use crate::session::event::SessionEvent;

/// A run from its message on.
pub struct Follower {
    gateway: Arc<Gateway>,
    cursor: Cursor,
    begun: Begun,
    shown: Shown,
    /// Since when nothing was shown.
    quiet_since: Instant,
}

/// What comes next.
pub enum Step {
    /// What an event shows, which may be nothing.
    Event(Arc<SessionEvent>, Vec<Piece>),
    /// Nothing more, for now.
    CaughtUp,
    /// Nothing, for some time.
    Quiet,
    /// The gateway ends, or the session is gone.
    Lost,
}

impl Follower {
    /// # Errors
    ///
    /// The session is gone; errors of the thread.
    pub async fn new(gateway: Arc<Gateway>, begun: Begun) -> Result<Follower> {
        let live = gateway.hub.enter(begun.session).await?;
        // What was shown before is read again, for what follows from it.
        let cursor = Cursor::new(live, begun.start.message - 1);
        let shown = Shown::of(begun.start.message, link(&gateway, begun.session));
        Ok(Follower { gateway, cursor, begun, shown, quiet_since: Instant::now() })
    }

    /// What the run has shown so far.
    pub fn shown(&self) -> &Shown {
        &self.shown
    }

    /// Waits for the next event. May be dropped at any time: nothing is lost.
    pub async fn next(&mut self) -> Step {
        let next = tokio::select! {
            next = timeout_at(self.quiet_since + sse::KEEP_ALIVE_EVERY, self.cursor.next()) => next,
            () = self.gateway.shutting_down() => return Step::Lost,
        };
        match next {
            Err(_) => {
                self.quiet_since = Instant::now();
                Step::Quiet
            }
            Ok(Next::Gone) => Step::Lost,
            Ok(Next::CaughtUp(_)) => Step::CaughtUp,
            Ok(Next::Event(event)) => {
                let is_end = event.ends == Some(self.begun.start.message);
                let mut pieces = self.shown.feed(&event.record, is_end);
                if event.id() <= self.begun.start.shown {
                    // The client has had it from an earlier request.
                    pieces.clear();
                }
                if !pieces.is_empty() {
                    self.quiet_since = Instant::now();
                }
                Step::Event(event, pieces)
            }
        }
    }

    /// Drops what was read ahead.
    pub fn forget(&mut self) {
        self.cursor.forget();
    }
}
