//! Retention: deleting what is older than the thread is to keep, as `thread config` says.
//!
//! There is no process for it. Any process that works in a thread for some time (a supervisor, a worker, the timer)
//! applies it on the side, and a push does so if nobody else has for long. A *pass* begins an hour or 10,000 events
//! after the last one, or when a setting has changed. It is done in pieces, each so short that a push that waits for it
//! hardly notices; any process may do the next one. It deletes only what is pending for no consumer and
//! not held, and no dead letters: each piece checks that again, as `prune` does. How far a pass has come is in the file
//! of its lock: a process that cannot read it begins the pass again.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use chrono::Utc;
use serde::{Deserialize, Serialize};

use super::Queue;
use crate::error::{Error, IoContext, Result};
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::files::watch::LOOK_EVERY;
use crate::files::{Access, Files, HANDLER_LOGS, LOG};
use crate::jsonl;
use crate::model::config::{Key, Retention};
use crate::model::time::{self, Time};
use crate::store::{PruneRange, PruneStep, Pruned};

/// The lock of the process that applies retention, with the state of the pass in it.
const STATE: &str = "run/_retention";

/// A pass begins this long after the last one, or so many events later.
const EVERY: Duration = Duration::from_secs(60 * 60);
const EVERY_EVENTS: i64 = 10_000;

/// The same where only steps and figures are left to be tidied up, and nothing happens.
const WHEN_QUIET: Duration = Duration::from_secs(24 * 60 * 60);

/// For how long a piece deletes events. With its commit it takes other writers about twice that time.
const DELETE_FOR: Duration = Duration::from_millis(2);

/// For how long a piece evaluates filters, which excludes nobody.
const LOOK_FOR: Duration = Duration::from_millis(5);

/// The pause between two pieces. Longer than a pusher's pause between two attempts to get the lock.
const PAUSE: Duration = Duration::from_millis(10);

/// The age of so many events is looked at in a piece.
const PAGE: usize = 500;

/// So many steps are deleted in a piece.
const STEPS: usize = 100;

/// So many minutes of figures are merged in a piece.
const MINUTES: usize = 200;

/// Longer than any time that this program writes, in bytes.
const LONGEST_TIME: u64 = 64;

/// After a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// Result of a [`step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The thread keeps everything.
    Off,
    /// Nothing is left to do before that time is over, or another process does it.
    Done(Duration),
    /// The same, and no events are deleted then.
    Rest(Duration),
    /// The next piece may follow after [`PAUSE`].
    More,
}

/// Applies the retention of a thread in a process that works there for some time.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// When to look again; at once, at first.
    next: Option<Instant>,
    /// The next pass is due then by the clock, whether or not something happens before.
    due: Option<Instant>,
    has_more: bool,
    keeps_events: bool,
}

impl Keeper {
    /// Does a piece, if it is time for one. A failure is logged.
    pub fn keep(&mut self, queue: &mut Queue) {
        let now = Instant::now();
        if let Some(next) = self.next.filter(|next| now < *next) {
            // A setting may have changed since the last look, and nothing may happen from now on.
            self.due = Some(self.due.map_or(next, |due| due.min(next)));
            return;
        }
        let step = step(queue);
        self.has_more = matches!(step, Ok(Step::More));
        self.keeps_events = matches!(step, Ok(Step::Rest(_) | Step::Off));
        let (pause, due) = match step {
            Ok(Step::More) => (PAUSE, Some(PAUSE)),
            Ok(Step::Done(left) | Step::Rest(left)) => (LOOK_EVERY, Some(left.max(LOOK_EVERY))),
            Ok(Step::Off) => (LOOK_EVERY, None),
            Err(e) if e.is_locked() || matches!(e, Error::LockTimeout(_)) => (LOOK_EVERY, Some(LOOK_EVERY)),
            Err(e) => {
                log!(queue, Warn, "retention: {e}");
                (AFTER_FAILURE, Some(AFTER_FAILURE))
            }
        };
        let now = Instant::now();
        self.next = Some(now + pause);
        self.due = due.map(|due| now + due);
    }

