//! Adapters in random schedules: with simulated clocks and agent programs, on a store in memory.
//!
//! What is tested is the code of an adapter as it is, from its first line to its last. When it waits, or before it uses the
//! store, something happens: messages come, programs print, answer, fail, break the protocol, hang or die, somebody cancels
//! or answers, the store fails, the adapter is stopped or killed. In the end the schedule is calm: programs do what they
//! should, and time passes. Then each message has its ending, and the adapter ends.
//!
//! A failure prints what has happened, and its seed; `THREAD_SEED` repeats that schedule alone.

mod others;
mod programs;
mod rules;
mod state;
mod talks;
mod world;

use thread_testkit::simulation::schedules;

use self::world::World;

#[test]
fn each_message_is_answered_once_in_random_schedules() {
    schedules(300, World::new, |world, seed| world.schedule(seed));
}
