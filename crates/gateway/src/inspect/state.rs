//! One thread: its events, and the state of its consumers.

use std::time::{Duration, Instant};

use chrono::Utc;
use thread::Queue;
use thread::files::Files;
use thread::maintenance::report::{
    ConsumerState, ConsumerStatus, DiskUsage, EventRange, InHand as Found, Limits, Namespace, Worker,
};
use thread::model::run::{Deliver, RUNS_KEPT, Run, RunResult, UNLIMITED};
use thread::model::subscription::{ConsumerId, Subscription};
use thread::model::time::{self, Time};
use thread::pending::CountLimits;
use thread_conversation::CONSUMER;
use thread_protocol::Content;
use thread_sessions::Result;

use super::dto::{
    Consumer, ConsumerCounts, Figures, InHand, LastRun, Problem, RunUnderWay, Settings, State, Summary,
    Thread, ThreadKind, ToCome,
};
use super::rate::Rate;
use super::threads::{Target, ThreadId};
use super::{runs, series};

/// Events are counted if there are at most so many.
const COUNTED: u64 = 200_000;

/// For all consumers of a thread together: how long to look for what is pending in the list, and for one thread.
const LOOK_IN_LIST: Duration = Duration::from_millis(40);
const LOOK: Duration = Duration::from_millis(300);

/// How many pending events are counted, and for how long in all.
const MOST_PENDING: u64 = 1_000_000;
const COUNT_FOR: Duration = Duration::from_millis(300);

/// How many consumers the line about what needs attention names.
const NAMED: usize = 2;

/// What was found in a thread.
pub struct Looked {
    pub figures: Figures,
    pub statuses: Vec<ConsumerStatus>,
    /// The state may change although nothing is stored: something runs or waits, or was not determined in time.
    pub is_moving: bool,
    range: EventRange,
}

/// What a conversation is called, whether its agent waits for an answer, and whether it has anything to do.
pub struct Session {
    pub title: Option<String>,
    pub asks: bool,
    pub is_busy: bool,
}

impl Looked {
    /// An agent that asks comes before all else.
    pub fn note(&mut self, session: Option<&Session>) {
        let Some(session) = session else { return };
        let figures = &mut self.figures;
        if session.asks {
            let others = figures.attention.take().map(|others| format!("; {others}"));
            figures.attention = Some(format!("the agent asks for permission{}", others.unwrap_or_default()));
        }
        let mut agents = self.statuses.iter().filter(|one| one.subscription.consumer.as_str() == CONSUMER);
        figures.agent_is_idle = !session.is_busy && agents.any(|one| State::of(&one.state) == State::Running);
    }

    /// For the list: what is pending is not counted.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn briefly(queue: &mut Queue, rate: &mut Rate) -> Result<Looked> {
        let now = Instant::now();
        look(queue, rate, now + LOOK_IN_LIST, CountLimits { most: 0, until: Some(now) })
    }

    /// # Errors
    ///
    /// Errors of the thread.
    pub fn closely(queue: &mut Queue, rate: &mut Rate) -> Result<Looked> {
        let now = Instant::now();
        let count = CountLimits { most: MOST_PENDING, until: Some(now + LOOK + COUNT_FOR) };
        look(queue, rate, now + LOOK, count)
    }
}

