//! The JSON of responses. Values that are unknown or do not apply are left out.

mod dead;
mod events;
mod runs;
mod series;
mod threads;
mod trace;

pub use dead::*;
pub use events::*;
pub use runs::*;
pub use series::*;
pub use threads::*;
pub use trace::*;
