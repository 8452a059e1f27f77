//! A reader's position in a session: the id of the last event it has, and the way from there to the next.
//!
//! A reader that entered long ago, one that comes back with its last id and one that fell behind do the same
//! thing here. No event is lost on entering: whatever is stored after the reader's position follows it.

use std::collections::VecDeque;
use std::sync::Arc;

use thread_sessions::{RequestError, SessionId};
use tokio::sync::watch;

use super::bell::Bell;
use super::event::{Frames, Page, SessionEvent};
use super::frames;
use super::live_session::{Following, LiveSession, Present};
use super::read_failures::ReadFailures;

/// A reader's position in a session.
pub struct Cursor {
    live: Arc<LiveSession>,
    changed: watch::Receiver<u64>,
    /// The id up to which the reader has everything.
    position: i64,
    /// What follows the position.
    waiting: VecDeque<Arc<SessionEvent>>,
    /// The reader has everything up to this id once it has taken what waits.
    upto: i64,
    /// Keeps the events that wait within the budget.
    page: Option<Arc<Page>>,
    /// The number of the next notice.
    next_notice: u64,
    /// The last change after which the reader had caught up.
    caught_up_at: Option<u64>,
    is_client: bool,
    failures: ReadFailures,
}

/// What comes next for a reader.
pub enum Next {
    Event(Arc<SessionEvent>),
    /// It has everything, for now.
    CaughtUp(Present),
    /// The session was removed.
    Gone,
}

impl Cursor {
    /// A position in a session, after the event with an id.
    pub fn new(live: Arc<LiveSession>, position: i64) -> Cursor {
        let (changed, next_notice) = live.subscribe();
        Cursor {
            live,
            changed,
            position,
            waiting: VecDeque::new(),
            upto: position,
            page: None,
            next_notice,
            caught_up_at: None,
            is_client: false,
            failures: ReadFailures::none(),
        }
    }

    /// Counts as a client of the session.
    pub fn of_client(mut self) -> Cursor {
        self.is_client = true;
        self.live.count_client(true);
        self
    }

    pub fn session(&self) -> SessionId {
        self.live.session
    }

    /// The id of the last event that the reader has.
    pub fn position(&self) -> i64 {
        self.position
    }

    /// Whether it is in this session.
    pub fn is_in(&self, live: &Arc<LiveSession>) -> bool {
        Arc::ptr_eq(&self.live, live)
    }

    /// Whether the next event is at hand.
    pub fn has_more(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The event as frames; `None` if clients do not see it.
    pub fn frames<'e>(&self, event: &'e SessionEvent) -> Option<&'e Frames> {
        event.frames(|event| frames::of(&self.live.context.storage, self.session(), event))
    }

    /// Goes to another position in the same session.
    pub fn seek(&mut self, position: i64) {
        self.position = position;
        self.forget();
        self.caught_up_at = None;
    }

    /// Drops events that were read ahead: the reader cannot take them now. They are read again later.
    pub fn forget(&mut self) {
        self.waiting.clear();
        self.page = None;
        self.upto = self.position;
    }

    /// No longer counts as a client of the session.
    pub fn of_nobody(mut self) -> Cursor {
        if std::mem::take(&mut self.is_client) {
            self.live.count_client(false);
        }
        self
    }

    /// Rings a bell with each change of the session, and once now.
    pub fn ring_at_change(&self, bell: &Arc<Bell>) {
        self.live.ring_at_change(bell);
    }

    /// Waits for the next item. May be dropped at any time: nothing is lost.
    pub async fn next(&mut self) -> Next {
        loop {
            if let Some(next) = self.next_now().await {
                return next;
            }
            // It fails only if the session is no longer read, which it is for as long as `live` exists.
            drop(self.changed.changed().await);
        }
    }

    /// The next item; `None` if there is none until the session changes. May be dropped at any time: nothing is lost.
    pub async fn next_now(&mut self) -> Option<Next> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.position = event.id();
                return Some(Next::Event(event));
            }
            self.page = None;
            self.position = self.position.max(self.upto);
            // Marked as seen before reading, so that a change in between is not missed.
            let version = *self.changed.borrow_and_update();
            match self.live.following(self.position, self.next_notice) {
                Following::Gone => return Some(Next::Gone),
                Following::Events(events, upto) => {
                    self.waiting = events.into();
                    self.upto = upto;
                }
                Following::OnDisk => {
                    if !self.read().await {
                        return Some(Next::Gone);
                    }
                }
                Following::Nothing(present, next_notice) if self.caught_up_at != Some(version) => {
                    self.caught_up_at = Some(version);
                    self.next_notice = next_notice;
                    return Some(Next::CaughtUp(present));
                }
                Following::Nothing(..) => return None,
            }
        }
    }

    /// Reads a page from disk. Returns false if the session is gone.
    async fn read(&mut self) -> bool {
        match self.live.page(self.position).await {
            Ok(page) => {
                self.waiting = page.events.iter().cloned().collect();
                self.upto = page.upto;
                self.page = Some(page);
                self.failures.worked();
                true
            }
            Err(RequestError::UnknownSession(_)) => false,
            Err(e) => {
                self.failures.failed(self.session(), &e).await;
                true
            }
        }
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if self.is_client {
            self.live.count_client(false);
        }
    }
}

#[cfg(test)]
mod tests;
