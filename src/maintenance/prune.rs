//! Deleting old events that no consumer needs any more.
//!
//! Before an event is deleted, its line is in a sealed JSONL file that was synced. Unless forced, the event
//! is neither held nor pending for any subscribed consumer: before each transaction that deletes events, prune looks
//! whether there is another hold, and the transaction checks whether a consumer was subscribed or its cursor moved back
//! in the meantime; if so, prune determines again how far it may go.

use std::time::Duration;

use crate::error::{Error, IoContext, Result};
use crate::files::DB;
use crate::files::log::log;
use crate::jsonl;
use crate::model::config::oldest_hold;
use crate::model::filter::{Filter, Scope};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::queue::Queue;
pub use crate::queue::pending::{Held, HeldBy};
use crate::store::{PruneRange, PruneStep, Pruned};

/// Approximate time for which a step holds the write lock.
const STEP_TIME: Duration = Duration::from_millis(40);

/// The pause between two transactions. Longer than a pusher's pause between two attempts to get the lock.
const PAUSE: Duration = Duration::from_millis(10);

/// What to delete.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub old: Old,
    /// Only events of this subtype.
    pub subtype: Option<&'a str>,
    /// Also delete events that are pending or held, and those with dead letters.
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
    /// All but this many of the newest (of the requested subtype, if there is one).
    AllButNewest(u64),
}

/// The result of a prune.
#[derive(Debug)]
pub struct Report {
    /// What was deleted, or would be.
    pub pruned: Pruned,
    /// The pending or held event that kept it from deleting more, if any.
    pub held: Option<Held>,
    /// The error that ended it after part of the work was done.
    pub failed: Option<Error>,
}

/// Deletes old events. `progress` is called with the number of events deleted since the last call.
///
/// # Errors
///
/// Nothing was deleted; later errors are in [`Report::failed`].
pub fn prune(queue: &mut Queue, request: &Request<'_>, progress: &mut dyn FnMut(u64)) -> Result<Report> {
    let mut plan = Plan { upto: last_old(queue, request)?, held: None, seen: Vec::new(), hold: None };
    if !request.force {
        plan.hold_back(queue, request)?;
    }
    let mut counted = Pruned::default();
    walk(queue, request, &mut plan, true, &mut |found| counted += found)?;
    if request.dry_run || counted.events == 0 {
        return Ok(Report { pruned: counted, held: plan.held, failed: None });
    }
    jsonl::seal_before_prune(&queue.files, &mut *queue.store, plan.upto, Duration::MAX)?;
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
        Old::AllButNewest(count) => {
            let filter = request.subtype.map(|name| format!("subtype = '{}'", name.replace('\'', "''")));
            let filter = Filter::new(&filter.unwrap_or_default(), Scope::Reading)?;
            queue.start_of_tail(filter.as_ref(), 0, count)?
        }
    };
    // Later events are not old: they may not be in the JSONL log yet.
    Ok(last.min(newest))
}

/// How far to delete.
struct Plan {
    /// The last id to delete.
    upto: i64,
    held: Option<Held>,
    /// The subscriptions that were checked: nothing up to `upto` is pending for them.
    seen: Vec<Subscription>,
    /// The oldest hold then.
    hold: Option<i64>,
}

impl Plan {
    /// Moves the limit before the oldest event that is pending now or, unless the request names what is to go, held.
    /// Never moves it forward, because the JSONL log was sealed only up to the first limit.
    fn hold_back(&mut self, queue: &mut Queue, request: &Request<'_>) -> Result<()> {
        self.hold = first_held(queue)?;
        let unneeded = queue.unneeded(self.upto, request.subtype.is_none(), None)?;
        (self.upto, self.seen) = (unneeded.upto, unneeded.seen);
        if unneeded.held.is_some() {
            self.held = unneeded.held;
        }
        Ok(())
    }
}

fn first_held(queue: &mut Queue) -> Result<Option<i64>> {
    Ok(oldest_hold(&queue.store.config()?).map(|(first, _)| first))
}

/// Deletes the old events, or counts them with `dry_run`, one transaction at a time. `step` is called with
/// the events of each.
fn walk(
    queue: &mut Queue,
    request: &Request<'_>,
    plan: &mut Plan,
    dry_run: bool,
    step: &mut dyn FnMut(Pruned),
) -> Result<()> {
    let mut at = queue.store.first_after(0)?.map_or(0, |first| first - 1);
    while at < plan.upto {
        if !request.force && first_held(queue)?.is_some_and(|first| plan.hold.is_none_or(|hold| first < hold))
        {
            plan.hold_back(queue, request)?;
            continue;
        }
        let range = PruneRange {
            after: at,
            upto: plan.upto,
            subtype: request.subtype,
            dead_letters: request.force,
            seen: (!request.force).then_some(&plan.seen),
            dry_run,
            time: STEP_TIME,
        };
        match queue.store.prune(&range)? {
            PruneStep::Upto(reached, found) => {
                step(found);
                at = reached;
            }
            PruneStep::Overtaken => plan.hold_back(queue, request)?,
        }
        if at < plan.upto && !dry_run {
            queue.store.tidy()?;
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// Deletes the JSONL files that were sealed before that time, or counts them with `dry_run`. Returns their
/// number and their total size in bytes.
///
/// # Errors
///
/// File system errors; some files may be deleted already.
pub fn prune_sealed(queue: &mut Queue, before: Time, dry_run: bool) -> Result<(u64, u64)> {
    let removed = jsonl::remove_sealed(&queue.files, before, dry_run);
    let (files, bytes) = removed.at("delete sealed files in", queue.path())?;
    if files > 0 && !dry_run {
        log!(queue, Info, "prune: sealed_files={files} bytes={bytes}");
    }
    Ok((files, bytes))
}

/// Returns the space of deleted events to the file system. Writers wait until it is done, and `events.db` shrinks
/// only once no reader blocks the checkpoint. Returns its size in bytes before and after.
pub fn compact(queue: &mut Queue) -> Result<(u64, u64)> {
    let before = queue.files.size(DB);
    queue.store.compact()?;
    Ok((before, queue.files.size(DB)))
}
