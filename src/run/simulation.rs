//! Supervisors, the timer and dispatches in random schedules: with simulated clocks and handlers, on a store in memory.
//!
//! What is tested is the code of the processes as it is, from their first line to their last. One runs at a time. When
//! it waits, or before it uses the store, something happens: events come, handlers answer or end, somebody pauses, seeks
//! or stops, the clock is set, a process is killed. In the end the schedule is calm: handlers do what they should, and
//! time passes. Then nothing may be left.
//!
//! A failure prints what has happened, and its seed; `THREAD_SEED` repeats that schedule alone.

#[path = "../../crates/testkit/src/store/memory.rs"]
mod memory;
#[path = "../../crates/testkit/src/store/shared.rs"]
#[expect(dead_code, reason = "no store fails here")]
mod shared;

mod handlers;
mod others;
mod rules;
mod state;
mod watches;
mod worker;
mod world;

use thread_testkit::simulation::schedules;

use self::world::World;

#[test]
fn nothing_is_lost_or_given_twice_in_random_schedules() {
    schedules(1000, World::new, |world, seed| world.schedule(seed));
}
