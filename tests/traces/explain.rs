//! Which actions explain that one state follows another; if none do, the step is refused.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::model::{Claim, Consumer, Ended, Kind, Phase, State, Task, Thread, Wait};
use crate::rows::Stored;
use crate::rules::{Action, End, Then, apply};

/// A step that no action explains: of which consumer, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub consumer: String,
    pub why: String,
}

/// The actions that explain a step, each with its consumer.
pub type Steps = Vec<(String, Action)>;

/// What a trace has shown so far, besides the last state.
#[derive(Debug, Clone, Default)]
pub struct Checker {
    /// Batches of events that were pushed.
    pushed: HashSet<String>,
    /// Runs that have ended, by when they began, and their last events.
    ended: HashSet<(String, i64, i64)>,
    /// The tokens of claims.
    tokens: HashSet<String>,
    /// Of each event, the wait before its last change, of which a supervisor may not know.
    earlier: HashMap<(String, i64), Wait>,
    /// Whether a change of a consumer's runs has to be counted as one.
    pub counts: bool,
}

impl Checker {
    pub fn new(counts: bool) -> Checker {
        Checker { counts, ..Checker::default() }
    }

    /// The actions that lead from one state to the next, by consumer; none if the thread was only looked at.
    pub fn step(&mut self, before: &Thread, after: &Stored) -> Result<Steps, Refused> {
        let refused = |consumer: &str, why: String| Refused { consumer: consumer.to_owned(), why };
        self.pushes(before.newest, &after.events).map_err(|why| refused("", why))?;
        let mut all = Vec::new();
        if before.consumers.len() != after.thread.consumers.len() {
            return Err(refused("", "a consumer has come or gone".to_owned()));
        }
        for (name, to) in &after.thread.consumers {
            let mut from = before.consumers[name].clone();
            if from.events != to.events {
                if from.events.len() >= to.events.len() {
                    return Err(refused(name, "events are gone".to_owned()));
                }
                from.events = to.events.clone();
                all.push((name.clone(), Action::Pushed));
            }
            let ended = after.runs.get(name).map_or(&[][..], |runs| runs);
            let actions = self.explain(name, &from, to, ended, after.thread.newest);
            let actions = actions.map_err(|why| refused(name, why))?;
            for action in &actions {
                self.remember(name, &from, action).map_err(|why| refused(name, why))?;
            }
            all.extend(actions.into_iter().map(|action| (name.clone(), action)));
            to.must_be_sound(after.thread.newest).map_err(|why| refused(name, why.to_owned()))?;
        }
        let changed: HashSet<&String> = all.iter().map(|(name, _)| name).collect();
        let is_push = all.iter().all(|(_, action)| *action == Action::Pushed);
        if !is_push && (changed.len() > 1 || !after.events.is_empty()) {
            return Err(refused("", format!("{} changes in one step", all.len())));
        }
        Ok(all)
    }

    /// What an action says about later ones.
    fn remember(&mut self, name: &str, from: &Consumer, action: &Action) -> Result<(), String> {
        match action {
            Action::Claims(id, Claim { token: Some((token, _)), .. })
                if !self.tokens.insert(token.clone()) =>
            {
                return Err(format!("event {id} is claimed by a token of before"));
            }
            Action::AsKnown(id, wait) => {
                let known = self.earlier.get(&(name.to_owned(), *id)).copied().unwrap_or_default();
                let has_failed = wait.attempts == known.attempts + 1 && wait.deferred == 0;
                let is_put_off = wait.attempts == known.attempts && wait.deferred == known.deferred + 1;
                if !has_failed && !is_put_off {
                    return Err(format!("event {id} has failed {} times", wait.attempts));
                }
            }
            Action::BuriesAsKnown(id, attempts) => {
                let known = self.earlier.get(&(name.to_owned(), *id)).copied().unwrap_or_default();
                if known.attempts + 1 != *attempts {
                    return Err(format!("event {id} has failed {attempts} times"));
                }
            }
            Action::Resume { waits, .. } => waits.iter().for_each(|id| self.changes(name, from, *id)),
            Action::Fails(id, _) | Action::PutsOff(id, _) | Action::SetsApart(id, _) => {
                self.changes(name, from, *id);
            }
            Action::ByHand(id, _) => self.changes(name, from, *id),
            _ => {}
        }
        Ok(())
    }

    fn changes(&mut self, name: &str, from: &Consumer, id: i64) {
        let wait = from.waits.get(&id).copied().unwrap_or_default();
        self.earlier.insert((name.to_owned(), id), wait);
    }

