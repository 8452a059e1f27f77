//! What may happen to a consumer, as a transition system: each action says when it is allowed, and what is stored then.
//!
//! This is written from SPEC.md, and shares nothing with the program.

use crate::model::{Claim, Consumer, Kind, Letter, Phase, State, Task, Time, Wait, Why};
use crate::{ends, singly};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct End {
    /// Not known if its supervisor was killed.
    pub exit: Option<i64>,
    pub at: Time,
    /// It was ended because its supervisor was to end.
    pub is_interrupted: bool,
    /// Whether anything was found to be pending then. What is pushed at the same moment may not be seen.
    pub sees_pending: bool,
    /// The newest event that was seen then.
    pub newest: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Somebody has stored an event that the consumer is to have.
    Pushed,
    /// What is stored already is stored once more: it is synced, or somebody asked for what is so already.
    Again,
    Begins {
        supervisor: String,
        at: Time,
        task: Task,
        batch: i64,
        newest: i64,
    },
    /// It is noted which process the handler is.
    Handler(String),
    /// A run that answers for all its events ends.
    Ends(End),
    /// A wait is over without a run: nothing is pending any more.
    NothingLeft,
    /// A consumer that is stalled is to be tried again.
    WaitBegins {
        at: Time,
        until: Time,
    },
    /// So far, there is nothing newer for a consumer that is stalled.
    NothingNewer(i64),
    Pause,
    /// Ends also the waits of events that there were when it was asked for.
    Resume {
        at: Time,
        is_under_way: bool,
        waits: Vec<i64>,
    },
    AskToStop {
        skips: bool,
    },
    StopWithdrawn,
    /// A wait is stopped.
    WaitEnds {
        skips: bool,
        newest: i64,
    },
    Seek(i64),
    Ack(i64),
    Retry(i64),
    Discard(i64),
    /// Where events finish singly: a run, or a program, has it from now on.
    Claims(i64, Claim),
    /// It is given back, as if it had not been given.
    GivesBack(i64),
    /// It is claimed for longer.
    Prolongs(i64, i64),
    Finishes(i64),
    Fails(i64, Wait),
    /// It fails, or is put off, and its supervisor does not know that somebody has changed its wait just now.
    AsKnown(i64, Wait),
    /// The same, where that was the last of so many attempts.
    BuriesAsKnown(i64, i64),
    PutsOff(i64, Wait),
    /// It failed with others, and is given alone from now on.
    SetsApart(i64, Wait),
    Buries(i64),
    /// Somebody lets an event wait that a run has. The run keeps it.
    ByHand(i64, Box<Action>),
    /// A dead letter was tried once more.
    LetterDone(i64),
    LetterFails(i64),
    /// What is counted: runs and events.
    Notes(Box<State>),
    /// The runs are over, or their supervisor was killed.
    Closes(Then),
}

/// What follows when no handler is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Then {
    Idle,
    Waits { since: Time, until: Time },
    Stalls(Why),
}

pub type Allowed = Result<(), &'static str>;

fn only_if(condition: bool, what: &'static str) -> Allowed {
    if condition { Ok(()) } else { Err(what) }
}

/// Times of waits and claims are stored without their microseconds.
const ROUNDED: Time = 1000;

