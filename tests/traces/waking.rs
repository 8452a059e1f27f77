//! A consumer whose handler gets its events, the processes that wake it, and whoever kills them: every order of their
//! steps. What is stored follows the rules of [`rules`](crate::rules).

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::explore::{World, consumer, is_allowed, must};
use crate::model::{Consumer, Event, Kind, Phase, Task, Time, Why};
use crate::rules::{Action, End};

/// Deliberate errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wrong {
    Nothing,
    /// A supervisor looks again before it releases the lock.
    LooksFirst,
    /// The handler of a supervisor that was killed does not hold the lock.
    ForgetsOrphans,
    /// A wait is left to nobody.
    NobodyWaits,
    /// A run begins though a stop was asked for.
    ForgetsStops,
    /// What a run that ended unknown had is taken as done.
    TrustsTheDead,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Does {
    Decides,
    Runs(Vec<i64>),
    /// Nothing is due, and it releases the lock next.
    Leaves,
    Released,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Waking {
    wrong: Wrong,
    stored: Consumer,
    newest: i64,
    now: Time,
    /// What each pusher has done of its two steps.
    pushers: [u8; 2],
    supervisors: [Option<Does>; 2],
    /// Which of them has the lock.
    lock: Option<usize>,
    /// The events at a handler whose supervisor was killed.
    orphan: Option<Vec<i64>>,
    has_timer: bool,
    /// Who has asked for a stop is still there.
    is_asking: bool,
    /// Somebody has asked to skip events.
    skips: bool,
    /// What handlers have succeeded with.
    handled: BTreeSet<i64>,
    kills: u8,
    failures: u8,
    stops: u8,
    pauses: u8,
    /// Somebody was killed, so that the next push or dispatch has to make up for that.
    is_owed: bool,
    is_broken: bool,
}

impl Waking {
    pub fn first(wrong: Wrong, kills: u8, failures: u8, (stops, pauses): (u8, u8)) -> Waking {
        Waking {
            wrong,
            stored: consumer(Kind::Runs, 2, 0),
            newest: 0,
            now: 0,
            pushers: [0; 2],
            supervisors: [None, None],
            lock: None,
            orphan: None,
            has_timer: false,
            is_asking: false,
            skips: false,
            handled: BTreeSet::new(),
            kills,
            failures,
            stops,
            pauses,
            is_owed: false,
            is_broken: false,
        }
    }

    /// The run that would begin now.
    fn due(&self) -> Option<(Action, Vec<i64>)> {
        let first = self.stored.open().next()?;
        let most = if first <= self.stored.single_upto() { 1 } else { self.stored.options.batch };
        let events: Vec<i64> = self.stored.open().take(most as usize).collect();
        let last = *events.last()?;
        let task = if events.len() == 1 { Task::Single(last) } else { Task::Batch(last) };
        let begins = Action::Begins {
            supervisor: "s".to_owned(),
            at: self.now,
            task,
            batch: events.len() as i64,
            newest: self.newest,
        };
        Some((begins, events))
    }

    fn is_due(&self) -> bool {
        self.due().is_some_and(|(begins, _)| is_allowed(&self.stored, self.newest, &begins))
    }

    fn is_free(&self) -> bool {
        self.lock.is_none() && (self.orphan.is_none() || self.wrong == Wrong::ForgetsOrphans)
    }

    /// What a push, a dispatch and a supervisor do once they are done: start what is due.
    fn look(&mut self) {
        let is_pending = self.stored.open().next().is_some() && !self.stored.state.paused;
        let is_abandoned = self.stored.state.phase == Phase::Running && is_pending;
        if (self.is_due_without_stop() || is_abandoned) && self.is_free() {
            if let Some(at) = self.supervisors.iter().position(Option::is_none) {
                (self.supervisors[at], self.lock) = (Some(Does::Decides), Some(at));
            }
            return;
        }
        let waits = Action::WaitBegins { at: self.now, until: self.now + 1 };
        if self.stored.state.reason != Some(Why::Stopped) && is_allowed(&self.stored, self.newest, &waits) {
            must(&mut self.stored, self.newest, waits);
        }
        if self.stored.state.phase == Phase::Waiting && is_pending && self.wrong != Wrong::NobodyWaits {
            self.has_timer = true;
        }
    }

    fn release(&mut self, at: usize) {
        self.lock = self.lock.filter(|holder| *holder != at);
    }

    /// A run ends like that.
    fn end(&mut self, exit: Option<i64>, at: Time) {
        let end = |sees_pending| {
            Action::Ends(End { exit, at, is_interrupted: false, sees_pending, newest: self.newest })
        };
        let action = if is_allowed(&self.stored, self.newest, &end(true)) { end(true) } else { end(false) };
        must(&mut self.stored, self.newest, action);
    }

    fn supervise(&self, at: usize, next: &mut Vec<Waking>) {
        let mut after = self.clone();
        let Some(does) = &self.supervisors[at] else { return };
        let state = &self.stored.state;
        match does {
            Does::Decides if state.phase == Phase::Running => {
                let exit = if self.wrong == Wrong::TrustsTheDead { Some(0) } else { None };
                after.end(exit, state.since.unwrap_or(0));
            }
            Does::Decides if self.is_to_stop() && self.wrong != Wrong::ForgetsStops => after.stop_wait(),
            Does::Decides if self.is_due() || (self.is_to_stop() && self.is_due_without_stop()) => {
                if self.is_to_stop() {
                    (after.stored.state.stop, after.is_broken) = (None, true);
                }
                let Some((begins, events)) = after.due() else { return };
                must(&mut after.stored, self.newest, begins);
                after.supervisors[at] = Some(Does::Runs(events));
            }
            Does::Decides => after.supervisors[at] = Some(Does::Leaves),
            Does::Leaves => {
                after.supervisors[at] = Some(Does::Released).filter(|_| self.wrong != Wrong::LooksFirst);
                after.release(at);
            }
            Does::Released => {
                after.supervisors[at] = None;
                after.look();
            }
            Does::Runs(events) => return self.run(at, events, next),
        }
        next.push(after);
    }

    /// Whether a wait is to be stopped.
    fn is_to_stop(&self) -> bool {
        self.stored.state.stop.is_some() && self.stored.state.phase == Phase::Waiting
    }

    fn is_due_without_stop(&self) -> bool {
        let mut world = self.clone();
        world.stored.state.stop = None;
        world.is_due()
    }

    fn stop_wait(&mut self) {
        let skips = self.stored.state.stop == Some(true);
        must(&mut self.stored, self.newest, Action::WaitEnds { skips, newest: self.newest });
    }

    /// A handler ends.
    fn run(&self, at: usize, events: &[i64], next: &mut Vec<Waking>) {
        let ended = |exit: i64| {
            let mut after = self.clone();
            after.supervisors[at] = Some(Does::Decides);
            if exit == 0 {
                after.handled.extend(events);
            }
            after.end(Some(exit), self.now);
            after
        };
        next.push(ended(0));
        if self.stored.state.stop.is_some() {
            next.push(ended(143));
        } else if self.failures > 0 {
            for exit in [1, 65, 75] {
                next.push(Waking { failures: self.failures - 1, ..ended(exit) });
            }
        }
    }

    /// What people do.
    fn meddle(&self, next: &mut Vec<Waking>) {
        let state = &self.stored.state;
        for skips in [false, true] {
            let ask = Action::AskToStop { skips };
            if self.stops > 0 && state.stop.is_none() && is_allowed(&self.stored, self.newest, &ask) {
                let mut after = self.clone();
                must(&mut after.stored, self.newest, ask);
                (after.stops, after.is_asking) = (self.stops - 1, true);
                after.skips |= skips;
                next.push(after);
            }
        }
        if self.is_asking {
            let mut after = self.clone();
            let is_supervised = self.lock.is_some();
            match state.phase {
                _ if state.stop.is_none() => after.is_asking = false,
                Phase::Waiting => after.stop_wait(),
                Phase::Running if !is_supervised => {
                    // It ends the processes, and records that.
                    after.orphan = None;
                    after.end(None, self.now);
                }
                _ => after.is_asking = true,
            }
            if after != *self {
                next.push(after);
            }
        }
        if self.pauses > 0 && !state.paused {
            let mut after = self.clone();
            must(&mut after.stored, self.newest, Action::Pause);
            after.pauses -= 1;
            next.push(after);
        }
        if state.paused {
            let mut after = self.clone();
            let is_under_way =
                state.phase == Phase::Running && (self.lock.is_some() || self.orphan.is_some());
            let resume = Action::Resume { at: self.now, is_under_way, waits: Vec::new() };
            must(&mut after.stored, self.newest, resume);
            after.look();
            next.push(after);
        }
    }

    fn kill(&self, next: &mut Vec<Waking>) {
        if self.kills == 0 {
            return;
        }
        let fewer = Waking { kills: self.kills - 1, is_owed: true, ..self.clone() };
        for at in 0..2 {
            if self.pushers[at] == 1 {
                let mut after = fewer.clone();
                after.pushers[at] = 2;
                next.push(after);
            }
            if let Some(does) = &self.supervisors[at] {
                let mut after = fewer.clone();
                after.supervisors[at] = None;
                after.release(at);
                if let Does::Runs(events) = does {
                    after.orphan = Some(events.clone());
                }
                next.push(after);
            }
        }
        if self.has_timer {
            next.push(Waking { has_timer: false, ..fewer.clone() });
        }
        if self.is_asking {
            next.push(Waking { is_asking: false, ..fewer });
        }
    }
}

impl World for Waking {
    fn steps(&self) -> Vec<Waking> {
        let mut next = Vec::new();
        for at in 0..2 {
            let mut after = self.clone();
            match self.pushers[at] {
                0 => {
                    after.newest += 1;
                    let event = Event { key: None, at: self.now };
                    Rc::make_mut(&mut after.stored.events).insert(after.newest, event);
                }
                1 => after.look(),
                _ => continue,
            }
            after.pushers[at] += 1;
            next.push(after);
        }
        (0..2).for_each(|at| self.supervise(at, &mut next));
        if let Some(events) = &self.orphan {
            // Nobody hears how it ends.
            let mut after = Waking { orphan: None, ..self.clone() };
            next.push(after.clone());
            after.handled.extend(events);
            next.push(after);
        }
        if self.has_timer {
            let mut after = self.clone();
            match self.stored.state.next_try.filter(|_| self.stored.state.phase == Phase::Waiting) {
                Some(end) => {
                    after.now = self.now.max(end);
                    after.look();
                }
                None => after.has_timer = false,
            }
            next.push(after);
        }
        // As soon as everything is quiet.
        if self.is_owed && self.is_free() && self.supervisors == [None, None] && self.orphan.is_none() {
            let mut after = Waking { is_owed: false, ..self.clone() };
            after.look();
            next.push(after);
        }
        self.meddle(&mut next);
        self.kill(&mut next);
        next.retain(|after| after != self);
        next
    }

    fn fault(&self) -> Option<&'static str> {
        let at_work = self.supervisors.iter().flatten().filter(|does| matches!(does, Does::Runs(_))).count();
        let c = &self.stored;
        let is_handled = |id: &i64| self.handled.contains(id) || c.letters.contains_key(id) || self.skips;
        if at_work + usize::from(self.orphan.is_some()) > 1 {
            return Some("two runs at once");
        }
        if self.is_broken {
            return Some("a stop was forgotten");
        }
        if !c.events.range(..=c.cursor).all(|(id, _)| is_handled(id)) {
            return Some("an event is acknowledged that nobody has handled");
        }
        c.must_be_sound(self.newest).err()
    }

    fn is_done(&self) -> bool {
        let state = &self.stored.state;
        // Given up, or stopped, until something newer comes.
        let is_over = state.phase == Phase::Stalled && !self.stored.open().any(|id| id > state.start_newest);
        self.pushers == [2; 2]
            && !self.is_owed
            && self.supervisors == [None, None]
            && (self.stored.open().next().is_none() || is_over)
    }
}
