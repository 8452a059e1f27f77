//! What a thread holds and the state of its consumers, as `thread info` and other programs show them.

mod problems;
mod singly;
mod state;
mod workers;

use std::path::Path;
use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use rustix::fs::FileType;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

pub use self::problems::Problem;
#[cfg(feature = "cli")]
pub(crate) use self::problems::events_text;
pub use self::singly::{InHand, WaitingEvent};
pub use self::state::{ConsumerState, Namespace, Worker};
pub use self::workers::{EventHandler, Kind, RunUnderWay, event_handlers};
use crate::error::Result;
use crate::files::{DB, Files, WAL};
use crate::jsonl;
use crate::model::closed::Closed;
use crate::model::config::Retention;
use crate::model::duration;
use crate::model::figures::Figures;
use crate::model::run::{Deliver, Exit, Options, Phase, UNLIMITED};
use crate::model::subscription::{ConsumerId, HeldLease, NOTHING_ACKNOWLEDGED, Subscription};
use crate::model::time::{self, Time};
use crate::pending::{self, CountLimits, Counted};
use crate::queue::Queue;
use crate::run::attend;
use crate::run::dispatch;
use crate::run::due;
use crate::run::process::{AtWork, Liveness, at_work};

/// Minutes that begin in this time are the last sixty, with the one that is under way.
const LAST_HOUR: TimeDelta = TimeDelta::hours(1);

/// How long events may wait for a consumer without a handler before that is a problem.
const UNTAKEN: Duration = Duration::from_secs(5 * 60);

/// What a consumer does that [holds retention back](ConsumerStatus::holds_retention).
pub const HOLDS_RETENTION: &str = "keeps the thread from deleting events: its oldest pending event is more than twice \
                                   as old as `thread config` says";

/// Whether a thread keeps this pending event much longer than it is to keep events: it is older than twice the age, or
/// not among twice as many of the newest.
fn holds_retention(queue: &mut Queue, id: i64, stored_at: Option<&str>) -> Result<bool> {
    let Retention { age, events, .. } = Retention::of(&queue.store.config()?);
    let is_old = age.zip(stored_at.and_then(time::parse)).is_some_and(|(age, at)| at < Utc::now() - 2 * age);
    let newest = queue.store.newest()?;
    Ok(is_old || events.is_some_and(|most| id <= newest.saturating_sub(most.saturating_mul(2))))
}

/// How far to determine what is pending.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long to look for the oldest pending event.
    pub look_until: Option<Instant>,
    pub count: CountLimits,
    /// As in [`pending::count`].
    pub gapless: bool,
}

/// How many events a thread holds.
#[derive(Debug, Clone, Copy)]
pub struct EventRange {
    /// Without those that were pruned.
    pub count: u64,
    /// Whether they were counted; otherwise, there may be fewer.
    pub is_exact: bool,
    pub oldest: Option<i64>,
    /// The newest id ever assigned.
    pub newest: i64,
}

impl EventRange {
    /// Counts the events, unless there may be more than `most`.
    pub fn of(queue: &mut Queue, most: u64) -> Result<EventRange> {
        let store = &mut *queue.store;
        let (newest, oldest) = (store.newest()?, store.first_after(0)?);
        let ids = oldest.map_or(0, |oldest| newest.abs_diff(oldest) + 1);
        let is_exact = ids <= most;
        let count = if is_exact { store.count(0, i64::MAX)? } else { ids };
        Ok(EventRange { count, is_exact, oldest, newest })
    }

    /// Whether no id between the oldest event and the newest is known to be missing.
    pub fn is_gapless(&self) -> bool {
        self.is_exact && self.oldest.is_some_and(|oldest| self.newest.abs_diff(oldest) + 1 == self.count)
    }
}

