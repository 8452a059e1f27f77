//! What unit tests put in the place of the system on their own thread: its clocks, waits and agent programs. So an adapter
//! runs as it is, but any number of times within milliseconds, and again in the same way.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::process::{ChildStdout, Command};
use std::rc::Rc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use thread_testkit::simulation::clock::{Simulated, simulate_clocks};

use crate::program::ProgramEvent;

/// Passes on what happens to a program. Returns false if there is no room for that.
pub type Report = Box<dyn Fn(ProgramEvent) -> bool>;

/// All that is outside of the code under test.
pub trait System {
    /// The adapter waits for so long at the most: time passes, and others do something.
    fn wait(&self, timeout: Duration);

    /// It sleeps. Nothing may unwind from here.
    fn sleep(&self, time: Duration);

    /// It has read the thread's events up to this one.
    fn has_read(&self, upto: i64);

    /// A program is started: with what it will be sent, if it is kept. Returns its pid, and a file to hold.
    fn start(
        &self,
        command: &Command,
        stdin: Option<Receiver<Vec<u8>>>,
        report: Report,
    ) -> std::io::Result<(Pid, ChildStdout)>;

    /// Whether everything that a program has printed was reported.
    fn is_read(&self, pid: Pid) -> bool;

    fn signal(&self, pid: Pid, signal: Signal);

    /// Reaps a program that has exited.
    fn reap(&self) -> Option<(Pid, i32)>;

    /// Kills programs that have all of these environment variables, or these pids, and if it is given, all but some.
    fn kill(&self, variables: &[Vec<u8>], pids: &[u32], all_but: Option<&BTreeSet<u32>>);

    /// The pids of the programs that are alive.
    fn alive(&self) -> BTreeSet<u32>;
}

thread_local! {
    static SYSTEM: RefCell<Option<Rc<dyn System>>> = const { RefCell::new(None) };
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
    SYSTEM.try_with(|system| system.borrow().clone()).ok().flatten()
}
