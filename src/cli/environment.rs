//! What is read from the environment: variables and `PATH`.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::run::{Launcher, WakeBy};

/// A variable of the environment; an empty one counts as unset.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Who pushes, where nobody says: an agent's own handler, else the user.
pub fn default_source() -> String {
    if variable("THREAD_CONSUMER").is_some() {
        return "self".to_owned();
    }
    let fit = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = user().chars().flat_map(char::to_lowercase).map(fit).collect();
    format!("internal:dm:default:{name}")
}

/// This user's name; where the system's list has none (in a container, for instance), what the
/// environment says, and else the number.
fn user() -> String {
    let number = rustix::process::geteuid().as_raw().to_string();
    let list = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut entries = list.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next().filter(|name| !name.is_empty())?, fields.nth(1)?))
    });
    let listed = entries.find(|(_, uid)| *uid == number).map(|(name, _)| name.to_owned());
    let said = || Some(variable("USER").or_else(|| variable("LOGNAME"))?.to_string_lossy().into_owned());
    listed.or_else(said).unwrap_or(number)
}

/// How this program starts background processes, and how it wakes consumers: as `THREAD_NOTIFIER` says.
pub fn launcher() -> Launcher {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("thread"));
    let waking = WakeBy::from_setting(variable("THREAD_NOTIFIER").as_deref(), &path(), &own);
    // Even when its file has been replaced meanwhile.
    let program = if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { own };
    Launcher { program, waking }
}

/// The variable `PATH`.
pub fn path() -> OsString {
    std::env::var_os("PATH").unwrap_or_default()
}
