//! Tools for an LLM, by the Model Context Protocol: a thread, or all sessions of a root.
//!
//! The program `thread-mcp` offers them on stdin and stdout, the gateway at `/mcp`.
//!
//! | module | owns |
//! |---|---|
//! | [`scope`] | what a server may touch, and doing that without blocking |
//! | [`tools`] | the tools, by what they are for |
//! | [`resources`] | threads as resources |
//! | [`server`] | the protocol, by the crate `rmcp` |
//! | [`problem`], [`schema`], [`text`] | how errors, arguments and results, and events are described |

#[cfg(feature = "http")]
pub mod http;
pub mod problem;
pub mod resources;
pub mod schema;
pub mod scope;
pub mod server;
pub mod text;
pub mod tools;
