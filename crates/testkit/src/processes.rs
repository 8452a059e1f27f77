//! Finds, signals and kills processes, and limits how long they may run.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{PATIENCE, long, wait_until};

/// How long a command may run before all processes of its world are killed, so that no test hangs.
fn longest_run() -> Duration {
    if long() { PATIENCE * 20 } else { PATIENCE * 3 }
}

/// All processes that run in the folder `root`, except this one: their command line, working directory or environment
/// contains its path.
pub fn processes_in(root: &str) -> Vec<u32> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok())
        .filter(|&pid| pid != own && lives_in(pid, root))
        .collect()
}

/// Sends a signal to a process, if it exists.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        kill_process(pid, signal).ok();
    }
}

/// Sends SIGKILL to a process, if it exists.
pub fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

/// Gives the command default signal dispositions: a test run in the background (`cmd &` in a script, nohup)
/// inherits ignored signals.
pub fn reset_signals(command: &mut Command) {
    let reset = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: may be called between fork and exec, and takes no pointer.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: the closure makes no other calls.
    unsafe { command.pre_exec(reset) };
}

/// Kills all processes of the world in the folder `root` if the process `pid`, which was started there, runs
/// for [`longest_run`]. A test that waits for it, or reads what it prints, then fails instead of hanging.
pub(crate) fn limit(pid: u32, root: &str) {
    static RUNNING: Mutex<Vec<(Instant, u32, String)>> = Mutex::new(Vec::new());
    static WATCH: Once = Once::new();
    RUNNING.lock().unwrap().push((Instant::now() + longest_run(), pid, root.to_owned()));
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let mut running = RUNNING.lock().unwrap();
                running.retain(|(_, pid, root)| lives_in(*pid, root));
                for (_, pid, root) in running.iter().filter(|(end, ..)| *end < Instant::now()) {
                    drop(writeln!(std::io::stderr(), "process {pid} in {root} ran for too long"));
                    processes_in(root).into_iter().for_each(kill);
                }
            }
        });
    });
}

/// Whether a process is running whose environment, command line or working directory contains the text.
fn lives_in(pid: u32, needle: &str) -> bool {
    if !is_running(pid) {
        return false;
    }
    let holds = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).contains(needle);
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(holds)
        || fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(holds)
        || fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.to_string_lossy().contains(needle))
}

/// Whether a process of this program, in any world, is exiting. It has already released its command
/// line and environment, but maybe not its locks: a killed supervisor can take tens of
/// milliseconds.
pub(crate) fn one_is_ending() -> bool {
    const EXITING: u32 = 4;
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok()).any(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
        let fields: Vec<&str> = rest.split(' ').collect();
        let flags = fields.get(6).and_then(|flags| flags.parse::<u32>().ok()).unwrap_or(0);
        // Supervisors are started through `/proc/self/exe`.
        let ours = name.ends_with("(exe") || name.ends_with("(thread");
        ours && flags & EXITING != 0 && !matches!(fields[0], "Z" | "X")
    })
}

/// Whether a process is running. A zombie is not.
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Sends SIGKILL to a process and waits until it has ended.
pub fn kill_and_wait(pid: u32) {
    kill(pid);
    wait_until("a killed process to be gone", || !is_running(pid));
}
