//! Finding the processes of an agent, and ending them.
//!
//! An agent program, and so whatever it starts, is told in its environment which thread, consumer and run
//! it works for. By that it is found again, by an adapter that never saw it start and after it has left
//! its process group and session. A process that clears its environment is found while it stays in the
//! session of its program.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// How often processes that are being ended are looked at.
const STEP: Duration = Duration::from_millis(10);

/// Which processes are meant: those that were given all of these variables.
#[derive(Debug, Clone)]
pub struct Mark {
    given: Vec<Vec<u8>>,
    /// Sessions whose members are meant, whatever they were given.
    sessions: Vec<u32>,
}

impl Mark {
    /// Whatever works for an agent of this thread.
    pub fn thread(dir: &Path) -> Mark {
        // Any run: the variable is there only in an agent program and its children.
        let dir = [b"THREAD_DIR=", dir.as_os_str().as_bytes()].concat();
        Mark { given: vec![dir, b"THREAD_RUN_ID=".to_vec()], sessions: Vec::new() }
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

    fn is_on(&self, pid: u32) -> bool {
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
        self.given.iter().all(|wanted| {
            environment.split(|&byte| byte == 0).any(|given| match wanted.as_slice() {
                b"THREAD_RUN_ID=" => given.starts_with(wanted),
                _ => given == wanted.as_slice(),
            })
        })
    }

    /// The processes that bear it, and all in the session of such a process that leads one. None where the
    /// system does not tell.
    pub fn processes(&self) -> Vec<u32> {
        let own = std::process::id();
        let all: Vec<Process> = all().into_iter().filter(|process| process.pid != own).collect();
        let marked: Vec<&Process> = all.iter().filter(|process| self.is_on(process.pid)).collect();
        let leads = |process: &&&Process| process.session == process.pid;
        let mut led: Vec<u32> = marked.iter().filter(leads).map(|process| process.session).collect();
        led.extend(&self.sessions);
        let mut found: Vec<u32> = marked.iter().map(|process| process.pid).collect();
        found.extend(all.iter().filter(|process| led.contains(&process.session)).map(|process| process.pid));
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Kills them, and returns when all are gone; how many there were.
    ///
    /// # Errors
    ///
    /// They are still there after `patience`: another user's, or stuck in the kernel.
    pub fn kill(&self, patience: Duration) -> Result<usize, String> {
        let until = Instant::now() + patience;
        let mut killed = std::collections::BTreeSet::new();
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

/// One that is gone by now is what was wanted.
fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        rustix::process::kill_process(pid, Signal::KILL).ok();
    }
}

struct Process {
    pid: u32,
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
            // After the state come the parent, the group and the session.
            let session = fields.nth(2)?.parse().ok()?;
            (state != "Z" && state != "X").then_some(Process { pid, session })
        })
        .collect()
}
