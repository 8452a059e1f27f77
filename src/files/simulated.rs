//! What unit tests put in the place of the system on their own thread: its clocks, waits and processes. So supervisors
//! and the timer run as they are, but any number of them within milliseconds, and again in the same way.
//!
//! The functions of the C library that tell the time and sleep are replaced in the program of the tests. Without a
//! simulation they do what they always do.

use std::cell::{Cell, OnceCell, RefCell};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use libc::{c_int, clockid_t, timespec};

use crate::model::run::ProcessId;

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
    fn handler(&self, given: Given, lock: File) -> i32;

    /// A handler is to end, and is killed after a time.
    fn ends(&self, handler: i32, signal: i32, kill_after: Duration);

    /// A process is started in the background, with a copy of a lock. Returns its pid.
    fn process(&self, subcommand: &str, lock: File) -> u32;

    /// The process that does this.
    fn own(&self) -> ProcessId;

    fn is_alive(&self, process: &ProcessId) -> bool;
}

thread_local! {
    static SYSTEM: RefCell<Option<Rc<dyn System>>> = const { RefCell::new(None) };
    /// The monotonic clock and the time of day, in nanoseconds.
    static CLOCKS: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    static NOTICES: OnceCell<Option<OwnedFd>> = const { OnceCell::new() };
}

/// Simulates the system on this thread, or does not any more.
pub fn simulate(system: Option<Rc<dyn System>>) {
    if system.is_none() {
        CLOCKS.set(None);
    }
    SYSTEM.replace(system);
}

pub fn system() -> Option<Rc<dyn System>> {
    // A thread that ends may sleep.
    SYSTEM.try_with(|system| system.borrow().clone()).ok().flatten()
}

pub fn set_clocks(monotonic: u64, time_of_day: u64) {
    CLOCKS.set(Some((monotonic, time_of_day)));
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

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let simulated = CLOCKS.get().and_then(|(monotonic, time_of_day)| match clock {
        libc::CLOCK_MONOTONIC => Some(monotonic),
        libc::CLOCK_REALTIME => Some(time_of_day),
        _ => None,
    });
    let Some(now) = simulated else {
        // SAFETY: the system call that the C library makes.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int };
    };
    let (tv_sec, tv_nsec) = ((now / 1_000_000_000).cast_signed(), (now % 1_000_000_000) as i64);
    // SAFETY: as the caller of the C library's function guarantees.
    unsafe { time.write(timespec { tv_sec, tv_nsec }) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    // SAFETY: as the caller of the C library's function guarantees.
    let failed = unsafe { clock_nanosleep(libc::CLOCK_REALTIME, 0, time, left) };
    if failed == 0 { 0 } else { -1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    // SAFETY: as the caller of the C library's function guarantees; otherwise the system call that it makes.
    unsafe {
        let Some(system) = system().filter(|_| flags == 0) else {
            let failed = libc::syscall(libc::SYS_clock_nanosleep, clock, flags, time, left);
            return if failed == 0 { 0 } else { *libc::__errno_location() };
        };
        let time = time.read();
        system.sleep(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32));
        0
    }
}
