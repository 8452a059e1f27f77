//! Threads in PostgreSQL, with a real server. Without one installed, these tests are skipped.

#[allow(dead_code, reason = "a part of it is for other stores")]
#[macro_use]
#[path = "../../../../tests/store/conformance.rs"]
mod conformance;
#[path = "../../../../tests/store/memory.rs"]
mod memory;
#[path = "../../../../tests/store/model.rs"]
mod model;
#[path = "../../../../tests/faults/preload.rs"]
mod preload;

mod agent;
mod clocks;
mod connect;
mod errors;
mod failover;
mod follow;
mod kills;
mod machine;
mod machines;
mod pooler;
mod rights;
mod server;
mod store;
mod vacuum;

use std::time::Duration;

use memory::MemoryStore;
use server::server;
use thread::model::location::Location;
use thread::store::Store;
use thread_postgres::SCHEME;

/// How many cases of [`model`] there are by default: each takes a second.
pub const CASES: u32 = 12;

/// Whether the long form is asked for.
pub fn long() -> bool {
    std::env::var("THREAD_FAULTS").is_ok_and(|form| form == "long")
}

/// An empty store.
pub struct Fresh {
    pub store: Box<dyn Store>,
    /// Opens it once more, if it outlives a connection.
    pub reopen: Option<Box<dyn Fn() -> Box<dyn Store>>>,
}

/// A new thread on the server; `None` if none is installed.
pub fn fresh() -> Option<Fresh> {
    let location = Location::from(server()?.location());
    (SCHEME.init)(&location).unwrap();
    let open = move || (SCHEME.open)(&location, Duration::from_secs(60)).unwrap();
    Some(Fresh { store: open(), reopen: Some(Box::new(open)) })
}

/// The stores that are compared.
pub fn stores() -> Option<[Fresh; 2]> {
    Some([Fresh { store: Box::new(MemoryStore::default()), reopen: None }, fresh()?])
}

mod postgres_conforms {
    conformance!({
        let Some(fresh) = crate::fresh() else { return };
        fresh
    });
}
