//! The processes in the background that a schedule stands for: supervisors with their handlers, the timer, and those
//! that dispatch in the background.

use std::fs::File;
use std::rc::Rc;
use std::time::Duration;

use chrono::Utc;
use rustix::process::Signal;
use thread_testkit::say;
use thread_testkit::simulation::clock::{self, MILLISECOND, SECOND};

use super::state::What;
use super::world::World;
use crate::files::{COMMIT, CONTROL};
use crate::model::run::{Exit, NOT_NOW, Phase, ProcessId, RunState, Task};
use crate::model::subscription::{ConsumerId, Subscription};
use crate::queue::Queue;
use crate::run::attend::{TIMER_LOCK, attend};
use crate::run::dispatch::{self, Dispatched, NextStep, Start, Waits};
use crate::run::due::NextEvent;
use crate::run::launcher::{SUPERVISE, TIMER, WAKE};
use crate::run::outcome::{End, record_end};
use crate::store::RunUpdate;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Supervisor,
    Timer,
    Waker,
}

pub struct Process {
    pub number: i64,
    pub kind: Kind,
    pub thread: usize,
    pub consumer: Option<ConsumerId>,
    pub lock: Option<File>,
    /// The worker that has started it.
    pub parent: Option<i64>,
    /// It leaves further runs to that worker.
    pub for_worker: bool,
    /// How often it was asked to end.
    pub terms: u32,
    /// Its run, and when the handler ends.
    pub run: Option<(Subscription, u64)>,
    /// It was killed, and its handler was not.
    pub was_killed: bool,
}

impl World {
    /// A process is started. Returns its number.
    pub fn starts(&self, subcommand: &str, args: &[&str], thread: usize, lock: File) -> i64 {
        let mut state = self.state.borrow_mut();
        state.numbers += 1;
        let number = state.numbers;
        let value = |name: &str| {
            let at = args.iter().position(|arg| *arg == name)?;
            args.get(at + 1).copied()
        };
        let kind = match subcommand {
            SUPERVISE => Kind::Supervisor,
            TIMER => Kind::Timer,
            WAKE => Kind::Waker,
            _ => panic!("{subcommand} is started"),
        };
        let for_worker = value("--worker").is_some();
        // What others start is not below the worker.
        let parent = state.worker.as_ref().filter(|_| state.role.is_none()).map(|worker| worker.number);
        let consumer = value("--consumer").map(|name| ConsumerId::new(name).unwrap());
        let delay = value("--delay-ms").map_or(0, |ms| ms.parse::<u64>().unwrap() * MILLISECOND);
        let begins = delay + state.dice.below(20 * MILLISECOND);
        say!("{kind:?} {number} of thread {thread} is started by {parent:?}");
        for one in &mut state.threads[thread].consumers {
            one.due = one.due.filter(|_| consumer.as_ref() != Some(&one.id));
        }
        state.processes.push(Process {
            number,
            kind,
            thread,
            consumer,
            lock: Some(lock),
            parent,
            for_worker,
            terms: 0,
            run: None,
            was_killed: false,
        });
        state.agenda.plan(begins, What::Process(number));
        drop(state);
        self.may_start(number);
        number
    }

    /// A process does what it has to do now.
    pub fn process_acts(self: &Rc<Self>, number: i64) {
        let process = {
            let mut state = self.state.borrow_mut();
            let Some(at) = state.processes.iter().position(|process| process.number == number) else {
                return;
            };
            if let Some((_, until)) = state.processes[at].run
                && until > clock::now()
            {
                return;
            }
            state.role = Some(number);
            state.processes.remove(at)
        };
        match process.kind {
            _ if process.was_killed => say!("the handler of {number} ends"),
            Kind::Supervisor => self.supervisor_acts(process),
            Kind::Timer => self.timer_acts(process),
            Kind::Waker => self.waker_acts(process),
        }
        self.state.borrow_mut().role = None;
    }

    /// Opens the thread, if it is where the process knows it.
    pub fn queue_of(&self, thread: usize) -> Option<Queue> {
        let location = self.location_of(thread)?;
        Queue::open(location).ok()
    }

