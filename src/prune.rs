//! Deleting old events that nobody needs any more.
//!
//! Two things are made sure of before anything goes: no subscribed consumer is still to be given
//! it, and the JSONL copy has it, on the disk. Then it goes in short transactions with pauses
//! between them, so that pushes get their turn. Each of them stands for itself: a prune that is
//! killed has deleted less, and the next one goes on.
//!
//! A consumer that is subscribed anew meanwhile, or whose cursor is moved back, is noticed in the
//! very transaction that would delete its events; then it is looked afresh how far pruning may go.

use std::time::Duration;

use crate::error::{Failure, OrFix, Result};
use crate::journal;
use crate::log::Level;
use crate::progress::Progress;
use crate::rule::{Time, format_time};
use crate::store::{Pruned, Sizes, Step, Store};
use crate::subscription::{ConsumerId, Subscription};
use crate::thread::Thread;

/// The pause between two transactions. Longer than any pusher's between two tries for the lock.
const PAUSE: Duration = Duration::from_millis(10);

/// Which events are old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Old {
    /// Those with a smaller id.
    BeforeId(i64),
    /// Those before the first one that was stored at this time or later.
    StoredBefore(Time),
}

/// What holds back a prune.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The oldest pending event of all consumers.
    pub at: i64,
    pub consumer: ConsumerId,
}

/// How far a prune may go.
pub struct Plan {
    /// The id of the last event that is old enough.
    wished: i64,
    /// Also what is pending, and dead letters.
    force: bool,
    upto: i64,
    held: Option<Held>,
    /// The subscriptions this was made from.
    seen: Vec<Subscription>,
}

impl Plan {
    /// Finds out how far a prune may go: to the last old event or, unless forced, to the oldest one
    /// that is pending for a consumer.
    pub fn make(thread: &mut Thread, old: Old, force: bool) -> Result<Plan> {
        // What comes later is never old: the copy may not have it yet.
        let newest = thread.store.newest_ever()?;
        let wished = match old {
            Old::BeforeId(id) => id - 1,
            Old::StoredBefore(time) => thread.store.last_before(&format_time(time))?,
        };
        let wished = wished.min(newest);
        let mut plan = Plan { wished, force, upto: wished, held: None, seen: Vec::new() };
        plan.look_afresh(thread)?;
        Ok(plan)
    }

    fn look_afresh(&mut self, thread: &mut Thread) -> Result<()> {
        (self.upto, self.held) = (self.wished, None);
        if self.force {
            return Ok(());
        }
        self.seen = thread.store.subscriptions()?;
        for subscription in &self.seen {
            if let Some(at) = oldest_wanted(thread, subscription)?
                && at <= self.upto
            {
                self.upto = at - 1;
                self.held = Some(Held { at, consumer: subscription.consumer.clone() });
            }
        }
        Ok(())
    }

    /// What keeps it from going as far as was wished, if anything does.
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Counts what would be deleted, and deletes nothing.
    pub fn survey(&self, thread: &Thread) -> Result<Pruned> {
        let (mut at, mut total) = (before_oldest(&thread.store)?, Pruned::default());
        let mut progress = self.progress("counting old events", at);
        while at < self.upto {
            let (reached, found) = thread.store.survey_step(at, self.upto, self.force)?;
            progress.advance(reached.abs_diff(at));
            (at, total) = (reached, total.plus(found));
        }
        Ok(total)
    }

    /// Brings the copy up to date, synced, and deletes. What holds it back may change meanwhile.
    pub fn carry_out(&mut self, thread: &mut Thread) -> Result<Pruned> {
        journal::catch_up_and_sync(&thread.files, &mut thread.store).map_err(|e| format!("{e:#}")).or_fix(
            "events.jsonl is behind, so nothing was pruned",
            "run `thread doctor --fix`, then prune again",
        )?;
        let mut total = Pruned::default();
        let done = self.delete(thread, &mut total);
        // Also what went before a failure is told.
        if total.events > 0 {
            let forced = if self.force { " forced" } else { "" };
            let text = format!("prune: count={} bytes={}{forced}", total.events, total.bytes);
            thread.log(Level::Info, text);
        }
        done.map(|()| total).map_err(|failure| after(failure, total))
    }

    /// Adds to `total` what it has deleted.
    fn delete(&mut self, thread: &mut Thread, total: &mut Pruned) -> Result<()> {
        let mut at = before_oldest(&thread.store)?;
        let mut progress = self.progress("deleting old events", at);
        while at < self.upto {
            let seen = (!self.force).then_some(self.seen.as_slice());
            match thread.store.prune_step(at, self.upto, seen, self.force)? {
                Step::Upto(reached, pruned) => {
                    progress.advance(reached.abs_diff(at));
                    (at, *total) = (reached, total.plus(pruned));
                }
                Step::Overtaken => self.look_afresh(thread)?,
            }
            progress.tick();
            if at < self.upto {
                thread.store.keep_wal_short()?;
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// By ids, from those after `at` on.
    fn progress(&self, what: &'static str, at: i64) -> Progress {
        Progress::of(what, Some(self.upto.saturating_sub(at).try_into().unwrap_or(0)))
    }
}

fn before_oldest(store: &Store) -> Result<i64> {
    Ok(store.first_after(0)?.map_or(0, |first| first - 1))
}

/// Gives free space back to the file system, after that was pruned.
pub fn compact(thread: &mut Thread, pruned: Pruned) -> Result<Sizes> {
    give_back(&mut thread.store).map_err(|failure| after(failure, pruned))
}

fn give_back(store: &mut Store) -> Result<Sizes> {
    let before = store.size()?;
    store.begin_compacting()?;
    let mut progress = Progress::of("giving space back", None);
    while store.compact_step()? {
        progress.tick();
        store.keep_wal_short()?;
        std::thread::sleep(PAUSE);
    }
    store.end_compacting()?;
    drop(progress);
    Ok(Sizes { before, after: store.size()? })
}

/// The oldest event a consumer is still to be given. Where its stored filter is none, nobody can
/// say what it would want: then that is the first past its cursor.
fn oldest_wanted(thread: &mut Thread, subscription: &Subscription) -> Result<Option<i64>> {
    let look = crate::dispatch::look_leniently(thread, subscription)?;
    match look.broken_filter {
        Some(_) => thread.store.first_after(subscription.last_acked_id),
        None => Ok(look.first_pending),
    }
}

/// A failure that came when part of the work was done.
fn after(failure: Failure, done: Pruned) -> Failure {
    let told = match done.events {
        0 => return failure,
        1 => "1 event had been pruned before that".to_owned(),
        n => format!("{n} events had been pruned before that"),
    };
    Failure { what: format!("{}; {told}", failure.what), ..failure }
}
