//! HTTP: accepting connections and routing requests; what is offered beside the WebSocket.

mod agui;
mod attachments;
mod content;
mod error;
mod login;
mod mcp;
mod metrics;
mod page;
pub mod server;
