//! Runs of handlers: when they ran, how they ended, and what they printed.
//!
//! A run has no number; its id is the time at which it began, in microseconds: a consumer has one run at a time.

use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use chrono::Utc;
use thread::files::{Access, Files};
use thread::model::run::{Phase, RUNS_KEPT, Run as StoredRun, Span as Place, Task};
use thread::model::subscription::{ConsumerId, Subscription};
use thread::model::time::{self, Time};
use thread::pending::checked_filter;
use thread::queue::{Remaining, Selection};
use thread::run::process::{AtWork, at_work};
use thread::{After, Queue};
use thread_conversation::Entry;
use thread_sessions::{RequestError, Result};

use super::dto::{Event, Outcome, Run, RunDetail, RunPage};
use super::event;

/// How much of a run's output is shown, in bytes.
const OUTPUT: u64 = 256 * 1024;

/// How much of a log is searched for where a run begins that is under way, in bytes.
const SEARCHED: u64 = 4 * 1024 * 1024;

/// How much of the end of an output is searched for its last line, and the longest line that is shown.
const TAIL: u64 = 2048;
const LINE: usize = 200;

/// How many events that a run has handled are shown, and of those that were stored during it, of which so many are read.
const HANDLED: usize = 200;
const READ: usize = 5000;

/// The id of the run that began then.
pub fn id_of(began: Time) -> String {
    began.timestamp_micros().to_string()
}

/// A run that has ended.
pub fn ended(run: &StoredRun) -> Run {
    Run {
        id: id_of(run.began),
        started_at: time::format(run.began),
        ended_at: Some(time::format(run.ended)),
        duration_ms: u64::try_from(run.duration().as_millis()).unwrap_or(u64::MAX),
        attempt: run.attempt,
        events: run.events,
        first_event: Some(run.upto).filter(|_| run.events == Some(1)),
        last_event: Some(run.upto).filter(|upto| *upto > 0),
        outcome: Outcome::Ended(run.result),
        exit: run.exit,
        pid: None,
        has_output: run.output.is_some_and(|place| place.length > 0),
    }
}

/// The run of a consumer that is under way.
fn under_way(queue: &Queue, subscription: &Subscription) -> Option<(Run, Time)> {
    if subscription.state.phase != Phase::Running {
        return None;
    }
    let pid = match at_work(queue.files(), subscription) {
        AtWork::Process(pid) => Some(pid),
        AtWork::Elsewhere => None,
        AtWork::Nobody => return None,
    };
    let state = &subscription.state;
    let began = state.since?;
    let (events, last) = match state.task {
        Some(Task::Batch(last)) => (Some(state.batch), Some(last)),
        Some(Task::Single(id) | Task::DeadLetter(id)) => (Some(1), Some(id)),
        // The events it has acknowledged so far.
        Some(Task::Wake | Task::Pool) | None => {
            let acked = subscription.last_acked_id;
            (None, Some(acked).filter(|acked| *acked > state.start_cursor))
        }
    };
    let run = Run {
        id: id_of(began),
        started_at: time::format(began),
        ended_at: None,
        duration_ms: u64::try_from((Utc::now() - began).num_milliseconds()).unwrap_or(0),
        attempt: state.attempts,
        events,
        first_event: last.filter(|_| events == Some(1)),
        last_event: last,
        outcome: Outcome::Running,
        exit: None,
        pid,
        has_output: true,
    };
    Some((run, began))
}

/// Whether a consumer is, or was, subscribed.
///
/// # Errors
///
/// There is none of that name; errors of the thread.
fn check_known(queue: &mut Queue, id: &ConsumerId) -> Result<Option<Subscription>> {
    let subscription = queue.find_subscription(id)?;
    if subscription.is_none() && queue.runs(id, 1)?.is_empty() {
        return Err(RequestError::Thread(thread::Error::UnknownConsumer(id.clone())));
    }
    Ok(subscription)
}

