//! Processes: identifying them reliably although pids are reused, finding and ending them.
//!
//! A pid together with its process's start time and the boot id is unique. And a pid means nothing in
//! another PID namespace, that is, in another container: nothing can be known here about a process
//! there. Where the start time cannot be read (outside Linux), any process with the pid counts as the
//! same one.

#![expect(clippy::disallowed_methods, reason = "reads /proc, and ends processes")]

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::files::{Files, boot_id, identity};
use crate::model::run::ProcessId;
use crate::model::subscription::{ConsumerId, Subscription};

/// Polling interval for processes that are being ended.
const ENDING_STEP: Duration = Duration::from_millis(10);

/// How often processes are listed until a group that is there has no running members: one that begins while they are
/// listed is not on the list, and the one that started it may have ended by the time it is looked at.
const LISTS: usize = 5;

/// What is known of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    Alive,
    Dead,
    /// It is in another PID namespace, or on another machine.
    Unknown,
}

impl ProcessId {
    /// This process.
    pub fn own() -> ProcessId {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = crate::files::simulated::system() {
            return system.own();
        }
        static OWN: OnceLock<ProcessId> = OnceLock::new();
        let pid = std::process::id();
        OWN.get_or_init(|| ProcessId::of(pid).unwrap_or_else(|| ProcessId::with_start(pid, 0))).clone()
    }

    /// The process that has the pid now; `None` if there is none.
    pub fn of(pid: u32) -> Option<ProcessId> {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(process) = crate::files::simulated::system().and_then(|system| system.process_of(pid)) {
            return Some(process);
        }
        Some(ProcessId::with_start(pid, start_time(pid)?))
    }

    fn with_start(pid: u32, start: i64) -> ProcessId {
        ProcessId { pid, start, boot: boot_id(), namespace: namespace() }
    }

    /// Whether it was started on this machine since that was, and in this PID namespace: what others do is not known here.
    pub fn is_here(&self) -> bool {
        self.boot == boot_id() && self.namespace == namespace()
    }

    /// Whether this exact process is still running. A zombie is dead.
    pub fn liveness(&self) -> Liveness {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = crate::files::simulated::system() {
            return if system.is_alive(self) { Liveness::Alive } else { Liveness::Dead };
        }
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
    /// The process is gone, or its pid was reused.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = crate::files::simulated::system() {
            system.signal(self, signal);
            return Ok(());
        }
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
/// copied is ignored: it counts as dead. What another machine does is unknown here as long as that has the lease.
pub fn supervisor_of(files: &Files, subscription: &Subscription) -> Liveness {
    liveness_of(files, subscription, &subscription.state.supervisor)
}

/// Like [`supervisor_of`], for the handler's first process.
pub fn handler_of(files: &Files, subscription: &Subscription) -> Liveness {
    liveness_of(files, subscription, &subscription.state.handler)
}

fn liveness_of(files: &Files, subscription: &Subscription, process: &Option<ProcessId>) -> Liveness {
    match process {
        Some(_) if subscription.held_by.is_some() => Liveness::Unknown,
        Some(process) if subscription.state.home == Some(files.home()) => process.liveness(),
        _ => Liveness::Dead,
    }
}

/// The process working for a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtWork {
    Process(u32),
    /// Possibly a process in another PID namespace, or on another machine.
    Elsewhere,
    Nobody,
}

/// Finds the process working for a consumer, from its row and the running processes.
pub fn at_work(files: &Files, subscription: &Subscription) -> AtWork {
    let state = &subscription.state;
    let recorded = [
        (handler_of(files, subscription), &state.handler),
        (supervisor_of(files, subscription), &state.supervisor),
    ];
    let alive = recorded.iter().find(|(liveness, _)| *liveness == Liveness::Alive);
    if let Some((_, Some(process))) = alive {
        return AtWork::Process(process.pid);
    }
    if recorded.iter().any(|(liveness, _)| *liveness == Liveness::Unknown) {
        return AtWork::Elsewhere;
    }
    // If both are gone or were never recorded, the run lasts as long as any of its processes holds the lock.
    let holder = holders_of_any(files, &subscription.consumer).next();
    holder.map_or(AtWork::Nobody, |holder| AtWork::Process(holder.pid))
}

