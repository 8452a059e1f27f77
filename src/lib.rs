//! Durable event queues for agents, in a directory, with no daemon.
//!
//! A *thread* is a directory with one SQLite database, a JSONL copy for people, lock files and
//! logs. Programs push events into it; consumers subscribe with a shell command and an SQL filter;
//! a push starts the handler of whoever has something new, one process per consumer.
//!
//! # A map for newcomers
//!
//! Read [`cmd::push`] and [`cmd::dispatch`] first: nearly everything else is on their way.
//!
//! | module | owns |
//! |---|---|
//! | [`cmd`] | the subcommands, one file each: options, help, and what they do |
//! | [`thread`] | making and opening a thread |
//! | [`wake`] | around a push: through a notifier, by ourselves, or not at all |
//! | [`dispatch`] | who has something pending, and starting a supervisor for it |
//! | [`supervisor`], [`handler`], [`stop`] | the process that stands beside a handler and looks again after it; the handler; ending it |
//! | [`rule`] | the one rule for runs: what is to be done for a consumer, and what a run came to |
//! | [`notifier`] | asking an external scheduler |
//! | [`doctor`] | whether a thread is whole, and mending it |
//! | [`journal`] | `events.jsonl` as a projection of the table |
//! | [`prune`] | deleting old events that nobody needs any more |
//! | [`store`] | all SQL: events, subscriptions, cursors, runs, asking filters |
//! | [`filter`] | from a user's text to checked SQL |
//! | [`event`], [`subscription`] | the nouns |
//! | [`backup`] | a copy of a thread that is in use |
//! | [`batch`] | reading NDJSON from a pipe or a file in bounded memory |
//! | [`watch`] | waiting for the next commit |
//! | [`files`], [`lock`], [`log`], [`process`], [`spawn`] | paths and permissions, flock, the log, who a pid is, detached children |
//! | [`rotation`] | setting long files aside |
//! | [`output`], [`error`] | what people and programs are told |
//! | [`progress`], [`interrupt`], [`signals`] | what is shown of long work, what Ctrl-C does to it, and what signals tell a supervisor |
//! | [`duration`] | times such as `30s` |
//!
//! Mostly, a module uses those below it; `dispatch` and `supervisor` start each other.
//!
//! # The promises, and where they are kept
//!
//! * What `push` acknowledged is never lost: `store`, by WAL with full sync.
//! * The JSONL copy is exactly the table: `journal`, by writing what the table has, not what a
//!   pusher thinks.
//! * At most one handler per consumer: `lock`, by a lock that the handler itself holds.
//! * No wake-up is lost: `supervisor` and `wake`, by looking again after letting go.

pub mod backup;
pub mod batch;
pub mod cmd;
pub mod dispatch;
pub mod doctor;
pub mod duration;
pub mod error;
pub mod event;
pub mod files;
pub mod filter;
pub mod handler;
pub mod interrupt;
pub mod journal;
pub mod lock;
pub mod log;
pub mod notifier;
pub mod output;
pub mod process;
pub mod progress;
pub mod prune;
pub mod rotation;
pub mod rule;
pub mod signals;
pub mod spawn;
pub mod stop;
pub mod store;
pub mod subscription;
pub mod supervisor;
pub mod thread;
pub mod wake;
pub mod watch;

use std::ffi::OsString;
use std::panic;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use error::{Failure, Result};

/// Runs the program with these arguments, the program's name first.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let as_json = asks_for_json(&args);
    match caught(|| cmd::run(args, as_json)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::failure(&failure, as_json);
            ExitCode::from(failure.code)
        }
    }
}

/// What the last panic said, and where it was.
static DEFECT: Mutex<String> = Mutex::new(String::new());

/// Does `work`. A defect in it is a failure like any other: it must not look like success or spill a
/// backtrace into somebody's pipe.
fn caught(work: impl FnOnce() -> Result<()> + panic::UnwindSafe) -> Result<()> {
    let defect = || DEFECT.lock().unwrap_or_else(PoisonError::into_inner);
    panic::set_hook(Box::new(move |about| {
        let why = about.payload().downcast_ref::<String>().map(String::as_str);
        let why = why.or_else(|| about.payload().downcast_ref::<&str>().copied()).unwrap_or("no message");
        let place = about.location().map(|at| format!(" ({at})")).unwrap_or_default();
        *defect() = format!("{why}{place}");
    }));
    panic::catch_unwind(work).unwrap_or_else(|_| {
        Err(Failure::could_not(format_args!("a defect in thread: {}", defect()), "please report it"))
    })
}

/// Whether errors are to be told in JSON. Known before the arguments are understood, because they
/// may not be.
fn asks_for_json(args: &[OsString]) -> bool {
    let options: Vec<&OsString> = args.iter().take_while(|arg| *arg != "--").collect();
    options.iter().any(|arg| *arg == "--json" || *arg == "--format=json")
        || options.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_tells_its_place() {
        let failure = caught(|| panic!("of {}", "some kind")).unwrap_err();
        drop(panic::take_hook());
        assert!(failure.what.starts_with("a defect in thread: of some kind (src/lib.rs:"), "{failure}");
    }
}
