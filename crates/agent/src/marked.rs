//! Finding the processes of an agent, and killing them.
//!
//! The environment of an agent program, and so of every process it starts, names the thread, consumer and
//! run. That identifies the processes even to an adapter that did not start them, and after they have left
//! their process group and session. A process that clears its environment and leaves its session is found by
//! its ancestry: the consumer's supervisor is a subreaper, so while it lives, orphans become its children.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use thread::model::run::ProcessId;
use thread::run::launcher::{SUPERVISE, WAKE};
use thread::run::process::Liveness;

/// How often processes that are being killed are checked.
const STEP: Duration = Duration::from_millis(10);

/// Selects processes of an agent.
#[derive(Debug, Clone)]
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
    pub fn thread(dir: &Path) -> Mark {
        // Any run id: only agent programs and their children have the variable.
        let dir = [b"THREAD_DIR=", dir.as_os_str().as_bytes()].concat();
        Mark {
            variables: vec![dir, b"THREAD_RUN_ID=".to_vec()],
            sessions: Vec::new(),
            supervisor: None,
            spared: BTreeSet::new(),
        }
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
        let all: Vec<Process> = all().into_iter().filter(|process| process.pid != own).collect();
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
    /// Some still exist after `patience`: they belong to another user, or are stuck in the kernel.
    pub fn kill(&self, patience: Duration) -> Result<(), String> {
        kill_until_gone(patience, || self.processes())
    }
}

/// Returns the nearest ancestor that is a supervisor; without one, this process itself.
pub fn own_supervisor() -> ProcessId {
    let parents: BTreeMap<u32, u32> =
        all().into_iter().map(|process| (process.pid, process.parent)).collect();
    let supervises = |pid: &u32| runs_as(*pid, &[SUPERVISE]);
    let found = ancestors(&parents, std::process::id()).into_iter().find(supervises);
    found.and_then(ProcessId::of).unwrap_or_else(ProcessId::own)
}

/// Returns the supervisors of a consumer of this thread.
pub fn supervisors_of(dir: &Path, consumer: &str) -> Vec<ProcessId> {
    let has =
        |words: &[&[u8]], option: &[u8], value: &[u8]| words.windows(2).any(|two| two == [option, value]);
    let is_one = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        words.get(1) == Some(&SUPERVISE.as_bytes())
            && has(&words, b"--thread", dir.as_os_str().as_bytes())
            && has(&words, b"--consumer", consumer.as_bytes())
    };
    let pids = all().into_iter().map(|process| process.pid);
    // Identified before its command line is read: if the pid is reused in between, the identity is that of a
    // process that is gone, and harmless.
    pids.filter_map(ProcessId::of).filter(|process| is_one(&process.pid)).collect()
}

/// Returns the descendants of a supervisor and of this process.
///
/// Excluded, with everything reached only through them, are this process and its ancestors (the rest of the
/// handler's command line is not ours to kill), and the background processes of `thread` that a push starts
/// for other consumers.
pub fn descendants(supervisor: &ProcessId) -> BTreeSet<u32> {
    let all = all();
    let parents: BTreeMap<u32, u32> = all.iter().map(|process| (process.pid, process.parent)).collect();
    let own = std::process::id();
    let line = ancestors(&parents, own);
    let children =
        |of: u32| all.iter().filter(move |process| process.parent == of).map(|process| process.pid);
    let mut left: Vec<u32> = children(own).collect();
    // Its pid may have been reused.
    if supervisor.pid != own && supervisor.liveness() == Liveness::Alive {
        left.extend(children(supervisor.pid));
    }
    let mut found = BTreeSet::new();
    while let Some(pid) = left.pop() {
        let is_meant = pid != own && !line.contains(&pid) && !runs_as(pid, &[SUPERVISE, WAKE]);
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
/// Some still exist after `patience`.
pub fn kill_all(processes: &[ProcessId], patience: Duration) -> Result<(), String> {
    let alive = processes.iter().filter(|process| process.liveness() == Liveness::Alive);
    kill_until_gone(patience, || alive.clone().map(|process| process.pid).collect())
}

fn kill_until_gone(patience: Duration, left: impl Fn() -> Vec<u32>) -> Result<(), String> {
    let until = Instant::now() + patience;
    loop {
        let left = left();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(format!("processes of the agent are still there: {left:?}"));
        }
        for pid in left.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            // No error if it is already gone.
            rustix::process::kill_process(pid, Signal::KILL).ok();
        }
        std::thread::sleep(STEP);
    }
}

/// The ancestors of a process, the parent first.
fn ancestors(parents: &BTreeMap<u32, u32>, of: u32) -> Vec<u32> {
    let line = std::iter::successors(Some(of), |pid| parents.get(pid).copied());
    // Bounded: the table is not a snapshot, so it may contain a cycle.
    line.skip(1).take(parents.len()).collect()
}

/// Whether a process runs one of these subcommands of `thread`.
fn runs_as(pid: u32, commands: &[&str]) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let second = line.split(|&byte| byte == 0).nth(1).unwrap_or_default();
    commands.iter().any(|command| command.as_bytes() == second)
}

struct Process {
    pid: u32,
    parent: u32,
    session: u32,
}

/// All processes except zombies.
fn all() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            // The name, in parentheses, may itself contain parentheses.
            let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
            let rest = String::from_utf8_lossy(&stat[after_name..]);
            let mut fields = rest.split_ascii_whitespace();
            let state = fields.next()?;
            let parent = fields.next()?.parse().ok()?;
            // The process group comes between parent and session.
            let session = fields.nth(1)?.parse().ok()?;
            (state != "Z" && state != "X").then_some(Process { pid, parent, session })
        })
        .collect()
}
