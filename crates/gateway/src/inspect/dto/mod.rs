//! The JSON of responses. Values that are unknown or do not apply are left out.

mod dead;
mod events;
mod runs;
mod threads;

pub use dead::*;
pub use events::*;
pub use runs::*;
pub use threads::*;
