//! `thread agent stop`: ending an agent and everything it has started.
//!
//! Looking once does not find all processes: while one thread is searched, a report from another may start a
//! consumer that was just seen idle. So each consumer's lock is taken once its run has ended, and kept until
//! everything has ended. A process that starts a consumer holds its lock before the handler exists, so while the
//! lock is held here, nothing of that consumer runs or is about to.

use std::time::{Duration, Instant};

use crate::processes::{self, KILL_TIMEOUT, Mark};
use crate::sub_agent::{Sub, threads_in};
use clap::Args;
use thread::files::lock::Lock;
use thread::model::run::{ProcessId, StopRequest};
use thread::model::subscription::ConsumerId;
use thread::run::stop::stop;
use thread::run::{Launcher, WakeBy};
use thread::{Error, Queue};

use super::{Failure, Globals, Result, find_launcher, open, print};

/// How long an agent that is started again and again is stopped again.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a lock may be held by something else than a run, before the consumer is stopped again.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);

/// How often ending processes are checked.
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
        let mut queue = open(globals.thread.clone())?;
        // The events pushed here must not start any handler.
        let launcher = Launcher { waking: WakeBy::Nobody, ..find_launcher()? };
        // The agent first, so that it starts no more sub-agents.
        let mut locks = end(&mut queue)?;
        for dir in threads_in(queue.path()) {
            let mut sub = Queue::open(dir)?;
            locks.extend(end(&mut sub)?);
            // That it was stopped is recorded, and reported to its parent.
            if let Ok(task) = Sub::of(&mut sub) {
                task.end(&mut sub, &launcher, "stopped with its parent")?;
                task.report(&mut sub, &launcher)?;
            }
        }
        print(queue.location())
    }
}

/// Ends all processes of the agents of a thread. Returns the locks of these consumers.
fn end(queue: &mut Queue) -> Result<Vec<Lock>> {
    let location = queue.location().clone();
    let is_agent = |handler: &str| handler.contains("thread-agent") || handler.contains("thread agent");
    let mut subscriptions = queue.subscriptions()?;
    subscriptions.retain(|subscription| is_agent(&subscription.handler_cmd));
    let agents: Vec<ConsumerId> = subscriptions.into_iter().map(|agent| agent.consumer).collect();
    let gone = |what| Failure::failed(what, "run this as their user");
    let mut locks = Vec::new();
    for agent in &agents {
        let until = Instant::now() + PATIENCE;
        loop {
            // Collected before anything ends: then descendants can no longer be found by their ancestry.
            let supervisors = processes::supervisors_of(&location, agent.as_str());
            let below = supervisors.iter().flat_map(processes::descendants);
            let started: Vec<ProcessId> = below.filter_map(ProcessId::of).collect();
            match stop(queue, agent, STOP) {
                Err(Error::UnknownConsumer(_)) => break,
                stopped => stopped?,
            };
            processes::kill_all(&started).map_err(gone)?;
            let lock = queue.files().consumer_lock(agent);
            match Lock::take(queue.files(), lock, LOCK_TIMEOUT) {
                Ok(lock) => {
                    locks.push(lock);
                    break;
                }
                Err(Error::LockTimeout(_)) if Instant::now() < until => {}
                Err(Error::LockTimeout(_)) => {
                    return Err(Failure::failed(
                        format_args!("the agent '{agent}' is started again and again"),
                        "`thread pause` its consumer, then stop it",
                    ));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
    Mark::thread(&location).kill().map_err(gone)?;
    let until = Instant::now() + KILL_TIMEOUT;
    while agents.iter().any(|agent| !processes::supervisors_of(&location, agent.as_str()).is_empty()) {
        if Instant::now() >= until {
            return Err(gone("a supervisor of the agent is still there".into()));
        }
        std::thread::sleep(STEP);
    }
    Ok(locks)
}
