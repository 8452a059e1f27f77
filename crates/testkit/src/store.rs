//! The contract of every [`Store`], and a store in memory to compare others with.

pub mod conformance;
mod figures;
mod held_back;
mod memory;
mod model;
mod shared;

pub use figures::figures_are_those_of_a_model;
pub use held_back::the_oldest_of_each_key_is_taken;
pub use memory::MemoryStore;
pub use model::all_stores_behave_the_same;
pub use shared::SharedStore;

use thread::store::Store;

/// An empty store.
pub struct Fresh {
    pub store: Box<dyn Store>,
    /// Opens the same store again, if it outlives a connection.
    pub reopen: Option<Box<dyn Fn() -> Box<dyn Store>>>,
}

impl Fresh {
    /// A store in memory.
    pub fn in_memory() -> Fresh {
        Fresh { store: Box::new(MemoryStore::default()), reopen: None }
    }

    /// The store that each call of `open` returns a connection to.
    pub fn outliving(open: impl Fn() -> Box<dyn Store> + 'static) -> Fresh {
        Fresh { store: open(), reopen: Some(Box::new(open)) }
    }
}
