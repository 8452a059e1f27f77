//! `thread backup`: a copy of a thread in use.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::json;

use crate::backup;
use crate::cmd::ThreadArg;
use crate::error::Result;
use crate::log::{Level, Quoted};
use crate::output;

/// Copy a thread that is in use to a new directory
///
/// Makes a consistent copy: every event that was acknowledged before, the subscriptions, cursors,
/// dead letters and idempotency keys, and a JSONL copy that is exactly the table. Nobody who pushes
/// or reads has to wait. Prints the absolute path of the backup, which is a thread itself.
///
/// All consumers of the backup are paused, so that nothing done there starts a handler; `thread
/// resume` lets one go. To restore a thread, end whatever pushes, move the old thread away, move the
/// backup to its place, and resume its consumers.
///
/// The directory must be new or empty. It appears whole or not at all.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread backup --thread inbox backups/2026-11-22
  thread backup --thread inbox \"backups/$(date +%F)\"")]
pub struct Backup {
    #[command(flatten)]
    thread: ThreadArg,
    /// Where to make the copy
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Backup {
    pub fn run(self) -> Result<()> {
        let mut thread = self.thread.open()?;
        let made = backup::make(&mut thread, &self.dir)?;
        let (path, events) = (made.path.to_string_lossy(), made.events);
        thread.log(Level::Info, format_args!("backup: path={} count={}", Quoted(&path), events.count));
        if self.json {
            return output::json(&json!({
                "path": path,
                "event_count": events.count,
                "last_event_id": events.newest_ever,
            }));
        }
        output::line(output::plain(&path))
    }
}
