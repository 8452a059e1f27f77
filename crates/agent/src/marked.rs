//! Finding the processes of an agent, and ending them.
//!
//! An agent program, and so whatever it starts, is told in its environment which thread, consumer and run
//! it works for. By that it is found again, by an adapter that never saw it start and after it has left
//! its process group and session. A process that clears its environment and leaves its session is found
//! by its descent: what loses its parent becomes a child of the consumer's supervisor, which takes in
//! orphans (it is a subreaper), for as long as that lives.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use thread::model::run::ProcessId;
use thread::run::process::Liveness;
use thread::run::{supervisor, wake};

/// How often processes that are being ended are looked at.
const STEP: Duration = Duration::from_millis(10);

/// Which processes are meant: those that were given all of these variables.
#[derive(Debug, Clone)]
pub struct Mark {
    given: Vec<Vec<u8>>,
    /// Sessions whose members are meant, whatever they were given.
    sessions: Vec<u32>,
    /// The supervisor whose descendants are meant, whatever they were given,
    supervisor: Option<ProcessId>,
    /// but for these.
    spared: BTreeSet<u32>,
}

impl Mark {
    /// Whatever works for an agent of this thread.
    pub fn thread(dir: &Path) -> Mark {
        // Any run: the variable is there only in an agent program and its children.
        let dir = [b"THREAD_DIR=", dir.as_os_str().as_bytes()].concat();
        Mark {
            given: vec![dir, b"THREAD_RUN_ID=".to_vec()],
            sessions: Vec::new(),
            supervisor: None,
            spared: BTreeSet::new(),
        }
    }

    /// Of these, what has a variable of this value, too.
    pub fn with(mut self, name: &str, value: &str) -> Mark {
        self.given.push(format!("{name}={value}").into_bytes());
        self
    }

    /// Also all in the session that this process leads or led.
    pub fn session(mut self, leader: Pid) -> Mark {
        self.sessions.extend(u32::try_from(leader.as_raw_nonzero().get()));
        self
    }

    /// Also all that descends from this supervisor, and from this process, but for those spared. What
    /// a push below it has started for other consumers is none of it, nor what the handler started beside
    /// this process.
    pub fn below(mut self, supervisor: ProcessId, spared: BTreeSet<u32>) -> Mark {
        (self.supervisor, self.spared) = (Some(supervisor), spared);
        self
    }

    fn is_on(&self, pid: u32) -> bool {
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
        self.given.iter().all(|wanted| {
            environment.split(|&byte| byte == 0).any(|given| match wanted.as_slice() {
                b"THREAD_RUN_ID=" => given.starts_with(wanted),
                _ => given == wanted.as_slice(),
            })
        })
    }

    /// The processes that bear it, all in the session of such a process that leads one, and all that
    /// descend from the supervisor. None where the system does not tell.
    pub fn processes(&self) -> Vec<u32> {
        let own = std::process::id();
        let all: Vec<Process> = all().into_iter().filter(|process| process.pid != own).collect();
        let marked: Vec<&Process> = all.iter().filter(|process| self.is_on(process.pid)).collect();
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

    /// Kills them, and returns when all are gone; how many there were.
    ///
    /// # Errors
    ///
    /// They are still there after `patience`: another user's, or stuck in the kernel.
    pub fn kill(&self, patience: Duration) -> Result<usize, String> {
        let until = Instant::now() + patience;
        let mut killed = BTreeSet::new();
        loop {
            let left = self.processes();
            if left.is_empty() {
                return Ok(killed.len());
            }
            if Instant::now() >= until {
                return Err(format!("processes of the agent are still there: {left:?}"));
            }
            for pid in left {
                kill(pid);
                killed.insert(pid);
            }
            std::thread::sleep(STEP);
        }
    }
}

/// The supervisor that this process works under; without one, this process itself.
pub fn own_supervisor() -> ProcessId {
    let parents: BTreeMap<u32, u32> =
        all().into_iter().map(|process| (process.pid, process.parent)).collect();
    let supervises = |pid: &u32| runs_as(*pid, &[supervisor::COMMAND]);
    let found = ancestors(&parents, std::process::id()).into_iter().find(supervises);
    found.and_then(ProcessId::of).unwrap_or_else(ProcessId::own)
}

/// The supervisors of a consumer of this thread.
pub fn supervisors_of(dir: &Path, consumer: &str) -> Vec<ProcessId> {
    let has =
        |words: &[&[u8]], option: &[u8], value: &[u8]| words.windows(2).any(|two| two == [option, value]);
    let is_one = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        words.get(1) == Some(&supervisor::COMMAND.as_bytes())
            && has(&words, b"--thread", dir.as_os_str().as_bytes())
            && has(&words, b"--consumer", consumer.as_bytes())
    };
    let pids = all().into_iter().map(|process| process.pid);
    // Identified before it is looked at, so that it is the one that was looked at.
    pids.filter_map(ProcessId::of).filter(|process| is_one(&process.pid)).collect()
}

