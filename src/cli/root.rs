//! `--root`: doing the same in all threads below a place.

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, ValueHint};

use super::{Globals, output, refuse_as_root};
use crate::error::Code;
use crate::failure::{Result, failed, hint, usage};
use crate::maintenance::below::threads_below;
use crate::model::location::Location;

#[derive(Args)]
pub struct RootArg {
    /// All threads below this directory, or of a database: postgres://host/database
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        value_parser = PathBufValueParser::new().map(Location::from))]
    pub root: Option<Location>,
}

impl RootArg {
    /// The threads below --root; `None` if it was not given. Warns of directories that cannot be read.
    pub fn threads(&self, globals: &Globals) -> Result<Option<Vec<Location>>> {
        let Some(root) = &self.root else { return Ok(None) };
        if !globals.thread.is_empty() {
            return usage("--root and --thread exclude each other", "leave out one of them");
        }
        root.dir().map_or(Ok(()), refuse_as_root)?;
        list(root).map(Some)
    }
}

/// The threads below a place, sorted. Warns of directories that cannot be read.
pub fn list(place: &Location) -> Result<Vec<Location>> {
    let below = threads_below(place)?;
    for error in &below.unread {
        output::warn(format_args!("the threads below are left out: {error} - {}", hint(error)));
    }
    Ok(below.threads)
}

/// Calls `work` for each thread. A failure is a warning, and exit 1 once it was called for all.
pub fn for_each(threads: &[Location], mut work: impl FnMut(&Location) -> Result<()>) -> Result<()> {
    let mut failures = 0;
    for thread in threads {
        if let Err(failure) = work(thread) {
            failures += 1;
            output::warn(format_args!("{thread}: {failure}"));
        }
    }
    match failures {
        0 => Ok(()),
        _ => failed(
            Code::Failed,
            format_args!("it failed in {failures} of {} threads", threads.len()),
            "see the warnings; it was done in the others",
        ),
    }
}
