//! What requests are answered with, as JSON. What is not known or does not apply is left out.

mod dead;
mod events;
mod runs;
mod threads;

pub use dead::*;
pub use events::*;
pub use runs::*;
pub use threads::*;
