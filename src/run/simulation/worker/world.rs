//! The world of a schedule: where threads are, how time passes, and what the worker sees of it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use thread_testkit::say;
use thread_testkit::simulation::clock::{self, MILLISECOND, SECOND};
use thread_testkit::simulation::{leave, left};

use super::places::{NAMED, Places, THREADS};
use super::state::{Consumer, State, Thread, Worker};
use super::system::{SERVER, add_scheme};
use crate::files::Files;
use crate::files::simulated::simulate;
use crate::files::watch::Notice;
use crate::model::location::Location;
use crate::model::run::{Deliver, Options};
use crate::model::subscription::{ConsumerId, NewSubscription};
use crate::run::scope::Scope;
use crate::run::shutdown::Shutdown;
use crate::run::simulation::shared::SharedStore;
use crate::run::starter::{News, Starter};
use crate::run::{Launcher, WakeBy, worker};
use crate::store::Store;

/// How the code of a worker or starter is left.
pub enum Left {
    Killed,
    /// A starter never ends by itself.
    Done,
}

pub struct World {
    pub places: Places,
    pub launcher: Launcher,
    /// Those of each thread, by its location.
    pub files: RefCell<HashMap<(usize, Location), Files>>,
    pub state: RefCell<State>,
}

/// Says what is stored, if something is wrong.
struct Stored<'w>(&'w World);

impl Drop for Stored<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.borrow_mut().is_busy = true;
            for mut store in self.0.stores() {
                for row in store.subscriptions().unwrap() {
                    say!("{} {} {:?}", row.consumer, row.last_acked_id, row.state);
                }
            }
        }
    }
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

pub fn world() -> Option<Rc<World>> {
    WORLD.with_borrow(Clone::clone)
}

impl World {
    pub fn new() -> Rc<World> {
        add_scheme();
        let world = Rc::new(World {
            places: Places::new(),
            launcher: Launcher { program: "/nowhere".into(), waking: WakeBy::Dispatch },
            files: RefCell::default(),
            state: RefCell::new(State::new(0, Vec::new())),
        });
        WORLD.set(Some(world.clone()));
        world
    }

    pub fn stores(&self) -> Vec<SharedStore> {
        self.state.borrow().threads.iter().map(|thread| thread.store.clone()).collect()
    }

    /// A thread as it is at the beginning.
    fn thread(&self, dice: &mut thread_testkit::Dice, home: (u64, u64)) -> Thread {
        let mut store = SharedStore::new(|operation| world().unwrap().before(operation));
        let options = Options {
            deliver: Deliver::Stdin,
            max_attempts: 3,
            stall_after: None,
            backoff: vec![Duration::from_secs(1), Duration::from_secs(4)],
            ..Options::default()
        };
        let ids = (0..1 + dice.below(2)).map(|number| ConsumerId::new(&format!("c{number}")).unwrap());
        let consumers = ids.map(|id| {
            let new = NewSubscription {
                consumer: id.clone(),
                handler_cmd: "handler".to_owned(),
                filter: None,
                cwd: None,
                options: options.clone(),
                from: None,
                replace: false,
            };
            store.subscribe(&new).unwrap();
            Consumer { id, due: None }
        });
        let consumers = consumers.collect();
        let (wal, touched) = ((0, Duration::ZERO), Duration::ZERO);
        Thread {
            store,
            place: None,
            home,
            consumers,
            wal,
            touched,
            watch: None,
            leaves: false,
            fails: 0,
            moved: None,
            failed: None,
        }
    }

    /// One schedule, from its beginning to its end.
    pub fn schedule(self: &Rc<Self>, seed: u64) {
        self.clear();
        let _simulation = simulate(self.clone());
        let mut state = State::new(seed, Vec::new());
        state.is_busy = true;
        state.threads = {
            let homes = if state.is_server { self.places.base_homes } else { self.places.homes };
            let dice = &mut state.dice;
            self.state.borrow_mut().is_busy = true;
            homes.iter().map(|home| self.thread(dice, *home)).collect()
        };
        state.is_busy = false;
        let (is_server, away) = (state.is_server, state.dice.below(8));
        say!("{:?} server={is_server} tick={} ms", state.may, state.tick / MILLISECOND);
        self.state.replace(state);
        let _stored = Stored(self);
        for at in 0..THREADS {
            if is_server {
                self.state.borrow_mut().threads[at].place = Some(at);
            } else if away & (1 << at) == 0 {
                self.moves_to(at, at);
            }
        }
        self.state.borrow_mut().plan_step();
        while !self.works() {
            let downtime = self.state.borrow_mut().dice.below(3 * SECOND);
            self.pass(downtime);
        }
        assert!(self.is_done(), "the worker has ended before all was done");
    }

