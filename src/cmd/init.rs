//! `thread init`: making a thread.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::json;

use crate::error::Result;
use crate::output;
use crate::thread::Thread;

/// Make a thread in a directory
///
/// Makes the directory and its parents if need be; inside an existing one it adds itself beside
/// what is there. Prints the thread's absolute path. A directory that is a thread already is
/// refused and left as it is. Nothing is registered anywhere: `rm -r` removes a thread, `mv`
/// moves it.
#[derive(Args)]
#[command(after_help = "Example:\n  thread init ~/agents/inbox")]
pub struct Init {
    /// Where to make it
    #[arg(value_hint = ValueHint::DirPath)]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Init {
    pub fn run(self) -> Result<()> {
        let dir = Thread::init(&self.path)?;
        if self.json {
            return output::json(&json!({ "thread": dir.to_string_lossy() }));
        }
        output::line(output::plain(&dir.to_string_lossy()))
    }
}