    /// Each event says how many were pushed with it.
    fn pushes(&mut self, newest: i64, events: &[(i64, String)]) -> Result<(), String> {
        let Some((first, content)) = events.first() else { return Ok(()) };
        let (batch, rest) = content.split_once(": ").ok_or("an event of nobody")?;
        let count: usize = rest.split_once(" of ").and_then(|(_, count)| count.parse().ok()).unwrap_or(0);
        if *first != newest + 1 || events.len() != count || !self.pushed.insert(batch.to_owned()) {
            return Err(format!("event {first} is not a push of its own: {content}"));
        }
        for ((id, content), number) in events.iter().zip(1..) {
            if *content != format!("{batch}: {number} of {count}") || *id != newest + number {
                return Err(format!("event {id} is not of its push: {content}"));
            }
        }
        Ok(())
    }

    fn explain(
        &mut self,
        name: &str,
        from: &Consumer,
        to: &Consumer,
        ended: &[Ended],
        newest: i64,
    ) -> Result<Vec<Action>, String> {
        if self.counts && !(0..=1).contains(&(to.changes - from.changes)) {
            return Err(format!("{} changes in one step", to.changes - from.changes));
        }
        if to.runs != from.runs + ended.len() as i64 {
            return Err("a run is missing".to_owned());
        }
        for run in ended {
            if !self.ended.insert((name.to_owned(), run.began, run.upto)) {
                return Err(format!("a run ends twice: {run:?}"));
            }
        }
        let mut to = to.clone();
        // These two say nothing of what is allowed.
        to.runs = from.runs;
        if !self.counts {
            to.changes = from.changes;
        }
        if *from == to {
            return if ended.is_empty() { Ok(Vec::new()) } else { Err("a run of nobody".to_owned()) };
        }
        let mut why = Vec::new();
        for actions in candidates(from, &to, ended) {
            let mut reached = from.clone();
            let done = actions.iter().try_for_each(|action| {
                apply(&mut reached, newest, action).map_err(|why| format!("{action:?}: {why}"))
            });
            let counted = actions.iter().any(|action| is_counted(action, from.options.kind));
            reached.changes += i64::from(self.counts && counted);
            close_gap(&mut reached, &to);
            match done {
                Ok(()) if reached == to => return Ok(actions),
                Ok(()) => why.push(format!("{actions:?} leads to {}", difference(&reached, &to))),
                Err(refused) => why.push(refused),
            }
        }
        Err(format!("{}\n  from {from:?}\n  to   {to:?}", why.join("\n  ")))
    }
}

/// Whether an action changes what is stored of a consumer's runs, which is counted.
fn is_counted(action: &Action, kind: Kind) -> bool {
    match action {
        Action::Seek(_) => kind.is_singly(),
        Action::Pushed | Action::Ack(_) | Action::Retry(_) | Action::Discard(_) => false,
        _ => true,
    }
}

/// Where events finish singly, ids that the consumer is not to have may be passed or not.
fn close_gap(reached: &mut Consumer, to: &Consumer) {
    let next = reached.open().next().unwrap_or(i64::MAX);
    if reached.options.kind.is_singly() && (reached.cursor..next).contains(&to.cursor) {
        reached.cursor = to.cursor;
    }
}

/// The lines in which two consumers differ.
fn difference(one: &Consumer, other: &Consumer) -> String {
    let lines = |consumer: &Consumer| format!("{consumer:#?}").lines().map(str::to_owned).collect::<Vec<_>>();
    let (one, other) = (lines(one), lines(other));
    let differ = one.iter().zip(&other).filter(|(one, other)| one != other).take(20);
    let lines: Vec<String> =
        differ.map(|(one, other)| format!("{} instead of {}", one.trim(), other.trim())).collect();
    lines.join("; ")
}

/// What may have happened, as far as it can be told from the difference.
fn candidates(from: &Consumer, to: &Consumer, ended: &[Ended]) -> Vec<Vec<Action>> {
    let again = Consumer { changes: to.changes, ..from.clone() } == *to;
    if again && ended.is_empty() {
        return vec![vec![Action::Again]];
    }
    let mut all = asked(from, to);
    if from.options.kind.is_singly() {
        all.extend(crate::several::candidates(from, to, ended));
    } else {
        all.extend(single(from, to, ended));
    }
    all
}

