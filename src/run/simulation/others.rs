//! What others do while a supervisor or the timer waits, or before it uses the store.

use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use thread_testkit::simulation::clock::{self, SECOND};
use thread_testkit::simulation::{Killed, leave};
use thread_testkit::{Dice, say};

use super::state::Role;
use super::world::World;
use crate::model::event::NewEvent;
use crate::model::position::Position;
use crate::model::run::{Deliver, Options, Phase, RunState, STOPPED, StopRequest};
use crate::model::subscription::NewSubscription;
use crate::run::settle::{self, Answer};
use crate::run::{control, dispatch};
use crate::store::RunUpdate;

/// What may happen in a schedule, besides events and answers.
#[derive(Debug, Clone, Default)]
pub struct May {
    pub kill: bool,
    seek: bool,
    stop: bool,
    pause: bool,
    set_clock: bool,
    shut_down: bool,
    pub fail: bool,
    by_hand: bool,
    adjust: bool,
}

impl May {
    pub fn any(dice: &mut Dice) -> May {
        May {
            kill: dice.one_in(3),
            seek: dice.one_in(5),
            stop: dice.one_in(5),
            pause: dice.one_in(4),
            set_clock: dice.one_in(5),
            shut_down: dice.one_in(5),
            fail: dice.below(3) > 0,
            by_hand: dice.one_in(5),
            adjust: dice.one_in(8),
        }
    }

    /// Whether a run may be cut short, so that it costs no attempt.
    pub fn cut_short(&self) -> bool {
        self.kill || self.stop || self.shut_down || self.pause
    }
}

impl World {
    /// Something happens.
    pub fn act(self: &Rc<Self>) {
        let (roll, may, role) = {
            let mut state = self.state.borrow_mut();
            if state.steps == 0 {
                return;
            }
            state.steps -= 1;
            (state.dice.below(100), state.may.clone(), state.role)
        };
        match roll {
            0..20 => self.push(),
            20..24 if may.pause => self.others(World::pause),
            24..28 if may.seek => self.others(World::seek),
            28..31 if may.stop => self.others(World::stop),
            31..36 if may.kill && role.is_some() => {
                say!("{role:?} is killed");
                leave(Killed)
            }
            36..39 if may.shut_down && matches!(role, Some((Role::Supervisor, _))) => {
                say!("the supervisor is asked to end");
                let mut state = self.state.borrow_mut();
                if let Some(shutdown) = &mut state.shutdown {
                    shutdown.write_all(b"x").unwrap();
                    state.was_asked = true;
                }
            }
            39..43 if may.set_clock => self.set_clock(),
            43..48 => self.others(World::retry_dead_letters),
            48..52 if may.by_hand => self.others(World::acknowledge),
            52..54 if may.adjust => self.others(World::adjust),
            54..57 => self.others(World::dispatch),
            57..61 if may.by_hand => self.others(World::put_off),
            _ => self.one_acts(),
        }
    }

    fn dispatch(self: &Rc<Self>) {
        dispatch(&mut self.queue(), &self.launcher).unwrap();
    }

    pub fn push(self: &Rc<Self>) {
        self.others(|world| {
            let keys: Vec<u64> = {
                let dice = &mut world.state.borrow_mut().dice;
                (0..1 + dice.below(3)).map(|_| dice.below(3)).collect()
            };
            let mut queue = world.queue();
            for key in &keys {
                let event = NewEvent::new("s", "message", Some(format!("k{key}").into()), "x").unwrap();
                let pushed = queue.push(&event).unwrap();
                let mut state = world.state.borrow_mut();
                say!("event {} with key {key}", pushed.id);
                state.rules.keys.insert(pushed.id, *key);
            }
            world.dispatch();
        });
    }

    fn pause(self: &Rc<Self>) {
        if self.row().state.paused {
            return self.resume();
        }
        say!("pause");
        control::pause(&mut self.queue(), &self.consumer).unwrap();
    }

    fn resume(self: &Rc<Self>) {
        say!("resume");
        control::resume(&mut self.queue(), &self.consumer).unwrap();
        self.state.borrow_mut().rules.waits_are_over();
        self.dispatch();
    }

    fn seek(self: &Rc<Self>) {
        let (mut queue, before) = (self.queue(), self.row());
        let newest = queue.store.newest().unwrap();
        let to = self.state.borrow_mut().dice.below(newest.unsigned_abs() + 1).cast_signed();
        say!("seek to {to}");
        queue.seek(&self.consumer, Position::Event(to)).unwrap();
        let is_void = before.options.finishes_singly() || to < before.last_acked_id;
        self.state.borrow_mut().cursor_was_set(to, is_void);
        control::notify_supervisors(&mut queue);
        self.dispatch();
    }

