//! The events of a thread as they come. A reader is a position: it pulls what follows from the disk, so nothing is
//! kept for whoever reads slowly, and who comes back goes on where he was.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thread::queue::{Remaining, Selection};
use thread::{Filter, Queue};
use tokio::time::sleep;

use super::event::{self, CUT};
use super::form::Event;
use super::{FILTER_TIME, Look};
use crate::error::{RequestError, Result};
use crate::session::jobs::{BUSY, Kind};
use crate::session::watch::SessionWatch;

/// The most events that are read at a time.
const PAGE: u64 = 100;

/// The shortest time between two readings of a thread that is pushed to all the time.
const BETWEEN: Duration = Duration::from_millis(100);

pub struct Tail {
    look: Arc<Look>,
    id: String,
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
    /// Open while there is more to read.
    queue: Option<Queue>,
    watch: Arc<SessionWatch>,
}

/// What follows.
pub enum Piece {
    Event(Box<Event>),
    /// Nothing up to this id.
    Nothing(i64),
}

impl Tail {
    /// What comes after an event; without one, what comes from now on.
    ///
    /// # Errors
    ///
    /// There is no such thread; errors of the thread.
    pub async fn new(look: &Arc<Look>, id: &str, after: Option<i64>, filter: Option<Filter>) -> Result<Tail> {
        let (position, watch) = look
            .at(id, Kind::Read, move |look, _, queue| {
                // Watched before it is read, so that events stored in between are noticed.
                let watch = look.context.watcher.watch(queue);
                let newest = queue.newest()?.0;
                Ok((after.map_or(newest, |after| after.clamp(0, newest)), watch))
            })
            .await?;
        Ok(Tail {
            look: look.clone(),
            id: id.to_owned(),
            filter,
            position,
            told: after.unwrap_or(-1),
            waiting: VecDeque::new(),
            more: true,
            is_behind: false,
            read: None,
            queue: None,
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
        let (look, id, after) = (self.look.clone(), self.id.clone(), self.position);
        let (filter, mut held) = (self.filter.clone(), self.queue.take());
        let work = move || {
            let target = look.threads.find(&id)?;
            let mut queue = match held.take() {
                Some(queue) => queue,
                None => target.open(BUSY)?,
            };
            queue.files().must_be_there()?;
            let mut selection = Selection { after, limit: Some(PAGE), filter: filter.clone() };
            let (mut found, until) = (VecDeque::new(), Instant::now() + FILTER_TIME);
            let remaining = queue.read_page_until(&mut selection, CUT, Some(until), &mut |capped| {
                found.push_back(event::form_of(&capped));
                ControlFlow::Continue(())
            })?;
            for event in &mut found {
                event::complete(&mut queue, event, CUT)?;
            }
            let more = remaining == Remaining::Some || found.len() as u64 == PAGE;
            // Whoever has everything keeps no files open.
            Ok((Some(queue).filter(|_| more), found, selection.after, more))
        };
        let done = self.look.run(&self.id, Kind::Read, work).await;
        self.read = Some(Instant::now());
        match done {
            Ok((queue, found, position, more)) => {
                (self.queue, self.waiting, self.position) = (queue, found, position);
                (self.more, self.is_behind) = (more, more);
                Ok(())
            }
            // It waits as long as that takes.
            Err(RequestError::Locked) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        // Not on a thread that serves connections.
        if let (Some(queue), Ok(runtime)) = (self.queue.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn_blocking(move || drop(queue));
        }
    }
}
