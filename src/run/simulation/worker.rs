//! Workers and starters in random schedules: with simulated clocks, notices and processes, on stores in memory.
//!
//! What is tested is the code of a worker, or of a starter as a part of a server, from its first line to its last. When it
//! waits, or before it uses a store, something happens: events come, with notices that are late, dropped or never given;
//! threads come and go, or cannot be opened; supervisors are started by others; a supervisor, the timer or the worker is
//! killed, or asked to end. The supervisors are played by the test. In the end the schedule is calm. Then nothing may be
//! left, and the worker has to end when it is asked to.

mod others;
mod places;
mod processes;
mod rules;
mod state;
mod system;
mod world;

use thread_testkit::simulation::schedules;

use self::world::World;

#[test]
fn no_wake_up_is_lost_and_limits_are_kept_in_random_schedules() {
    schedules(1000, World::new, |world, seed| world.schedule(seed));
}
