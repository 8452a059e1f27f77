//! Whether anything is pending for a consumer, at a cost proportional to what is new.
//!
//! The position up to which a filter was evaluated without a match is stored with the subscription (see
//! [`ScanWatermark`](crate::model::subscription::ScanWatermark)), so that processes share it and do not
//! evaluate the filter on the same events again.

use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;
use std::time::Instant;

use chrono::Utc;

use crate::error::{Error, Result};
use crate::model::event::{CappedRow, Row};
use crate::model::filter::{Filter, FilterError, Scope};
use crate::model::ledger::{EventWait, Ledger};
use crate::model::subscription::Subscription;
use crate::model::window::Key;
use crate::store::{FilterFailure, ScanRange, Store};

/// A watermark is written after moving by this many ids. Rescanning fewer ids is cheaper than a write.
const WATERMARK_STEP: i64 = 256;

/// How many ids are scanned before the watermark is written.
const SCAN_STEP: i64 = 64 * 1024;

/// Result of looking for a consumer's pending events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PendingScan {
    /// The oldest matching event past the cursor that is not finished.
    pub first: Option<i64>,
    /// Where events finish singly and all that are unfinished wait: the wait that ends first.
    pub wait: Option<EventWait>,
    /// All that could be given now are at runs on other machines.
    pub is_elsewhere: bool,
    /// So many events wait or are held back that no further ones are looked at.
    pub is_full: bool,
    /// The deadline passed before a match was found or all events were evaluated.
    pub cut_short: bool,
    /// The newest id ever assigned, matching or not.
    pub newest: i64,
    /// Events on which the filter failed and had not been recorded as failing before.
    pub failures: Vec<FilterFailure>,
}

/// The filter of a subscription, checked again because other programs write the table too.
///
/// # Errors
///
/// [`Error::BrokenFilter`]; an out-of-memory error, which does not mean that the filter is invalid.
pub fn checked_filter(subscription: &Subscription) -> Result<Option<Filter>> {
    let text = subscription.filter_text().unwrap_or_default();
    Filter::new(text, Scope::Subscription).map_err(|e| match e {
        FilterError::Invalid(problem) => {
            Error::BrokenFilter { consumer: subscription.consumer.clone(), problem }
        }
        FilterError::OutOfMemory => e.into(),
    })
}

/// What events are keyed by, checked again like a filter.
///
/// # Errors
///
/// As for [`checked_filter`].
pub fn checked_key(subscription: &Subscription) -> Result<Option<Filter>> {
    let text = subscription.options.key.as_deref().unwrap_or_default();
    Filter::new_key(text).map_err(|e| match e {
        FilterError::Invalid(problem) => {
            Error::BrokenFilter { consumer: subscription.consumer.clone(), problem }
        }
        FilterError::OutOfMemory => e.into(),
    })
}

/// The key of an event. One for which it cannot be evaluated has none.
pub fn key_of(key: &Filter, row: &Row<'_>, failures: &mut Vec<FilterFailure>) -> Option<Key> {
    match key.value(row) {
        Ok(value) => value.map(Key::from),
        Err(why) => {
            failures.push(FilterFailure { id: row.id, message: why.0 });
            None
        }
    }
}