/// Whether somebody attends to the wait of a consumer.
fn attendance(queue: &Queue, subscription: &Subscription) -> Liveness {
    // Who attends to it, if another machine did the run, is not known here.
    if subscription.ran_on.is_some() {
        return Liveness::Alive;
    }
    let is_new = || subscription.state.since.is_some_and(|since| (Utc::now() - since).num_seconds() < 1);
    // If the wait has just begun, they may be about to.
    loop {
        match attend::attendance(queue.files()) {
            Liveness::Dead if is_new() => std::thread::sleep(Duration::from_millis(5)),
            found => return found,
        }
    }
}

/// What `thread info` shows; as JSON, what `thread info --json` prints.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The thread's path or URL.
    pub thread: String,
    /// Where it was moved to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_to: Option<String>,
    /// An import into it is not complete.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub import_unfinished: bool,
    pub event_count: u64,
    /// The newest id ever assigned.
    pub last_event_id: i64,
    /// The same number, as the count of events ever stored.
    pub events_pushed: i64,
    pub subscriptions: Vec<ConsumerStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Scheduled>,
    #[serde(flatten)]
    pub disk: DiskUsage,
    #[serde(skip)]
    pub now: Time,
}

impl Report {
    /// `only`: leaves out all other consumers. `progress` as for [`ConsumerStatus::of`].
    ///
    /// # Errors
    ///
    /// There is no consumer `only`; errors of the store.
    pub fn of(
        queue: &mut Queue,
        only: Option<&ConsumerId>,
        count: CountLimits,
        progress: &dyn Fn(u64) -> Box<dyn FnMut(u64)>,
    ) -> Result<Report> {
        let (moved_to, import_unfinished) = match queue.closed()? {
            Some(Closed::Moved { to }) => (Some(to), false),
            Some(Closed::Importing { .. }) => (None, true),
            None => (None, false),
        };
        let range = EventRange::of(queue, u64::MAX)?;
        let limits = Limits { look_until: count.until, count, gapless: range.is_gapless() };
        let subscriptions = match only {
            Some(consumer) => vec![queue.subscription(consumer)?],
            None => queue.store.subscriptions()?,
        };
        let subscriptions =
            subscriptions.into_iter().map(|one| ConsumerStatus::of(queue, one, limits, progress));
        let mut subscriptions: Vec<ConsumerStatus> = subscriptions.collect::<Result<_>>()?;
        ConsumerStatus::count_last_hour(queue, &mut subscriptions)?;
        Ok(Report {
            moved_to,
            import_unfinished,
            subscriptions,
            thread: queue.location().as_os_str().to_string_lossy().into_owned(),
            event_count: range.count,
            last_event_id: range.newest,
            events_pushed: range.newest,
            scheduled: Scheduled::of(queue)?,
            disk: DiskUsage::of(queue.files()),
            now: Utc::now(),
        })
    }
}

/// Why what is scheduled will not come.
pub const SCHEDULED_UNATTENDED: &str =
    "nothing makes what is due events: run `thread dispatch`, or keep a worker";

/// What is to come by itself.
#[derive(Debug, Serialize)]
pub struct Scheduled {
    /// Scheduled events that are not due yet, or not made yet.
    pub events: u64,
    pub schedules: usize,
    /// The first of all; `None` if all schedules are paused.
    #[serde(serialize_with = "time::serialize")]
    pub next_due_at: Option<Time>,
    /// Whether somebody waits for it, as far as that can be known here.
    pub is_attended: bool,
}

impl Report {
    /// Whether something is scheduled, and nobody would make it an event.
    pub fn is_scheduled_in_vain(&self) -> bool {
        self.scheduled.as_ref().is_some_and(|scheduled| !scheduled.is_attended)
    }
}

impl Scheduled {
    /// `None` if there is nothing.
    fn of(queue: &mut Queue) -> Result<Option<Scheduled>> {
        let next = queue.next_due()?;
        let schedules = queue.store.schedules()?.len();
        if next.is_none() && schedules == 0 {
            return Ok(None);
        }
        let is_attended = next.is_none_or(|next| due::is_attended(queue, &next));
        let events = queue.store.count_scheduled()?;
        Ok(Some(Scheduled { events, schedules, next_due_at: next.and_then(|next| next.at), is_attended }))
    }
}

