//! What simulations have in common.
//!
//! A simulation runs code as it is, on one thread, and plays all that is around it. A *schedule* is one such run, in which
//! everything follows from its seed: what happens, and when, is rolled with [`Dice`](crate::Dice); the [clocks](clock) stand still unless
//! they are moved; an [`Agenda`] has what is to happen; [`say!`](crate::say) notes what has. [`schedules`] runs one after the
//! other.

pub mod clock;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{Arguments, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use tempfile::TempDir;

use self::clock::MILLISECOND;
use crate::long;

/// For how long each thread of the long form works.
const LONG: Duration = Duration::from_secs(60);

/// So many schedules are run a second time.
const REPEATED: u64 = 25;

thread_local! {
    static TRACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes what happens in a schedule, with the time.
#[macro_export]
macro_rules! say {
    ($($what:tt)*) => {
        if $crate::simulation::is_traced() {
            $crate::simulation::say(format_args!($($what)*));
        }
    };
}

#[doc(hidden)]
pub fn is_traced() -> bool {
    TRACE.with_borrow(Option::is_some)
}

#[doc(hidden)]
pub fn say(what: Arguments<'_>) {
    // What is noted may be computed by something that notes, too.
    let what = what.to_string();
    TRACE.with_borrow_mut(|trace| {
        let Some(trace) = trace else { return };
        let stamped = match clock::since_beginning() {
            Some(time) => writeln!(trace, "{:>12.3} ms  {what}", time as f64 / MILLISECOND as f64),
            None => writeln!(trace, "{what}"),
        };
        stamped.expect("a string takes all");
    });
}

/// Runs a schedule for each seed from 0 on, one after the other in the same world: `short` of them. With
/// `THREAD_FAULTS=long`, every processor has a world, and there are as many schedules as a minute of all processors takes. A
/// failure prints what has happened, and how to repeat it; with `THREAD_SEED` that one alone is run.
///
/// The first ones are run again, forwards and backwards: what happens may not depend on what was before.
pub fn schedules<W>(short: u64, world: impl Fn() -> W + Sync, schedule: impl Fn(&mut W, u64) + Sync) {
    let only = std::env::var("THREAD_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    if let Some(seed) = only {
        let (trace, done) = traced(seed, &mut world(), &schedule);
        eprint!("{trace}");
        return done.unwrap_or_else(|failed| resume_unwind(failed));
    }
    let (next, has_failed) = (AtomicU64::new(0), AtomicBool::new(false));
    // Returns how long this thread has worked.
    let run = || {
        let (mut world, began) = (world(), clock::worked());
        let worked = || clock::worked() - began;
        while !has_failed.load(Ordering::Relaxed) && (!long() || worked() < LONG) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !long() && seed >= short {
                break;
            }
            if let Err(failed) = catch_unwind(AssertUnwindSafe(|| schedule(&mut world, seed))) {
                has_failed.store(true, Ordering::Relaxed);
                explain(seed, &mut world, &schedule);
                resume_unwind(failed);
            }
        }
        worked()
    };
    let (worked, count) = if long() {
        let worked = on_each_processor(&run);
        (worked.iter().sum(), next.into_inner())
    } else {
        (run(), short)
    };
    eprintln!(
        "{count} schedules, {:.0} a minute of one processor",
        count as f64 * 60.0 / Duration::as_secs_f64(&worked)
    );
    let mut world = world();
    let mut again = |seed| {
        let (trace, done) = traced(seed, &mut world, &schedule);
        assert!(done.is_ok(), "schedule {seed} fails the second time:\n{trace}");
        trace
    };
    let traces: Vec<String> = (0..REPEATED).map(&mut again).collect();
    for (seed, before) in traces.iter().enumerate().rev() {
        let again = again(seed as u64);
        let same = before.lines().zip(again.lines()).take_while(|(before, again)| before == again).count();
        let differs = |trace: &str| trace.lines().nth(same).map(str::to_owned);
        let (before, again) = (differs(before), differs(&again));
        assert_eq!(before, again, "schedule {seed} goes another way the second time, from line {same} on");
    }
}

/// Runs this on as many threads as there are processors. Their names are that of this one, the test's.
fn on_each_processor<T: Send>(run: &(impl Fn() -> T + Sync)) -> Vec<T> {
    let test = std::thread::current();
    let builder = || std::thread::Builder::new().name(test.name().unwrap_or_default().to_owned());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let start = |_| builder().spawn_scoped(scope, run).expect("a thread can be started");
        let threads: Vec<_> = (0..processors).map(start).collect();
        let ended = threads.into_iter().map(ScopedJoinHandle::join);
        ended.map(|worked| worked.unwrap_or_else(|failed| resume_unwind(failed))).collect()
    })
}

/// Prints what happens in a schedule that fails, and how to repeat it.
fn explain<W>(seed: u64, world: &mut W, schedule: &impl Fn(&mut W, u64)) {
    let (trace, done) = traced(seed, world, schedule);
    eprint!("{trace}");
    let (test, package) = (std::thread::current(), std::env::var("CARGO_PKG_NAME").unwrap_or_default());
    let test = test.name().map(|test| format!(" -- --exact {test}")).unwrap_or_default();
    let fails = if done.is_err() { "To repeat it" } else { "Alone, it does not fail" };
    eprintln!("{fails}: THREAD_SEED={seed} cargo test -p {package}{test}");
}

/// Runs a schedule. Returns what has happened in it, and perhaps why it failed.
fn traced<W>(seed: u64, world: &mut W, schedule: &impl Fn(&mut W, u64)) -> (String, std::thread::Result<()>) {
    TRACE.set(Some(String::new()));
    let done = catch_unwind(AssertUnwindSafe(|| schedule(world, seed)));
    (TRACE.take().unwrap_or_default(), done)
}

/// What is to happen, in the order in which it happens.
#[derive(Debug)]
pub struct Agenda<What> {
    entries: BTreeMap<(u64, u64), What>,
    planned: u64,
}

impl<What> Default for Agenda<What> {
    fn default() -> Agenda<What> {
        Agenda { entries: BTreeMap::new(), planned: 0 }
    }
}

impl<What> Agenda<What> {
    pub fn plan(&mut self, after: u64, what: What) {
        self.planned += 1;
        self.entries.insert((clock::now() + after, self.planned), what);
    }

    /// What is next, until a time: then it is as late as that.
    pub fn next(&mut self, end: u64) -> Option<What> {
        let entry = self.entries.first_entry().filter(|entry| entry.key().0 <= end)?;
        clock::pass_until(entry.key().0);
        Some(entry.remove())
    }

    /// All that is planned.
    pub fn all(&self) -> impl Iterator<Item = &What> {
        self.entries.values()
    }
}

/// How a process is killed.
#[derive(Debug)]
pub struct Killed;

/// Leaves all up to [`left`].
pub fn leave(how: impl Send + 'static) -> ! {
    resume_unwind(Box::new(how))
}

/// Does something that may be [left](leave) in this way.
pub fn left<How: 'static, T>(work: impl FnOnce() -> T) -> Result<T, How> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|how| match how.downcast::<How>() {
        Ok(how) => *how,
        Err(failed) => resume_unwind(failed),
    })
}

/// A directory in memory, if there can be one: a disk would take most of the time.
pub fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory can be made")
}

/// Removes the files in a directory, if there is one, but not the one with this name.
pub fn clear(dir: &Path, kept: &str) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
        if entry.file_name() != kept && !entry.file_type().unwrap().is_dir() {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}
