//! Copying a thread to another location, or moving it there.
//!
//! To move it, the source's consumers are paused and their runs awaited; then the source is closed, and only after that
//! the rest is copied. So whatever a push was told is stored is at the goal. The source stays closed, and names the goal.

use std::time::Duration;

use super::goal::{Goal, is_empty};
use super::import::{EXAMPLES, to_pause};
use super::{read_events, read_most_events, read_rest};
use crate::error::{Error, Result};
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::model::closed::Closed;
use crate::model::rows::{Table, Tallies, Values};
use crate::model::run::Phase;
use crate::model::subscription::{ConsumerId, Subscription};
use crate::queue::Queue;
use crate::run::control;
use crate::run::process::{AtWork, at_work};

/// Held while a thread is moved, in the source.
const LOCK: &str = "run/_move.lock";

const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// How often to look whether runs have ended.
const PAUSE: Duration = Duration::from_millis(50);

/// What is being done.
#[derive(Debug)]
pub enum Step<'s> {
    /// So many events were stored.
    Stored(u64),
    /// These consumers of the source are paused now, and were not before.
    Paused(&'s [ConsumerId]),
    /// Runs of these are awaited.
    Awaits(&'s [ConsumerId]),
    /// Everything that was stored is read back.
    Compares,
}

/// What was copied.
#[derive(Debug)]
pub struct Copied {
    pub rows: Tallies,
    /// The consumers, which are paused at the goal and were not at the source.
    pub paused: Vec<ConsumerId>,
    /// As in [`Pushed`](crate::queue::Pushed), of the goal.
    pub log_behind: Option<Error>,
}

/// Copies `from`, which may be in use, into the empty thread `to`, or continues a copy there. `is_move`: `from` is
/// closed then.
///
/// # Errors
///
/// [`Error::Unstorable`], [`Error::NotEmpty`], [`Error::MovedTo`], [`Error::ImportUnfinished`]. After any other error, the
/// same call continues. If the rest could not be copied, the source is open again, and its consumers are paused.
pub fn copy(
    from: &mut Queue,
    to: &mut Queue,
    is_move: bool,
    step: &mut dyn FnMut(Step<'_>),
) -> Result<Copied> {
    let _lock = match is_move {
        true => Some(Lock::take(&from.files, LOCK, LOCK_TIMEOUT)?),
        false => None,
    };
    let is_used = to.store.closed()?.is_none() && !is_empty(&mut *to.store)?;
    match from.store.closed()? {
        Some(Closed::Moved { to: there }) if is_move && (is_used || there != text(to)) => {
            return Err(Error::MovedTo(there));
        }
        Some(closed @ Closed::Importing { .. }) => return Err(closed.into()),
        _ => {}
    }
    let mut copying = Copying { from, step, moved: Tallies::default(), paused: Vec::new(), is_open: false };
    let copied = copying.copy(to, is_move);
    let Copying { from, moved: rows, paused, is_open, .. } = copying;
    match copied {
        Ok(log_behind) => {
            let (goal, how) = (text(to), if is_move { "moved" } else { "copied" });
            log!(from, Info, "clone: {how} to={goal}");
            log!(to, Info, "clone: from={}", from.location());
            Ok(Copied { rows, paused, log_behind })
        }
        Err(e) => {
            // Nobody may use the goal yet, so the source is what counts.
            let is_closed = matches!(from.store.closed(), Ok(Some(Closed::Moved { .. })));
            if is_move
                && is_closed
                && !is_open
                && let Err(also) = from.store.rewrite(&mut |r| r.set_closed(None))
            {
                log!(from, Error, "clone: the thread stays closed: {also}");
            }
            log!(from, Error, "clone: {e}");
            Err(e)
        }
    }
}

fn text(queue: &Queue) -> String {
    queue.location().as_os_str().to_string_lossy().into_owned()
}

struct Copying<'c> {
    from: &'c mut Queue,
    step: &'c mut dyn FnMut(Step<'_>),
    moved: Tallies,
    paused: Vec<ConsumerId>,
    /// The goal may be open.
    is_open: bool,
}

