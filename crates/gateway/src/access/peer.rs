//! Who a request comes from, and whether it has shown who it is. The server notes both with the request.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

/// Who a request comes from.
#[derive(Clone)]
pub struct Peer {
    pub address: SocketAddr,
    /// Taken for as long as the connection lasts, also when it has become a WebSocket.
    pub _place: Arc<OwnedSemaphorePermit>,
}

/// Whether a request has shown a token that lets it in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Right,
    Wrong,
    /// None; also where none is needed.
    None,
}
