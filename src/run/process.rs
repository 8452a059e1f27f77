//! Identifying processes reliably although pids are reused.
//!
//! A pid together with its process's start time and the boot id is unique. And a pid means nothing in
//! another PID namespace, that is, in another container: nothing can be known here about a process
//! there. Where the start time cannot be read (outside Linux), any process with the pid counts as the
//! same one.

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

    /// The process that has the pid now; `None` if there is none.
    pub fn of(pid: u32) -> Option<ProcessId> {
        Some(ProcessId::with_start(pid, start_time(pid)?))
    }

    fn with_start(pid: u32, start: i64) -> ProcessId {
        ProcessId { pid, start, boot: boot_id(), namespace: namespace() }
    }

    /// Whether this exact process is still running. A zombie is dead.
    pub fn liveness(&self) -> Liveness {
        if self.boot != boot_id() {
            return Liveness::Dead;
        }
        if self.namespace != namespace() {
            return Liveness::Unknown;
        }
        if start_time(self.pid) == Some(self.start) { Liveness::Alive } else { Liveness::Dead }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// The process is gone, or its pid is another process's by now.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        // The descriptor keeps referring to the process that is checked, even if its pid is reused before
        // the signal.
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

/// Whether the supervisor recorded for a consumer is alive. A supervisor recorded before this directory was
/// copied is ignored: it counts as dead.
pub fn supervisor_of(files: &Files, state: &RunState) -> Liveness {
    liveness_of(files, state, &state.supervisor)
}

/// Like [`supervisor_of`], for the handler's first process.
pub fn handler_of(files: &Files, state: &RunState) -> Liveness {
    liveness_of(files, state, &state.handler)
}

fn liveness_of(files: &Files, state: &RunState, process: &Option<ProcessId>) -> Liveness {
    match process {
        Some(process) if state.home == Some(files.home()) => process.liveness(),
        _ => Liveness::Dead,
    }
}

/// The process working for a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtWork {
    Process(u32),
    /// Possibly a process in another PID namespace.
    Elsewhere,
    Nobody,
}

/// Finds the process working for a consumer, from its row and the running processes.
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
    // If both are gone or were never recorded, the run lasts as long as any of its processes holds the lock.
    let lock = files.consumer_lock(&subscription.consumer);
    holders_of(files, &lock).next().map_or(AtWork::Nobody, |holder| AtWork::Process(holder.pid))
}

/// Whether a process group has a running member. Zombies do not count: one whose parent is outside the
/// group and never reaps it would keep the group alive forever.
pub fn group_is_alive(group: Pid) -> bool {
    if rustix::process::test_kill_process_group(group) == Err(rustix::io::Errno::SRCH) {
        return false;
    }
    !cfg!(target_os = "linux") || all().any(|pid| group_of(pid) == Some(group.as_raw_nonzero().get()))
}

/// The running members of a process group. Empty on systems without `/proc`.
pub fn members_of(group: u32) -> impl Iterator<Item = ProcessId> {
    let group = i32::try_from(group).ok();
    all().filter(move |&pid| group.is_some() && group_of(pid) == group).filter_map(ProcessId::of)
}

/// The other processes that hold the lock on a file of a thread, not those that merely have the file open.
/// Only those whose descriptors this user may list; empty on systems without `/proc`.
pub fn holders_of(files: &Files, name: &Path) -> impl Iterator<Item = ProcessId> + use<> {
    let file = files.stat(name).ok().map(|file| identity(&file));
    let is_lock = move |fd: &Path| fs::metadata(fd).is_ok_and(|open| Some((open.dev(), open.ino())) == file);
    let holds = move |pid: u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors.filter(|fd| is_lock(&fd.path())).any(|fd| {
            // The kernel lists a lock under each descriptor through which it is held.
            let info = Path::new("/proc").join(pid.to_string()).join("fdinfo").join(fd.file_name());
            fs::read_to_string(info).is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:")))
        })
    };
    all().filter(move |&pid| pid != std::process::id() && holds(pid)).filter_map(ProcessId::of)
}

/// Whether a process was started with all these variables, each `NAME=value`, in its environment.
pub fn was_given(pid: u32, variables: &[Vec<u8>]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    variables.iter().all(|wanted| environment.split(|&b| b == 0).any(|given| given == wanted))
}

/// The descendants of this process that run one of these subcommands of `thread`. Empty on systems without
/// `/proc`.
pub fn background_below(commands: &[&str]) -> Vec<ProcessId> {
    let own = std::process::id();
    let parents: HashMap<u32, u32> = all().filter_map(|pid| Some((pid, stat_field(pid, 4)?))).collect();
    let is_below = |&pid: &u32| {
        // At most as many steps as there are processes: entries read at different moments may form a cycle.
        let mut ancestors = std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).skip(1);
        ancestors.by_ref().take(parents.len()).any(|parent| parent == own)
    };
    let runs_as_one = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let second = line.split(|&b| b == 0).nth(1).unwrap_or_default();
        commands.iter().any(|command| command.as_bytes() == second)
    };
    // Identified before its command line is read: if the pid is reused in between, the identity is that of
    // the old process, which is not signalled any more.
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

/// The process group of a running process.
fn group_of(pid: u32) -> Option<i32> {
    stat_field(pid, 5)
}

/// A field of `/proc/<pid>/stat`, numbered from 1 as in proc(5); `None` for a zombie.
fn stat_field<T: std::str::FromStr>(pid: u32, number: usize) -> Option<T> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, and may itself contain parentheses and spaces.
    let after_name = stat.iter().rposition(|&b| b == b')')? + 1;
    let rest = String::from_utf8_lossy(&stat[after_name..]);
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let state = *fields.first()?;
    // The state is field 3.
    if matches!(state, "Z" | "X") { None } else { fields.get(number - 3)?.parse().ok() }
}