/// Looks for the oldest pending event, until the deadline. With `remember`, the watermark is stored with the
/// subscription, so its cursor must be the stored one, or one about to be stored.
///
/// # Errors
///
/// [`Error::BrokenFilter`]; errors of the store.
pub fn scan(
    store: &mut dyn Store,
    subscription: &Subscription,
    until: Option<Instant>,
    remember: bool,
) -> Result<PendingScan> {
    if subscription.options.finishes_singly() {
        let ledger = store.ledger(&subscription.consumer)?;
        if !ledger.is_plain() {
            return scan_with(store, subscription, &ledger, until, remember);
        }
    }
    let newest = store.newest()?;
    let mut found = PendingScan { newest, ..PendingScan::default() };
    let cursor = subscription.last_acked_id;
    if subscription.filter_text().is_none() {
        if newest > cursor {
            found.first = store.first_after(cursor)?;
        }
        return Ok(found);
    }
    let start = subscription.scanned_upto(cursor);
    if start >= newest {
        return Ok(found);
    }
    let Some(filter) = checked_filter(subscription)? else { return Ok(found) };
    let (mut upto, mut remembered) = (start, start);
    while upto < newest && found.first.is_none() && !found.cut_short {
        // In steps, so that a killed scan loses little of its progress.
        let end = newest.min(upto.saturating_add(SCAN_STEP));
        let scan = store.scan(&filter, ScanRange { after: upto, upto: end, most: 1, until })?;
        found.first = scan.ids.first().copied();
        found.cut_short = found.first.is_none() && scan.upto < end;
        let scanned = found.first.map_or(scan.upto, |id| id - 1);
        let mut fresh = scan.failures;
        fresh.retain(|failure| failure.id > subscription.filter_error_id);
        if remember && (scanned - remembered >= WATERMARK_STEP || !fresh.is_empty() || found.cut_short) {
            match store.remember_scan(subscription, scanned, &fresh) {
                Ok(first_seen) => drop(fresh.drain(..fresh.len() - first_seen)),
                // The answer is right all the same; the next scan evaluates the filter again.
                Err(e) if e.is_locked() => fresh.clear(),
                Err(e) => return Err(e),
            }
            remembered = scanned;
        }
        found.failures.extend(fresh);
        upto = scanned.max(upto);
        if found.first.is_none() && !found.cut_short {
            // Skip gaps in the ids: other programs may leave gaps of any width.
            upto = store.first_after(upto)?.map_or(newest, |next| next - 1).max(upto);
        }
    }
    Ok(found)
}

/// Like [`scan`], where some events past the cursor are finished or wait.
fn scan_with(
    store: &mut dyn Store,
    subscription: &Subscription,
    ledger: &Ledger,
    until: Option<Instant>,
    remember: bool,
) -> Result<PendingScan> {
    let newest = store.newest()?;
    let (filter, key) = (checked_filter(subscription)?, checked_key(subscription)?);
    // Those of events that wait.
    let mut held = HashSet::new();
    let mut found = PendingScan { newest, ..PendingScan::default() };
    // A caller that asks for what is newer than an event gives that event as the cursor.
    let cursor = ledger.cursor().max(subscription.last_acked_id);
    let (mut after, now) = (subscription.scanned_upto(cursor), Utc::now());
    let mut unfinished = 0;
    let mut page = VecDeque::new();
    let mut page_size = 1;
    // So many events wait, or are held back, at most.
    while unfinished < subscription.options.ahead {
        if page.is_empty() {
            if after >= newest {
                break;
            }
            if unfinished > 0 && until.is_some_and(|until| Instant::now() >= until) {
                found.cut_short = true;
                break;
            }
            let upto =
                next_page(store, (&filter, &key), (after, newest), page_size, until, &mut page, &mut found)?;
            page_size = (page_size * 4).min(LARGEST_PAGE);
            if page.is_empty() && upto < newest && found.cut_short {
                break;
            }
            (found.cut_short, after) = (false, upto);
            continue;
        }
        let Some((id, key)) = page.pop_front() else { break };
        if let Some(last) = ledger.finished_upto(id) {
            page.retain(|(id, _)| *id > last);
            after = after.max(last);
            continue;
        }
        found.first.get_or_insert(id);
        unfinished += u64::from(!ledger.waits().get(&id).is_some_and(EventWait::is_asleep));
        if key.as_ref().is_some_and(|key| held.contains(key)) {
            continue;
        }
        if ledger.claims().get(&id).is_some_and(|claim| subscription.is_at_another_machine(claim)) {
            found.is_elsewhere = true;
            held.extend(key);
            continue;
        }
        match ledger.waits().get(&id).filter(|wait| !wait.is_over(now)) {
            Some(wait) => {
                if found.wait.as_ref().is_none_or(|first| wait.until < first.until) {
                    found.wait = Some(wait.clone());
                }
                // In order, those after it wait as well.
                if subscription.options.is_in_order() {
                    break;
                }
                held.extend(key);
            }
            None => {
                (found.wait, found.is_elsewhere) = (None, false);
                break;
            }
        }
    }
    found.is_full = unfinished >= subscription.options.ahead && found.wait.is_some();
    found.failures.retain(|failure| failure.id > subscription.filter_error_id);
    if remember {
        remember_failures(store, subscription, &mut found.failures)?;
    }
    Ok(found)
}

/// How many events are looked at together at most, where many wait or are held back.
const LARGEST_PAGE: usize = 256;