fn look(queue: &mut Queue, rate: &mut Rate, until: Instant, count: CountLimits) -> Result<Looked> {
    let now = Utc::now();
    let range = EventRange::of(queue, COUNTED)?;
    rate.update(queue, now)?;
    let newest = queue.last_upto(i64::MAX)?;
    let newest_at = newest.map(|id| queue.stored_at(id)).transpose()?.flatten();
    let limits = Limits { look_until: Some(until), count, gapless: range.is_gapless() };
    let mut statuses = Vec::new();
    for subscription in queue.subscriptions()? {
        statuses.push(ConsumerStatus::of(queue, subscription, limits, &|_| Box::new(|_| {}))?);
    }
    // It is of use only for those that work.
    if statuses.iter().any(|one| one.state != ConsumerState::Idle || one.in_hand.is_some()) {
        ConsumerStatus::count_last_hour(queue, &mut statuses)?;
    }
    let counted = |state| statuses.iter().filter(|one| State::of(&one.state) == state).count() as u64;
    let reasons = reasons(&statuses, now);
    let consumers = ConsumerCounts {
        total: statuses.len() as u64,
        running: counted(State::Running),
        waiting: counted(State::Waiting),
        stalled: counted(State::Stalled),
        paused: counted(State::Paused),
        attention: reasons.len() as u64,
    };
    let oldest = statuses.iter().filter_map(|one| one.oldest.as_ref()?.1.clone()).min();
    // Those of consumers that were unsubscribed are not worth reading them all each time.
    let dead = statuses.iter().map(|one| one.subscription.dead.unsigned_abs()).sum();
    let is_cut = statuses.iter().any(|one| one.pending.at_least && one.oldest.is_none());
    let is_moving = consumers.running + consumers.waiting > 0 || is_cut;
    let figures = Figures {
        events: range.count,
        events_is_exact: range.is_exact,
        last_event_id: range.newest,
        newest_at,
        rate: rate.series(now),
        consumers,
        dead,
        scheduled: queue.count_scheduled()?,
        oldest_pending_at: oldest,
        attention: attention(reasons),
        agent_is_idle: false,
    };
    Ok(Looked { figures, statuses, is_moving, range })
}

/// Why its consumers need attention, a text for each that does, in the words of `thread info --check`.
fn reasons(statuses: &[ConsumerStatus], now: Time) -> Vec<String> {
    let mut reasons: Vec<String> = Vec::new();
    for one in statuses {
        let described = one.problems(now).into_iter().map(|(word, about)| match about.as_str() {
            "" => word.to_owned(),
            about => format!("{word} ({about})"),
        });
        let described: Vec<String> = described.collect();
        if !described.is_empty() {
            reasons.push(format!("{}: {}", one.subscription.consumer, described.join(", ")));
        }
    }
    reasons
}

/// The same in one line.
fn attention(mut reasons: Vec<String>) -> Option<String> {
    let more = reasons.len().saturating_sub(NAMED);
    reasons.truncate(NAMED);
    let named = reasons.join("; ");
    match (named.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(named),
        (false, more) => Some(format!("{named}; and {more} more")),
    }
}

/// The entry of a thread in the list.
pub fn summary(target: &Target, title: Option<String>, figures: Option<Figures>) -> Summary {
    let id = target.id.to_string();
    let (name, parent) = match &target.id {
        ThreadId::SubAgent(parent, name) => (name.clone(), Some(parent.to_string())),
        _ => (id.clone(), None),
    };
    Summary {
        id,
        kind: target.id.kind(),
        name,
        title,
        parent,
        path: target.location.as_os_str().to_string_lossy().into_owned(),
        unread: false,
        error: None,
        figures,
    }
}

/// A thread with its consumers, and whether its state may change although nothing is stored.
///
/// # Errors
///
/// Errors of the thread.
pub fn thread(
    target: &Target,
    session: Option<Session>,
    read_only: bool,
    queue: &mut Queue,
) -> Result<(Thread, bool)> {
    let mut looked = Looked::closely(queue, &mut Rate::by_minute())?;
    looked.note(session.as_ref());
    let title = session.and_then(|session| session.title);
    let now = Utc::now();
    let mut hours = Rate::by_hour();
    hours.update(queue, now)?;
    let first_at = looked.range.oldest.map(|id| queue.stored_at(id)).transpose()?.flatten();
    let mut consumers_state = Vec::with_capacity(looked.statuses.len());
    for status in &looked.statuses {
        consumers_state.push(consumer_form(queue, status)?);
    }
    let thread = Thread {
        summary: summary(target, title, Some(looked.figures)),
        read_only,
        size_bytes: DiskUsage::of(queue.files()).disk_bytes,
        first_at,
        rate_by_hour: hours.series(now),
        consumers_state,
        to_come: to_come(queue, target.id.kind())?,
    };
    Ok((thread, looked.is_moving))
}

