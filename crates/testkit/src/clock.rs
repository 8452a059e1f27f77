//! Simulated clocks, for unit tests that include this file: the functions of the C library that tell the time and sleep are
//! replaced in their program. On a thread without simulated clocks they do what they always do.

use std::cell::Cell;
use std::time::Duration;

use libc::{c_int, clockid_t, timespec};

thread_local! {
    /// The monotonic clock and the time of day, in nanoseconds.
    static CLOCKS: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    static SLEEP: Cell<Option<fn(Duration)>> = const { Cell::new(None) };
}

/// Sets the clocks of this thread, or no longer simulates them.
pub fn set_clocks(clocks: Option<(u64, u64)>) {
    CLOCKS.set(clocks);
}

/// What this thread does instead of sleeping. Nothing may unwind from it, through the C library's function.
pub fn set_sleep(sleep: Option<fn(Duration)>) {
    SLEEP.set(sleep);
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
