//! Claims: programs take the events of a consumer by themselves, each for a time.
//!
//! Which events may be taken is the rule of pools (see [`Window`]), looked up again for each call. A claim whose time is
//! over is an attempt; the next call that takes events records that.

mod passing;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::time::Duration;

use chrono::Utc;

use super::settle::{self, Failed, Tally};
use crate::error::{Error, Result};
use crate::files::log::log;
use crate::model::event::Row;
use crate::model::filter::Filter;
use crate::model::ledger::{Claim, Ledger, LedgerChange, Sleep, Taken};
use crate::model::run::{Exit, Phase, RunState};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::model::time::{Moment, Time};
use crate::model::window::{Turn, Window};
use crate::pending::{checked_filter, checked_key, key_of};
use crate::queue::{Queue, Remaining, Selection};
use crate::store::{DeadLetterUpdate, FilterFailure, RunUpdate};

/// How many events are read at once, while all are held back.
const LARGEST_PAGE: u64 = 256;

/// Takes no more after so many bytes of lines.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// The events that were taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Takings {
    /// As lines, each with the key `claim`.
    pub lines: Vec<u8>,
    pub count: u64,
    /// After which time there may be more, though nothing is stored until then.
    pub again: Option<Duration>,
    /// Why nothing may be taken for now.
    pub refused: Option<Refused>,
}

/// Why nothing may be taken from a consumer for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Paused,
    Stalled,
    /// As many events are taken as may be.
    Busy,
}

/// Takes at most `most` of the next events of a consumer, each for the time `length`.
///
/// # Errors
///
/// [`Error::UnknownConsumer`], [`Error::NoClaims`], [`Error::BrokenFilter`].
pub fn take(queue: &mut Queue, consumer: &ConsumerId, most: u64, length: Duration) -> Result<Takings> {
    let _turn = settle::take_turn(queue);
    let taken = take_in_turn(queue, consumer, most, length);
    queue.store.release();
    taken
}