/// Whether a process group has a running member. Zombies do not count: one whose parent is outside the
/// group and never reaps it would keep the group alive forever.
pub fn group_is_alive(group: Pid) -> bool {
    if cfg!(target_os = "linux") {
        !members_of(group.as_raw_nonzero().get().unsigned_abs()).is_empty()
    } else {
        !is_gone(group)
    }
}

fn is_gone(group: Pid) -> bool {
    rustix::process::test_kill_process_group(group) == Err(rustix::io::Errno::SRCH)
}

/// The running members of a process group. Empty on systems without `/proc`.
pub fn members_of(group: u32) -> Vec<ProcessId> {
    let id = i32::try_from(group).ok().and_then(Pid::from_raw);
    for _ in 0..LISTS {
        if id.is_none_or(is_gone) {
            break;
        }
        let members = all().filter(|process| process.group == group);
        let members: Vec<ProcessId> =
            members.map(|member| ProcessId::with_start(member.pid, member.start)).collect();
        if !members.is_empty() {
            return members;
        }
    }
    Vec::new()
}

/// The running members of the process group whose leader had this pid and began at one of these times, at whose end
/// the group was still there. Once that is empty, its id may be somebody else's, and there are none. A member that began
/// by then, or of which `is_certain` knows where it belongs, shows that the group was never empty.
pub fn members_of_leader(
    group: u32,
    began: RangeInclusive<i64>,
    is_certain: impl Fn(u32) -> bool,
) -> Vec<ProcessId> {
    let members = members_of(group);
    // A leader that has ended but was not reaped has the id too.
    let is_ours = match Process::read(group) {
        Some((leader, _)) => began.contains(&leader.start),
        None => members.iter().any(|member| member.start <= *began.end() || is_certain(member.pid)),
    };
    if is_ours { members } else { Vec::new() }
}

/// The recorded first process of a consumer's handler, whether or not it is alive, if it was started here since the
/// last boot.
pub fn handler_here<'s>(files: &Files, subscription: &'s Subscription) -> Option<&'s ProcessId> {
    let state = &subscription.state;
    let handler = state.handler.as_ref().filter(|process| process.is_here());
    handler.filter(|_| subscription.held_by.is_none() && state.home == Some(files.home()))
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
    pids().filter(move |&pid| pid != std::process::id() && holds(pid)).filter_map(ProcessId::of)
}

/// The processes that hold any lock of a consumer's handlers.
pub fn holders_of_any(files: &Files, consumer: &ConsumerId) -> impl Iterator<Item = ProcessId> + use<> {
    let files = files.clone();
    let locks = files.locks_of(consumer);
    locks.into_iter().flat_map(move |lock| holders_of(&files, &lock))
}

/// Whether a process was started with all these variables, each `NAME=value`, in its environment.
pub fn was_given(pid: u32, variables: &[Vec<u8>]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    variables.iter().all(|wanted| environment.split(|&b| b == 0).any(|given| given == wanted))
}

/// The descendants of this process that run one of these subcommands of `thread`. Empty on systems without
/// `/proc`.
pub fn background_below(commands: &[&str]) -> Vec<ProcessId> {
    #[cfg(all(test, target_os = "linux"))]
    if let Some(system) = crate::files::simulated::system() {
        return system.background();
    }
    let own = std::process::id();
    // Its identity is taken before its command line is read: if the pid is reused in between, the identity is that
    // of the old process, so the new one is not signalled.
    let all = pids().filter_map(ProcessId::of);
    all.filter(|found| runs_as(found.pid, commands) && ancestors(found.pid).contains(&own)).collect()
}