    fn supervisor_acts(self: &Rc<Self>, mut process: Process) {
        let consumer = process.consumer.clone().unwrap();
        // Its lock goes with it.
        let Some(mut queue) = self.queue_of(process.thread) else { return };
        if let Some((seen, _)) = process.run.take() {
            let interrupted = process.terms > 1;
            let exit = match interrupted {
                true => Exit::Signal(libc::SIGTERM),
                false => self.exit(),
            };
            say!("the handler of {} ends: {exit}", process.number);
            let end = End { exit, interrupted, output: "", span: None, at: Utc::now() };
            self.state.borrow_mut().written(process.thread);
            record_end(&mut queue, &seen, &end).unwrap();
            let leaves = process.for_worker || process.terms > 0;
            if leaves {
                return self.supervisor_leaves(process, &mut queue);
            }
        }
        loop {
            let Some(mut row) = queue.store.subscription(&consumer).unwrap() else { return };
            if row.state.phase == Phase::Running {
                let at = row.state.since.unwrap();
                let end = End { exit: Exit::Unknown, interrupted: false, output: "", span: None, at };
                self.state.borrow_mut().written(process.thread);
                row = record_end(&mut queue, &row, &end).unwrap().unwrap();
            }
            let next = match process.terms {
                0 => dispatch::next_step(&mut queue, &row, None).unwrap(),
                _ => NextStep::None { pending: true },
            };
            if let NextStep::Start(start @ Start { wait: None, .. }) = next {
                return self.runs(process, &mut queue, &row, start);
            }
            if process.for_worker || process.terms > 0 {
                return self.supervisor_leaves(process, &mut queue);
            }
            process.lock.take().inspect(|lock| lock.unlock().unwrap());
            let row = queue.store.subscription(&consumer).unwrap().unwrap();
            match dispatch::next_step(&mut queue, &row, None).unwrap() {
                NextStep::Start(start @ Start { wait: Some(wait), .. }) => {
                    dispatch::record_wait(&mut queue, &row, start, wait).unwrap();
                    return drop(attend(&queue.files, &self.launcher));
                }
                NextStep::Start(_) => match dispatch::try_lock(&queue.files, &consumer).unwrap() {
                    Some(lock) => process.lock = Some(lock.file().try_clone().unwrap()),
                    None => return,
                },
                _ => return,
            }
        }
    }

    /// Lets go of the lock, and leaves the rest to the worker that has started it, or else looks again.
    fn supervisor_leaves(self: &Rc<Self>, mut process: Process, queue: &mut Queue) {
        process.lock.take().inspect(|lock| lock.unlock().unwrap());
        let is_left = {
            let state = self.state.borrow();
            process.for_worker && process.parent.is_some_and(|parent| state.is_alive(parent))
        };
        say!("supervisor {} ends", process.number);
        if is_left {
            let mut state = self.state.borrow_mut();
            // It may be killed just before.
            if !(state.may.kill && !state.is_calm && state.dice.one_in(10)) {
                let after = state.dice.below(2 * MILLISECOND);
                state.agenda.plan(after, What::Touched { thread: process.thread, name: COMMIT });
            }
        } else if process.terms == 0 {
            process.for_worker = false;
            let consumer = process.consumer.clone().unwrap();
            let row = queue.store.subscription(&consumer).unwrap().unwrap();
            match dispatch::next_step(queue, &row, None).unwrap() {
                NextStep::Start(start @ Start { wait: Some(wait), .. }) => {
                    dispatch::record_wait(queue, &row, start, wait).unwrap();
                    drop(attend(&queue.files, &self.launcher));
                }
                NextStep::Start(_) => {
                    if let Some(lock) = dispatch::try_lock(&queue.files, &consumer).unwrap() {
                        process.lock = Some(lock.file().try_clone().unwrap());
                        let mut state = self.state.borrow_mut();
                        state.agenda.plan(0, What::Process(process.number));
                        state.processes.push(process);
                    }
                }
                _ => {}
            }
        }
    }

    fn exit(&self) -> Exit {
        let mut state = self.state.borrow_mut();
        let is_calm = state.is_calm;
        match state.dice.below(10) {
            0 | 1 if !is_calm => Exit::Code(1),
            2 if !is_calm => Exit::Code(NOT_NOW),
            _ => Exit::Code(0),
        }
    }

    /// A run begins.
    fn runs(self: &Rc<Self>, mut process: Process, queue: &mut Queue, row: &Subscription, start: Start) {
        let first = start.first.unwrap();
        let task = match row.single_upto() >= first {
            true => Task::Single(first),
            false => Task::Batch(start.newest),
        };
        let state = RunState {
            phase: Phase::Running,
            attempts: row.state.attempts + 1,
            supervisor: Some(ProcessId { pid: 1, start: process.number, boot: String::new(), namespace: 0 }),
            handler: None,
            home: Some(queue.files.home()),
            since: Some(Utc::now()),
            task: Some(task),
            batch: 1,
            start_cursor: row.last_acked_id,
            start_rewinds: row.rewinds,
            single_upto: row.single_upto(),
            start_newest: start.newest,
            next_try: None,
            reason: None,
            stop: None,
            ..row.state.clone()
        };
        let seen = queue.store.update_run(row, &RunUpdate::state(state)).unwrap();
        let mut state = self.state.borrow_mut();
        state.written(process.thread);
        // Somebody else has changed the row: it would look again.
        let most =
            if state.is_calm { SECOND } else { *state.dice.pick(&[20 * MILLISECOND, SECOND, 20 * SECOND]) };
        let takes = state.dice.below(most);
        say!("supervisor {} runs {task:?} for {} ms", process.number, takes / MILLISECOND);
        process.run = Some((seen.unwrap(), clock::now() + takes));
        state.agenda.plan(takes, What::Process(process.number));
        state.processes.push(process);
    }

