//! Telling processes apart for longer than a pid lasts.
//!
//! Pids are used again; a pid with the time its process started and the boot it started in is not.
//! And a pid means nothing in another PID namespace, that is, in another container: of a process
//! there nothing can be known here. Where the start time cannot be read (outside Linux), a pid that
//! exists counts as the process.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, Signal};

use crate::files::{Files, boot_id, identity};
use crate::model::run::{ProcessId, RunState};
use crate::model::subscription::Subscription;

/// What is known of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    Alive,
    Dead,
    /// It is in another PID namespace.
    Unknown,
}

impl ProcessId {
    /// This process.
    pub fn own() -> ProcessId {
        let pid = std::process::id();
        ProcessId::of(pid).unwrap_or_else(|| ProcessId::with_start(pid, 0))
    }

    /// The process with that pid now, if there is one.
    pub fn of(pid: u32) -> Option<ProcessId> {
        Some(ProcessId::with_start(pid, start_time(pid)?))
    }

    fn with_start(pid: u32, start: i64) -> ProcessId {
        ProcessId { pid, start, boot: boot_id(), namespace: namespace() }
    }

    /// Whether this very process still runs. A zombie does not.
    pub fn liveness(&self) -> Liveness {
        if self.boot != boot_id() {
            return Liveness::Dead;
        }
        if self.namespace != namespace() {
            return Liveness::Unknown;
        }
        if start_time(self.pid) == Some(self.start) { Liveness::Alive } else { Liveness::Dead }
    }

    /// Sends it a signal, provided it is this very process.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        // What the descriptor stands for cannot change between the look and the signal.
        #[cfg(target_os = "linux")]
        let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        if self.liveness() != Liveness::Alive {
            return Err(gone());
        }
        #[cfg(target_os = "linux")]
        rustix::process::pidfd_send_signal(&fd, signal)?;
        #[cfg(not(target_os = "linux"))]
        rustix::process::kill_process(pid, signal)?;
        Ok(())
    }
}

/// Whether the supervisor recorded for a consumer is alive. One recorded in a directory that this one
/// was copied from is none of ours.
pub fn supervisor_of(files: &Files, state: &RunState) -> Liveness {
    liveness_of(files, state, &state.supervisor)
}

/// The same of the handler's first process.
pub fn handler_of(files: &Files, state: &RunState) -> Liveness {
    liveness_of(files, state, &state.handler)
}

fn liveness_of(files: &Files, state: &RunState, process: &Option<ProcessId>) -> Liveness {
    match process {
        Some(process) if state.home == Some(files.home()) => process.liveness(),
        _ => Liveness::Dead,
    }
}

/// Who works for a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtWork {
    Process(u32),
    /// Somebody in another PID namespace, perhaps.
    Elsewhere,
    Nobody,
}

/// Who works for a consumer, as its row and the processes say.
pub fn at_work(files: &Files, subscription: &Subscription) -> AtWork {
    let state = &subscription.state;
    let recorded =
        [(handler_of(files, state), &state.handler), (supervisor_of(files, state), &state.supervisor)];
    let alive = recorded.iter().find(|(liveness, _)| *liveness == Liveness::Alive);
    if let Some((_, Some(process))) = alive {
        return AtWork::Process(process.pid);
    }
    if recorded.iter().any(|(liveness, _)| *liveness == Liveness::Unknown) {
        return AtWork::Elsewhere;
    }
    // When both are gone or were never recorded, the run lasts as long as anything of it holds the lock.
    let lock = files.consumer_lock(&subscription.consumer);
    holders_of(files, &lock).next().map_or(AtWork::Nobody, |holder| AtWork::Process(holder.pid))
}

/// Whether a process group has a member that still runs. Zombies do not: one whose parent is
/// outside the group and never asks for it would seem to live for ever.
pub fn group_is_alive(group: Pid) -> bool {
    if rustix::process::test_kill_process_group(group) == Err(rustix::io::Errno::SRCH) {
        return false;
    }
    !cfg!(target_os = "linux") || all().any(|pid| group_of(pid) == Some(group.as_raw_nonzero().get()))
}

/// The living members of a process group. Empty where the system does not tell.
pub fn members_of(group: u32) -> impl Iterator<Item = ProcessId> {
    let group = i32::try_from(group).ok();
    all().filter(move |&pid| group.is_some() && group_of(pid) == group).filter_map(ProcessId::of)
}

/// The processes that hold the lock on a file of a thread, as far as this user may see: not those that
/// merely have the file open. Empty where the system does not tell.
pub fn holders_of(files: &Files, name: &Path) -> impl Iterator<Item = ProcessId> + use<> {
    let file = files.stat(name).ok().map(|file| identity(&file));
    let is_lock = move |fd: &Path| fs::metadata(fd).is_ok_and(|open| Some((open.dev(), open.ino())) == file);
    let holds = move |pid: u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.filter(|fd| is_lock(&fd.path())).any(|fd| {
            // The kernel lists a lock with each descriptor through which it is held.
            let info = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(fd.file_name());
            fs::read_to_string(info).is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:")))
        })
    };
    all().filter(move |&pid| pid != std::process::id() && holds(pid)).filter_map(ProcessId::of)
}

/// Whether a process was started with all of these in its environment, as `NAME=value`.
pub fn was_given(pid: u32, variables: &[Vec<u8>]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    variables.iter().all(|wanted| environment.split(|&b| b == 0).any(|given| given == wanted))
}

/// The descendants of this process that run as one of these subcommands of ours. Empty where the system
/// does not tell.
pub fn background_below(commands: &[&str]) -> Vec<ProcessId> {
    let own = std::process::id();
    let parents: HashMap<u32, u32> = all().filter_map(|pid| Some((pid, stat_field(pid, 4)?))).collect();
    let is_below = |&pid: &u32| {
        // As many steps as there are processes: what was read at different moments may be a circle.
        let mut line = std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).skip(1);
        line.by_ref().take(parents.len()).any(|parent| parent == own)
    };
    let runs_as_one = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let second = line.split(|&b| b == 0).nth(1).unwrap_or_default();
        commands.iter().any(|command| command.as_bytes() == second)
    };
    // Identified before it is looked at, so that it is the one that was looked at.
    let background = |pid: u32| ProcessId::of(pid).filter(|_| runs_as_one(pid));
    parents.keys().copied().filter(is_below).filter_map(background).collect()
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

#[cfg(target_os = "linux")]
fn start_time(pid: u32) -> Option<i64> {
    stat_field(pid, 22)
}

#[cfg(not(target_os = "linux"))]
fn start_time(pid: u32) -> Option<i64> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    match rustix::process::test_kill_process(pid) {
        Ok(()) | Err(rustix::io::Errno::PERM) => Some(0),
        Err(_) => None,
    }
}

/// The process group of a process that runs.
fn group_of(pid: u32) -> Option<i32> {
    stat_field(pid, 5)
}

/// A field of the kernel's line about a process, counted as in its manual; `None` for a zombie.
fn stat_field<T: std::str::FromStr>(pid: u32, number: usize) -> Option<T> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets and may hold anything, brackets too.
    let after_name = stat.iter().rposition(|&b| b == b')')? + 1;
    let rest = String::from_utf8_lossy(&stat[after_name..]);
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let state = *fields.first()?;
    // The state is field 3.
    if matches!(state, "Z" | "X") { None } else { fields.get(number - 3)?.parse().ok() }
}