/// Which runs of a consumer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Which {
    /// Only those that began before, in microseconds.
    pub before: Option<i64>,
    /// Only those that ended then or later, or are under way.
    pub from: Option<Time>,
    /// Only those that ended so, or are under way.
    pub outcome: Option<Outcome>,
    /// Those that took longest, of all that there are; else the newest.
    pub longest: bool,
}

/// A page of a consumer's runs.
///
/// # Errors
///
/// There is no such consumer; errors of the thread.
pub fn page(queue: &mut Queue, consumer: &ConsumerId, which: Which, limit: usize) -> Result<RunPage> {
    let Which { before, from, outcome, longest } = which;
    let subscription = check_known(queue, consumer)?;
    let now = subscription.and_then(|subscription| under_way(queue, &subscription)).map(|(run, _)| run);
    let past = queue.runs(consumer, RUNS_KEPT)?;
    let past = past.iter().rev().filter(|run| from.is_none_or(|from| run.ended >= from));
    let all = now.into_iter().chain(past.map(ended));
    let is_before = |run: &Run| before.is_none_or(|before| run.id.parse().is_ok_and(|id: i64| id < before));
    let is_meant = |run: &Run| is_before(run) && outcome.is_none_or(|outcome| run.outcome == outcome);
    let mut runs: Vec<Run> =
        all.filter(is_meant).take(if longest { usize::MAX } else { limit + 1 }).collect();
    if longest {
        runs.sort_by_key(|run| std::cmp::Reverse(run.duration_ms));
    }
    let more = runs.len() > limit && !longest;
    runs.truncate(limit);
    let next_before = runs.last().filter(|_| more).map(|run| run.id.clone());
    Ok(RunPage { runs, next_before })
}

/// One run with its output and its events.
///
/// # Errors
///
/// There is no such run, or none any more; errors of the thread.
pub fn one(queue: &mut Queue, consumer: &ConsumerId, id: &str) -> Result<RunDetail> {
    let subscription = check_known(queue, consumer)?;
    let missing = || {
        let what = format!("there is no run '{}' of '{consumer}'", id.escape_debug());
        RequestError::Unknown(format!("{what}; the last {RUNS_KEPT} are kept"))
    };
    let past = queue.runs(consumer, RUNS_KEPT)?;
    let now = subscription.as_ref().and_then(|subscription| under_way(queue, subscription));
    let found = past.iter().position(|run| id_of(run.began) == id);
    let (run, place, began, end, after) = match (found, now) {
        (Some(at), _) => {
            let run = &past[at];
            let before = at.checked_sub(1).map_or(0, |at| past[at].upto);
            (ended(run), run.output, run.began, Some(run.ended), before)
        }
        (None, Some((run, began))) if run.id == id => {
            let place = begin_of_output(queue.files(), consumer).ok().flatten();
            let before = subscription.as_ref().map_or(0, |subscription| subscription.state.start_cursor);
            (run, place, began, None, before)
        }
        _ => return Err(missing()),
    };
    let output =
        place.and_then(|place| Some((read_end(queue.files(), consumer, place, OUTPUT).ok()?, place)));
    let mut handled = handled(queue, subscription.as_ref(), &run, after)?;
    let stored = stored(queue, began, end, run.events.is_none().then_some(&mut handled))?;
    Ok(RunDetail {
        run,
        output_bytes: output.as_ref().map(|(_, place)| place.length),
        output_truncated: output.as_ref().is_some_and(|(_, place)| place.length > OUTPUT),
        output: output.map(|(text, _)| text),
        handled,
        stored,
    })
}

/// The events that a run was given or, if its handler pops, has acknowledged since the run before it.
fn handled(
    queue: &mut Queue,
    subscription: Option<&Subscription>,
    run: &Run,
    after: i64,
) -> Result<Vec<Event>> {
    let (Some(subscription), Some(last)) = (subscription, run.last_event) else { return Ok(Vec::new()) };
    if run.events == Some(1) {
        return Ok(event::shown(queue, last)?.into_iter().collect());
    }
    // A filter that is broken matches nothing.
    let Ok(filter) = checked_filter(subscription) else { return Ok(Vec::new()) };
    let (after, most) = match run.events {
        Some(count) => (0, usize::try_from(count).unwrap_or(HANDLED).min(HANDLED)),
        None => (after, HANDLED),
    };
    let until = Instant::now() + super::FILTER_TIME;
    let ids = match queue.newest_matching_until(filter.as_ref(), (after, last), most, until) {
        Ok(found) => found.ids,
        Err(thread::Error::SlowFilter { .. }) => Vec::new(),
        Err(e) => return Err(e.into()),
    };
    let mut all = Vec::with_capacity(ids.len());
    for id in ids {
        all.extend(event::shown(queue, id)?);
    }
    Ok(all)
}

