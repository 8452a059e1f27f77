//! What others do while the worker waits, or before it uses a store.

use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use thread_testkit::say;
use thread_testkit::simulation::clock::{self, MILLISECOND, SECOND};
use thread_testkit::simulation::leave;

use super::state::What;
use super::world::{Left, World};
use crate::files::watch::Notice;
use crate::files::{COMMIT, CONTROL};
use crate::model::event::NewEvent;
use crate::model::scheduled::Due;
use crate::run::dispatch;

impl World {
    /// Something happens.
    pub fn happens(self: &Rc<Self>, what: What) {
        match what {
            What::Step => {
                let is_over = self.state.borrow().steps == 0;
                match is_over {
                    true => self.others(World::calms_down),
                    false => {
                        self.state.borrow_mut().plan_step();
                        self.step();
                    }
                }
            }
            What::Removed(thread) => self.removed(thread),
            What::Stored { thread, count, tells } => self.others(|world| world.stored(thread, count, tells)),
            What::Touched { thread, name } => self.touched(thread, name),
            What::Process(number) => self.others(|world| world.process_acts(number)),
        }
    }

    pub fn step(self: &Rc<Self>) {
        let (roll, may, has_worker) = {
            let mut state = self.state.borrow_mut();
            if state.steps == 0 {
                return;
            }
            state.steps -= 1;
            (state.dice.below(100), state.may.clone(), state.worker.is_some())
        };
        match roll {
            0..40 => self.pushes(),
            // Scheduled events follow the time of day.
            40..46 if !may.set_clock => self.others(World::schedules),
            46..54 => self.others(World::others_dispatch),
            54..62 if may.move_threads => self.others(World::move_one),
            62..70 if may.kill => self.kill_one(),
            70..74 if may.kill_worker && has_worker => {
                say!("the worker is killed");
                leave(Left::Killed)
            }
            74..78 if may.ask_to_end => self.ask_to_end(),
            78..82 if may.drop_notices => {
                let mut state = self.state.borrow_mut();
                state.notices = vec![Notice::Overflow];
                say!("notices are dropped");
            }
            82..87 if may.fail => {
                let mut state = self.state.borrow_mut();
                let (at, fails) = (state.dice.below(3) as usize, 1 + state.dice.below(3) as u32);
                state.threads[at].fails = fails;
                say!("thread {at} cannot be opened {fails} times");
            }
            87..90 if may.fail => self.state.borrow_mut().spawn_fails += 1,
            90..92 if may.fail => {
                let mut state = self.state.borrow_mut();
                state.is_away = !state.is_away;
            }
            92..96 if may.set_clock => self.set_clock(),
            _ => self.pushes(),
        }
    }

    /// Somebody sets the clock, but not right after a commit: one that nobody tells of would be seen with the next only.
    fn set_clock(&self) {
        let mut state = self.state.borrow_mut();
        let written = state.threads.iter().map(|thread| thread.wal.1).max().unwrap_or_default();
        if state.file_time() <= written + Duration::from_millis(100) {
            return;
        }
        let dice = &mut state.dice;
        let (before, by) = (clock::time_of_day(), *dice.pick(&[1, 5, 60, 3600]) * SECOND);
        let is_ahead = dice.one_in(2);
        clock::set_time_of_day(if is_ahead { before + by } else { before - by });
        say!("the clock is set by {} s: ahead={is_ahead}", by / SECOND);
    }

    /// The worker is asked to end.
    pub fn ask_to_end(&self) {
        let mut state = self.state.borrow_mut();
        let now = clock::now();
        let Some(worker) = state.worker.as_mut().filter(|worker| !worker.is_starter) else { return };
        if let Some(mut shutdown) = worker.shutdown.as_ref()
            && worker.asked.len() < 3
        {
            shutdown.write_all(b"x").unwrap();
            worker.asked.push(now);
            worker.is_nudged = true;
            say!("the worker is asked to end");
        }
    }