/// How many scheduled events are shown, and how much of the content of each, in bytes.
const SHOWN: usize = 20;
const BEGINNING: usize = 200;

fn beginning(text: &str) -> String {
    text[..text.floor_char_boundary(BEGINNING)].to_owned()
}

fn to_come(queue: &mut Queue, kind: ThreadKind) -> Result<Vec<ToCome>> {
    // Messages of a session may be parts, with files.
    let readable = |content: &str| match kind {
        ThreadKind::Session => beginning(&Content::stored(content).text()),
        _ => beginning(content),
    };
    let schedules = queue.schedules()?.into_iter().map(|schedule| ToCome {
        next: schedule.next.filter(|_| !schedule.paused).map(time::format),
        rule: Some(schedule.timing.text()),
        kind: schedule.kind,
        content: readable(&schedule.content),
        id: schedule.name,
    });
    let scheduled = queue.scheduled(None, SHOWN)?.into_iter().map(|scheduled| ToCome {
        id: scheduled.id.to_string(),
        next: Some(time::format(scheduled.due)),
        rule: None,
        kind: scheduled.event.kind.as_str().to_owned(),
        content: readable(&scheduled.event.content),
    });
    Ok(schedules.chain(scheduled).collect())
}

/// A consumer as it is now.
///
/// # Errors
///
/// There is none of that name; errors of the thread.
pub fn consumer(queue: &mut Queue, id: &ConsumerId) -> Result<Consumer> {
    let subscription = queue.subscription(id)?;
    let gapless = EventRange::of(queue, COUNTED)?.is_gapless();
    let now = Instant::now();
    let count = CountLimits { most: MOST_PENDING, until: Some(now + LOOK + COUNT_FOR) };
    let limits = Limits { look_until: Some(now + LOOK), count, gapless };
    let mut all = [ConsumerStatus::of(queue, subscription, limits, &|_| Box::new(|_| {}))?];
    ConsumerStatus::count_last_hour(queue, &mut all)?;
    consumer_form(queue, &all[0])
}