/// Reads the ids and keys of the next matching events after an id, up to another. Returns up to which id there are no
/// others; `found` has the failures of the filter, and says whether the deadline passed. An event on which the key fails
/// has none.
fn next_page(
    store: &mut dyn Store,
    (filter, key): (&Option<Filter>, &Option<Filter>),
    (after, upto): (i64, i64),
    most: usize,
    until: Option<Instant>,
    page: &mut VecDeque<(i64, Option<String>)>,
    found: &mut PendingScan,
) -> Result<i64> {
    // Only the key needs what is in an event.
    let cap = if key.is_some() { u64::MAX } else { 0 };
    let mut take = |capped: CappedRow<'_>| {
        let row = capped.row;
        page.push_back((row.id, key.as_ref().and_then(|key| key.value(&row).ok().flatten())));
        ControlFlow::Continue(())
    };
    let Some(filter) = filter else {
        store.read_capped(after, upto, most, cap, &mut take)?;
        return Ok(if page.len() < most { upto } else { page.back().map_or(upto, |(id, _)| *id) });
    };
    let scan = store.scan(filter, ScanRange { after, upto, most, until })?;
    found.failures.extend(scan.failures);
    found.cut_short = scan.ids.len() < most && scan.upto < upto;
    for id in &scan.ids {
        store.read_capped(id - 1, *id, 1, cap, &mut take)?;
    }
    Ok(if scan.ids.len() < most { scan.upto } else { scan.ids.last().copied().unwrap_or(scan.upto) })
}

/// Records events on which the filter failed, but not how far it was evaluated. Leaves those that had not been recorded.
pub fn remember_failures(
    store: &mut dyn Store,
    subscription: &Subscription,
    failures: &mut Vec<FilterFailure>,
) -> Result<()> {
    if failures.is_empty() {
        return Ok(());
    }
    let upto = subscription.scanned_upto(subscription.last_acked_id);
    match store.remember_scan(subscription, upto, failures) {
        Ok(first_seen) => drop(failures.drain(..failures.len() - first_seen)),
        Err(e) if e.is_locked() => failures.clear(),
        Err(e) => return Err(e),
    }
    Ok(())
}

/// How far to count.
#[derive(Debug, Clone, Copy)]
pub struct CountLimits {
    /// Stop after this many events.
    pub most: u64,
    pub until: Option<Instant>,
}

impl CountLimits {
    pub const NONE: CountLimits = CountLimits { most: u64::MAX, until: None };
}

/// A number of events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub events: u64,
    /// There may be more: a limit ended the count.
    pub at_least: bool,
}

/// Counts the matching events from `first`, the oldest pending one, on. `gapless`: no id between the oldest
/// event and the newest is missing, so that without a filter the count is a subtraction. `progress` is called
/// with the number of ids that were covered since its last call.
pub fn count(
    store: &mut dyn Store,
    subscription: &Subscription,
    first: i64,
    gapless: bool,
    limits: CountLimits,
    progress: &mut dyn FnMut(u64),
) -> Result<Counted> {
    let newest = store.newest()?;
    let filter = checked_filter(subscription)?;
    if filter.is_none() && gapless && !subscription.options.finishes_singly() {
        return Ok(Counted { events: newest.abs_diff(first) + 1, at_least: false });
    }
    let (mut events, mut upto) = (0, first - 1);
    while upto < newest {
        if events >= limits.most || limits.until.is_some_and(|until| Instant::now() >= until) {
            return Ok(Counted { events, at_least: true });
        }
        let before = upto;
        match &filter {
            Some(filter) => {
                let range = ScanRange { after: upto, upto: newest, most: 4096, until: limits.until };
                let scan = store.scan(filter, range)?;
                events += scan.ids.len() as u64;
                upto = scan.upto;
            }
            None => {
                let end = newest.min(upto.saturating_add(SCAN_STEP));
                events += store.count(upto, end)?;
                // Other programs may leave gaps of any width.
                upto = store.first_after(end)?.map_or(newest, |next| next - 1);
            }
        }
        progress(upto.abs_diff(before));
    }
    if subscription.options.finishes_singly() {
        // Without those that are finished.
        for (from, last) in store.ledger(&subscription.consumer)?.finished() {
            // Those before the first one were not counted.
            let (after, upto) = (from.max(first) - 1, last.min(newest));
            if after >= upto {
                continue;
            }
            let finished = match &filter {
                Some(filter) => {
                    store.scan(filter, ScanRange { after, upto, most: usize::MAX, until: None })?.ids.len()
                        as u64
                }
                None => store.count(after, upto)?,
            };
            events = events.saturating_sub(finished);
        }
    }
    Ok(Counted { events, at_least: false })
}
