//! The options that every command accepts.

use std::fmt::Display;
use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{ArgAction, Args, ValueHint};
use serde_json::Value;

use super::opened::Opened;
use super::{environment, output};
use crate::failure::{Result, WithHint, usage};
use crate::files::surrounding;
use crate::model::location::Location;

#[derive(Args, Default)]
pub struct Globals {
    /// Run as if started in DIR, relative to any earlier -C
    #[arg(short = 'C', value_name = "DIR", value_hint = ValueHint::DirPath, hide_short_help = true)]
    directories: Vec<PathBuf>,
    /// The thread [default: $THREAD_DIR, or the one you are in]
    #[arg(short, long, global = true, display_order = 900, value_name = "PATH", value_hint = ValueHint::DirPath,
        value_parser = PathBufValueParser::new().map(Location::from), action = ArgAction::Append)]
    pub thread: Vec<Location>,
    /// Print JSON, for errors too
    #[arg(long, global = true, display_order = 901)]
    pub json: bool,
    /// Accepted with --help; has no effect
    #[arg(long, global = true, hide = true)]
    verbose: bool,
}

impl Globals {
    /// Changes to the directories given with `-C`.
    pub fn enter(&self) -> Result<()> {
        for dir in &self.directories {
            environment::set_current_dir(dir).with_hint(
                format_args!("cannot work in {}", dir.display()),
                "give -C a directory that exists",
            )?;
        }
        Ok(())
    }

    /// The thread's location: `--thread`, else `THREAD_DIR`, else, as in git, the current directory or
    /// the nearest parent that is a thread, owned by the user and on the same file system.
    pub fn location(&self) -> Result<Location> {
        if self.thread.len() > 1 {
            return usage(
                "more than one --thread given",
                "give one; only `thread dispatch --follow` and `thread workers` take several",
            );
        }
        let surrounding = || surrounding(&environment::current_dir().ok()?).map(Location::from);
        match self.named().or_else(surrounding) {
            Some(location) => Ok(location),
            None => usage(
                "no thread given, and the current directory is not inside one",
                "give --thread <path> or set THREAD_DIR; `thread init <path>` makes one",
            ),
        }
    }

    /// The location that `--thread` or `THREAD_DIR` names.
    pub fn named(&self) -> Option<Location> {
        let named = self.thread.last().cloned();
        named.or_else(|| environment::variable("THREAD_DIR").map(Location::from))
    }

    pub fn open(&self) -> Result<Opened> {
        Opened::open(self.location()?)
    }

    /// Whether `-C` is given.
    pub fn changes_directory(&self) -> bool {
        !self.directories.is_empty()
    }

    /// Prints one line to stdout: the text, or the JSON with --json.
    pub fn print(&self, text: impl Display, json: Value) -> Result<()> {
        if self.json { output::line(json) } else { output::line(text) }
    }
}