/// Whatever descends from a supervisor, or from this process.
///
/// This process's ancestors are none of it, and so not what they have started besides: the rest of the
/// handler's command line. Nor are background processes of threads, which a push starts, with all below
/// them.
pub fn descendants(supervisor: &ProcessId) -> BTreeSet<u32> {
    let all = all();
    let parents: BTreeMap<u32, u32> = all.iter().map(|process| (process.pid, process.parent)).collect();
    let own = std::process::id();
    let line = ancestors(&parents, own);
    let children =
        |of: u32| all.iter().filter(move |process| process.parent == of).map(|process| process.pid);
    let mut left: Vec<u32> = children(own).collect();
    // Its number may be another's by now.
    if supervisor.pid != own && supervisor.liveness() == Liveness::Alive {
        left.extend(children(supervisor.pid));
    }
    let mut found = BTreeSet::new();
    while let Some(pid) = left.pop() {
        let is_meant =
            pid != own && !line.contains(&pid) && !runs_as(pid, &[supervisor::COMMAND, wake::COMMAND]);
        if is_meant && found.insert(pid) {
            left.extend(children(pid));
        }
    }
    found
}

/// Kills these processes, and returns when all are gone.
///
/// # Errors
///
/// They are still there after `patience`.
pub fn kill_all(processes: &[ProcessId], patience: Duration) -> Result<(), String> {
    let until = Instant::now() + patience;
    loop {
        let alive = processes.iter().filter(|process| process.liveness() == Liveness::Alive);
        let left: Vec<&ProcessId> = alive.collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let left: Vec<u32> = left.iter().map(|process| process.pid).collect();
            return Err(format!("processes of the agent are still there: {left:?}"));
        }
        for process in left {
            // One that is gone by now is what was wanted.
            process.signal(Signal::KILL).ok();
        }
        std::thread::sleep(STEP);
    }
}

/// The parent of a process, its parent, and so on.
fn ancestors(parents: &BTreeMap<u32, u32>, of: u32) -> Vec<u32> {
    let line = std::iter::successors(Some(of), |pid| parents.get(pid).copied());
    // As many steps as there are processes: what was read at different moments may be a circle.
    line.skip(1).take(parents.len()).collect()
}

/// Whether a process is one of `thread`'s own that runs as one of these subcommands.
fn runs_as(pid: u32, commands: &[&str]) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let second = line.split(|&byte| byte == 0).nth(1).unwrap_or_default();
    commands.iter().any(|command| command.as_bytes() == second)
}

/// One that is gone by now is what was wanted.
fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        rustix::process::kill_process(pid, Signal::KILL).ok();
    }
}

struct Process {
    pid: u32,
    parent: u32,
    session: u32,
}

/// All processes that still run; zombies do not.
fn all() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
            // The program's name, in brackets, may hold anything, brackets too.
            let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
            let rest = String::from_utf8_lossy(&stat[after_name..]);
            let mut fields = rest.split_ascii_whitespace();
            let state = fields.next()?;
            let parent = fields.next()?.parse().ok()?;
            // Between the parent and the session stands the group.
            let session = fields.nth(1)?.parse().ok()?;
            (state != "Z" && state != "X").then_some(Process { pid, parent, session })
        })
        .collect()
}
