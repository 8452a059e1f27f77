//! Speed of this program, as ratios to other programs doing the same work in the same run.
//!
//! `cargo bench` takes a minute or two; `cargo bench -- --full` takes more rounds and larger threads;
//! `cargo bench -- push read` runs the benchmarks whose names contain one of these words;
//! `cargo bench -- --program PATH` measures another build. Ratios below 1 are in our favour.

mod peers;
mod place;
mod works;

use thread_testkit::bench::Plan;

use place::Place;

fn main() {
    let plan = Plan::from_args(env!("CARGO_BIN_EXE_thread"));
    let place = Place::new(&plan.program);
    plan.head(&place.version());
    for (name, work) in works::ALL {
        if plan.wants(name) {
            work(&plan, &place);
        }
    }
}
