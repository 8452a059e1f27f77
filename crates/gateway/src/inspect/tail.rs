//! The events of a thread as they arrive. A reader is a position: it pulls the next events from the disk, so
//! nothing is kept for slow readers, and a returning reader continues at its position.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thread::queue::{Remaining, Selection};
use thread::{Filter, Queue};
use thread_sessions::{Kind, RequestError, Result, SessionWatch};
use tokio::time::sleep;

use super::dto::Event;
use super::event::{self, CUT};
use super::threads::{Target, ThreadId};
use super::{FILTER_TIME, Inspector};

/// The most events that are read at a time.
const PAGE: u64 = 100;

/// The shortest time between two readings of a thread that is pushed to all the time.
const BETWEEN: Duration = Duration::from_millis(100);

pub struct Tail {
    inspector: Arc<Inspector>,
    id: ThreadId,
    filter: Option<Filter>,
    /// Events up to this id have been read.
    position: i64,
    /// The position that the reader knows.
    told: i64,
    waiting: VecDeque<Event>,
    /// There may be more to read.
    more: bool,
    /// The last page was full.
    is_behind: bool,
    read: Option<Instant>,
    watch: Arc<SessionWatch>,
}

/// What follows.
pub enum Piece {
    Event(Box<Event>),
    /// Nothing up to this id.
    Nothing(i64),
}

impl Tail {
    /// Events after an event; without one, new events.
    ///
    /// # Errors
    ///
    /// There is no such thread; errors of the thread.
    pub async fn new(
        inspector: &Arc<Inspector>,
        id: &str,
        after: Option<i64>,
        filter: Option<Filter>,
    ) -> Result<Tail> {
        let id = inspector.threads.parse(id)?;
        let (position, watch) = inspector
            .at_thread(&id, Kind::Read, move |inspector, _, queue| {
                // Watched before it is read, so that events stored in between are noticed.
                let watch = inspector.context.watcher.watch(queue);
                let newest = queue.newest()?.0;
                Ok((after.map_or(newest, |after| after.clamp(0, newest)), watch))
            })
            .await?;
        Ok(Tail {
            inspector: inspector.clone(),
            id,
            filter,
            position,
            told: after.unwrap_or(-1),
            waiting: VecDeque::new(),
            more: true,
            is_behind: false,
            read: None,
            watch,
        })
    }

    /// Waits for what follows.
    ///
    /// # Errors
    ///
    /// The thread is gone; the filter is too slow for an event; errors of the thread.
    pub async fn next(&mut self) -> Result<Piece> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.told = event.id;
                return Ok(Piece::Event(Box::new(event)));
            }
            if self.told < self.position {
                self.told = self.position;
                return Ok(Piece::Nothing(self.position));
            }
            if !self.more {
                self.watch.changed.notified().await;
                // Kept, should the caller give up waiting before it is read.
                self.more = true;
            }
            if let Some(read) = self.read.filter(|_| !self.is_behind) {
                sleep(BETWEEN.saturating_sub(read.elapsed())).await;
            }
            self.read_on().await?;
        }
    }

    /// Reads a page.
    async fn read_on(&mut self) -> Result<()> {
        let (after, filter) = (self.position, self.filter.clone());
        // The thread is closed after each page: a reader that lags keeps no files open.
        let work = move |_: &Inspector, _: &Target, queue: &mut Queue| {
            let mut selection = Selection { after, limit: Some(PAGE), filter: filter.clone() };
            let (mut found, until) = (VecDeque::new(), Instant::now() + FILTER_TIME);
            let remaining = queue.read_page_until(&mut selection, CUT, Some(until), &mut |capped| {
                found.push_back(event::form_of(&capped));
                ControlFlow::Continue(())
            })?;
            for event in &mut found {
                event::complete(queue, event, CUT)?;
            }
            let more = remaining == Remaining::Some || found.len() as u64 == PAGE;
            Ok((found, selection.after, more))
        };
        let done = self.inspector.at_thread(&self.id, Kind::Read, work).await;
        self.read = Some(Instant::now());
        match done {
            Ok((found, position, more)) => {
                (self.waiting, self.position) = (found, position);
                (self.more, self.is_behind) = (more, more);
                Ok(())
            }
            // It waits as long as that takes.
            Err(RequestError::Locked) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
