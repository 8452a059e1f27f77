//! Telling processes apart for longer than a pid lasts.
//!
//! Pids are used again; a pid with the time its process started and the boot it started in is not.
//! Where the start time cannot be read (outside Linux), a pid that exists counts as the process.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::{Pid, Signal};

/// One process, for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub pid: u32,
    /// When it started, in the kernel's own unit; 0 where that cannot be known.
    pub start: i64,
    /// The boot it lives in; empty where that cannot be known.
    pub boot: String,
}

impl Identity {
    /// This process.
    pub fn own() -> Identity {
        Identity::of(std::process::id()).unwrap_or(Identity {
            pid: std::process::id(),
            start: 0,
            boot: boot_id(),
        })
    }

    /// The process with that pid now, if there is one.
    pub fn of(pid: u32) -> Option<Identity> {
        let start = start_time(pid)?;
        Some(Identity { pid, start, boot: boot_id() })
    }

    /// Whether this very process still runs. A zombie does not.
    pub fn is_alive(&self) -> bool {
        self.boot == boot_id() && start_time(self.pid) == Some(self.start)
    }
}

impl Identity {
    /// Sends it a signal, provided it is this very process.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        #[cfg(target_os = "linux")]
        {
            // What the descriptor stands for cannot change between the look and the signal.
            let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
            if !self.is_alive() {
                return Err(gone());
            }
            Ok(rustix::process::pidfd_send_signal(&fd, signal)?)
        }
        #[cfg(not(target_os = "linux"))]
        {
            if !self.is_alive() {
                return Err(gone());
            }
            Ok(rustix::process::kill_process(pid, signal)?)
        }
    }
}

/// The processes that have the file at `path` open, as far as this user may see. Empty where the
/// system does not tell.
pub fn holders_of(path: &Path) -> Vec<Identity> {
    let Ok(file) = fs::metadata(path) else { return Vec::new() };
    let holds = |pid: u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors
            .filter_map(|fd| fs::metadata(fd.path()).ok())
            .any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != std::process::id() && holds(pid))
        .filter_map(Identity::of)
        .collect()
}

/// Changes with every boot. Empty where the system does not tell.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(target_os = "linux")]
fn start_time(pid: u32) -> Option<i64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets and may hold anything, brackets too.
    let after_name = stat.iter().rposition(|&b| b == b')')? + 1;
    let rest = String::from_utf8_lossy(&stat[after_name..]);
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // The start time is field 22; `state` was field 3.
    fields.nth(18)?.parse().ok()
}

#[cfg(not(target_os = "linux"))]
fn start_time(pid: u32) -> Option<i64> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
    match rustix::process::test_kill_process(pid) {
        Ok(()) | Err(rustix::io::Errno::PERM) => Some(0),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_ends() {
        assert!(Identity::own().is_alive());
        let mut child =
            std::process::Command::new("/bin/cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        assert!(identity.is_alive());
        let mut other = identity.clone();
        other.boot = "another boot".into();
        assert!(!other.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!identity.is_alive());
    }
}
