//! What the program reads from its environment: variables, and the user's name.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::run::{Launcher, WakeBy};

/// An environment variable; `None` if it is unset or empty.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The source of an event without --source: `self` in a handler, else one with the user's name.
pub fn default_source() -> String {
    if variable("THREAD_CONSUMER").is_some() {
        return "self".to_owned();
    }
    let allowed = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = user().chars().flat_map(char::to_lowercase).map(allowed).collect();
    format!("internal:dm:default:{name}")
}

/// This user's name in /etc/passwd; else (in a container, for instance) from the environment, else the uid.
fn user() -> String {
    let number = rustix::process::geteuid().as_raw().to_string();
    let list = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut entries = list.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next().filter(|name| !name.is_empty())?, fields.nth(1)?))
    });
    let listed = entries.find(|(_, uid)| *uid == number).map(|(name, _)| name.to_owned());
    let from_variable =
        || Some(variable("USER").or_else(|| variable("LOGNAME"))?.to_string_lossy().into_owned());
    listed.or_else(from_variable).unwrap_or(number)
}

/// How to start background processes, and how to wake consumers, according to `THREAD_NOTIFIER`.
pub fn launcher() -> Launcher {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("thread"));
    let waking = WakeBy::from_setting(variable("THREAD_NOTIFIER").as_deref(), &path(), &own);
    // Runs the same program even if its file was replaced in the meantime.
    let program = if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { own };
    Launcher { program, waking }
}

/// The variable `PATH`.
pub fn path() -> OsString {
    std::env::var_os("PATH").unwrap_or_default()
}