/// Sizes of a thread's files on this machine, in bytes. The first three are `None` for a thread that is not in a
/// directory, whose events share the tables of a server.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct DiskUsage {
    /// Of `events.db` alone.
    pub database_bytes: Option<u64>,
    pub wal_bytes: Option<u64>,
    /// Of the JSONL log with its sealed files.
    pub log_bytes: Option<u64>,
    /// Of the files in `logs/`: `thread.log`, handler output, and rotated parts of both.
    pub logs_bytes: u64,
    /// The sum of those that are known.
    pub disk_bytes: u64,
}

impl DiskUsage {
    pub fn of(files: &Files) -> DiskUsage {
        let backend = files.location().backend();
        let size = |name: &str| backend.has_database_file.then(|| files.size(name));
        let own = [size(DB), size(WAL), backend.has_jsonl.then(|| jsonl::size(files))];
        let logs_bytes = size_of_files(files, "logs") + size_of_files(files, "logs/handlers");
        let [database_bytes, wal_bytes, log_bytes] = own;
        let disk_bytes = own.into_iter().flatten().sum::<u64>() + logs_bytes;
        DiskUsage { database_bytes, wal_bytes, log_bytes, logs_bytes, disk_bytes }
    }
}

/// Total size of the regular files in a directory of the thread, in bytes.
fn size_of_files(files: &Files, dir: &str) -> u64 {
    let names = files.list(dir).unwrap_or_default();
    let stats = names.iter().filter_map(|name| files.stat(Path::new(dir).join(name)).ok());
    let of_files = stats.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    of_files.map(|stat| u64::try_from(stat.st_size).unwrap_or(0)).sum()
}

