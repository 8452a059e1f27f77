//! Deleting old events that nobody needs any more.
//!
//! Before anything is deleted, no subscribed consumer is still to be given it, and a sealed JSONL file has its
//! line, on the disk. A consumer that is subscribed meanwhile, or whose cursor is moved back, is noticed in the
//! very transaction that would delete its events; then prune finds out anew how far it may go.

use std::time::Duration;

use crate::error::{Error, IoContext, Result};
use crate::files::DB;
use crate::files::log::log;
use crate::jsonl;
use crate::model::filter::{Filter, Scope};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::model::time::Time;
use crate::queue::Queue;
use crate::store::{PruneRange, PruneStep, Pruned, Store};

/// The pause between two transactions. Longer than any pusher's between two tries for the lock.
const PAUSE: Duration = Duration::from_millis(10);

/// What to delete.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub old: Old,
    /// Only events of this subtype.
    pub subtype: Option<&'a str>,
    /// Also what is pending, and dead letters.
    pub force: bool,
    /// Delete nothing, only count.
    pub dry_run: bool,
}

/// Which events are old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Old {
    /// Those with a smaller id.
    BeforeId(i64),
    /// Those before the first one that was stored at this time or later.
    StoredBefore(Time),
    /// All but so many of the newest (of the requested subtype, if there is one).
    AllButNewest(u64),
}

/// What a prune came to.
#[derive(Debug)]
pub struct Report {
    /// What was deleted, or would be.
    pub pruned: Pruned,
    /// What kept it from deleting more, if anything did.
    pub held: Option<Held>,
    /// What ended it early, when part of the work was done.
    pub failed: Option<Error>,
}

/// The oldest event that is pending for a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub at: i64,
    pub consumer: ConsumerId,
}

/// Deletes old events. `progress` is told how many more events were deleted.
///
/// # Errors
///
/// Nothing was deleted; see [`Report::failed`] for what fails later.
pub fn prune(queue: &mut Queue, request: &Request<'_>, progress: &mut dyn FnMut(u64)) -> Result<Report> {
    let mut plan = Plan { upto: last_old(queue, request)?, held: None, seen: Vec::new() };
    if !request.force {
        plan.hold_back(queue)?;
    }
    let mut counted = Pruned::default();
    walk(queue, request, &mut plan, true, &mut |found| counted += found)?;
    if request.dry_run || counted.events == 0 {
        return Ok(Report { pruned: counted, held: plan.held, failed: None });
    }
    jsonl::seal_before_prune(&queue.files, &mut queue.store, plan.upto)?;
    let mut pruned = Pruned::default();
    let mut add = |deleted: Pruned| {
        progress(deleted.events);
        pruned += deleted;
    };
    let failed = walk(queue, request, &mut plan, false, &mut add).err();
    if pruned.events > 0 {
        let forced = if request.force { " forced" } else { "" };
        let Pruned { events, bytes, .. } = pruned;
        log!(queue, Info, "prune: count={events} bytes={bytes}{forced}");
    }
    Ok(Report { pruned, held: plan.held, failed })
}

/// The id of the newest event that is old enough.
fn last_old(queue: &mut Queue, request: &Request<'_>) -> Result<i64> {
    let newest = queue.store.newest()?;
    let last = match request.old {
        Old::BeforeId(id) => id - 1,
        Old::StoredBefore(time) => queue.last_before(time)?,
        Old::AllButNewest(0) => newest,
        Old::AllButNewest(count) => {
            let filter = request.subtype.map(|name| format!("subtype = '{}'", name.replace('\'', "''")));
            let filter = Filter::new(&filter.unwrap_or_default(), Scope::Reading)?;
            queue.start_of_tail(filter.as_ref(), 0, count)?
        }
    };
    // What comes later is not old: it may not be in the JSONL log yet.
    Ok(last.min(newest))
}

/// How far to go.
struct Plan {
    upto: i64,
    held: Option<Held>,
    /// The subscriptions for which nothing up to there is pending.
    seen: Vec<Subscription>,
}

impl Plan {
    /// Stops before whatever is pending now. Never goes further than it did before, because that is how
    /// far the JSONL log was sealed.
    fn hold_back(&mut self, queue: &mut Queue) -> Result<()> {
        self.seen = queue.store.subscriptions()?;
        for subscription in &self.seen {
            let first = match queue.look(subscription, None) {
                // Nobody can say which events a broken filter would match.
                Err(Error::BrokenFilter { .. }) => queue.store.first_after(subscription.last_acked_id)?,
                look => look?.first,
            };
            if let Some(at) = first.filter(|&at| at <= self.upto) {
                self.upto = at - 1;
                self.held = Some(Held { at, consumer: subscription.consumer.clone() });
            }
        }
        Ok(())
    }
}

/// Goes through the old events, some at a time, and deletes them or, if it is `dry_run`, counts them.
/// `step` is told what was found in each.
fn walk(
    queue: &mut Queue,
    request: &Request<'_>,
    plan: &mut Plan,
    dry_run: bool,
    step: &mut dyn FnMut(Pruned),
) -> Result<()> {
    let mut at = queue.store.first_after(0)?.map_or(0, |first| first - 1);
    while at < plan.upto {
        let range = PruneRange {
            after: at,
            upto: plan.upto,
            subtype: request.subtype,
            dead_letters: request.force,
            seen: (!request.force).then_some(&plan.seen),
            dry_run,
        };
        match queue.store.prune(&range)? {
            PruneStep::Upto(reached, found) => {
                step(found);
                at = reached;
            }
            PruneStep::Overtaken => plan.hold_back(queue)?,
        }
        if at < plan.upto && !dry_run {
            queue.store.keep_wal_short()?;
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Deletes the sealed JSONL files that were sealed before that time. Returns how many, and their bytes.
///
/// # Errors
///
/// Those of the file system; some may be deleted by then.
pub fn prune_sealed(queue: &mut Queue, before: Time, dry_run: bool) -> Result<(u64, u64)> {
    let removed = jsonl::remove_sealed(&queue.files, before, dry_run);
    let (files, bytes) = removed.at("delete sealed files in", queue.path())?;
    if files > 0 && !dry_run {
        log!(queue, Info, "prune: sealed_files={files} bytes={bytes}");
    }
    Ok((files, bytes))
}

/// Gives the space of deleted events back to the file system. Others wait meanwhile, and `events.db`
/// gets shorter only when no reader is in the way any more. Returns its size in bytes before and
/// after.
pub fn compact(queue: &mut Queue) -> Result<(u64, u64)> {
    let before = queue.files.size(DB);
    queue.store.compact()?;
    Ok((before, queue.files.size(DB)))
}
