//! `thread agent stop`: ending an agent with all that it has started.

use std::time::Duration;

use clap::Args;
use thread::Queue;
use thread::model::run::StopRequest;
use thread::run::stop::stop;
use thread::run::{Launcher, WakeBy};
use thread_agent::marked::Mark;
use thread_agent::sub_agent::{Sub, threads_in};

use super::{Failure, Globals, Result, find_launcher, print};

/// How long processes that were killed may take to be gone.
const GONE: Duration = Duration::from_secs(30);

/// TERM to a supervisor's run; an adapter has its own patience with its program.
const STOP: StopRequest = StopRequest { signal: 15, kill_after_ms: 10_000, skip: false };

/// Stop the agent of a thread, its tools and all its sub-agents
///
/// Returns when every process is gone, including those that left their session. Sub-agents are cancelled;
/// the message the agent was working on is tried again when a new one comes. If nothing is running, it does
/// nothing and exits 0.
#[derive(Args)]
#[command(after_help = "Example:\n  thread agent stop --thread talk")]
pub struct Command {}

impl Command {
    pub fn run(self, globals: &Globals) -> Result<()> {
        let mut queue = globals.open()?;
        // What is said about the end must start nobody.
        let launcher = Launcher { waking: WakeBy::Nobody, ..find_launcher()? };
        // The agent first, so that it starts no more sub-agents.
        end(&mut queue)?;
        for dir in threads_in(queue.path()) {
            let mut queue = Queue::open(dir)?;
            end(&mut queue)?;
            end_task(&mut queue, &launcher)?;
        }
        print(queue.path().display())
    }
}

/// Ends whatever works for the agents of a thread.
fn end(queue: &mut Queue) -> Result<()> {
    for subscription in queue.store().subscriptions()? {
        if subscription.handler_cmd.contains("thread-agent")
            || subscription.handler_cmd.contains("thread agent")
        {
            stop(queue, &subscription.consumer, STOP)?;
        }
    }
    let mark = Mark::thread(queue.path());
    mark.kill(GONE).map_err(|what| Failure::failed(what, "run this as their user")).map(drop)
}

/// Says that a sub-agent was stopped, and tells its parent.
fn end_task(queue: &mut Queue, launcher: &Launcher) -> Result<()> {
    if let Ok(sub) = Sub::of(queue) {
        sub.end(queue, launcher, "stopped with its parent")?;
        sub.report(queue, launcher)?;
    }
    Ok(())
}