    /// A push begins: its commit is written. It can be read once it is synced, and then others are told, unless it was
    /// made by another program, or killed.
    fn pushes(&self) {
        let mut state = self.state.borrow_mut();
        let (thread, count) = (state.dice.below(3) as usize, 1 + state.dice.below(2));
        if state.threads[thread].place.is_none() {
            return;
        }
        state.written(thread);
        let tells = state.dice.below(3) > 0;
        // What nobody tells of must be stored before the stamp is old.
        let takes = match tells {
            true => *state.dice.pick(&[0, MILLISECOND, 30 * MILLISECOND, 300 * MILLISECOND]),
            false => *state.dice.pick(&[0, MILLISECOND, 8 * MILLISECOND]),
        };
        state.agenda.plan(takes, What::Stored { thread, count, tells });
    }

    fn stored(self: &Rc<Self>, thread: usize, count: u64, tells: bool) {
        let Some(mut queue) = self.queue_of(thread) else { return };
        let event = NewEvent::new("s", "message", None, "x").unwrap();
        let events = vec![event; count as usize];
        queue.store.append(&mut |put| put(&events).map(drop)).unwrap();
        let newest = queue.store.newest().unwrap();
        let mut state = self.state.borrow_mut();
        say!("thread {thread} has event {newest}, and others are told: {tells}");
        if tells {
            let after = *state.dice.pick(&[0, MILLISECOND, 100 * MILLISECOND]);
            state.agenda.plan(after, What::Touched { thread, name: COMMIT });
        }
    }

    /// Somebody schedules an event.
    fn schedules(self: &Rc<Self>) {
        let (thread, after) = {
            let mut state = self.state.borrow_mut();
            (state.dice.below(3) as usize, state.dice.below(4 * SECOND))
        };
        let Some(mut queue) = self.queue_of(thread) else { return };
        let due = Some(Due::After(Duration::from_nanos(after)));
        let event = NewEvent { due, ..NewEvent::new("s", "message", None, "x").unwrap() };
        queue.store.append(&mut |put| put(std::slice::from_ref(&event)).map(drop)).unwrap();
        let mut state = self.state.borrow_mut();
        state.written(thread);
        say!("thread {thread} has an event in {} ms", after / MILLISECOND);
        drop(state);
        [CONTROL, COMMIT].into_iter().for_each(|name| self.touched(thread, name));
    }

    /// Another process dispatches.
    fn others_dispatch(self: &Rc<Self>) {
        let thread = self.state.borrow_mut().dice.below(3) as usize;
        let Some(mut queue) = self.queue_of(thread) else { return };
        say!("another process dispatches in thread {thread}");
        self.state.borrow_mut().role = Some(0);
        drop(dispatch(&mut queue, &self.launcher));
        self.state.borrow_mut().role = None;
    }

    /// A thread is moved away, comes back, or to another place.
    fn move_one(self: &Rc<Self>) {
        let (thread, is_there, to) = {
            let mut state = self.state.borrow_mut();
            if state.is_server {
                return;
            }
            let thread = state.dice.below(3) as usize;
            let free: Vec<usize> =
                (0..3).filter(|at| state.threads.iter().all(|other| other.place != Some(*at))).collect();
            let to = if free.is_empty() { 0 } else { *state.dice.pick(&free) };
            if state.threads[thread].leaves {
                return;
            }
            (thread, state.threads[thread].place.is_some(), to)
        };
        match is_there {
            true => self.moves_away(thread),
            false => self.moves_to(thread, to),
        }
    }

    /// From now on it is calm: everything works, and all threads are there.
    pub fn calms_down(self: &Rc<Self>) {
        let away: Vec<usize> = {
            let mut state = self.state.borrow_mut();
            (state.is_calm, state.calm_since, state.is_away, state.spawn_fails) =
                (true, clock::now(), false, 0);
            say!("from here on it is calm");
            state.threads.iter_mut().for_each(|thread| thread.fails = 0);
            (0..3).filter(|at| state.threads[*at].place.is_none()).collect()
        };
        for thread in away {
            let free = {
                let state = self.state.borrow();
                (0..3).find(|at| state.threads.iter().all(|other| other.place != Some(*at)))
            };
            self.moves_to(thread, free.unwrap());
        }
    }
}
