//! `thread clone`: copying a thread to another location, or moving it there.

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, ValueHint};
use serde_json::json;

use super::import::{print, warn_if_behind};
use super::progress::Progress;
use super::{Globals, output};
use crate::error::Error;
use crate::failure::{Failure, Result, usage};
use crate::files::absolute_location;
use crate::maintenance::moving::{self, Step};
use crate::model::location::Location;
use crate::model::subscription::ConsumerId;
use crate::queue::{NewThread, Queue, locations};

/// Copy a thread to another location, or move it there
///
/// Both are directories or locations such as postgres://db.example/agents#inbox, in any combination. TO is made if it
/// does not exist; it must be empty. Everything is copied that `thread export` prints, in pieces, while FROM is in use;
/// what TO cannot store is listed before anything is stored. If it is interrupted, the same command continues. At the end
/// everything is read back and compared, and the number of rows of each kind is printed with a digest. The consumers are
/// paused in TO; `thread resume` releases one.
///
/// With --move, the consumers of FROM are paused, their runs awaited, and FROM is closed before the rest is copied:
/// each push there then fails and names TO. So a push that was successful is in TO. FROM can still be read, and removed
/// once nobody uses it any more. If the rest cannot be copied, FROM is opened again, with its consumers paused.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread clone inbox other
  thread clone inbox \"$LOCATION\" --move
  thread clone \"$LOCATION\" inbox")]
pub struct Clone {
    /// The thread to copy
    #[arg(value_name = "FROM", value_hint = ValueHint::DirPath,
        value_parser = PathBufValueParser::new().map(Location::from))]
    pub from: Location,
    /// Where to copy it
    #[arg(value_name = "TO", value_hint = ValueHint::DirPath,
        value_parser = PathBufValueParser::new().map(Location::from))]
    pub to: Location,
    /// Close FROM, so that nothing can be pushed there any more
    #[arg(long = "move")]
    is_move: bool,
}

impl Clone {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if !globals.thread.is_empty() {
            return usage("clone takes no --thread", "give both locations: `thread clone <from> <to>`");
        }
        let mut from = Queue::open(&self.from)?;
        let to = absolute_location(&self.to)?;
        moving::refuse_inside(&from, &to)?;
        let to = match locations::create(&to, NewThread::default()) {
            Err(Error::AlreadyAThread(_)) => to,
            made => made?,
        };
        let mut to = Queue::open(&to)?;
        if from.location() == to.location() || from.files().home() == to.files().home() {
            return usage("both are the same thread", "name another one to copy it to");
        }
        let mut progress = Progress::of("copying events", None);
        let copied = moving::copy(&mut from, &mut to, self.is_move, &mut |step| match step {
            Step::Stored(events) => progress.advance(events),
            Step::Paused([]) => {}
            Step::Paused(all) => output::note(format_args!("paused in {}: {}", self.from, names(all))),
            Step::Awaits(all) => output::note(format_args!("waiting for the runs of {}", names(all))),
            Step::Compares => progress = Progress::of("comparing", None),
        });
        drop(progress);
        let copied = copied.map_err(Failure::from)?;
        warn_if_behind(copied.log_behind.as_ref());
        let text = |queue: &Queue| queue.location().as_os_str().to_string_lossy().into_owned();
        let facts = json!({ "from": text(&from), "to": text(&to), "moved": self.is_move });
        print(&copied.rows, &copied.paused, facts, globals);
        Ok(())
    }
}

fn names(consumers: &[ConsumerId]) -> String {
    consumers.iter().map(ConsumerId::as_str).collect::<Vec<_>>().join(", ")
}
