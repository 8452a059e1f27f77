//! HTTP: accepting connections and routing requests; everything offered in addition to the WebSocket.

mod agui;
pub mod attachments;
mod content;
pub mod error;
mod hooks;
mod login;
mod mcp;
pub mod metrics;
pub mod openai;
mod openapi;
mod page;
mod read_only;
pub mod server;
mod sse;
mod threads;
