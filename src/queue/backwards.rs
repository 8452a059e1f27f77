//! Searching backwards: for times, and with the filter of a stranger, in limited time.

use std::time::Instant;

use super::Queue;
use crate::error::{Error, Result};
use crate::model::filter::{Filter, Scope};
use crate::model::time::{self, Time};
use crate::store::{FilterFailure, ScanRange};

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
    /// On how many events the filter failed, and the newest of them; they do not match.
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
        let everything = Filter::new("1", Scope::Reading)?;
        let upto = upto.min(self.store.newest()?);
        let mut found = Found {
            ids: Vec::new(),
            from: upto.saturating_add(1),
            is_cut_off: false,
            failures: 0,
            failure: None,
        };
        let Some(filter) = filter.or(everything.as_ref()) else { return Ok(found) };
        let mut step = 1;
        while found.ids.len() < most {
            // Skips gaps in the ids, which pruned events leave.
            let Some(end) = self.store.last_upto(found.from - 1)?.filter(|end| *end > after) else {
                found.from = after.saturating_add(1);
                break;
            };
            let start = after.max(end.saturating_sub(step));
            let range = ScanRange { after: start, upto: end, most: usize::MAX, until: Some(until) };
            let scan = self.store.scan_strictly(filter, range)?;
            if scan.upto < end {
                if found.from > upto {
                    return Err(Error::SlowFilter { after: end - 1 });
                }
                found.is_cut_off = true;
                break;
            }
            found.failures += scan.failures.len() as u64;
            found.failure = found.failure.or(scan.failures.into_iter().next_back());
            let missing = most - found.ids.len();
            found.ids.extend(scan.ids.iter().rev().take(missing));
            found.from = match found.ids.last() {
                Some(last) if found.ids.len() == most => *last,
                _ => start.saturating_add(1),
            };
            step = (step * LONGER).min(STEP);
        }
        Ok(found)
    }
}
