//! A session's events after a given one: stored ones from disk, then new ones as they come.
//!
//! Stored events are read page by page, at the reader's pace and without a feed, so that new events do not
//! pile up in memory while many are being sent. Then the reader enters the session. It reads from disk what
//! was stored in between, and skips what its feed repeats.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use thread::queue::{Remaining, Selection};
use thread::{After, Queue};

use super::Hub;
use super::feed::{Backlog, Delivery, Update};
use super::follower::Membership;
use crate::error::Result;
use crate::session::blocking;
use crate::session_id::SessionId;

const PAGE_BYTES: usize = 256 * 1024;

pub struct Tail {
    hub: Arc<Hub>,
    session: SessionId,
    backlog: Arc<Backlog>,
    /// The id of the last event that was returned.
    at: i64,
    page: VecDeque<Arc<Delivery>>,
    queue: Option<Queue>,
    remaining: Remaining,
    membership: Option<Membership>,
}

impl Tail {
    pub fn new(hub: Arc<Hub>, session: SessionId, after: i64, backlog: Arc<Backlog>) -> Tail {
        Tail {
            hub,
            session,
            backlog,
            at: after,
            page: VecDeque::new(),
            queue: None,
            remaining: Remaining::Some,
            membership: None,
        }
    }

    /// The next stored event; `None` once the reader has entered the session and all other events come by its
    /// feed.
    ///
    /// # Errors
    ///
    /// [`UnknownSession`](crate::error::RequestError::UnknownSession); errors of the thread.
    pub async fn stored(&mut self) -> Result<Option<Arc<Delivery>>> {
        loop {
            if let Some(delivery) = self.page.pop_front() {
                self.at = delivery.event.id;
                return Ok(Some(delivery));
            }
            match &self.membership {
                None if self.remaining == Remaining::Some => self.read(i64::MAX).await?,
                None => {
                    let membership = self.hub.join(self.session, self.backlog.clone()).await?;
                    self.membership = Some(membership);
                    self.remaining = Remaining::Some;
                }
                Some(membership) if self.at < membership.upto && self.remaining == Remaining::Some => {
                    let upto = membership.upto;
                    self.read(upto).await?;
                }
                Some(membership) => {
                    self.at = self.at.max(membership.upto);
                    self.queue = None;
                    return Ok(None);
                }
            }
        }
    }

    /// The next event, stored or new; `None` if the session is gone or the reader too slow.
    ///
    /// # Errors
    ///
    /// As [`Tail::stored`].
    pub async fn next(&mut self) -> Result<Option<Arc<Delivery>>> {
        if let Some(delivery) = self.stored().await? {
            return Ok(Some(delivery));
        }
        while let Some(membership) = &mut self.membership {
            match membership.feed.next().await {
                Some(Update::Event(delivery)) if delivery.event.id > self.at => {
                    self.at = delivery.event.id;
                    return Ok(Some(delivery));
                }
                Some(Update::Event(_) | Update::Order(_) | Update::Notice(_)) => {}
                Some(Update::Deleted) | None => break,
            }
        }
        Ok(None)
    }

    /// Whether the reader has entered the session, so that new events wait for it in memory.
    pub fn has_entered(&self) -> bool {
        self.membership.is_some()
    }

    /// The membership to continue with once [`Tail::stored`] returns `None`, and the reader's position.
    pub fn into_membership(self) -> (Option<Membership>, i64) {
        (self.membership, self.at)
    }

    /// Reads a page of stored events up to an id.
    async fn read(&mut self, upto: i64) -> Result<()> {
        let (context, session, after, queue) =
            (self.hub.context.clone(), self.session, self.at, self.queue.take());
        let (queue, page, remaining) = blocking(move || {
            let mut queue = match queue {
                Some(queue) => queue,
                None => context.root.queue(session)?,
            };
            let mut selection = Selection::from(After(after));
            let (mut page, mut size, mut past) = (VecDeque::new(), 0, false);
            let mut remaining = queue.read_page(&mut selection, &mut |row| {
                past = row.id > upto;
                if past {
                    return ControlFlow::Break(());
                }
                size += row.content.len();
                page.push_back(Arc::new(Delivery::new(&context.storage, session, row.to_event())));
                if size < PAGE_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            if past {
                remaining = Remaining::None;
            }
            Ok((queue, page, remaining))
        })
        .await?;
        (self.queue, self.page, self.remaining) = (Some(queue), page, remaining);
        Ok(())
    }
}
