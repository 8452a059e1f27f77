//! Access control: tokens, origins, host names, and places for connections.

pub mod origin;
pub mod places;
pub mod token;
