//! `thread agent stop`: ending an agent and everything it has started.

use std::time::{Duration, Instant};

use clap::Args;
use thread::Queue;
use thread::model::run::{Phase, ProcessId, StopRequest};
use thread::model::subscription::ConsumerId;
use thread::run::stop::{Stopped, stop};
use thread::run::{Launcher, WakeBy};
use thread_agent::marked::{self, Mark};
use thread_agent::sub_agent::{Sub, threads_in};

use super::{Failure, Globals, Result, find_launcher, print};

/// How long killed processes may take to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an agent that is started again by new messages is stopped again.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often supervisors that are about to end are checked.
const STEP: Duration = Duration::from_millis(10);

/// How the adapter is stopped: TERM, and KILL after 10 s. It needs some of that to end its program.
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
        // The events pushed here must not start any handler.
        let launcher = Launcher { waking: WakeBy::Nobody, ..find_launcher()? };
        let until = Instant::now() + PATIENCE;
        loop {
            // The agent first, so that it starts no more sub-agents.
            let mut was_running = end(&mut queue)?;
            for dir in threads_in(queue.path()) {
                let mut queue = Queue::open(dir)?;
                was_running |= end(&mut queue)?;
                end_task(&mut queue, &launcher)?;
            }
            // A sub-agent in the background that has just finished may have started the agent by its report.
            if !was_running {
                return print(queue.path().display());
            }
            if Instant::now() >= until {
                return Err(Failure::failed(
                    "the agent is started again and again by new messages",
                    "`thread pause` its consumer, then stop it",
                ));
            }
        }
    }
}

/// Ends all processes of the agents of a thread. Returns whether there were any.
fn end(queue: &mut Queue) -> Result<bool> {
    let dir = queue.path().to_owned();
    let is_agent = |handler: &str| handler.contains("thread-agent") || handler.contains("thread agent");
    let agents: Vec<ConsumerId> = queue
        .store()
        .subscriptions()?
        .into_iter()
        .filter(|subscription| is_agent(&subscription.handler_cmd))
        .map(|subscription| subscription.consumer)
        .collect();
    // Collected before anything ends: then descendants can no longer be found by their ancestry.
    let supervisors: Vec<ProcessId> =
        agents.iter().flat_map(|agent| marked::supervisors_of(&dir, agent.as_str())).collect();
    let below = supervisors.iter().flat_map(marked::descendants);
    let started: Vec<ProcessId> = below.filter_map(ProcessId::of).collect();
    let mut was_running = !supervisors.is_empty();
    for agent in &agents {
        was_running |= stop(queue, agent, STOP)? == Stopped::Done;
    }
    let gone = |what| Failure::failed(what, "run this as their user");
    was_running |= Mark::thread(&dir).kill(KILL_TIMEOUT).map_err(gone)? > 0;
    marked::kill_all(&started, KILL_TIMEOUT).map_err(gone)?;
    let until = Instant::now() + KILL_TIMEOUT;
    for agent in &agents {
        while !marked::supervisors_of(&dir, agent.as_str()).is_empty() && !is_busy(queue, agent)? {
            if Instant::now() >= until {
                return Err(gone(format!("a supervisor of '{agent}' is still there")));
            }
            std::thread::sleep(STEP);
        }
    }
    Ok(was_running)
}

/// Whether the consumer has been started again since it was stopped.
fn is_busy(queue: &mut Queue, agent: &ConsumerId) -> Result<bool> {
    let state = queue.store().subscription(agent)?.map(|subscription| subscription.state);
    Ok(state.is_some_and(|state| matches!(state.phase, Phase::Running | Phase::Waiting)))
}

/// Records that a sub-agent was stopped, and reports that to its parent.
fn end_task(queue: &mut Queue, launcher: &Launcher) -> Result<()> {
    if let Ok(sub) = Sub::of(queue) {
        sub.end(queue, launcher, "stopped with its parent")?;
        sub.report(queue, launcher)?;
    }
    Ok(())
}
