//! Finding the processes of an agent, and killing them.
//!
//! The environment of an agent program, and so of every process it starts, names the thread, consumer and
//! run. That identifies the processes even to an adapter that did not start them, and after they have left
//! their process group and session. A process that clears its environment and leaves its session is found by
//! its ancestry: the consumer's supervisor is a subreaper, so while it lives, orphans become its children.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use thread::model::location::Location;
use thread::model::run::ProcessId;
use thread::run::launcher::{GUARD, SUPERVISE, WAKE};
use thread::run::process::{self, Liveness, Process, ancestors, runs_as};

/// How long killed processes may take to disappear.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// Selects processes of an agent.
#[derive(Debug, Clone, Default)]
pub struct Mark {
    /// Environment variables, `NAME=value`: processes that have all of them match.
    variables: Vec<Vec<u8>>,
    /// Sessions whose members match, whatever their environment.
    sessions: Vec<u32>,
    /// The supervisor whose descendants match, whatever their environment.
    supervisor: Option<ProcessId>,
    /// Descendants to leave out, unless their environment or session matches.
    spared: BTreeSet<u32>,
}

impl Mark {
    /// All processes of agents of this thread.
    pub fn thread(location: impl Into<Location>) -> Mark {
        // Any run id: only agent programs and their children have the variable.
        let location = [b"THREAD_DIR=", location.into().as_os_str().as_bytes()].concat();
        Mark { variables: vec![location, b"THREAD_RUN_ID=".to_vec()], ..Mark::default() }
    }

    /// Restricts the match to processes that also have this variable.
    pub fn with(mut self, name: &str, value: &str) -> Mark {
        self.variables.push(format!("{name}={value}").into_bytes());
        self
    }

    /// Adds the members of the session that this process leads or led.
    pub fn session(mut self, leader: Pid) -> Mark {
        self.sessions.extend(u32::try_from(leader.as_raw_nonzero().get()));
        self
    }

    /// Adds the [`descendants`] of this supervisor, except those `spared`.
    pub fn below(mut self, supervisor: ProcessId, spared: BTreeSet<u32>) -> Mark {
        (self.supervisor, self.spared) = (Some(supervisor), spared);
        self
    }

    fn has_variables(&self, pid: u32) -> bool {
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
        self.variables.iter().all(|wanted| {
            environment.split(|&byte| byte == 0).any(|variable| match wanted.as_slice() {
                b"THREAD_RUN_ID=" => variable.starts_with(wanted),
                _ => variable == wanted.as_slice(),
            })
        })
    }

    /// Returns the matching processes: those that have the variables, the members of sessions that one of
    /// these leads, and those added. Never this process; empty without `/proc`.
    pub fn processes(&self) -> Vec<u32> {
        let own = std::process::id();
        let all: Vec<Process> = process::all().filter(|process| process.pid != own).collect();
        let marked: Vec<&Process> = all.iter().filter(|process| self.has_variables(process.pid)).collect();
        let leads = |process: &&&Process| process.session == process.pid;
        let mut led: Vec<u32> = marked.iter().filter(leads).map(|process| process.session).collect();
        led.extend(&self.sessions);
        let mut found: BTreeSet<u32> = marked.iter().map(|process| process.pid).collect();
        found.extend(all.iter().filter(|process| led.contains(&process.session)).map(|process| process.pid));
        if let Some(supervisor) = &self.supervisor {
            found.extend(descendants(supervisor).difference(&self.spared));
        }
        found.into_iter().collect()
    }

    /// Kills them, and waits until all are gone.
    ///
    /// # Errors
    ///
    /// Some still exist after [`KILL_TIMEOUT`]: they belong to another user, or are stuck in the kernel.
    pub fn kill(&self) -> Result<(), String> {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = crate::simulated::system() {
            let below = self.supervisor.as_ref().map(|_| &self.spared);
            system.kill(&self.variables, &self.sessions, below);
            return Ok(());
        }
        kill_until_gone(|| self.processes().into_iter().filter_map(ProcessId::of).collect())
    }
}

/// Returns the nearest ancestor that is a supervisor; without one, this process itself.
pub fn own_supervisor() -> ProcessId {
    #[cfg(all(test, target_os = "linux"))]
    if crate::simulated::system().is_some() {
        return ProcessId { pid: 1, start: 0, boot: String::new(), namespace: 0 };
    }
    let supervises = |pid: &u32| runs_as(*pid, &[SUPERVISE]);
    let found = ancestors(std::process::id()).into_iter().find(supervises);
    found.and_then(ProcessId::of).unwrap_or_else(ProcessId::own)
}

/// Returns the supervisors of a consumer of this thread, and their guards.
pub fn supervisors_of(location: &Location, consumer: &str) -> Vec<ProcessId> {
    let has =
        |words: &[&[u8]], option: &[u8], value: &[u8]| words.windows(2).any(|two| two == [option, value]);
    let is_one = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        words.get(1).is_some_and(|word| [SUPERVISE, GUARD].iter().any(|command| *word == command.as_bytes()))
            && has(&words, b"--thread", location.as_os_str().as_bytes())
            && has(&words, b"--consumer", consumer.as_bytes())
    };
    let pids = process::all().map(|process| process.pid);
    // Its identity is taken before its command line is read: if the pid is reused in between, the identity is that
    // of a process that is gone, and harmless.
    pids.filter_map(ProcessId::of).filter(|process| is_one(&process.pid)).collect()
}

/// Returns the descendants of a supervisor and of this process.
///
/// Excluded, with everything reached only through them, are this process and its ancestors (the rest of the
/// handler's command line is not ours to kill), and the background processes of `thread` that a push starts
/// for other consumers.
pub fn descendants(supervisor: &ProcessId) -> BTreeSet<u32> {
    #[cfg(all(test, target_os = "linux"))]
    if let Some(system) = crate::simulated::system() {
        return system.alive();
    }
    let all: Vec<Process> = process::all().collect();
    let own = std::process::id();
    let line = ancestors(own);
    let children =
        |of: u32| all.iter().filter(move |process| process.parent == of).map(|process| process.pid);
    let mut left: Vec<u32> = children(own).collect();
    // Its pid may have been reused.
    if supervisor.pid != own && supervisor.liveness() == Liveness::Alive {
        left.extend(children(supervisor.pid));
    }
    let mut found = BTreeSet::new();
    while let Some(pid) = left.pop() {
        let is_meant = pid != own && !line.contains(&pid) && !runs_as(pid, &[SUPERVISE, WAKE, GUARD]);
        if is_meant && found.insert(pid) {
            left.extend(children(pid));
        }
    }
    found
}

/// Kills these processes and waits until all are gone.
///
/// # Errors
///
/// Some still exist after [`KILL_TIMEOUT`].
pub fn kill_all(processes: &[ProcessId]) -> Result<(), String> {
    let alive = processes.iter().filter(|process| process.liveness() == Liveness::Alive);
    kill_until_gone(|| alive.clone().cloned().collect())
}

fn kill_until_gone(find: impl Fn() -> Vec<ProcessId>) -> Result<(), String> {
    let left: Vec<u32> =
        process::end(find, Signal::KILL, Duration::ZERO, KILL_TIMEOUT).iter().map(|left| left.pid).collect();
    match left[..] {
        [] => Ok(()),
        _ => Err(format!("processes of the agent are still there: {left:?}")),
    }
}