/// The settings of a subscription besides handler and filter, under the names of the options of `subscribe`: durations
/// as the options take them, and an absolute path. No limit is null.
pub type Settings = [(&'static str, Value); 14];

pub fn settings(files: &Files, cwd: Option<&Path>, options: &Options) -> Settings {
    [
        ("deliver", json!(options.deliver)),
        ("batch_size", json!(options.batch_size)),
        ("max_attempts", json!((options.max_attempts != UNLIMITED).then_some(options.max_attempts))),
        ("stall_after", json!(options.stall_after)),
        ("probe", json!(options.probe.map(duration::format))),
        ("backoff", json!(duration::format_list(&options.backoff))),
        ("timeout", json!(options.timeout.map(duration::format))),
        ("idle", json!((options.deliver == Deliver::Ndjson).then(|| duration::format(options.idle)))),
        ("concurrency", json!(options.concurrency)),
        ("key", json!(options.key)),
        ("ahead", json!(options.finishes_singly().then_some(options.ahead))),
        ("cwd", json!(cwd.map(|cwd| files.resolve(cwd).to_string_lossy().into_owned()))),
        ("env", json!(options.env)),
        ("clear_env", json!(options.clear_env)),
    ]
}

/// The state of a consumer, and what is pending for it. As JSON, an object of `thread info --json`.
#[derive(Debug)]
pub struct ConsumerStatus {
    /// The number of its filter's failures includes those that were found just now.
    pub subscription: Subscription,
    pub state: ConsumerState,
    pub pending: Counted,
    /// Id of the oldest pending event, and when it was stored.
    pub oldest: Option<(i64, Option<String>)>,
    /// Where events finish singly.
    pub in_hand: Option<InHand>,
    /// Because of its oldest pending event, the thread keeps much more than it is to keep.
    pub holds_retention: bool,
    /// What it has done in the last sixty minutes; see [`count_last_hour`](ConsumerStatus::count_last_hour).
    pub last_hour: Figures,
    pub settings: Settings,
}

fn lease_object(subscription: &Subscription, lease: &HeldLease) -> Value {
    let mut object = json!({
        "host": lease.host,
        "renewed_at": time::format(lease.renewed),
        "age_seconds": lease.age.as_secs_f64(),
    });
    if let Some(places) = subscription.places_of(lease) {
        object["places"] = places.into();
    }
    object
}

impl Serialize for ConsumerStatus {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let (s, Counted { events, at_least }) = (&self.subscription, self.pending);
        let mut object = json!({
            "consumer_id": s.consumer,
            "handler_cmd": s.handler_cmd,
            "filter": s.filter,
            "last_acked_id": s.last_acked_id,
            "updated_at": s.updated_at,
            "state": self.state.word(),
            "unattended": self.is_unattended(),
            "pending": (!at_least).then_some(events),
            "oldest_pending_id": self.oldest.as_ref().map(|(id, _)| id),
            "oldest_pending_at": self.oldest.as_ref().and_then(|(_, at)| at.as_deref()),
            "in_hand": self.in_hand,
            "holds_retention": self.holds_retention,
            "lease": s.leases.first().map(|lease| lease_object(s, lease)),
            "leases": s.leases.iter().map(|lease| lease_object(s, lease)).collect::<Vec<_>>(),
            "last_hour": {
                "handled": self.last_hour.handled,
                "failed": self.last_hour.failed,
                "dead": self.last_hour.dead,
                "p50_ms": self.last_hour.took.percentile(50),
                "p95_ms": self.last_hour.took.percentile(95),
            },
            "dead": s.dead,
            "filter_errors": s.filter_errors,
            "last_filter_error_id": (s.filter_errors > 0).then_some(s.filter_error_id),
            "runs_succeeded": s.state.succeeded,
            "runs_failed": s.state.failed,
            "dead_letters_made": s.state.dead_lettered,
            "expired": s.state.expired,
            "last_run_started_at": s.state.began.map(time::format),
            "last_run_ended_at": s.state.ended.map(time::format),
            "last_exit": s.state.last_exit.map(|exit| exit.to_string()),
            "last_exit_code": s.state.last_exit.and_then(Exit::code),
        });
        if at_least {
            object["pending_at_least"] = events.into();
        }
        for (name, value) in &self.settings {
            object[name] = value.clone();
        }
        for (name, value) in json!(self.state).as_object().into_iter().flatten() {
            object[name] = value.clone();
        }
        object.serialize(to)
    }
}

impl ConsumerStatus {
    /// Determines a consumer's status. `progress` is called with the number of ids to count; the function it
    /// returns is called with the number counted since its last call.
    pub fn of(
        queue: &mut Queue,
        mut subscription: Subscription,
        limits: Limits,
        progress: &dyn Fn(u64) -> Box<dyn FnMut(u64)>,
    ) -> Result<ConsumerStatus> {
        let at_work = loop {
            // Holding the lock between runs does not count as running.
            let at_work = match subscription.state.phase {
                Phase::Running | Phase::Waiting => at_work(queue.files(), &subscription),
                Phase::Idle | Phase::Stalled => AtWork::Nobody,
            };
            if at_work != AtWork::Nobody {
                break at_work;
            }
            // The run may have ended after the row was read, so read the row again if it has changed.
            match queue.store.subscription(&subscription.consumer)? {
                Some(now) if (&now.token, now.revision) != (&subscription.token, subscription.revision) => {
                    subscription = now;
                }
                _ => break at_work,
            }
        };
        let (mut pending, mut oldest, mut event_wait, mut is_full) = (Counted::default(), None, None, false);
        let broken = match pending::checked_filter(&subscription) {
            Err(e) => Some(e),
            Ok(_) => {
                // The look stores the scan watermark and finds the first match, where the count starts.
                let scan = queue.scan_pending(&subscription, limits.look_until)?;
                event_wait = scan.wait;
                is_full = scan.is_full;
                pending.at_least = scan.cut_short;
                subscription.filter_errors += scan.failures.len() as i64;
                if let Some(last) = scan.failures.last() {
                    subscription.filter_error_id = last.id;
                }
                if let Some(first) = scan.first {
                    let mut advance = progress(scan.newest.abs_diff(first));
                    pending = pending::count(
                        &mut *queue.store,
                        &subscription,
                        first,
                        limits.gapless,
                        limits.count,
                        &mut *advance,
                    )?;
                    oldest = Some((first, queue.store.stored_at(first)?));
                }
                dispatch::check(queue.files(), &subscription).err()
            }
        };
        let broken = broken.map(|e| e.to_string());
        let waits = subscription.state.phase == Phase::Waiting || event_wait.is_some();
        let attendance = if waits { attendance(queue, &subscription) } else { Liveness::Alive };
        let at_work = if attendance == Liveness::Unknown { AtWork::Elsewhere } else { at_work };
        let is_attended = attendance != Liveness::Dead;
        let is_pending = pending != Counted::default();
        let state =
            ConsumerState::of(&subscription, at_work, broken, is_pending, event_wait.as_ref(), is_attended);
        let settings = settings(queue.files(), subscription.cwd.as_deref(), &subscription.options);
        let in_hand = InHand::of(queue, &subscription, is_full)?;
        let holds_retention = match &oldest {
            Some((id, at)) => holds_retention(queue, *id, at.as_deref())?,
            None => false,
        };
        let last_hour = Figures::default();
        Ok(ConsumerStatus {
            subscription,
            state,
            pending,
            oldest,
            in_hand,
            holds_retention,
            last_hour,
            settings,
        })
    }

    /// Fills in what they have done in the last hour.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn count_last_hour(queue: &mut Queue, all: &mut [ConsumerStatus]) -> Result<()> {
        for counted in queue.store.figures((Utc::now() - LAST_HOUR).timestamp())? {
            let is_its =
                |one: &&mut ConsumerStatus| Some(&one.subscription.consumer) == counted.consumer.as_ref();
            if let Some(one) = all.iter_mut().find(is_its) {
                one.last_hour += &counted.figures;
            }
        }
        Ok(())
    }

    /// When the oldest pending event was stored. `None` if nothing is pending.
    fn oldest_at(&self) -> Option<Time> {
        time::parse(self.oldest.as_ref()?.1.as_deref()?)
    }

    /// Age of the oldest pending event; 0 if the clock was set back. `None` if there is none.
    pub fn oldest_age(&self, now: Time) -> Option<Duration> {
        Some((now - self.oldest_at()?).to_std().unwrap_or_default())
    }

    /// Since when the pending events of a consumer without a handler have not been taken, if that is long.
    pub fn untaken_since(&self, now: Time) -> Option<Time> {
        let is_taken = self.in_hand.as_ref().is_some_and(|in_hand| in_hand.in_flight + in_hand.waiting > 0);
        if self.subscription.has_handler() || is_taken || self.state != ConsumerState::Idle {
            return None;
        }
        let moved = self.subscription.updated_at.as_deref().and_then(time::parse);
        let since = self.oldest_at()?.max(moved.unwrap_or_default());
        (now - since).to_std().is_ok_and(|age| age >= UNTAKEN).then_some(since)
    }

    /// What to say about the consumer's last runs, for people.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if matches!(self.state, ConsumerState::Stalled { .. })
            && self.subscription.state.phase == Phase::Stalled
        {
            notes.push(format!("`thread resume {}` starts it again", self.subscription.consumer));
        }
        if self.holds_retention {
            notes.push(format!("{HOLDS_RETENTION}; `thread unsubscribe` it if it is forgotten"));
        }
        if self.is_unattended() {
            notes.push("nothing is waiting to retry it: run `thread dispatch`, or keep a worker".to_owned());
        }
        if self.in_hand.as_ref().is_some_and(|in_hand| in_hand.is_full) {
            let most = self.subscription.options.ahead;
            notes.push(format!(
                "nothing new starts: {most} events are unfinished, the most that --ahead allows"
            ));
        }
        if self.subscription.acknowledged_nothing() {
            notes.push(NOTHING_ACKNOWLEDGED.to_owned());
        }
        notes
    }

    /// Whether nothing ends its wait: see [`ConsumerState::Waiting`].
    pub fn is_unattended(&self) -> bool {
        matches!(self.state, ConsumerState::Waiting { reason: Some(_), .. })
    }
}
