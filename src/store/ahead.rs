//! Reading many events in two threads, each with a connection of its own, that take turns.

use std::sync::mpsc::{SyncSender, sync_channel};

use super::{PAGE_BYTES, PAGE_EVENTS, Reading, Store};
use crate::error::{Failure, Result, database};

/// From this many ids on, two threads are quicker than one by more than it costs to begin.
const MANY: i64 = 8192;

/// The most ids that are read before it is looked again whether it is worth while.
const STRETCH: i64 = 128 * 1024;

/// How many ids are read in one turn.
const TURN: i64 = 1024;

/// How many pages the second thread may be ahead.
const AHEAD: usize = 8;

/// Some events in the order of their ids.
#[derive(Debug, Default)]
pub struct Page {
    /// NDJSON.
    pub lines: Vec<u8>,
    pub events: u64,
    /// Of the last event.
    pub last_id: i64,
}

impl Store {
    /// How far [`Store::read_in_turns`] is to read on, if it is worth while: where many ids lie ahead,
    /// as far as `reading` goes, and most of them are events. Other programs may leave gaps of any
    /// width between ids, which must not be walked through.
    pub fn far_ahead(&self, reading: &Reading<'_>) -> Result<Option<i64>> {
        if reading.filter.is_some() || reading.left.is_some_and(|left| left < MANY as u64) {
            return Ok(None);
        }
        let left = reading.left.and_then(|left| i64::try_from(left).ok()).unwrap_or(STRETCH);
        let upto = self.newest_ever()?.min(reading.after.saturating_add(left.min(STRETCH)));
        if upto.saturating_sub(reading.after) < MANY {
            return Ok(None);
        }
        let near = "SELECT count(*) FROM events WHERE id > ? AND id <= ?";
        let near: i64 = self
            .conn
            .prepare_cached(near)
            .and_then(|mut s| s.query_row([reading.after, reading.after + TURN], |row| row.get(0)))
            .map_err(|e| database(&e, "reading events"))?;
        Ok((near > TURN / 2).then_some(upto))
    }

    /// Hands the events with ids in `(after, upto]` to `take`, in order, until it answers false.
    pub fn read_in_turns(
        &mut self,
        after: i64,
        upto: i64,
        mut take: impl FnMut(&Page) -> Result<bool>,
    ) -> Result<()> {
        let second = Store::open(&self.path);
        std::thread::scope(|scope| {
            let (sender, pages) = sync_channel(AHEAD);
            let reader = second.ok().map(|second| {
                std::thread::Builder::new().spawn_scoped(scope, move || {
                    if let Err(failure) = second.read_every_other(after, upto, &sender) {
                        // Nobody listens any more when this fails.
                        sender.send(Err(failure)).ok();
                    }
                })
            });
            if !matches!(reader, Some(Ok(_))) {
                // What is short here (files, processes) is enough for one.
                return self.read_turn(after, upto, |page| take(&page)).map(drop);
            }
            for (number, (after, upto)) in turns(after, upto).enumerate() {
                if number % 2 == 0 {
                    if !self.read_turn(after, upto, |page| take(&page))? {
                        return Ok(());
                    }
                    continue;
                }
                // Each of the other's turns ends with nothing.
                let gone = || Failure::could_not("reading events came to an end too early", "try again");
                while let Some(page) = pages.recv().map_err(|_| gone())?? {
                    if !take(&page)? {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    }

    /// The second thread's part, which leaves it to the other to fold back the WAL.
    fn read_every_other(
        mut self,
        after: i64,
        upto: i64,
        sender: &SyncSender<Result<Option<Page>>>,
    ) -> Result<()> {
        self.folds_wal = false;
        for (after, upto) in turns(after, upto).skip(1).step_by(2) {
            let wanted = self.read_turn(after, upto, |page| Ok(sender.send(Ok(Some(page))).is_ok()))?;
            if !wanted || sender.send(Ok(None)).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Hands on the events of one turn. False when nobody wants more.
    fn read_turn(
        &mut self,
        after: i64,
        upto: i64,
        mut hand_on: impl FnMut(Page) -> Result<bool>,
    ) -> Result<bool> {
        let mut reading = Reading { after, left: None, filter: None };
        loop {
            let mut page = Page { lines: Vec::with_capacity(PAGE_BYTES), ..Page::default() };
            let more = self.read_range(&mut reading, upto, PAGE_EVENTS, &mut |row| {
                row.write_line(&mut page.lines);
                page.events += 1;
                page.last_id = row.id;
                page.lines.len() < PAGE_BYTES
            })?;
            if page.events > 0 && !hand_on(page)? {
                return Ok(false);
            }
            if !more {
                return Ok(true);
            }
        }
    }
}

/// The turns in which `(after, upto]` is read, alternately.
fn turns(after: i64, upto: i64) -> impl Iterator<Item = (i64, i64)> {
    let starts = std::iter::successors(Some(after), move |start| start.checked_add(TURN));
    starts
        .take_while(move |&start| start < upto)
        .map(move |start| (start, upto.min(start.saturating_add(TURN))))
}