/// Whether a process runs one of these subcommands of `thread`.
pub fn runs_as(pid: u32, commands: &[&str]) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let second = line.split(|&b| b == 0).nth(1).unwrap_or_default();
    commands.iter().any(|command| command.as_bytes() == second)
}

/// Ends the processes that `find` returns until it finds none: with a signal at first, and with KILL from
/// `kill_after` on. Returns those that are left when it gives up.
pub fn end(
    find: impl Fn() -> Vec<ProcessId>,
    first: Signal,
    kill_after: Duration,
    give_up_after: Duration,
) -> Vec<ProcessId> {
    let mut ending = Ending::default();
    loop {
        let left = find();
        if left.is_empty() || ending.began.elapsed() >= give_up_after {
            return left;
        }
        ending.signal(left, first, kill_after);
        std::thread::sleep(ENDING_STEP);
    }
}

/// Processes that are being ended, step by step.
#[derive(Debug)]
pub struct Ending {
    began: Instant,
    signalled: Vec<ProcessId>,
}

impl Default for Ending {
    fn default() -> Ending {
        Ending { began: Instant::now(), signalled: Vec::new() }
    }
}

impl Ending {
    /// Signals those that are left: each once with `first`, and with KILL from `kill_after` on.
    pub fn signal(&mut self, left: Vec<ProcessId>, first: Signal, kill_after: Duration) {
        for process in left {
            // Fails if the process is already gone, which is fine.
            if self.began.elapsed() >= kill_after {
                process.signal(Signal::KILL).ok();
            } else if !self.signalled.contains(&process) {
                // A stopped process handles the signal only once it continues.
                process.signal(first).and_then(|()| process.signal(Signal::CONT)).ok();
                self.signalled.push(process);
            }
        }
    }
}

/// A process that is no zombie.
#[derive(Debug, Clone, Copy)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    start: i64,
}

impl Process {
    fn of(pid: u32) -> Option<Process> {
        Process::read(pid).and_then(|(process, is_zombie)| (!is_zombie).then_some(process))
    }

    /// Also returns whether it is a zombie.
    fn read(pid: u32) -> Option<(Process, bool)> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the program's name in parentheses, and may itself contain parentheses and spaces.
        let after_name = stat.iter().rposition(|&b| b == b')')? + 1;
        let rest = String::from_utf8_lossy(&stat[after_name..]);
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // Numbered from 3, the state, as in proc(5).
        let field = |number: usize| fields.get(number - 3)?.parse::<i64>().ok();
        let id = |number| field(number).and_then(|id| u32::try_from(id).ok());
        let process = Process { pid, parent: id(4)?, group: id(5)?, session: id(6)?, start: field(22)? };
        Some((process, matches!(fields[0], "Z" | "X")))
    }
}

/// All processes. Empty on systems without `/proc`. Not a snapshot: processes may start and end while they are
/// listed.
pub fn all() -> impl Iterator<Item = Process> {
    pids().filter_map(Process::of)
}

/// The ancestors of a process, its parent first.
pub fn ancestors(of: u32) -> Vec<u32> {
    // No deeper than processes are ever nested: entries read at different moments may form a cycle.
    const DEEPEST: usize = 10_000;
    std::iter::successors(Some(of), |pid| Some(Process::of(*pid)?.parent)).skip(1).take(DEEPEST).collect()
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    #[cfg(all(test, target_os = "linux"))]
    let entries = entries.take_while(|_| crate::files::simulated::system().is_none());
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

#[cfg(target_os = "linux")]
fn start_time(pid: u32) -> Option<i64> {
    Process::of(pid).map(|process| process.start)
}

#[cfg(not(target_os = "linux"))]
fn start_time(pid: u32) -> Option<i64> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    match rustix::process::test_kill_process(pid) {
        Ok(()) | Err(rustix::io::Errno::PERM) => Some(0),
        Err(_) => None,
    }
}
