//! Sessions on disk: a folder, the *root*, with a thread for each conversation with an agent.
//!
//! This is what the programs that read them share: the gateway `thread serve`, and `thread mcp`. Reading may block
//! on the disk.
//!
//! | module | owns |
//! |---|---|
//! | [`root`] | the folder: which sessions there are, and opening them |
//! | [`catalogue`] | titles, last messages and states, for lists |
//! | [`search`](mod@search) | finding sessions by text or day |
//! | [`terms`] | what is searched for: words, and phrases in quotes |
//! | [`events`] | reading a session's events, large ones without their content |
//! | [`runs`] | which runs are open |
//! | [`cancel`](mod@cancel) | ending them |
//! | [`watch`] | notices of what is new |
//! | [`turns`] | blocking work, in bounded numbers |

pub mod cancel;
pub mod catalogue;
pub mod error;
pub mod events;
pub mod excerpt;
pub mod root;
pub mod runs;
pub mod search;
pub mod session_id;
pub mod terms;
pub mod turns;
pub mod watch;

pub use catalogue::Catalogue;
pub use error::{RequestError, Result};
pub use root::Root;
pub use runs::{AgentView, open_runs};
pub use session_id::SessionId;
pub use turns::Kind;
pub use watch::{ChangeWatcher, SessionWatch};