/// Does it, if it is allowed. `newest` is the newest event of the thread.
pub fn apply(c: &mut Consumer, newest: i64, action: &Action) -> Allowed {
    match action {
        Action::Pushed | Action::Again => {}
        Action::Begins { supervisor, at, task, batch, newest: seen } => {
            only_if(*seen <= newest, "it has seen more than there is")?;
            begin(c, supervisor, *at, *task, *batch, *seen)?;
        }
        Action::Handler(handler) => {
            only_if(c.state.phase == Phase::Running, "a handler without a run")?;
            only_if(c.options.kind == Kind::Kept || c.state.handler.is_none(), "a second handler")?;
            c.state.handler = Some(handler.clone());
        }
        Action::Ends(end) => {
            only_if(end.newest <= newest, "it has seen more than there is")?;
            ends::end(c, end)?;
        }
        Action::NothingLeft => {
            only_if(c.state.phase == Phase::Waiting && !c.has_retry(), "it is still due")?;
            idle(c);
            c.state.attempts = 0;
        }
        Action::WaitBegins { at, until } => {
            only_if(
                c.state.phase == Phase::Stalled && !c.state.paused,
                "only what is stalled is tried again",
            )?;
            only_if(is_newer(c), "nothing is newer")?;
            only_if(at <= until, "the wait is over before it begins")?;
            (c.state.phase, c.state.since, c.state.next_try) = (Phase::Waiting, Some(*at), Some(*until));
        }
        Action::NothingNewer(upto) => {
            only_if(c.state.phase == Phase::Stalled && *upto <= newest, "it is not stalled")?;
            only_if(
                !c.open().any(|id| id > c.state.start_newest && id <= *upto),
                "there is something newer",
            )?;
            only_if(*upto > c.state.start_newest, "it was seen before")?;
            c.state.start_newest = *upto;
        }
        Action::Pause => c.state.paused = true,
        Action::Resume { at, is_under_way, waits } => {
            let s = &mut c.state;
            (s.paused, s.deferred, s.reason, s.next_try) = (false, 0, None, None);
            (s.dead_streak, s.judged_streak) = (0, 0);
            only_if(!is_under_way || s.phase == Phase::Running, "no run is under way")?;
            s.attempts = if *is_under_way { s.attempts.min(1) } else { 0 };
            s.phase = if *is_under_way { Phase::Running } else { Phase::Idle };
            let over = Wait { attempts: 0, deferred: 0, since: *at, until: *at };
            for id in waits {
                *c.waits.get_mut(id).ok_or("it does not wait")? = over;
            }
        }
        Action::AskToStop { skips } => {
            only_if(matches!(c.state.phase, Phase::Running | Phase::Waiting), "there is nothing to stop")?;
            c.state.stop = Some(*skips);
        }
        Action::StopWithdrawn => {
            only_if(c.state.stop.is_some(), "nobody asked for a stop")?;
            c.state.stop = None;
        }
        Action::WaitEnds { skips, newest: seen } => {
            only_if(*seen <= newest, "it has seen more than there is")?;
            ends::stop_wait(c, *skips, *seen)?;
        }
        Action::Seek(to) => {
            only_if((0..=newest).contains(to), "past the newest event")?;
            c.rewinds += i64::from(*to < c.cursor);
            if c.options.kind.is_singly() {
                c.rewinds += 1;
                (c.done, c.waits, c.claims) = Default::default();
            }
            c.cursor = *to;
        }
        Action::Ack(upto) => {
            only_if(!c.options.kind.is_singly(), "events finish singly")?;
            only_if(
                c.cursor < *upto && *upto <= newest,
                "an acknowledgement back, or past the newest event",
            )?;
            c.cursor = *upto;
        }
        Action::Retry(id) => letter(c, *id)?.retry = true,
        Action::Discard(id) => only_if(c.letters.remove(id).is_some(), "no such dead letter")?,
        Action::Notes(state) => note(c, state, newest)?,
        Action::Closes(then) => close(c, *then)?,
        _ => singly::apply(c, action)?,
    }
    Ok(())
}

pub fn letter(c: &mut Consumer, id: i64) -> Result<&mut Letter, &'static str> {
    c.letters.get_mut(&id).ok_or("no such dead letter")
}

/// Whether something has come since the last run of a consumer that is stalled.
fn is_newer(c: &Consumer) -> bool {
    c.has_retry() || c.open().any(|id| id > c.state.start_newest)
}

/// No run, wait or stall.
pub fn idle(c: &mut Consumer) {
    let s = &mut c.state;
    (s.phase, s.reason, s.next_try, s.supervisor) = (Phase::Idle, None, None, None);
    (s.handler, s.since, s.task, s.stop) = (None, None, None, None);
}