impl Copying<'_> {
    fn copy(&mut self, to: &mut Queue, is_move: bool) -> Result<Option<Error>> {
        self.refuse_unstorable(to)?;
        let (origin, there) = (format!("clone {}", text(self.from)), text(to));
        let last = to.store.newest()?;
        if let Some(time) = self.from.store.stored_at(last)?
            && to.store.stored_at(last)?.is_some_and(|stored| stored != time)
        {
            return Err(Error::NotEmpty(to.location().clone()));
        }
        let mut goal = Goal::begin(to, &origin)?;
        // An older copy of the source may have taken its place.
        if goal.last > self.from.store.newest()? {
            return Err(Error::NotEmpty(there.as_str().into()));
        }
        let step = &mut *self.step;
        read_most_events(&mut *self.from.store, goal.last, &mut |_, rows| {
            goal.put_events(&rows)?;
            step(Step::Stored(rows.len() as u64));
            Ok(())
        })?;
        if is_move {
            self.paused = pause_all(self.from)?;
            (self.step)(Step::Paused(&self.paused));
            self.await_runs()?;
            let moved = Closed::Moved { to: there.clone() };
            self.from.store.rewrite(&mut |rewrite| rewrite.set_closed(Some(&moved)))?;
            // For the process that attends to its waits and schedules.
            control::notify_supervisors(self.from);
            // A consumer may have been added after the others were paused. What its run does counts no more.
            self.await_runs()?;
        }
        let has_steps = self.from.store.has_steps()?;
        let (moved, paused) = (&mut self.moved, &mut self.paused);
        self.from.store.in_snapshot(&mut |from| {
            read_events(from, goal.last, &mut |_, rows| goal.put_events(&rows))?;
            goal.put_rest(has_steps, &mut |put| {
                read_rest(from, &mut |table, rows: Vec<Values>| {
                    for row in &rows {
                        moved.add(table, row);
                        paused.extend(to_pause(table, row));
                    }
                    put(table, rows)
                })
            })
        })?;
        *self.moved.of_mut(Table::events()) = goal.events;
        (self.step)(Step::Compares);
        goal.compare(&self.moved)?;
        self.is_open = true;
        goal.open()
    }

    /// Looks for what the goal cannot store, before anything is stored there.
    fn refuse_unstorable(&mut self, to: &Queue) -> Result<()> {
        let Some(refusal) = to.store.refusal() else { return Ok(()) };
        let (mut count, mut examples) = (0, Vec::new());
        let mut look = |table: &'static Table, rows: Vec<Values>| {
            for row in &rows {
                if let Some(why) = refusal(table, row) {
                    count += 1;
                    if examples.len() < EXAMPLES {
                        examples.push(format!("{} {why}", table.name_of(row)));
                    }
                }
            }
            Ok(())
        };
        read_most_events(&mut *self.from.store, 0, &mut look)?;
        read_rest(&mut *self.from.store, &mut look)?;
        if count == 0 { Ok(()) } else { Err(Error::Unstorable { count, examples }) }
    }

    /// Waits until no run of the source is under way.
    fn await_runs(&mut self) -> Result<()> {
        let mut is_known = false;
        loop {
            let all = self.from.store.subscriptions()?;
            let running: Vec<ConsumerId> =
                all.into_iter().filter(|s| is_running(self.from, s)).map(|s| s.consumer).collect();
            if running.is_empty() {
                return Ok(());
            }
            if !std::mem::replace(&mut is_known, true) {
                (self.step)(Step::Awaits(&running));
            }
            std::thread::sleep(PAUSE.max(self.from.location().backend().poll_interval));
        }
    }
}

fn is_running(queue: &Queue, subscription: &Subscription) -> bool {
    subscription.state.phase == Phase::Running && at_work(&queue.files, subscription) != AtWork::Nobody
}

/// Returns those that were not paused before.
fn pause_all(queue: &mut Queue) -> Result<Vec<ConsumerId>> {
    // A thread that is closed already was paused by an earlier attempt.
    if queue.store.closed()?.is_some() {
        return Ok(Vec::new());
    }
    let mut paused = Vec::new();
    for subscription in queue.store.subscriptions()? {
        if subscription.state.paused {
            continue;
        }
        match control::pause(queue, &subscription.consumer) {
            // It was unsubscribed in the meantime.
            Err(Error::UnknownConsumer(_)) => {}
            done => {
                done?;
                paused.push(subscription.consumer);
            }
        }
    }
    Ok(paused)
}