    fn waker_acts(self: &Rc<Self>, mut process: Process) {
        for _ in 0..2 {
            let Some(mut queue) = self.queue_of(process.thread) else { return };
            let all = queue.store.subscriptions().unwrap();
            drop(dispatch::start(&mut queue, &self.launcher, all, None, Waits::Timer));
            process.lock.take().inspect(|lock| lock.unlock().unwrap());
        }
    }

    fn timer_acts(self: &Rc<Self>, mut process: Process) {
        loop {
            let Some(mut queue) = self.queue_of(process.thread) else { return };
            let made = NextEvent::default().make(&mut queue, false).unwrap();
            if made.is_some() {
                self.state.borrow_mut().written(process.thread);
            }
            let all = queue.store.subscriptions().unwrap();
            let all = dispatch::start(&mut queue, &self.launcher, all, None, Waits::Left(None)).unwrap();
            let waits = all.iter().filter_map(|(_, done)| match done {
                Dispatched::Waits(wait) => Some(wait.left),
                _ => None,
            });
            // It looks on its own from time to time, as not each event of which it was told is due then.
            let next = waits.chain(made).min().map(|left| left.min(Duration::from_secs(1)));
            match (next, &process.lock) {
                (Some(next), Some(_)) => {
                    let mut state = self.state.borrow_mut();
                    let after = u64::try_from(next.as_nanos()).unwrap().max(MILLISECOND);
                    state.agenda.plan(after, What::Process(process.number));
                    return state.processes.push(process);
                }
                (None, Some(_)) => {
                    process.lock.take().inspect(|lock| lock.unlock().unwrap());
                }
                (Some(_), None) => {
                    let Ok(Some(lock)) = crate::files::lock::Lock::try_take(&queue.files, TIMER_LOCK) else {
                        return;
                    };
                    process.lock = Some(lock.file().try_clone().unwrap());
                }
                (None, None) => return,
            }
        }
    }

    /// A process in the background gets a signal.
    pub fn is_signalled(&self, number: i64, signal: Signal) {
        self.may_signal(number);
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let Some(at) = state.processes.iter().position(|process| process.number == number) else { return };
        assert_eq!(signal, Signal::TERM);
        let process = &mut state.processes[at];
        process.terms += 1;
        let (terms, kind) = (process.terms, process.kind);
        match kind {
            Kind::Supervisor if terms == 2 && process.run.is_some() => {
                let takes = state.dice.below(2 * SECOND);
                let until = clock::now() + takes;
                if let Some((_, ends)) = &mut process.run {
                    *ends = (*ends).min(until);
                }
                state.agenda.plan(takes, What::Process(number));
                // It may end before by itself.
            }
            Kind::Supervisor => {}
            Kind::Timer | Kind::Waker => drop(state.processes.remove(at)),
        }
        if terms <= 2 {
            say!("{kind:?} {number} is asked to end");
        }
    }

    /// A process is killed, if there is one. Its handler is not.
    pub fn kill_one(&self) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let alive: Vec<usize> =
            (0..state.processes.len()).filter(|at| !state.processes[*at].was_killed).collect();
        if alive.is_empty() {
            return;
        }
        let at = *state.dice.pick(&alive);
        let process = &mut state.processes[at];
        let (kind, number) = (process.kind, process.number);
        match process.run {
            Some(_) => process.was_killed = true,
            None => drop(state.processes.remove(at)),
        }
        say!("{kind:?} {number} is killed");
    }

    /// Somebody touches a file of a thread.
    pub fn touched(&self, thread: usize, name: &str) {
        let mut state = self.state.borrow_mut();
        let at = state.file_time();
        if name == COMMIT {
            state.threads[thread].touched = at;
            if let Some(watch) = state.threads[thread].watch {
                self.notice(&mut state, watch);
            }
        } else if name == CONTROL {
            let timers = state.processes.iter().filter(|process| process.kind == Kind::Timer);
            let numbers: Vec<i64> =
                timers.filter(|process| process.thread == thread).map(|process| process.number).collect();
            numbers.into_iter().for_each(|number| state.agenda.plan(0, What::Process(number)));
        }
    }
}