fn begin(c: &mut Consumer, supervisor: &str, at: Time, task: Task, batch: i64, seen: i64) -> Allowed {
    let s = &c.state;
    only_if(!s.paused, "it is paused")?;
    // What is idle was resumed since somebody asked for a stop.
    only_if(s.stop.is_none() || s.phase == Phase::Idle, "it is being stopped")?;
    match s.phase {
        Phase::Running => return Err("it is running: two runs at once"),
        Phase::Idle => {}
        Phase::Waiting => only_if(s.next_try.is_none_or(|next| next <= at), "it waits")?,
        Phase::Stalled if s.reason == Some(Why::Stopped) => only_if(is_newer(c), "it was stopped")?,
        Phase::Stalled => {
            let longest = c.options.backoff.iter().max().copied().unwrap_or(0);
            let waits = is_newer(c).then_some(longest).into_iter().chain(c.options.probe);
            let due = waits.min().and_then(|wait| s.ended.map(|ended| ended + wait));
            only_if(due.is_some_and(|due| due <= at), "it is stalled")?;
        }
    }
    only_if(c.open().next().is_some() || c.has_retry(), "nothing is pending")?;
    let single = c.single_upto();
    match task {
        Task::Wake => only_if(c.options.kind == Kind::Wake, "its handler gets its events")?,
        Task::Pool => only_if(c.options.kind.is_singly(), "its events finish together")?,
        Task::Letter(id) => only_if(letter(c, id)?.retry, "that dead letter is not to be retried")?,
        Task::Batch(last) | Task::Single(last) => {
            only_if(c.options.kind == Kind::Runs && !c.has_retry(), "a dead letter comes first")?;
            let first = c.open().next();
            let most = if first.is_some_and(|id| id <= single) { 1 } else { c.options.batch };
            only_if((1..=most).contains(&batch), "so many events at once")?;
            only_if((batch == 1) == matches!(task, Task::Single(_)), "one event or several")?;
            only_if(c.open().nth(batch as usize - 1) == Some(last), "those are not the oldest events")?;
        }
    }
    let is_past = c.cursor != c.state.start_cursor;
    let (cursor, rewinds) = (c.cursor, c.rewinds);
    let s = &mut c.state;
    s.attempts = if is_past { 0 } else { s.attempts };
    s.attempts += i64::from(!matches!(task, Task::Letter(_) | Task::Pool));
    (s.phase, s.supervisor, s.handler) = (Phase::Running, Some(supervisor.to_owned()), None);
    (s.since, s.task, s.batch) = (Some(at), Some(task), batch);
    (s.start_cursor, s.start_rewinds, s.start_newest, s.single_upto) = (cursor, rewinds, seen, single);
    (s.next_try, s.reason, s.stop) = (None, None, None);
    Ok(())
}

/// Where events finish singly, counts are collected.
fn note(c: &mut Consumer, after: &State, newest: i64) -> Allowed {
    let s = &mut c.state;
    only_if(after.succeeded >= s.succeeded && after.failed >= s.failed, "fewer runs than before")?;
    only_if(after.batch <= c.options.batch * c.options.places, "so many events at once")?;
    only_if(after.start_newest <= newest, "it has seen more than there is")?;
    (s.succeeded, s.failed, s.batch, s.start_newest) =
        (after.succeeded, after.failed, after.batch, after.start_newest);
    (s.single_upto, s.deferred, s.ended) = (after.single_upto, after.deferred, after.ended);
    (s.dead_streak, s.judged_streak) = (after.dead_streak, after.judged_streak);
    Ok(())
}

fn close(c: &mut Consumer, then: Then) -> Allowed {
    only_if(c.options.kind.is_singly(), "its runs end one by one")?;
    let is_stopped = c.state.stop.is_some();
    if c.options.kind != Kind::Claims {
        only_if(c.state.phase == Phase::Running, "no run ends twice")?;
        idle(c);
    }
    match then {
        Then::Idle => {
            only_if(!is_stopped, "it was to be stopped")?;
            idle(c);
        }
        Then::Waits { since, until } => {
            only_if(!is_stopped && since <= until, "it was to be stopped")?;
            (c.state.phase, c.state.since, c.state.next_try) = (Phase::Waiting, Some(since), Some(until));
        }
        Then::Stalls(why) => {
            only_if(why == Why::GaveUp || is_stopped, "nobody asked for a stop")?;
            (c.state.phase, c.state.reason) = (Phase::Stalled, Some(why));
            if is_stopped {
                c.letters.values_mut().for_each(|letter| letter.retry = false);
            }
        }
    }
    Ok(())
}

/// Whether two times may be the same one, of which one was rounded.
pub fn is_same_time(one: Time, other: Time) -> bool {
    (one - other).abs() <= ROUNDED
}