    /// When to call [`Keeper::keep`] at the latest, even if nothing happens in the thread.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The same for a thread among very many, in which nothing has happened since the pass before: there is nothing to
    /// do but to forget old steps and merge figures, which can wait.
    pub fn due_when_quiet(&self) -> Option<Instant> {
        let due = self.due?;
        Some(if self.keeps_events { due.max(Instant::now() + WHEN_QUIET) } else { due })
    }

    /// Whether the pass is not over.
    pub fn has_more(&self) -> bool {
        self.has_more
    }
}

impl Queue {
    /// The first event that this holder needs: no retention deletes it or a later one.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn hold(&mut self, holder: &str) -> Result<Option<i64>> {
        let held = self.store.config()?.remove(&*Key::Hold(holder).name());
        Ok(held.and_then(|id| id.parse().ok()))
    }

    /// Says which event is the first that this holder needs, or that it needs none. The holder is a name that a consumer
    /// could have; if one has it, its hold goes with it when it is unsubscribed.
    ///
    /// # Errors
    ///
    /// Those of the store: in PostgreSQL, the first setting of a schema needs the right to make the table for them.
    pub fn set_hold(&mut self, holder: &str, first: Option<i64>) -> Result<()> {
        if self.hold(holder)? != first {
            let first = first.map(|id| id.to_string());
            self.store.set_config(&Key::Hold(holder).name(), first.as_deref())?;
        }
        Ok(())
    }

    /// Applies the thread's retention if that is due, for about this time.
    ///
    /// # Errors
    ///
    /// Those of the store and the files. Nothing is deleted that a consumer needs; the next call continues.
    pub fn apply_retention(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while step(self)? == Step::More && Instant::now() < end {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Applies the retention of a thread in a directory after a push of `count` events, the last of which has the id
    /// `last`, if nobody has done so for long: a piece, or as many as it takes to delete more than was pushed.
    ///
    /// # Errors
    ///
    /// As [`Queue::apply_retention`].
    pub fn apply_retention_after_push(&mut self, last: i64, count: u64) -> Result<()> {
        // With a server, a pusher may lack the right to delete, and asking would take each push a round trip.
        if !self.location().backend().has_database_file {
            return Ok(());
        }
        let retention = Retention::of(&self.store.config()?);
        if (retention.is_default() && !self.store.has_figures()?)
            || State::stored(&self.files).is_some_and(|state| !state.is_overdue(&retention, last))
        {
            return Ok(());
        }
        let before = self.store.first_after(0)?.unwrap_or(last);
        while step(self)? == Step::More {
            let deleted = self.store.first_after(0)?.unwrap_or(last).saturating_sub(before);
            if count <= 1 || deleted.unsigned_abs() > count.saturating_mul(2) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// The state of a pass, or of the last one if none is under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    /// The settings that the last pass applied.
    applied: Option<String>,
    /// When it ended, in seconds since 1970, and the newest event then.
    at: i64,
    newest: i64,
    /// What the pass under way has looked at, and deleted.
    upto: i64,
    events: u64,
    bytes: u64,
}

impl State {
    fn read(file: &File) -> State {
        let mut bytes = [0; 1024];
        let length = file.read_at(&mut bytes, 0).unwrap_or(0);
        let text = bytes[..length].split(|byte| *byte == b'\n').next().unwrap_or_default();
        serde_json::from_slice(text).unwrap_or_default()
    }

    /// As it is stored; `None` if retention was never applied here.
    fn stored(files: &Files) -> Option<State> {
        files.open_file(STATE, Access::Read).ok().map(|file| State::read(&file))
    }

    fn write(&self, file: &File) -> io::Result<()> {
        // The rest of a longer state comes after the line.
        file.write_all_at(format!("{}\n", serde_json::to_string(self)?).as_bytes(), 0)
    }

    /// How long until the next pass begins; `None` if one is under way or due.
    fn rest(&self, config: &str, newest: i64) -> Option<Duration> {
        let is_same = self.applied.as_deref() == Some(config) && self.upto == 0;
        let has_few = (self.newest..self.newest.saturating_add(EVERY_EVENTS)).contains(&newest);
        let age = u64::try_from(Utc::now().timestamp() - self.at).ok()?;
        EVERY.checked_sub(Duration::from_secs(age)).filter(|left| is_same && has_few && !left.is_zero())
    }

    /// Whether a pass has been due for so long that nobody seems to begin it, or to go on with it, or a setting has
    /// changed since the last one.
    fn is_overdue(&self, retention: &Retention, newest: i64) -> bool {
        let age = Utc::now().timestamp().saturating_sub(self.at);
        self.applied.as_deref() != Some(&*settings(retention))
            || age < 0
            || age.unsigned_abs() >= 2 * EVERY.as_secs()
            || newest.abs_diff(self.newest) >= 2 * EVERY_EVENTS as u64
    }
}

/// The settings as they are compared.
fn settings(retention: &Retention) -> String {
    format!("{retention:?}")
}

/// Does a piece of a pass, if one is due.
fn step(queue: &mut Queue) -> Result<Step> {
    let config = queue.store.config()?;
    let retention = Retention::of(&config);
    let keeps_events = retention.keeps_all();
    let has_more_than_events = queue.store.has_steps()? || queue.store.has_figures()?;
    if (keeps_events && !has_more_than_events) || queue.store.closed()?.is_some() {
        return Ok(Step::Off);
    }
    let Some(lock) = Lock::try_take(&queue.files, STATE)? else { return Ok(Step::Done(LOOK_EVERY)) };
    let until = if keeps_events { Step::Rest } else { Step::Done };
    let mut state = State::read(lock.file());
    let config = settings(&retention);
    let newest = queue.store.newest()?;
    let done = match state.rest(&config, newest) {
        Some(left) => Ok(until(left)),
        None => forget_steps(queue, &retention).and_then(|has_more| {
            let has_more = has_more || queue.store.merge_figures(Utc::now(), MINUTES)?;
            let has_more = has_more || (!keeps_events && piece(queue, &retention, &mut state, newest)?);
            if !has_more {
                let files = if keeps_events { (0, 0) } else { remove_files(queue, &retention)? };
                log_pass(queue, &state, files);
                state =
                    State { applied: Some(config), at: Utc::now().timestamp(), newest, ..State::default() };
            }
            state.write(lock.file()).at("write", &queue.files.path_of(STATE))?;
            Ok(if has_more { Step::More } else { until(EVERY) })
        }),
    };
    lock.release();
    done
}

/// Deletes some steps whose events have been finished for long. Returns whether there may be more.
fn forget_steps(queue: &mut Queue, retention: &Retention) -> Result<bool> {
    let now = Utc::now();
    let (deleted, has_more) = queue.store.forget_steps(now, now - retention.of_steps(), STEPS)?;
    if deleted > 0 {
        log!(queue, Info, "retention: steps={deleted}");
    }
    Ok(has_more)
}

/// Deletes some events. Returns whether there are more.
fn piece(queue: &mut Queue, retention: &Retention, state: &mut State, newest: i64) -> Result<bool> {
    let Some(first) = queue.store.first_after(state.upto)? else { return Ok(false) };
    let after = first - 1;
    let (old, more_old) = last_old(queue, retention, after, newest)?;
    if old <= after {
        return Ok(false);
    }
    let unneeded = queue.unneeded(old, true, Some(Instant::now() + LOOK_FOR))?;
    if unneeded.upto <= after {
        return Ok(unneeded.cut_short);
    }
    jsonl::seal_before_retention(&queue.files, &mut *queue.store, unneeded.upto, LOOK_FOR)?;
    let range = PruneRange {
        after,
        upto: unneeded.upto,
        subtype: None,
        dead_letters: false,
        seen: Some(&unneeded.seen),
        dry_run: false,
        time: DELETE_FOR,
    };
    let reached = match queue.store.prune(&range)? {
        PruneStep::Overtaken => after,
        PruneStep::Upto(reached, Pruned { events, bytes, .. }) => {
            (state.upto, state.events, state.bytes) = (reached, state.events + events, state.bytes + bytes);
            reached
        }
    };
    queue.store.tidy()?;
    Ok(reached < unneeded.upto || unneeded.cut_short || (more_old && unneeded.held.is_none()))
}

/// The last event after `after` that is not to be kept, and whether there may be more than this one: the age of a page of
/// events is looked at.
fn last_old(queue: &mut Queue, retention: &Retention, after: i64, newest: i64) -> Result<(i64, bool)> {
    let beyond = retention.events.map_or(0, |events| newest.saturating_sub(events));
    let Some(age) = retention.age else { return Ok((beyond, false)) };
    let before = time::format(Utc::now() - age);
    let (mut last, mut old) = (after, 0);
    queue.store.read_capped(after, newest, PAGE, LONGEST_TIME, &mut |capped| {
        let stored = capped.row.created_at;
        // Left out if it is longer, which only another program can have stored.
        if stored.is_empty() || stored >= before.as_bytes() {
            return ControlFlow::Break(());
        }
        (last, old) = (capped.row.id, old + 1);
        ControlFlow::Continue(())
    })?;
    Ok((last.max(beyond), old == PAGE))
}

/// Deletes the files that are not to be kept, at the end of a pass. Returns their number and size.
fn remove_files(queue: &mut Queue, retention: &Retention) -> Result<(u64, u64)> {
    let (files, store) = (&queue.files, &mut *queue.store);
    let Some(age) = retention.logs else {
        return match files.location().backend().has_jsonl {
            true => jsonl::remove_sealed_of_deleted(files, store),
            false => Ok((0, 0)),
        };
    };
    let before = Utc::now() - age;
    let sealed = jsonl::remove_sealed(files, before, false).at("delete sealed files in", files.path())?;
    let in_use: Vec<_> = store.subscriptions()?.iter().map(|one| files.handler_log(&one.consumer)).collect();
    let mut removed = sealed;
    for dir in ["logs", HANDLER_LOGS] {
        let is_kept = |name: &Path| name == Path::new(LOG) || in_use.iter().any(|used| used == name);
        let (count, bytes) =
            remove_logs(files, dir, before, &is_kept).at("delete logs in", &files.path_of(dir))?;
        removed = (removed.0 + count, removed.1 + bytes);
    }
    Ok(removed)
}

/// Deletes the logs in a directory that were last written to before that time: those that are not in use, such as rotated
/// ones and those of consumers that are gone.
fn remove_logs(
    files: &Files,
    dir: &str,
    before: Time,
    is_kept: &dyn Fn(&Path) -> bool,
) -> io::Result<(u64, u64)> {
    let (mut count, mut bytes) = (0, 0);
    for name in files.list(dir)? {
        let name = Path::new(dir).join(name);
        if name.extension().is_none_or(|extension| extension != "log") || is_kept(&name) {
            continue;
        }
        if files.stat(&name).is_ok_and(|log| log.st_mtime < before.timestamp()) {
            (count, bytes) = (count + 1, bytes + files.size(&name));
            files.remove(&name)?;
        }
    }
    Ok((count, bytes))
}

fn log_pass(queue: &Queue, State { events, bytes, .. }: &State, (files, file_bytes): (u64, u64)) {
    if *events > 0 || files > 0 {
        log!(queue, Info, "retention: events={events} bytes={bytes} files={files} file_bytes={file_bytes}");
    }
}
