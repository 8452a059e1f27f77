//! The clock of leases.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds on a clock that also runs while the machine is suspended, and cannot be set.
pub fn now() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}
