//! What others do while the adapter waits, or before it uses the store.

use std::rc::Rc;

use thread::NewEvent;
use thread_conversation::{Message, Priority, cancel, permission_answer};
use thread_testkit::say;
use thread_testkit::simulation::clock::{self, MILLISECOND, SECOND};
use thread_testkit::simulation::{Killed, leave};

use super::state::What;
use super::world::World;

const WEB: &str = "external:web:main:dm:default:ada";

/// What may happen in a schedule, besides messages.
#[derive(Debug, Clone)]
pub struct May {
    pub kill: bool,
    pub stop: bool,
    pub cancel: bool,
    pub fail: bool,
    pub hurry: bool,
}

impl World {
    /// Something happens.
    pub fn happens(self: &Rc<Self>, what: What) {
        match what {
            What::Step => {
                let is_over = {
                    let mut state = self.state.borrow_mut();
                    if state.steps > 0 {
                        state.plan_step();
                    }
                    state.steps == 0
                };
                if is_over {
                    let mut state = self.state.borrow_mut();
                    (state.is_calm, state.calm_since, state.fails) = (true, clock::now(), 0);
                    say!("from here on it is calm");
                    // Those that hang go on, too.
                    state.programs.iter_mut().for_each(|program| program.is_hanging = false);
                    (0..state.programs.len()).for_each(|at| state.acts_after(at, 0));
                } else {
                    self.step();
                }
            }
            What::Nudge => self.nudge(),
            What::Program(pid) => self.program_acts(pid),
        }
    }

    pub fn step(self: &Rc<Self>) {
        let (roll, may) = {
            let mut state = self.state.borrow_mut();
            if state.steps == 0 {
                return;
            }
            state.steps -= 1;
            (state.dice.below(100), state.may.clone())
        };
        match roll {
            0..45 => self.others(World::message),
            45..58 if may.cancel => self.others(World::cancels),
            58..66 => self.others(World::answers),
            66..74 if may.kill && self.state.borrow().stop.is_some() => {
                say!("the adapter is killed");
                leave(Killed)
            }
            74..79 if may.stop => self.stops(),
            79..84 if may.fail => {
                let mut state = self.state.borrow_mut();
                state.fails = 1 + state.dice.below(3) as u32;
                say!("the store fails");
            }
            _ => {}
        }
    }

    /// Others store an event, of which the adapter hears at once or later.
    fn store(&self, event: &NewEvent<'_>) -> i64 {
        let id = self.queue().push(event).unwrap().id;
        let mut state = self.state.borrow_mut();
        let after = *state.dice.pick(&[0, 5 * MILLISECOND, SECOND, 8 * SECOND]);
        state.agenda.plan(after, What::Nudge);
        id
    }

    pub fn message(self: &Rc<Self>) {
        let message = {
            let mut state = self.state.borrow_mut();
            let most = if state.may.hurry { 4 } else { 1 };
            let all = [Priority::Next, Priority::Later, Priority::Now, Priority::Steer];
            let priority = all[state.dice.below(most) as usize];
            let resume = state.dice.one_in(3);
            Message { priority, resume, ..Message::text("hello") }
        };
        let id = self.store(&message.event(WEB).unwrap());
        say!("message {id}: {:?} resume={}", message.priority, message.resume);
    }

    /// Somebody cancels an open run.
    fn cancels(self: &Rc<Self>) {
        let run_id = {
            let mut state = self.state.borrow_mut();
            let open = state.rules.open();
            if open.is_empty() {
                return;
            }
            let id = *state.dice.pick(&open);
            state.rules.run_id(id)
        };
        let id = self.store(&cancel(WEB, &run_id, "").unwrap());
        say!("event {id} cancels {run_id}");
    }

    /// Somebody answers a request for permission.
    fn answers(self: &Rc<Self>) {
        let asked = {
            let mut state = self.state.borrow_mut();
            let asked = state.rules.asked.clone();
            if asked.is_empty() {
                return;
            }
            state.dice.pick(&asked).clone()
        };
        self.store(&permission_answer(WEB, &asked, "yes").unwrap());
        say!("somebody answers {asked}");
    }

    fn stops(&self) {
        let mut state = self.state.borrow_mut();
        let Some(stop) = state.stop.clone() else { return };
        let now = clock::now();
        state.stopped.get_or_insert(now);
        state.is_woken = true;
        say!("the adapter is stopped");
        stop.stop();
    }
}
