//! The rule for runs: what follows the end of a run whose exit code answers for all its events.

use crate::model::{Consumer, Kind, Letter, Phase, Task, Time, Why};
use crate::rules::{Allowed, End, idle};

const BAD: Option<i64> = Some(65);
const NOT_NOW: Option<i64> = Some(75);

/// So many events in a row may be bad.
const MOST_BAD: i64 = 100;

pub fn end(c: &mut Consumer, end: &End) -> Allowed {
    if c.state.phase != Phase::Running {
        return Err("no run ends twice");
    }
    let before = c.state.clone();
    let task = before.task.ok_or("a run without a task")?;
    let is_rewound = c.rewinds != before.start_rewinds;
    let is_stopped = before.stop.is_some();
    // Acknowledged by exit 0, or skipped.
    let upto = match task {
        _ if is_rewound => None,
        Task::Batch(last) | Task::Single(last) if end.exit == Some(0) => Some(last),
        Task::Batch(last) | Task::Single(last) if before.stop == Some(true) => Some(last),
        Task::Wake if before.stop == Some(true) => Some(before.start_newest),
        _ => None,
    };
    c.cursor = c.cursor.max(upto.unwrap_or(0));
    let (open, pending) = (c.open().next().is_some(), end.sees_pending);
    if pending && !open && !c.has_retry() {
        return Err("nothing is pending");
    }
    if !pending && (c.has_retry() || c.open().any(|id| c.events[&id].at < end.at)) {
        return Err("something is pending");
    }
    let is_cut = is_stopped || (end.is_interrupted && upto.is_none());
    let is_letter = matches!(task, Task::Letter(_));
    let has_succeeded = end.exit == Some(0) && !is_cut;
    let is_deferred = end.exit == NOT_NOW && !is_cut;
    idle(c);
    c.state.ended = Some(end.at);
    c.state.deferred = 0;
    c.state.succeeded += i64::from(has_succeeded);
    c.state.failed += i64::from(!has_succeeded && !is_cut && !is_deferred);
    if has_succeeded && task != Task::Wake && !is_rewound {
        (c.state.dead_streak, c.state.judged_streak) = (0, 0);
    }
    if let Task::Letter(id) = task {
        if end.exit == Some(0) {
            c.letters.remove(&id);
        } else if !is_cut
            && !is_deferred
            && let Some(letter) = c.letters.get_mut(&id)
        {
            *letter = Letter { attempts: letter.attempts + 1, retry: false };
        }
    }
    if is_cut {
        c.state.attempts = (before.attempts - i64::from(!is_letter)).max(0);
        if is_stopped {
            c.letters.values_mut().for_each(|letter| letter.retry = false);
            c.state.start_newest = before.start_newest.max(end.newest);
            stall(c, Why::Stopped);
        }
        return Ok(());
    }
    if is_deferred && pending {
        c.state.attempts = (before.attempts - i64::from(!is_letter)).max(0);
        c.state.deferred = before.deferred + 1;
        let wait = c.options.backoff(c.state.deferred);
        return wait_for(c, end.at, wait);
    }
    if let (Task::Batch(last) | Task::Single(last), false) = (task, has_succeeded) {
        c.state.single_upto = before.single_upto.max(last);
    }
    if is_letter {
        return Ok(());
    }
    if !pending || c.cursor > before.start_cursor {
        c.state.attempts = 0;
        return Ok(());
    }
    let wait = c.options.backoff(before.attempts);
    let is_last = c.options.attempts.is_some_and(|most| before.attempts >= most);
    let is_bad = end.exit == BAD && !is_rewound;
    match (task, end.exit) {
        (_, Some(126 | 127)) => stall(c, Why::GaveUp),
        (Task::Batch(_), _) => {
            c.state.attempts = 0;
            if !is_bad {
                return wait_for(c, end.at, wait);
            }
        }
        (Task::Single(id), _) if is_bad || (is_last && !is_rewound) => {
            let is_over = match is_bad {
                true => before.judged_streak >= MOST_BAD,
                false => c.options.stall_after.is_some_and(|most| before.dead_streak >= most),
            };
            if is_over {
                stall(c, Why::GaveUp);
                return Ok(());
            }
            c.letters.insert(id, Letter { attempts: before.attempts, retry: false });
            c.cursor = c.cursor.max(id);
            c.state.attempts = 0;
            c.state.dead += 1;
            c.state.judged_streak += i64::from(is_bad);
            c.state.dead_streak += i64::from(!is_bad);
        }
        _ if is_last => stall(c, Why::GaveUp),
        _ => return wait_for(c, end.at, wait),
    }
    Ok(())
}

fn stall(c: &mut Consumer, why: Why) {
    (c.state.phase, c.state.reason) = (Phase::Stalled, Some(why));
}

fn wait_for(c: &mut Consumer, at: Time, wait: Time) -> Allowed {
    (c.state.phase, c.state.since, c.state.next_try) = (Phase::Waiting, Some(at), Some(at + wait));
    Ok(())
}

/// A wait is stopped: what has come so far starts nothing.
pub fn stop_wait(c: &mut Consumer, skips: bool, newest: i64) -> Allowed {
    let is_waiting = c.state.phase == Phase::Waiting;
    let has_waits = c.options.kind.is_singly() && c.state.phase == Phase::Idle && !c.waits.is_empty();
    if !is_waiting && !has_waits {
        return Err("nothing waits");
    }
    if skips {
        if c.options.kind.is_singly() {
            for id in std::mem::take(&mut c.waits).into_keys() {
                crate::singly::finish(c, id);
            }
        } else {
            let is_apart = c.state.attempts == 0 && c.single_upto() > c.cursor;
            let upto = match c.options.kind {
                _ if is_apart => Some(c.single_upto()),
                Kind::Runs => c.open().next(),
                _ => Some(c.state.start_newest),
            };
            c.cursor = c.cursor.max(upto.unwrap_or(0));
        }
    }
    idle(c);
    c.letters.values_mut().for_each(|letter| letter.retry = false);
    c.state.start_newest = c.state.start_newest.max(newest);
    stall(c, Why::Stopped);
    Ok(())
}
