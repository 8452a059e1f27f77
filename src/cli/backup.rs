//! `thread backup`: a copy of a thread in use.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use serde_json::json;

use super::progress::Progress;
use super::{Globals, limit, output, refuse_as_root};
use crate::error::Code;
use crate::failure::{Result, failed, usage};
use crate::maintenance::backup;
use crate::maintenance::backup::root::backup_root;
use crate::model::location::Location;

/// Copy a thread that is in use to a new directory
///
/// Makes a consistent copy: every event pushed before it began, the subscriptions, cursors, dead letters
/// and idempotency keys, and an exact JSONL log. It does not block pushing and reading. Prints the absolute
/// path of the backup, which is itself a thread.
///
/// All consumers of the backup are paused, so nothing done there starts a handler; `thread resume` releases
/// one. To restore a thread, stop whatever pushes and stop its running consumers, move the old thread away,
/// move the backup into its place, and resume its consumers.
///
/// The directory must be new or empty. The backup appears complete or not at all. If it is killed, it leaves a
/// directory next to it whose name ends in `.partial-` and six letters, which the next backup there deletes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread backup --thread inbox backups/2026-11-22
  thread backup --root /srv/thread \"/var/backups/thread/$(date +%F)\"
  thread backup --thread inbox \"backups/$(date +%F)\" --keep 7")]
pub struct Backup {
    /// Where to make the copy
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Then delete all but the newest N backups of this thread in the same directory
    ///
    /// A backup to which something was pushed, or whose consumers were resumed, is kept.
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    keep: Option<u64>,
    /// Copy all threads below this directory, and the other files in it
    ///
    /// A thread that cannot be copied is a warning, and exit 1 once the others are; of one that is damaged,
    /// there is nothing in the backup. Links, and names in this directory that begin with a dot, are left out.
    #[arg(long, value_name = "ROOT", value_hint = ValueHint::DirPath, conflicts_with = "keep")]
    root: Option<PathBuf>,
}

impl Backup {
    #[expect(clippy::disallowed_methods, reason = "a copy is made in a directory, and nowhere else")]
    pub fn run(self, globals: &Globals) -> Result<()> {
        // Otherwise a directory of that name would be made.
        if let Some(scheme) = Location::from(&*self.dir).scheme() {
            return usage(
                format_args!(
                    "a backup is made in a directory, not in a location that begins with {scheme}://"
                ),
                "name a directory; `thread clone` copies the thread to another location",
            );
        }
        if let Some(root) = &self.root {
            return of_root(root, &self.dir, globals);
        }
        let mut queue = globals.open()?;
        let mut progress = Progress::of("writing events.jsonl", None);
        let made = backup::backup(&mut queue, &self.dir, &mut |events| progress.advance(events))?;
        drop(progress);
        let path = made.path.to_string_lossy();
        let deleted = self.keep.map(|keep| backup::delete_old(&queue, &made, keep)).transpose();
        let deleted = deleted.unwrap_or_else(|e| {
            output::warn(format_args!("old backups were not all deleted: {e}"));
            None
        });
        let deleted: Vec<_> = deleted.iter().flatten().map(|path| path.to_string_lossy()).collect();
        let printed = if globals.json {
            let mut facts = json!({ "path": path, "event_count": made.count, "last_event_id": made.newest });
            if self.keep.is_some() {
                facts["deleted"] = json!(deleted);
            }
            output::line(facts)
        } else {
            for path in deleted {
                output::note(format_args!("deleted the backup {path}"));
            }
            output::line(output::plain(&path))
        };
        // Exit 1 means that there is no backup.
        output::confirm(printed, "the backup is complete");
        Ok(())
    }
}

fn of_root(root: &Path, dir: &Path, globals: &Globals) -> Result<()> {
    if !globals.thread.is_empty() {
        return usage("--root and --thread exclude each other", "leave out one of them");
    }
    refuse_as_root(root)?;
    let mut progress = Progress::of("writing events.jsonl", None);
    let made = backup_root(root, dir, &mut |events| progress.advance(events))?;
    drop(progress);
    for (path, error) in &made.failed {
        output::warn(format_args!("{} is not in the backup: {error}", path.display()));
    }
    let path = made.path.to_string_lossy();
    let printed = if globals.json {
        let failed: Vec<_> = made.failed.iter().map(|(path, _)| path.to_string_lossy()).collect();
        output::line(json!({ "path": path, "threads": made.threads, "files": made.files, "failed": failed }))
    } else {
        output::line(output::plain(&path))
    };
    output::confirm(printed, "the backup is complete");
    match made.failed.len() {
        0 => Ok(()),
        missing => failed(
            Code::Failed,
            format_args!("{missing} of {} threads are not in the backup", made.threads + missing as u64),
            "check them with `thread doctor`",
        ),
    }
}
