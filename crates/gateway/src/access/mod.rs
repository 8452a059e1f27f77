//! Access control: tokens, logins, origins, host names, proxies, and places for connections.

pub mod logins;
pub mod origin;
pub mod places;
pub mod proxy;
pub mod token;
