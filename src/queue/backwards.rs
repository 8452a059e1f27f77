//! Searching backwards: for the newest matching events, in limited time with the filter of a stranger, and for
//! times.

use std::time::Instant;

use super::Queue;
use crate::error::{Error, Result};
use crate::model::filter::{Filter, Scope};
use crate::model::time::{self, Time};
use crate::store::{FilterFailure, Scan, ScanRange};

/// The most events that are evaluated in one step. A step that is cut off finds nothing, so the first one is a
/// single event, and each is longer than the one before it.
const STEP: i64 = 4096;
const LONGER: i64 = 4;

/// What a search has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The ids of matching events, newest first.
    pub ids: Vec<i64>,
    /// The filter was evaluated on everything from this id on.
    pub from: i64,
    /// Whether time ran out before all was found.
    pub is_cut_off: bool,
    /// The number of events on which the filter failed, and the newest of them; they do not match.
    pub failures: u64,
    pub failure: Option<FilterFailure>,
}

impl Queue {
    /// Like [`Queue::last_before`], by a search instead of reading the table: times rise with ids, unless the clock
    /// was set back.
    pub fn about_last_before(&mut self, time: Time) -> Result<i64> {
        let time = time::format(time);
        let (mut before, mut end) = (0, self.store.newest()?);
        while before < end {
            let middle = before + (end - before + 1) / 2;
            match self.store.last_upto(middle)?.filter(|&id| id > before) {
                Some(id) if self.store.stored_at(id)?.is_some_and(|at| at >= time) => end = id - 1,
                _ => before = middle,
            }
        }
        Ok(before)
    }

    /// The ids of the newest `most` matching events up to `upto`, newest first. Reads backwards: the cost
    /// depends on how far back they are.
    pub fn newest_matching(&mut self, filter: Option<&Filter>, upto: i64, most: usize) -> Result<Vec<i64>> {
        let mut newest = Vec::new();
        self.read_backwards(filter, (0, upto), None, &mut |_, scan| {
            newest.extend(scan.ids.iter().rev().take(most - newest.len()));
            newest.len() < most
        })?;
        Ok(newest)
    }

    /// The id after which the last `count` matching events begin; at least `after`.
    pub fn start_of_tail(&mut self, filter: Option<&Filter>, after: i64, count: u64) -> Result<i64> {
        let mut missing = usize::try_from(count).unwrap_or(usize::MAX);
        if missing == 0 {
            return Ok(self.store.newest()?.max(after));
        }
        let mut start = after;
        self.read_backwards(filter, (after, i64::MAX), None, &mut |_, Scan { ids, .. }| {
            if let Some(at) = ids.len().checked_sub(missing) {
                start = ids[at] - 1;
                return false;
            }
            missing -= ids.len();
            true
        })?;
        Ok(start)
    }

    /// Looks for the newest `most` matching events in `(after, upto]`, until `until`, which also cuts off an event
    /// that is being evaluated.
    ///
    /// # Errors
    ///
    /// [`Error::SlowFilter`] if not a single event was evaluated by then; those of the database.
    pub fn newest_matching_until(
        &mut self,
        filter: Option<&Filter>,
        (after, upto): (i64, i64),
        most: usize,
        until: Instant,
    ) -> Result<Found> {
        let upto = upto.min(self.store.newest()?);
        let from = upto.saturating_add(1);
        let mut found = Found { ids: Vec::new(), from, is_cut_off: false, failures: 0, failure: None };
        let mut slow = upto;
        self.read_backwards(filter, (after, upto), Some(until), &mut |(start, end), scan| {
            if scan.upto < end {
                (found.is_cut_off, slow) = (true, end);
                return false;
            }
            found.failures += scan.failures.len() as u64;
            found.failure = found.failure.take().or(scan.failures.into_iter().next_back());
            found.ids.extend(scan.ids.iter().rev().take(most - found.ids.len()));
            found.from = match found.ids.last() {
                Some(last) if found.ids.len() == most => *last,
                _ => start.saturating_add(1),
            };
            found.ids.len() < most
        })?;
        if found.is_cut_off && found.from > upto {
            return Err(Error::SlowFilter { after: slow - 1 });
        }
        if !found.is_cut_off && found.ids.len() < most {
            found.from = after.saturating_add(1);
        }
        Ok(found)
    }

    /// Evaluates a filter on the events in `(after, upto]`, in steps from the newest to the oldest, until `take`
    /// returns false. It gets the range of each step, and what was found in it.
    fn read_backwards(
        &mut self,
        filter: Option<&Filter>,
        (after, upto): (i64, i64),
        until: Option<Instant>,
        take: &mut dyn FnMut((i64, i64), Scan) -> bool,
    ) -> Result<()> {
        // A filter that matches everything reads only the ids.
        let everything = Filter::new("1", Scope::Reading)?;
        let Some(filter) = filter.or(everything.as_ref()) else { return Ok(()) };
        let (mut upto, mut step) = (upto, 1);
        // Skips gaps in the ids, which pruned events leave.
        while let Some(end) = self.store.last_upto(upto)?.filter(|end| *end > after) {
            let start = after.max(end.saturating_sub(step));
            let range = ScanRange { after: start, upto: end, most: usize::MAX, until };
            if !take((start, end), self.store.scan_strictly(filter, range)?) {
                break;
            }
            (upto, step) = (start, (step * LONGER).min(STEP));
        }
        Ok(())
    }
}