fn take_in_turn(queue: &mut Queue, consumer: &ConsumerId, most: u64, length: Duration) -> Result<Takings> {
    let mut may_pass = true;
    loop {
        let current = queue.subscription(consumer)?;
        if !current.options.is_taken_from() {
            return Err(Error::NoClaims(consumer.clone()));
        }
        let mut round = Round { may_pass, ..Round::new(queue, current)? };
        round.end_claims();
        round.take(queue, most, length)?;
        if round.passed && round.window.is_far_ahead() {
            // There may be fewer than was noted.
            may_pass = false;
            continue;
        }
        if let Some(takings) = round.store(queue)? {
            return Ok(takings);
        }
        // Another process changed the row first. Where nothing keeps others from it, that cannot happen forever.
        queue.store.hold(consumer)?;
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Prolongs the claim of an event: it ends the time `length` from now on. Without a token, the newest claim is meant.
///
/// # Errors
///
/// [`Error::UnknownConsumer`], [`Error::NoClaims`]; [`Error::ClaimOver`] if nobody has the event, or somebody else.
pub fn prolong(
    queue: &mut Queue,
    consumer: &ConsumerId,
    id: i64,
    length: Duration,
    token: Option<&str>,
) -> Result<()> {
    settle::change(queue, consumer, |queue, current, ledger| {
        if !current.options.is_taken_from() {
            return Err(Error::NoClaims(consumer.clone()));
        }
        let now = queue.store.clock()?;
        let claim = ledger.claims().get(&id).and_then(|claim| Some((claim, claim.taken_by(token, &now)?)));
        let Some((claim, taken)) = claim else { return Err(Error::ClaimOver { id }) };
        let taken = Taken { until: now.after(length), ..taken.clone() };
        let claim = Some(Claim { taken: Some(taken), ..claim.clone() });
        let ledger = vec![LedgerChange::Claim { id, claim }];
        Ok(RunUpdate { ledger, ..RunUpdate::state(current.state.clone()) })
    })?;
    log!(queue, Info, "claim: consumer={consumer} id={id} seconds={}", length.as_secs());
    Ok(())
}

/// Taking events once, from what the store had.
struct Round {
    current: Subscription,
    window: Window,
    filter: Option<Filter>,
    key: Option<Filter>,
    now: Time,
    clock: Moment,
    tally: Tally,
    stalls: Option<String>,
    update: RunUpdate,
    /// Changes of the ledger that the window does not make.
    changes: Vec<LedgerChange>,
    /// Where the gaps before events begin, in which nothing matches.
    gaps: HashMap<i64, i64>,
    /// Dead letters that have just failed once more.
    failed_again: Vec<i64>,
    /// The events that are to sleep once nobody has them any more.
    asleep: BTreeMap<i64, Sleep>,
    takings: Takings,
    /// Whether it may pass over what is held back, and has done so.
    may_pass: bool,
    passed: bool,
    /// How many unfinished events were found among those that were noted as held back.
    found: usize,
}

impl Round {
    fn new(queue: &mut Queue, current: Subscription) -> Result<Round> {
        let (filter, key) = (checked_filter(&current)?, checked_key(&current)?);
        let ledger = queue.store.ledger(&current.consumer)?;
        let mut window = Window::new(ledger, &current.options, 0);
        if let Some(key) = &key {
            for id in window.ledger().claims().keys().copied().collect::<Vec<_>>() {
                queue.store.read(id - 1, id, 1, &mut |row| {
                    window.set_key(id, key_of(key, &row, &mut Vec::new()));
                    ControlFlow::Break(())
                })?;
            }
        }
        let clock = queue.store.clock()?;
        Ok(Round {
            current,
            window,
            filter,
            key,
            now: Utc::now(),
            clock,
            tally: Tally::default(),
            stalls: None,
            update: RunUpdate::default(),
            changes: Vec::new(),
            gaps: HashMap::new(),
            failed_again: Vec::new(),
            asleep: BTreeMap::new(),
            takings: Takings::default(),
            may_pass: true,
            passed: false,
            found: 0,
        })
    }

    /// Claims whose time is over are failed attempts.
    fn end_claims(&mut self) {
        for (id, claim) in self.window.ledger().claims().clone() {
            let Some(taken) = claim.taken.filter(|taken| taken.until.left(&self.clock).is_zero()) else {
                continue;
            };
            let error = "the claim ended without an answer".to_owned();
            let exit = Exit::TimedOut;
            // The wait before the next attempt counts from when it ended.
            let ago = match taken.until.clock == self.clock.clock {
                true => Duration::from_millis(self.clock.at.abs_diff(taken.until.at)),
                false => Duration::ZERO,
            };
            let at = self.now - ago;
            let took = (at - claim.since).to_std().ok();
            if claim.is_dead_letter {
                self.tally.figures.failed(true, took);
                self.window.drop_taken(id);
                self.changes.push(LedgerChange::Claim { id, claim: None });
                self.failed_again.push(id);
                let change = DeadLetterUpdate::FailedAgain { event_id: id, exit, error, at: self.now };
                self.update.dead_letters.push(change);
                continue;
            }
            let failed = Failed { exit, counts: true, judged: false, delay: None, error, at, took };
            let (letters, runs) = (&mut self.update.dead_letters, &mut self.update.runs);
            let stalls =
                settle::fail(&mut self.window, &mut self.tally, &self.current, id, failed, letters, runs);
            self.stalls = self.stalls.take().or(stalls);
        }
        // Those that are taken again later have not gone to sleep yet.
        let window = &self.window;
        let marks = self.current.state.asleep.iter().filter(|(id, _)| window.has_given(**id));
        self.asleep = marks.map(|(id, sleep)| (*id, *sleep)).collect();
    }

    /// How many events may be taken, and if none, why.
    fn room(&mut self) -> u64 {
        let (state, options) = (&self.current.state, &self.current.options);
        let places = u64::from(options.concurrency.unwrap_or(0));
        let given = self.window.given() as u64;
        let (room, refused) = if state.paused {
            (0, Refused::Paused)
        } else if self.stalls.is_some() || state.phase == Phase::Stalled {
            // One event is tried after a while.
            let probes = options.probe.zip(state.ended).map(|(probe, ended)| ended + probe);
            let is_due = self.stalls.is_none() && probes.is_some_and(|at| at <= self.now);
            (u64::from(is_due && given == 0), Refused::Stalled)
        } else {
            (places.saturating_sub(given), Refused::Busy)
        };
        self.takings.refused = (room == 0).then_some(refused);
        room
    }

    fn take(&mut self, queue: &mut Queue, most: u64, length: Duration) -> Result<()> {
        let most = self.room().min(most);
        let until = self.clock.after(length);
        if self.current.has_retry() && most > 0 {
            self.take_dead_letters(queue, most, &until)?;
        }
        let cursor = self.window.ledger().cursor();
        let after = self.current.scanned_upto(cursor);
        let mut selection = Selection { after, limit: None, filter: self.filter.clone() };
        let (mut is_exhausted, mut page) = (false, 1);
        self.pass(queue, &mut selection)?;
        while self.takings.count < most && self.takings.lines.len() < BATCH_BYTES {
            match self.window.turn(self.now) {
                Turn::Again(id) => {
                    let may_expire = !self.window.was_given(id);
                    self.window.give_again(id);
                    let mut claimed = None;
                    queue.store.read(id - 1, id, 1, &mut |row| {
                        if may_expire && row.is_expired(self.now) {
                            self.tally.expire();
                        } else {
                            claimed = Some(self.takings.add(&row, &until));
                        }
                        ControlFlow::Break(())
                    })?;
                    match claimed {
                        Some(taken) => self.claim(id, taken),
                        // It was pruned, or has expired.
                        None => self.window.finish(id),
                    }
                }
                Turn::Next if !is_exhausted => {
                    page = (page * 4).clamp(most, LARGEST_PAGE.max(most));
                    is_exhausted = self.read_page(queue, &mut selection, page, most, &until)?;
                    // The next event of a key may hold back the others now.
                    self.pass(queue, &mut selection)?;
                }
                Turn::Next | Turn::Full | Turn::Wait(_) => break,
            }
        }
        Ok(())
    }

    /// Reads the next events, and takes those that are free. Returns whether there are no more.
    fn read_page(
        &mut self,
        queue: &mut Queue,
        selection: &mut Selection,
        page: u64,
        most: u64,
        until: &Moment,
    ) -> Result<bool> {
        selection.limit = Some(page);
        let (mut failures, mut claimed): (Vec<FilterFailure>, Vec<(i64, Taken)>) = Default::default();
        let (window, takings, gaps) = (&mut self.window, &mut self.takings, &mut self.gaps);
        let (key, now, tally) = (&self.key, self.now, &mut self.tally);
        let (found, noted) = (&mut self.found, self.current.state.held.as_ref().map_or(0, |held| held.upto));
        let mut wants_more = true;
        let remaining = queue.read_page(selection, &mut |row| {
            let key = key.as_ref().and_then(|key| key_of(key, &row, &mut failures));
            if row.id > window.reached() + 1 {
                gaps.insert(row.id, window.reached() + 1);
            }
            let is_known = |ledger: &Ledger| {
                let (waits, claims) = (ledger.waits(), ledger.claims());
                waits.contains_key(&row.id)
                    || claims.contains_key(&row.id)
                    || ledger.finished_upto(row.id).is_some()
            };
            *found += usize::from(row.id <= noted && !is_known(window.ledger()));
            if !window.found(row.id, key) {
                // It is finished, or held back.
            } else if row.is_expired(now) {
                window.finish(row.id);
                tally.expire();
            } else {
                claimed.push((row.id, takings.add(&row, until)));
            }
            wants_more = takings.count < most
                && takings.lines.len() < BATCH_BYTES
                && matches!(window.turn(now), Turn::Next);
            if wants_more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        for (id, taken) in claimed {
            self.claim(id, taken);
        }
        queue.note_failures(&mut self.current)?;
        queue.note_without_key(&mut self.current, &failures)?;
        Ok(remaining == Remaining::None && wants_more && selection.limit != Some(0))
    }

    /// Takes dead letters that are to be tried once more, and whose keys nobody has.
    fn take_dead_letters(&mut self, queue: &mut Queue, most: u64, until: &Moment) -> Result<()> {
        let letters = queue.store.dead_letters(Some(&self.current.consumer))?;
        for letter in letters.iter().filter(|letter| letter.retry) {
            let id = letter.event_id;
            if self.takings.count >= most || self.takings.lines.len() >= BATCH_BYTES {
                break;
            }
            if self.window.has_given(id) || self.failed_again.contains(&id) {
                continue;
            }
            let (window, key, takings) = (&mut self.window, &self.key, &mut self.takings);
            let (mut is_stored, mut claimed) = (false, None);
            queue.store.read(id - 1, id, 1, &mut |row| {
                is_stored = true;
                if window.take(id, key.as_ref().and_then(|key| key_of(key, &row, &mut Vec::new()))) {
                    claimed = Some(takings.add(&row, until));
                }
                ControlFlow::Break(())
            })?;
            if let Some(taken) = claimed {
                let claim = Claim { is_dead_letter: true, ..self.claim_of(taken) };
                self.window.claim(id, claim);
            } else if !is_stored {
                self.update.dead_letters.push(DeadLetterUpdate::Remove { event_id: id });
            }
        }
        Ok(())
    }

    fn claim(&mut self, id: i64, taken: Taken) {
        // An acknowledgement of the event finishes just that.
        if let Some(first) = self.gaps.remove(&id) {
            self.changes.push(LedgerChange::Finish { first, last: id - 1 });
        }
        self.window.claim(id, self.claim_of(taken));
    }

    fn claim_of(&self, taken: Taken) -> Claim {
        Claim { since: self.now, taken: Some(taken), ..Claim::default() }
    }

    /// Stores what has changed; `None` if that was decided on what is no longer so.
    fn store(mut self, queue: &mut Queue) -> Result<Option<Takings>> {
        let ends = self.window.ledger().claims().values().filter_map(|claim| claim.taken.as_ref());
        let ends = ends.map(|taken| taken.until.left(&self.clock));
        let wait = self.window.next_end().map(|end| (end - self.now).to_std().unwrap_or_default());
        self.takings.again = match self.takings.refused {
            None => ends.chain(wait).min(),
            Some(Refused::Busy) => ends.min(),
            Some(Refused::Paused | Refused::Stalled) => None,
        };
        let RunUpdate { dead_letters, runs, .. } = &self.update;
        let held = self.held();
        let has_changed = self.takings.count > 0
            || !dead_letters.is_empty()
            || !runs.is_empty()
            || self.tally.has_expired();
        if !has_changed && !self.is_worth_noting(held.as_ref()) {
            return Ok(Some(self.takings));
        }
        let state = self.tally.applied_to(&self.current.state);
        self.update.state = match &self.stalls {
            Some(why) => RunState { ended: Some(self.now), ..state.stalled(why) },
            None => state,
        };
        self.update.state.asleep = self.asleep;
        self.update.ledger = self.window.changes().to_vec();
        self.update.ledger.append(&mut self.changes);
        self.update.state.held = held;
        self.update.figures = self.tally.counted();
        self.update.durable = has_changed;
        if queue.store.update_run(&self.current, &self.update)?.is_none() {
            return Ok(None);
        }
        if self.takings.count > 0 {
            let (consumer, count) = (&self.current.consumer, self.takings.count);
            log!(queue, Info, "pop: consumer={consumer} claims={count}");
        }
        Ok(Some(self.takings))
    }
}

impl Takings {
    /// Adds an event, which is claimed until then.
    fn add(&mut self, row: &Row<'_>, until: &Moment) -> Taken {
        let token = format!("{:016x}", RandomState::new().hash_one(row.id));
        row.write_claimed_line(&token, &mut self.lines);
        self.count += 1;
        Taken { token, until: until.clone() }
    }
}
