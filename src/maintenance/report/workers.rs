//! Who handles the events of threads, as `thread workers` shows it.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::Utc;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::files::host;
use crate::model::ledger::Claim;
use crate::model::location::Location;
use crate::model::run::{Crew, Phase, ProcessId, Task};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::model::time::{self, Time};
use crate::queue::Queue;
use crate::run::process::{AtWork, Liveness, ancestors, at_work, supervisor_of};
use crate::run::workers::workers;
use crate::store::RecordedWorker;

/// A worker on another machine that has not been seen for so long is lost: it should have been twice.
const LOST_AFTER: Duration = Duration::from_secs(150);

/// What a process that handles events is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `thread dispatch --follow`.
    Worker,
    /// The supervisor of runs that no such worker has started.
    Supervisor,
    /// A handler whose supervisor was killed.
    Handler,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Worker => "worker",
            Kind::Supervisor => "supervisor",
            Kind::Handler => "handler",
        }
    }
}

/// A process that handles events of threads.
#[derive(Debug)]
pub struct EventHandler {
    pub kind: Kind,
    pub host: String,
    pub pid: Option<u32>,
    pub since: Option<Time>,
    /// When it was last seen, and how long ago; `None` if that is not known here.
    pub seen: Option<(Time, Duration)>,
    /// How many of the threads that were asked about it works for.
    pub threads: usize,
    pub runs: Vec<RunUnderWay>,
    process: Option<ProcessId>,
}

/// A run that has not ended.
#[derive(Debug, Clone)]
pub struct RunUnderWay {
    pub thread: Location,
    pub consumer: ConsumerId,
    pub attempt: u32,
    pub since: Option<Time>,
    /// How many events it has, and the last of them; `None` if its handler pops.
    pub events: Option<u64>,
    pub upto: Option<i64>,
}

impl EventHandler {
    /// Whether it has not been seen for long, and may be gone.
    pub fn is_lost(&self) -> bool {
        self.kind == Kind::Worker && self.seen.is_some_and(|(_, age)| age >= LOST_AFTER)
    }

    pub fn as_json(&self) -> Value {
        json!({
            "kind": self.kind.word(),
            "host": self.host,
            "pid": self.pid,
            "since": self.since.map(time::format),
            "last_seen": self.seen.map(|(at, _)| time::format(at)),
            "age_seconds": self.seen.map(|(_, age)| age.as_secs_f64()),
            "lost": self.is_lost(),
            "threads": self.threads,
            "runs": self.runs.iter().map(RunUnderWay::as_json).collect::<Vec<_>>(),
        })
    }
}

impl RunUnderWay {
    /// How long it has taken so far; zero if the clock was set back.
    pub fn duration(&self) -> Option<Duration> {
        Some((Utc::now() - self.since?).to_std().unwrap_or_default())
    }

    fn as_json(&self) -> Value {
        json!({
            "thread": self.thread.as_os_str().to_string_lossy(),
            "consumer_id": self.consumer.as_str(),
            "attempt": self.attempt,
            "since": self.since.map(time::format),
            "seconds": self.duration().map(|taken| taken.as_secs_f64()),
            "events": self.events,
            "upto": self.upto,
        })
    }
}

/// Who handles events of these threads: workers first, those that began first at the beginning. A thread that is gone
/// is left out, unless it is the only one.
///
/// # Errors
///
/// One of them cannot be read.
pub fn event_handlers(threads: &[Location]) -> Result<Vec<EventHandler>> {
    let mut all = Vec::new();
    for location in threads {
        match Queue::open(location) {
            Ok(mut queue) => add(&mut queue, &mut all)?,
            Err(Error::NotAThread(_)) if threads.len() > 1 => {}
            Err(e) => return Err(e),
        }
    }
    all.sort_by_key(|one| (one.kind != Kind::Worker, one.since));
    Ok(all)
}

/// Adds those of one thread.
fn add(queue: &mut Queue, all: &mut Vec<EventHandler>) -> Result<()> {
    for RecordedWorker { process, host, since, seen } in workers(queue)? {
        match all.iter_mut().find(|one| one.kind == Kind::Worker && one.process.as_ref() == Some(&process)) {
            Some(known) => known.threads += 1,
            None => all.push(EventHandler {
                kind: Kind::Worker,
                host,
                pid: Some(process.pid),
                since: Some(since),
                seen,
                threads: 1,
                runs: Vec::new(),
                process: Some(process),
            }),
        }
    }
    for subscription in queue.subscriptions()? {
        let (subscription, who) = settled(queue, subscription)?;
        if who == AtWork::Nobody {
            continue;
        }
        let runs = runs(queue, &subscription)?;
        let parts = parts(&subscription);
        if parts.len() < 2 {
            let of = handler_of(queue, &subscription, who, all);
            all[of].runs.extend(runs.into_iter().map(|(_, run)| run));
            continue;
        }
        for (machine, part) in parts {
            let who = at_work(queue.files(), &part);
            if who != AtWork::Nobody {
                let of = handler_of(queue, &part, who, all);
                let own = runs.iter().filter(|(of, _)| of.as_ref() == Some(&machine));
                all[of].runs.extend(own.map(|(_, run)| run.clone()));
            }
        }
    }
    Ok(())
}

