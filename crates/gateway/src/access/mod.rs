//! Access control: tokens, logins, origins, host names, proxies, and limits on connections.

pub mod connection_limits;
pub mod logins;
pub mod origin;
pub mod proxy;
pub mod token;
