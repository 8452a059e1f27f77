//! `thread init`: making a thread.

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, ValueHint};
use serde_json::json;

use super::{Globals, output};
use crate::error::Error;
use crate::failure::{Result, usage};
use crate::model::location::Location;
use crate::queue::{NewThread, Queue, locations};

/// Make a thread in a directory
///
/// Creates the directory and its parents if needed; in an existing directory it adds its files and touches
/// nothing else. Prints the thread's absolute path. Fails if the directory is a thread already, unless
/// --if-missing is given. Nothing is registered anywhere: `rm -r` removes a thread, `mv` moves it.
#[derive(Args)]
#[command(after_help = "Example:\n  thread init ~/agents/inbox")]
pub struct Init {
    /// The directory to make
    #[arg(value_hint = ValueHint::DirPath, value_parser = PathBufValueParser::new().map(Location::from))]
    pub path: Location,
    /// If it is a thread already, leave it as it is and exit 0
    #[arg(long)]
    if_missing: bool,
    /// Make it readable only by you; otherwise the umask decides, as for any file
    #[arg(long)]
    private: bool,
}

impl Init {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if !globals.thread.is_empty() {
            return usage("init takes no --thread", "give the path alone: `thread init <path>`");
        }
        let location = match locations::create(
            &self.path,
            NewThread { private: self.private, ..NewThread::default() },
        ) {
            // Opened, so that exit 0 also means that the thread is usable.
            Err(Error::AlreadyAThread(dir)) if self.if_missing => Queue::open(dir)?.location().clone(),
            made => made?,
        };
        let location = location.as_os_str().to_string_lossy();
        globals.print(output::plain(&location), json!({ "thread": location }))
    }
}