/// A pool as each of the machines that share it has it.
fn parts(subscription: &Subscription) -> Vec<(String, Subscription)> {
    let part = |(machine, crew): (&String, &Crew)| {
        let leases = subscription.leases.iter().filter(|lease| lease.machine.as_ref() == Some(machine));
        let mut part = Subscription { leases: leases.cloned().collect(), ..subscription.clone() };
        let is_elsewhere = subscription.elsewhere.contains(machine);
        part.held_by = part.leases.first().filter(|_| is_elsewhere).map(|lease| lease.host.clone());
        (part.state.supervisor, part.state.home) = (crew.supervisor.clone(), crew.home);
        part.state.since = crew.since;
        (machine.clone(), part)
    };
    subscription.state.crews.iter().map(part).collect()
}

/// The process at work for a consumer that is recorded as running. The run may have ended after its row was read.
fn settled(queue: &mut Queue, mut subscription: Subscription) -> Result<(Subscription, AtWork)> {
    loop {
        if subscription.state.phase != Phase::Running {
            return Ok((subscription, AtWork::Nobody));
        }
        let at_work = at_work(queue.files(), &subscription);
        match queue.find_subscription(&subscription.consumer)? {
            Some(now) if at_work == AtWork::Nobody && now.revision != subscription.revision => {
                subscription = now;
            }
            _ => return Ok((subscription, at_work)),
        }
    }
}

/// Whose run it is, by its place in the list: a worker's, or of a process that is added.
fn handler_of(
    queue: &Queue,
    subscription: &Subscription,
    at_work: AtWork,
    all: &mut Vec<EventHandler>,
) -> usize {
    let supervisor = subscription.state.supervisor.as_ref();
    let liveness = supervisor_of(queue.files(), subscription);
    let above = match (liveness, supervisor) {
        (Liveness::Alive, Some(supervisor)) => ancestors(supervisor.pid),
        _ => Vec::new(),
    };
    let is_its_worker = |one: &EventHandler| {
        let Some(worker) = one.process.as_ref().filter(|_| one.kind == Kind::Worker) else { return false };
        match (liveness, supervisor) {
            (Liveness::Alive, _) => worker.is_here() && above.contains(&worker.pid),
            // Elsewhere, it is not known which of several workers on that machine it is.
            (Liveness::Unknown, Some(supervisor)) => {
                (&worker.boot, worker.namespace) == (&supervisor.boot, supervisor.namespace)
            }
            _ => false,
        }
    };
    if let Some(at) = all.iter().position(is_its_worker) {
        return at;
    }
    let pid = match at_work {
        AtWork::Process(_) if liveness == Liveness::Alive => supervisor.map(|process| process.pid),
        AtWork::Process(pid) => Some(pid),
        _ => supervisor.map(|process| process.pid),
    };
    let lease = subscription.leases.first();
    let is_known = matches!(at_work, AtWork::Process(_));
    all.push(EventHandler {
        kind: if liveness == Liveness::Dead { Kind::Handler } else { Kind::Supervisor },
        host: lease.map(|lease| lease.host.clone()).or(subscription.held_by.clone()).unwrap_or_else(host),
        pid,
        since: subscription.state.since,
        seen: lease
            .map(|lease| (lease.renewed, lease.age))
            .or(is_known.then(|| (Utc::now(), Duration::ZERO))),
        threads: 1,
        runs: Vec::new(),
        process: supervisor.cloned(),
    });
    all.len() - 1
}

/// What is under way for a consumer that is running: in a pool, that may be several runs. Each with the machine that has
/// claimed its events, where several may.
fn runs(queue: &mut Queue, subscription: &Subscription) -> Result<Vec<(Option<String>, RunUnderWay)>> {
    let state = &subscription.state;
    let (events, upto) = match state.task {
        Some(Task::Batch(last)) => (Some(state.batch), Some(last)),
        Some(Task::Single(id) | Task::DeadLetter(id)) => (Some(1), Some(id)),
        Some(Task::Pool) => (Some(state.batch), None),
        Some(Task::Wake) | None => (None, None),
    };
    let whole = RunUnderWay {
        thread: queue.location().clone(),
        consumer: subscription.consumer.clone(),
        attempt: state.attempts,
        since: state.since,
        events,
        upto,
    };
    if !subscription.options.is_pool() {
        return Ok(vec![(None, whole)]);
    }
    let ledger = queue.store.ledger(&subscription.consumer)?;
    // 0 is that of programs which take events by themselves.
    let taken = ledger.claims().values().filter(|claim| claim.place > 0);
    let places: BTreeSet<(Option<&str>, u32)> =
        taken.map(|claim| (claim.machine.as_deref(), claim.place)).collect();
    let of_place = |at: (Option<&str>, u32)| {
        let is_there = move |claim: &Claim| (claim.machine.as_deref(), claim.place) == at;
        let claims = || ledger.claims().iter().filter(move |(_, claim)| is_there(claim));
        let tried = |id: &i64| ledger.waits().get(id).map_or(0, |wait| wait.attempts);
        let run = RunUnderWay {
            thread: whole.thread.clone(),
            consumer: whole.consumer.clone(),
            attempt: if claims().count() == 1 {
                claims().map(|(id, _)| tried(id)).sum::<u32>() + 1
            } else {
                1
            },
            since: claims().map(|(_, claim)| claim.since).min(),
            events: Some(claims().count() as u64),
            upto: claims().map(|(id, _)| *id).max(),
        };
        (at.0.map(str::to_owned), run)
    };
    // Handlers that are kept claim nothing, unless other machines have some, too.
    Ok(if places.is_empty() { vec![(None, whole)] } else { places.into_iter().map(of_place).collect() })
}