/// What people ask for, and what is decided without a run.
fn asked(from: &Consumer, to: &Consumer) -> Vec<Vec<Action>> {
    let (s, t) = (&from.state, &to.state);
    let mut all = Vec::new();
    if to.rewinds != from.rewinds || (from.options.kind.is_singly() && to.cursor < from.cursor) {
        all.push(vec![Action::Seek(to.cursor)]);
        return all;
    }
    if to.cursor > from.cursor && s == t {
        all.push(if from.options.kind.is_singly() {
            vec![Action::Seek(to.cursor)]
        } else {
            vec![Action::Ack(to.cursor)]
        });
    }
    if t.paused && !s.paused {
        all.push(vec![Action::Pause]);
    }
    if s.stop.is_none()
        && let Some(skips) = t.stop
    {
        all.push(vec![Action::AskToStop { skips }]);
    }
    if s.stop.is_some() && t.stop.is_none() && t.phase == s.phase {
        all.push(vec![Action::StopWithdrawn]);
    }
    if !t.paused && t.attempts <= 1 {
        let is_over = |wait: &Wait| wait.attempts == 0 && wait.deferred == 0 && wait.since == wait.until;
        let over = to.waits.iter().filter(|(id, wait)| is_over(wait) && from.waits.get(id) != Some(wait));
        let at = over.clone().map(|(_, wait)| wait.since).next().unwrap_or(0);
        let waits: Vec<i64> = over.map(|(id, _)| *id).collect();
        let resume = |is_under_way| Action::Resume { at, is_under_way, waits: waits.clone() };
        all.extend([false, true].map(|is_under_way| vec![resume(is_under_way)]));
    }
    if s.phase == Phase::Stalled
        && t.phase == Phase::Waiting
        && let Some((at, until)) = t.since.zip(t.next_try)
    {
        all.push(vec![Action::WaitBegins { at, until }]);
    }
    if s.phase == Phase::Stalled && t.phase == Phase::Stalled {
        all.push(vec![Action::NothingNewer(t.start_newest)]);
    }
    if s.phase == Phase::Waiting && t.phase == Phase::Idle {
        all.push(vec![Action::NothingLeft]);
    }
    if matches!(s.phase, Phase::Waiting | Phase::Idle) && t.phase == Phase::Stalled {
        let skips = s.stop.unwrap_or(to.cursor != from.cursor || to.waits.len() < from.waits.len());
        all.push(vec![Action::WaitEnds { skips, newest: t.start_newest }]);
    }
    if t.phase == Phase::Running
        && t.handler != s.handler
        && let Some(handler) = &t.handler
    {
        all.push(vec![Action::Handler(handler.clone())]);
    }
    let marked = |id: &&i64| to.letters[id].retry && from.letters.get(id).is_some_and(|letter| !letter.retry);
    let marked: Vec<Action> = to.letters.keys().filter(marked).map(|id| Action::Retry(*id)).collect();
    let gone = from.letters.keys().filter(|id| !to.letters.contains_key(id));
    let gone: Vec<Action> = gone.map(|id| Action::Discard(*id)).collect();
    all.extend([marked, gone].into_iter().filter(|actions| !actions.is_empty()));
    all
}

/// The start of the run that there is now.
pub fn begins(t: &State) -> Option<Action> {
    let (supervisor, at, task) = (t.supervisor.clone()?, t.since?, t.task?);
    Some(Action::Begins { supervisor, at, task, batch: t.batch, newest: t.start_newest })
}

/// Runs that answer for all their events.
fn single(from: &Consumer, to: &Consumer, ended: &[Ended]) -> Vec<Vec<Action>> {
    let (s, t) = (&from.state, &to.state);
    let begins = begins(t).filter(|_| t.phase == Phase::Running && t.since != s.since);
    let run = match ended {
        [] => return begins.into_iter().map(|begins| vec![begins]).collect(),
        [run] => run,
        _ => return Vec::new(),
    };
    let (events, upto) = match s.task {
        Some(Task::Batch(last) | Task::Single(last)) => (Some(s.batch), Some(last)),
        Some(Task::Letter(id)) => (Some(1), Some(id)),
        _ => (None, None),
    };
    let is_that_run = s.since == Some(run.began)
        && s.attempts == run.attempt
        && run.events == events
        && upto.is_none_or(|upto| run.upto == upto)
        && (run.result == "stopped") == s.stop.is_some();
    if !is_that_run {
        return Vec::new();
    }
    let is_interrupted = run.result == "interrupted";
    let end = |sees_pending| {
        let newest = if s.stop.is_some() { t.start_newest } else { 0 };
        Action::Ends(End { exit: run.exit, at: run.ended, is_interrupted, sees_pending, newest })
    };
    let follow = |sees| std::iter::once(end(sees)).chain(begins.clone()).collect();
    vec![follow(true), follow(false)]
}

/// What a run of several that ends has left, by place.
pub fn by_place(consumer: &Consumer) -> BTreeMap<i64, BTreeSet<i64>> {
    let mut places: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    for (id, claim) in &consumer.claims {
        places.entry(claim.place).or_default().insert(*id);
    }
    places
}

/// What follows the last run.
pub fn then(t: &State) -> Then {
    match (t.phase, t.since.zip(t.next_try), t.reason) {
        (Phase::Waiting, Some((since, until)), _) => Then::Waits { since, until },
        (Phase::Stalled, _, Some(why)) => Then::Stalls(why),
        _ => Then::Idle,
    }
}
