//! `thread workers`: who handles events.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::output::{self, plain};
use super::{Globals, refuse_as_root};
use crate::failure::Result;
use crate::maintenance::report::{EventHandler, RunUnderWay, event_handlers};
use crate::model::duration;
use crate::model::time;
use crate::run::scope::{self, Scope};

/// Show who handles the events of a thread: workers, and the runs under way
///
/// Each worker (`thread dispatch --follow`) with its machine, process, start and when it was last seen,
/// and below it the runs that are under way. Runs that no worker has started are shown with their
/// supervisor. In a thread that machines share, workers of all machines are shown; one that has not been
/// seen for some minutes is lost. If nothing works, it says so, with exit 0.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread workers -t inbox
  thread workers --root ~/agents
  thread workers -t inbox --json | jq .host")]
pub struct Workers {
    /// Of all threads in this directory; --thread may be given several times
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    root: Vec<PathBuf>,
}

impl Workers {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let mut scope = Scope { threads: globals.thread.clone(), roots: self.root };
        if scope.threads.is_empty() && scope.roots.is_empty() {
            scope.threads.push(globals.location()?);
        }
        scope.roots.iter().try_for_each(|root| refuse_as_root(root))?;
        let threads = scope::threads_of(&scope)?;
        let all = event_handlers(&threads)?;
        let is_one = threads.len() == 1;
        let text = match (globals.json, all.is_empty()) {
            (true, _) => all.iter().map(|one| one.as_json().to_string() + "\n").collect(),
            (false, false) => all.iter().map(|one| as_text(one, is_one)).collect(),
            (false, true) if threads.iter().any(|thread| thread.backend().wakes_on_push) => {
                "no worker follows, and nothing is running; a push starts what is due\n".to_owned()
            }
            (false, true) => {
                "no worker follows, and nothing is running; `thread dispatch --follow` is a worker\n"
                    .to_owned()
            }
        };
        output::bytes(text.as_bytes()).map(drop)
    }
}

/// A line for the process, and one for each of its runs.
fn as_text(one: &EventHandler, is_one: bool) -> String {
    let mut text = format!("{} host={}", one.kind.word(), plain(&one.host));
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(" {name}={value}"));
        }
    };
    add("pid", one.pid.map(|pid| pid.to_string()));
    add("since", one.since.map(time::format));
    add("last_seen", one.seen.map(|(at, _)| time::format(at)));
    add("age", one.seen.map(|(_, age)| duration::rough(age)));
    add("lost", one.is_lost().then(|| "true".to_owned()));
    add("threads", (!is_one).then(|| one.threads.to_string()));
    text.push('\n');
    one.runs.iter().for_each(|run| text.push_str(&run_as_text(run, is_one)));
    text
}

fn run_as_text(run: &RunUnderWay, is_one: bool) -> String {
    let mut text = format!("  run {}", plain(run.consumer.as_str()));
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(" {name}={value}"));
        }
    };
    add("attempt", Some(run.attempt.to_string()));
    add("since", run.since.map(time::format));
    add("for", run.duration().map(duration::rough));
    add("events", run.events.map(|count| count.to_string()));
    add("upto", run.upto.map(|id| id.to_string()));
    let thread = run.thread.as_os_str().to_string_lossy();
    add("thread", (!is_one).then(|| plain(&thread).to_string()));
    text + "\n"
}
