//! What unit tests put in the place of the system on their own thread: its clocks, waits and processes. So supervisors
//! and the timer run as they are, but any number of them within milliseconds, and again in the same way.

use std::cell::{OnceCell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::Signal;
use thread_testkit::simulation::clock::{Simulated, simulate_clocks};

use super::Files;
use super::stamp::Stamp;
use super::watch::Notice;
use crate::error::Result;
use crate::model::location::Location;
use crate::model::run::ProcessId;
use crate::store::Store;

/// What a handler is started with.
pub enum Given {
    Stdin(Option<File>),
    /// Its ends of the pipes: stdin, stdout and stderr.
    Pipes([File; 3]),
}

/// All that is outside of the code under test.
pub trait System {
    /// A process waits for so long at the most: time passes, and others do something.
    fn wait(&self, timeout: Duration);

    /// A process sleeps. Nothing may unwind from here, through the C library's function.
    fn sleep(&self, time: Duration);

    /// A handler is started, with a copy of a lock. Returns its pid.
    fn handler(&self, _given: Given, _lock: File) -> i32 {
        panic!("a handler is started")
    }

    /// A handler is to end, and is killed after a time.
    fn ends(&self, _handler: i32, _signal: i32, _kill_after: Duration) {}

    /// A process is started in the background, for the thread with its files here, with a copy of a lock. Returns its
    /// pid.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    fn process(&self, subcommand: &str, args: &[&str], path: &Path, lock: File) -> io::Result<u32>;

    /// The process that does this.
    fn own(&self) -> ProcessId;

    fn is_alive(&self, process: &ProcessId) -> bool;

    /// The process that has this pid, if the test stands for it.
    fn process_of(&self, _pid: u32) -> Option<ProcessId> {
        None
    }

    /// The processes in the background below this one.
    fn background(&self) -> Vec<ProcessId> {
        Vec::new()
    }

    /// A process in the background gets a signal.
    fn signal(&self, _process: &ProcessId, _signal: Signal) {}

    /// Whether this process may have been asked to end: its socket has to be looked at.
    fn is_asked_to_end(&self) -> bool {
        true
    }

    /// Which thread has its files there: see [`Files::home`]. `None` if the test does not know.
    fn home(&self, _path: &Path) -> Option<Option<(u64, u64)>> {
        None
    }

    /// The files of a thread, if the test has them open.
    fn files(&self, _location: &Location) -> Option<Files> {
        None
    }

    /// The store of a thread in a directory, if the test stands for it.
    fn store(&self, _location: &Location) -> Option<Result<Box<dyn Store>>> {
        None
    }

    /// The stamp of a thread, if the test stands for it: `None` if that thread is gone.
    fn stamp(&self, _path: &Path) -> Option<Option<Stamp>> {
        None
    }

    /// A file is watched, if the test stands for it: `None` if there are no notices for it.
    fn watch(&self, _path: &Path, _name: &str) -> Option<Option<i32>> {
        None
    }

    /// A file is not watched any more.
    fn unwatch(&self, _watch: i32) {}

    /// Takes the notices of files that the test stands for.
    fn take_notices(&self) -> Option<Vec<Notice>> {
        None
    }

    /// A file is touched. Returns whether the test stands for it.
    fn touch(&self, _path: &Path, _name: &Path) -> bool {
        false
    }
}

thread_local! {
    static SYSTEM: RefCell<Option<Rc<dyn System>>> = const { RefCell::new(None) };
    static NOTICES: OnceCell<Option<OwnedFd>> = const { OnceCell::new() };
}

/// Until this is dropped, the system is simulated on this thread.
#[must_use]
pub struct Simulation {
    _clocks: Simulated,
}

impl Drop for Simulation {
    fn drop(&mut self) {
        SYSTEM.take();
    }
}

pub fn simulate(system: Rc<dyn System>) -> Simulation {
    SYSTEM.replace(Some(system));
    let _clocks = simulate_clocks(|time| {
        if let Some(system) = self::system() {
            system.sleep(time);
        }
    });
    Simulation { _clocks }
}

pub fn system() -> Option<Rc<dyn System>> {
    // A thread that ends may sleep.
    SYSTEM.try_with(|system| system.borrow().clone()).ok().flatten()
}

/// The one queue of notices of this thread, if there can be one: to end one takes the kernel long.
pub fn notices() -> Option<OwnedFd> {
    use rustix::fs::inotify::{CreateFlags, init};

    system()?;
    NOTICES.with(|notices| {
        let open = || init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        notices.get_or_init(open).as_ref()?.try_clone().ok()
    })
}