    /// As `stop` does, but without waiting for it.
    fn stop(self: &Rc<Self>) {
        let (mut queue, seen) = (self.queue(), self.row());
        let (skip, kill_after_ms) = {
            let dice = &mut self.state.borrow_mut().dice;
            (dice.one_in(3), 10_000 * dice.below(2))
        };
        if seen.state.phase != Phase::Running || seen.state.stop.is_some() {
            return;
        }
        let stop = StopRequest { kill_after_ms, skip, ..StopRequest::default() };
        say!("{stop:?}");
        self.state.borrow_mut().rules.skips |= skip;
        control::update(&mut queue, &seen, |current| {
            Some(RunUpdate::state(RunState { stop: Some(stop), ..current.state.clone() }))
        })
        .unwrap();
        control::notify_supervisors(&mut queue);
    }

    fn set_clock(&self) {
        let mut state = self.state.borrow_mut();
        let by = *state.dice.pick(&[1, 5, 60, 3600]) * SECOND;
        let before = clock::time_of_day();
        if state.dice.one_in(2) {
            clock::set_time_of_day(before + by);
            state.rules.waits_are_over();
        } else {
            clock::set_time_of_day(before - by);
        }
        let now = clock::time_of_day() / SECOND;
        say!("the clock is set to {now}, by {} s", by / SECOND);
    }

    fn retry_dead_letters(self: &Rc<Self>) {
        let mut queue = self.queue();
        if queue.retry_dead_letters(&self.consumer, None).unwrap() > 0 {
            say!("dead letters are to be tried again");
            self.state.borrow_mut().rules.waits_are_over();
            control::notify_supervisors(&mut queue);
            self.dispatch();
        }
    }

    /// Somebody acknowledges an event.
    fn acknowledge(self: &Rc<Self>) {
        let mut queue = self.queue();
        let newest = queue.store.newest().unwrap();
        if !self.row().options.finishes_singly() || newest == 0 {
            return;
        }
        let id = 1 + self.state.borrow_mut().dice.below(newest.unsigned_abs()).cast_signed();
        say!("event {id} is acknowledged by hand");
        {
            let mut state = self.state.borrow_mut();
            // Nobody waits for what a handler says of it, unless it is a dead letter, which stays one.
            if !state.rules.was_acknowledged(id) {
                state.handlers.iter_mut().for_each(|handler| _ = handler.has.remove(&id));
            }
        }
        settle::ack(&mut queue, &self.consumer, &[id], None, None).unwrap();
        self.dispatch();
    }

    /// Somebody puts off an event of a pool.
    fn put_off(self: &Rc<Self>) {
        let mut queue = self.queue();
        let (newest, options) = (queue.store.newest().unwrap(), self.row().options);
        if !options.is_pool() || options.deliver != Deliver::Stdin || newest == 0 {
            return;
        }
        let id = 1 + self.state.borrow_mut().dice.below(newest.unsigned_abs()).cast_signed();
        let is_claimed = queue.store.ledger(&self.consumer).unwrap().claims().contains_key(&id);
        let wait = Duration::from_secs(2);
        let answer = Answer { id, claim: None, error: "" };
        if settle::nack(&mut queue, &self.consumer, answer, Some(wait), false).is_ok() {
            say!("event {id} is put off by hand");
            if !is_claimed {
                self.state.borrow_mut().rules.is_put_off(id, wait);
            }
        }
        self.dispatch();
    }

    /// The subscription gets other numbers.
    fn adjust(self: &Rc<Self>) {
        let (mut queue, row) = (self.queue(), self.row());
        let (places, size) = {
            let dice = &mut self.state.borrow_mut().dice;
            (1 + dice.below(3) as u32, 1 + dice.below(3))
        };
        let concurrency = row.options.concurrency.map(|_| places);
        let batch_size = if row.options.is_in_order() { 1 } else { size };
        let options = Options { concurrency, batch_size, ..row.options.clone() };
        if options.is_in_order() != row.options.is_in_order() {
            return;
        }
        say!("places {concurrency:?}, size {batch_size}");
        let new = NewSubscription {
            consumer: row.consumer.clone(),
            handler_cmd: row.handler_cmd.clone(),
            filter: None,
            cwd: None,
            options: options.clone(),
            from: None,
            replace: true,
        };
        queue.subscribe(&new).unwrap();
        let is_another = self.row().token != row.token;
        {
            let mut state = self.state.borrow_mut();
            state.rules.were_adjusted(&options);
            state.handlers.iter_mut().for_each(|handler| handler.is_without_wait |= is_another);
        }
        control::notify_supervisors(&mut queue);
        self.dispatch();
    }

    /// Does what has to be done by hand, once it is calm: after a kill, a pause or a stop. Returns whether that was
    /// anything.
    pub fn makes_up(self: &Rc<Self>) -> bool {
        self.orphans_end();
        let needs = std::mem::take(&mut self.state.borrow_mut().needs_dispatch);
        let row = self.row();
        let is_stopped = row.state.phase == Phase::Stalled && row.state.reason.as_deref() == Some(STOPPED);
        if row.state.paused || is_stopped {
            self.resume();
        } else if needs {
            say!("dispatch");
            self.dispatch();
        }
        needs || row.state.paused || is_stopped
    }
}
