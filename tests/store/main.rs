//! Tests the contract of `thread::store::Store` on every implementation.

#[macro_use]
mod conformance;
mod memory;
mod model;
mod queue;
mod sqlite;

use tempfile::TempDir;
use thread::Queue;
use thread::files::DB;
use thread::sqlite::Sqlite;
use thread::store::Store;

use memory::MemoryStore;

/// An empty store, and its directory if it has one.
pub struct Fresh {
    pub store: Box<dyn Store>,
    pub dir: Option<TempDir>,
}

pub fn in_memory() -> Fresh {
    Fresh { store: Box::new(MemoryStore::default()), dir: None }
}

pub fn on_disk() -> Fresh {
    let dir = tempfile::tempdir().unwrap();
    Queue::init(dir.path()).unwrap();
    Fresh { store: Box::new(Sqlite::open(&dir.path().join(DB)).unwrap()), dir: Some(dir) }
}

mod memory_conforms {
    conformance!(crate::in_memory());
}

mod sqlite_conforms {
    conformance!(crate::on_disk());
}
