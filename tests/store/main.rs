//! Tests the contract of `thread::store::Store` on every implementation.

#[macro_use]
mod conformance;
mod memory;
mod model;
mod queue;
mod sqlite;

use thread::Queue;
use thread::files::DB;
use thread::sqlite::Sqlite;
use thread::store::Store;

use memory::MemoryStore;

/// How many cases of [`model`] there are by default.
pub const CASES: u32 = 100;

/// An empty store.
pub struct Fresh {
    pub store: Box<dyn Store>,
    /// Opens it once more, if it outlives a connection.
    pub reopen: Option<Box<dyn Fn() -> Box<dyn Store>>>,
}

pub fn in_memory() -> Fresh {
    Fresh { store: Box::new(MemoryStore::default()), reopen: None }
}

pub fn on_disk() -> Fresh {
    let dir = tempfile::tempdir().unwrap();
    Queue::init(dir.path()).unwrap();
    // It keeps the directory too.
    let open = move || -> Box<dyn Store> { Box::new(Sqlite::open(&dir.path().join(DB)).unwrap()) };
    Fresh { store: open(), reopen: Some(Box::new(open)) }
}

/// The stores that are compared.
pub fn stores() -> Option<[Fresh; 2]> {
    Some([in_memory(), on_disk()])
}

mod memory_conforms {
    conformance!(crate::in_memory());
}

mod sqlite_conforms {
    conformance!(crate::on_disk());
}
