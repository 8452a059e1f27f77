//! Threads in PostgreSQL, with a real server. Without one installed, these tests are skipped.

mod agent;
mod changes;
mod clocks;
mod connect;
mod connections;
mod errors;
mod failover;
mod follow;
mod guards;
mod kept;
mod kills;
mod leases;
mod ls;
mod machine;
mod machines;
mod moving;
mod outputs;
mod pooler;
mod pools;
mod retention;
mod rights;
mod scheduled;
mod shared;
mod steps;
mod store;
mod vacuum;
mod workers;

use std::time::Duration;

use thread::Queue;
use thread::model::location::Location;
use thread_postgres::SCHEME;
use thread_testkit::postgres::server;
use thread_testkit::store::Fresh;

/// A new thread on the server; `None` if none is installed.
fn fresh() -> Option<Fresh> {
    let location = Location::from(server()?.location());
    (SCHEME.init)(&location).unwrap();
    Some(Fresh::outliving(move || (SCHEME.open)(&location, Duration::from_secs(60)).unwrap()))
}

/// The same, as a queue.
fn queue() -> Option<Queue> {
    let location = Location::from(server()?.location());
    (SCHEME.init)(&location).unwrap();
    thread::queue::locations::add(SCHEME);
    Some(Queue::open(location).unwrap())
}

mod postgres_conforms {
    thread_testkit::conformance!({
        let Some(fresh) = crate::fresh() else { return };
        fresh
    });
}

mod model {
    use thread_testkit::store::{Fresh, all_stores_behave_the_same as compare};

    #[test]
    fn all_stores_behave_the_same() {
        // Each case takes a second.
        compare(12, || Some([Fresh::in_memory(), crate::fresh()?]));
    }

    #[test]
    fn figures_are_those_of_a_model() {
        thread_testkit::store::figures_are_those_of_a_model(6, crate::queue);
    }

    #[test]
    fn the_oldest_of_each_key_is_taken() {
        thread_testkit::store::the_oldest_of_each_key_is_taken(4, crate::queue);
    }
}
