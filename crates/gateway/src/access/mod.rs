//! Access control: tokens, origins, host names, proxies, and places for connections.

pub mod origin;
pub mod places;
pub mod proxy;
pub mod token;