fn consumer_form(queue: &mut Queue, status: &ConsumerStatus) -> Result<Consumer> {
    let s = &status.subscription;
    let state = State::of(&status.state);
    let runs = queue.runs(&s.consumer, if state == State::Stalled { RUNS_KEPT } else { series::RECENT })?;
    let last_runs = &runs[runs.len().saturating_sub(series::RECENT)..];
    let last_run = runs.last().map(|run| {
        let ended = runs::ended(run);
        let said = run.output.filter(|_| run.result != RunResult::Succeeded);
        LastRun {
            said: said.and_then(|span| runs::last_line(queue.files(), &s.consumer, span)),
            id: ended.id,
            started_at: ended.started_at,
            ended_at: ended.ended_at.unwrap_or_default(),
            outcome: ended.outcome,
            exit: ended.exit,
        }
    });
    let (worker, since, attempt, next_try) = match &status.state {
        ConsumerState::Running { worker, attempt, .. } => (Some(worker), s.state.since, Some(*attempt), None),
        ConsumerState::Waiting { elsewhere, attempt, next_try, .. } => {
            (elsewhere.as_ref(), s.state.since, Some(*attempt), *next_try)
        }
        ConsumerState::Stalled { attempt, .. } => (None, stalled_since(&runs, s), *attempt, None),
        ConsumerState::Idle | ConsumerState::Paused => (None, None, None, None),
    };
    let run = s.state.since.filter(|_| state == State::Running).map(|began| RunUnderWay {
        id: runs::id_of(began),
        started_at: time::format(began),
        attempt: s.state.attempts,
        pid: worker.and_then(|worker| if let Worker::Pid(pid) = worker { Some(*pid) } else { None }),
    });
    let (oldest_pending_id, oldest_pending_at) = status.oldest.clone().unzip();
    Ok(Consumer {
        name: s.consumer.as_str().to_owned(),
        state,
        paused: s.state.paused,
        reason: status.state.reason().map(str::to_owned),
        since: since.map(time::format),
        attempt: attempt.filter(|attempt| *attempt > 0),
        next_try: next_try.map(time::format),
        elsewhere: matches!(worker, Some(Worker::Namespace(Namespace::Other))),
        command: s.has_handler().then(|| s.handler_cmd.clone()),
        filter: s.filter_text().map(str::to_owned),
        cursor: s.last_acked_id,
        cursor_moved_at: s.updated_at.clone(),
        pending: status.pending.events,
        pending_is_exact: !status.pending.at_least,
        oldest_pending_id,
        oldest_pending_at: oldest_pending_at.flatten(),
        untaken_since: status.untaken_since(Utc::now()).map(time::format),
        run,
        last_run,
        dead: s.dead.unsigned_abs(),
        dead_to_retry: s.dead_to_retry.unsigned_abs(),
        filter_errors: s.filter_errors.unsigned_abs(),
        last_filter_error_id: (s.filter_errors > 0).then_some(s.filter_error_id),
        runs_succeeded: s.state.succeeded,
        runs_failed: s.state.failed,
        recent: series::recent(last_runs, s),
        in_hand: status.in_hand.as_ref().map(in_hand),
        notes: status.notes(),
        problems: problems(status),
        settings: settings(queue.files(), s),
    })
}

fn problems(status: &ConsumerStatus) -> Vec<Problem> {
    let all = status.problems(Utc::now()).into_iter();
    all.map(|(check, problem)| Problem { check: check.to_owned(), problem }).collect()
}

fn in_hand(found: &Found) -> InHand {
    let mut keys: Vec<String> =
        found.waits.iter().filter_map(|wait| Some(beginning(wait.key.as_deref()?))).collect();
    keys.dedup();
    InHand { in_flight: found.in_flight, waiting: found.waiting, keys, is_full: found.is_full }
}

/// When a stalled consumer gave up first: each newer event starts it again, which may have come to nothing as well.
/// `runs` are its last ones, in their order.
fn stalled_since(runs: &[Run], s: &Subscription) -> Option<Time> {
    let gave_up = |run: &Run| {
        run.result != RunResult::Stopped
            && (run.attempt >= s.options.max_attempts || matches!(run.exit, Some(126 | 127)))
    };
    let again = runs.windows(2).rev().take_while(|pair| {
        // By hand or after progress, the count of attempts starts again.
        pair.iter().all(gave_up) && pair[0].attempt.saturating_add(1) == pair[1].attempt
    });
    again.last().map(|pair| pair[0].ended).or(s.state.ended)
}

fn settings(files: &Files, subscription: &Subscription) -> Settings {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let options = &subscription.options;
    Settings {
        deliver: options.deliver.as_str().to_owned(),
        concurrency: options.concurrency,
        key: options.key.clone(),
        batch_size: options.batch_size,
        max_attempts: (options.max_attempts != UNLIMITED).then_some(options.max_attempts),
        stall_after: options.stall_after,
        probe_ms: options.probe.map(ms),
        idle_ms: (options.deliver == Deliver::Ndjson).then(|| ms(options.idle)),
        backoff_ms: options.backoff.iter().copied().map(ms).collect(),
        timeout_ms: options.timeout.map(ms),
        cwd: subscription.cwd.as_deref().map(|cwd| files.resolve(cwd).to_string_lossy().into_owned()),
        // Their values may be secrets.
        env: options.env.keys().cloned().collect(),
        clear_env: options.clear_env,
    }
}
