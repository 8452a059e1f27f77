//! The open runs of a session: see [`thread_sessions::runs`].

pub use thread_sessions::runs::{AgentView, open_runs};

#[cfg(test)]
mod tests;
