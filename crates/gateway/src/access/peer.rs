//! The peer of a request and the check of its token, which the server attaches to the request.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

/// The peer of a request.
#[derive(Clone)]
pub struct Peer {
    pub address: SocketAddr,
    /// Counts against the limit on connections until this one ends, even after an upgrade to a WebSocket.
    pub _permit: Arc<OwnedSemaphorePermit>,
}

/// Result of checking a request's token. If none is required and none was sent, it is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCheck {
    Valid,
    Invalid,
    /// No token was sent, but one is required.
    Missing,
}
