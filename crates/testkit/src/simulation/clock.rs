//! Simulated clocks: the functions of the C library that tell the time and sleep are replaced in programs with this package.
//! On a thread without simulated clocks they do what they always do.

use std::cell::Cell;
use std::time::Duration;

#[cfg(target_os = "linux")]
use libc::{c_int, clockid_t, timespec};

/// In nanoseconds, as all times here.
pub const MICROSECOND: u64 = 1000;
pub const MILLISECOND: u64 = 1000 * MICROSECOND;
pub const SECOND: u64 = 1000 * MILLISECOND;

/// When the clocks begin: the monotonic one, and the time of day since 1970.
const BEGINNING: Clocks = Clocks { monotonic: 1_000_000 * SECOND, time_of_day: 1_800_000_000 * SECOND };

#[derive(Debug, Clone, Copy)]
struct Clocks {
    monotonic: u64,
    time_of_day: u64,
}

thread_local! {
    static CLOCKS: Cell<Option<Clocks>> = const { Cell::new(None) };
    static SLEEP: Cell<Option<fn(Duration)>> = const { Cell::new(None) };
}

/// Until this is dropped, the clocks of this thread stand still unless they are moved.
#[derive(Debug)]
#[must_use]
pub struct Simulated(());

impl Drop for Simulated {
    fn drop(&mut self) {
        CLOCKS.set(None);
        SLEEP.set(None);
    }
}

/// Simulates the clocks of this thread. It calls `sleep` instead of sleeping. Nothing may unwind from there, through the C
/// library's function.
pub fn simulate_clocks(sleep: fn(Duration)) -> Simulated {
    CLOCKS.set(Some(BEGINNING));
    SLEEP.set(Some(sleep));
    Simulated(())
}

fn clocks() -> Clocks {
    CLOCKS.get().expect("clocks are simulated on this thread")
}

/// The monotonic clock.
pub fn now() -> u64 {
    clocks().monotonic
}

/// How long the clocks have been simulated; `None` if they are not.
pub(super) fn since_beginning() -> Option<u64> {
    CLOCKS.get().map(|clocks| clocks.monotonic - BEGINNING.monotonic)
}

pub fn time_of_day() -> u64 {
    clocks().time_of_day
}

/// Time passes.
pub fn pass(time: u64) {
    let Clocks { monotonic, time_of_day } = clocks();
    CLOCKS.set(Some(Clocks { monotonic: monotonic + time, time_of_day: time_of_day + time }));
}

/// Time passes until the monotonic clock is there, if it is not past that.
pub fn pass_until(end: u64) {
    pass(end.saturating_sub(now()));
}

/// Somebody sets the clock.
pub fn set_time_of_day(time_of_day: u64) {
    CLOCKS.set(Some(Clocks { time_of_day, ..clocks() }));
}

/// How long this thread has worked, by no simulated clock.
pub(super) fn worked() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for the time.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0, "this thread has a clock");
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// A duration in nanoseconds.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let simulated = CLOCKS.get().and_then(|clocks| match clock {
        libc::CLOCK_MONOTONIC => Some(clocks.monotonic),
        libc::CLOCK_REALTIME => Some(clocks.time_of_day),
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

#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    // SAFETY: as the caller of the C library's function guarantees.
    let failed = unsafe { clock_nanosleep(libc::CLOCK_REALTIME, 0, time, left) };
    if failed == 0 { 0 } else { -1 }
}

#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    // SAFETY: as the caller of the C library's function guarantees; otherwise the system call that it makes.
    unsafe {
        // A thread that ends may sleep.
        let Some(sleep) = SLEEP.try_with(Cell::get).ok().flatten().filter(|_| flags == 0) else {
            let failed = libc::syscall(libc::SYS_clock_nanosleep, clock, flags, time, left);
            return if failed == 0 { 0 } else { *libc::__errno_location() };
        };
        let time = time.read();
        sleep(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32));
        0
    }
}