    /// A worker or a starter works. Returns whether that was the last one.
    fn works(self: &Rc<Self>) -> bool {
        let shutdown = Shutdown::new().unwrap();
        self.is_named();
        let (scope, grace, most, is_starter) = {
            let mut state = self.state.borrow_mut();
            let scope = match state.is_server {
                true => Scope { threads: vec![SERVER.into()], roots: Vec::new() },
                false => Scope {
                    threads: vec![Location::from(&self.places.all[NAMED])],
                    roots: vec![self.places.root.clone()],
                },
            };
            let is_starter = state.dice.one_in(5);
            let most = (!is_starter && state.dice.one_in(2)).then(|| 1 + state.dice.below(3) as usize);
            let grace = *state.dice.pick(&[0, SECOND, 10 * SECOND]);
            state.numbers += 1;
            let number = state.numbers;
            say!("worker {number} begins: starter={is_starter} most={most:?} grace={grace}");
            state.notices.clear();
            state.uses(false);
            state.threads.iter_mut().for_each(|thread| {
                thread.watch = None;
                thread.failed = None;
                thread.consumers.iter_mut().for_each(|consumer| consumer.due = None);
            });
            state.worker = Some(Worker {
                number,
                is_starter,
                most,
                grace,
                shutdown: Some(shutdown.sender().try_clone().unwrap()),
                asked: Vec::new(),
                is_nudged: false,
                has_waited: false,
                is_ready: false,
                is_stopping: false,
            });
            (scope, Duration::from_nanos(grace), most, is_starter)
        };
        let (began, busy) = {
            let state = self.state.borrow();
            (clock::now(), state.busy)
        };
        let mut tell = |news: News<'_>| self.is_told(&news);
        let done = left(|| match is_starter {
            true => Starter::new(&scope, &self.launcher, &mut tell)?.run(),
            false => worker::follow(&scope, most, &self.launcher, &shutdown, grace, &mut tell),
        });
        let mut state = self.state.borrow_mut();
        let worker = state.worker.take().unwrap();
        state.threads.iter_mut().for_each(|thread| thread.watch = None);
        match done {
            Ok(done) => {
                say!("worker {} ends: {done:?}", worker.number);
                let is_calm = state.is_calm;
                drop(state);
                if done.is_err() {
                    // A thread that it was given cannot be used now.
                    assert!(!is_calm, "{done:?}");
                    return false;
                }
                self.has_ended(&worker, began, busy);
                is_calm && self.is_done()
            }
            Err(Left::Killed) => false,
            Err(Left::Done) => true,
        }
    }

    /// The worker tells its caller something.
    fn is_told(&self, news: &News<'_>) {
        let mut state = self.state.borrow_mut();
        let Some(worker) = state.worker.as_mut() else { return };
        match news {
            News::Ready => {
                assert!(!worker.is_ready, "it is ready twice");
                worker.is_ready = true;
            }
            News::Stopping => worker.is_stopping = true,
            News::Trouble { error, .. } => say!("trouble: {error}"),
            News::Looked { location, started, .. } => {
                say!("it looks at {}, and starts {started}", location.name());
            }
        }
    }

    /// The worker gets a notice.
    pub fn notice(&self, state: &mut State, watch: i32) {
        if state.notices.last() != Some(&Notice::Touched(watch)) {
            state.notices.push(Notice::Touched(watch));
        }
    }

    /// Time passes, whatever happens.
    fn pass(self: &Rc<Self>, time: u64) {
        let end = clock::now() + time;
        while self.next_happens(end) {}
        clock::pass_until(end);
    }

    /// Lets happen what is next, until a time. Returns false if there is nothing more.
    pub fn next_happens(self: &Rc<Self>, end: u64) -> bool {
        let Some(what) = self.state.borrow_mut().agenda.next(end) else { return false };
        self.happens(what);
        true
    }

    /// Before the worker uses a store.
    fn before(self: &Rc<Self>, operation: &'static str) {
        let (acts, is_slow) = {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            if state.is_busy || state.worker.is_none() {
                return;
            }
            if matches!(operation, "update_run" | "make_scheduled") {
                let open = state.open;
                state.written(open);
            }
            let is_slow = state.may.be_slow && !state.is_calm && state.dice.one_in(30);
            state.uses(true);
            (!state.is_calm && state.steps > 0 && state.dice.one_in(12), is_slow)
        };
        if is_slow {
            let time = {
                let mut state = self.state.borrow_mut();
                let time = state.dice.below(60 * MILLISECOND);
                state.busy += time;
                time
            };
            self.pass(time);
        }
        if acts {
            self.step();
        }
        self.state.borrow_mut().uses(false);
    }

    /// Others do something, during which nothing else happens.
    pub fn others<T>(self: &Rc<Self>, act: impl FnOnce(&Rc<Self>) -> T) -> T {
        let was_busy = std::mem::replace(&mut self.state.borrow_mut().is_busy, true);
        let done = act(self);
        self.state.borrow_mut().is_busy = was_busy;
        done
    }

    /// Whether the worker has something to wake up for.
    pub fn is_woken(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let has_notices = !state.notices.is_empty();
        let Some(worker) = state.worker.as_mut() else { return true };
        std::mem::take(&mut worker.is_nudged) || (has_notices && !worker.is_starter && !worker.is_stopping)
    }

    /// All is done, and the worker still waits: it may end.
    pub fn is_over(self: &Rc<Self>) {
        let (is_starter, is_asked) = {
            let state = self.state.borrow();
            let worker = state.worker.as_ref().unwrap();
            (worker.is_starter, !worker.asked.is_empty())
        };
        if is_starter {
            leave(Left::Done);
        }
        if !is_asked {
            self.ask_to_end();
        }
    }
}