/// The first events that were stored from the beginning of a run to its end, or to now. To those that a handler has
/// popped, the messages are added that it, as an agent, has begun to answer.
fn stored(
    queue: &mut Queue,
    began: Time,
    end: Option<Time>,
    popped: Option<&mut Vec<Event>>,
) -> Result<Vec<Event>> {
    let after = queue.about_last_before(began)?;
    let (end, until) = (end.map(time::format), Instant::now() + super::FILTER_TIME);
    let mut selection = Selection::from(After(after));
    let (mut read, mut shown, mut answered, mut is_over) = (0, Vec::new(), Vec::new(), false);
    while !is_over
        && queue.read_page_capped(&mut selection, event::CUT, &mut |capped| {
            let event = capped.row.to_event();
            is_over = read == READ || Instant::now() >= until;
            is_over |= end.as_ref().is_some_and(|end| event.created_at > *end);
            if is_over {
                return ControlFlow::Break(());
            }
            read += 1;
            if shown.len() < HANDLED {
                shown.push(event.id);
            }
            if let Entry::RunStarted { reply_to: Some(message), .. } = Entry::of(&event)
                && !answered.contains(&message)
            {
                answered.push(message);
            }
            ControlFlow::Continue(())
        })? == Remaining::Some
    {}
    if let Some(popped) = popped {
        answered.retain(|id| popped.iter().all(|event| event.id != *id));
        for id in answered {
            popped.extend(event::shown(queue, id)?);
        }
        popped.sort_unstable_by_key(|event| std::cmp::Reverse(event.id));
    }
    let mut events = Vec::with_capacity(shown.len());
    for id in shown {
        events.extend(event::shown(queue, id)?);
    }
    Ok(events)
}

/// The last line of an output.
pub fn last_line(files: &Files, consumer: &ConsumerId, place: Place) -> Option<String> {
    let text = read_end(files, consumer, place, TAIL).ok()?;
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().take(LINE).collect())
}

/// The last `most` bytes of a part of a consumer's log.
fn read_end(files: &Files, consumer: &ConsumerId, place: Place, most: u64) -> io::Result<String> {
    let length = place.length.min(most);
    let log = files.open_file(files.handler_log(consumer), Access::Read)?;
    let bytes = read_at(&log, place.offset + (place.length - length), length)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Fewer bytes if the file ends before.
fn read_at(file: &std::fs::File, mut offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset)? {
            0 => break,
            more => (read, offset) = (read + more, offset + more as u64),
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}

/// Where the output of the current run starts: after the last line that marks the start of a run. A handler may
/// print such a line itself, which is then mistaken for one.
fn begin_of_output(files: &Files, consumer: &ConsumerId) -> io::Result<Option<Place>> {
    let log = files.open_file(files.handler_log(consumer), Access::Read)?;
    let size = log.metadata()?.len();
    let from = size.saturating_sub(SEARCHED);
    let bytes = read_at(&log, from, size - from)?;
    let is_begin = |line: &[u8]| {
        line.starts_with(b"=== ") && line.windows(16).any(|part| part == b" begins attempt=".as_slice())
    };
    let mut end = bytes.len();
    while end > 0 {
        let start = bytes[..end - 1].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if is_begin(&bytes[start..end]) {
            let (offset, length) = (from + end as u64, (bytes.len() - end) as u64);
            return Ok(Some(Place { file: 0, offset, length }));
        }
        end = start;
    }
    // It has printed more than that.
    Ok((from > 0).then_some(Place { file: 0, offset: from, length: size - from }))
}
