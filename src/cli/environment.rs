//! What the program has from the process that it is: variables, the current directory, the standard streams, and the
//! user's name.

#![expect(clippy::disallowed_methods, reason = "all other modules ask this one")]

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{is_same, user_entry};
use crate::model::location::Location;
use crate::run::{Launcher, WakeBy};

/// An environment variable; `None` if it is unset or empty.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

pub fn current_dir() -> io::Result<PathBuf> {
    std::env::current_dir()
}

pub fn set_current_dir(dir: &Path) -> io::Result<()> {
    std::env::set_current_dir(dir)
}

/// The file of this program.
pub fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

pub fn stdin() -> io::Stdin {
    io::stdin()
}

pub fn stdout() -> io::Stdout {
    io::stdout()
}

pub fn stderr() -> io::Stderr {
    io::stderr()
}

/// The source of an event without --source, pushed into `thread`. In a handler it is `self`, or, into
/// another thread than the handler's own, one with the names of that and of the consumer; else it is one with
/// the user's name.
pub fn default_source(thread: &Location) -> String {
    let segment = |name: &str| -> String {
        let allowed = |c: char| if c.is_alphanumeric() || "._-".contains(c) { c } else { '-' };
        name.chars().flat_map(char::to_lowercase).map(allowed).collect()
    };
    let Some(consumer) = variable("THREAD_CONSUMER") else {
        return format!("internal:dm:default:{}", segment(&user()));
    };
    let own = variable("THREAD_DIR").map(Location::from);
    let is_own =
        |own: &Location| own == thread || own.dir().zip(thread.dir()).is_some_and(|(a, b)| is_same(a, b));
    match own.filter(|own| !is_own(own)) {
        None => "self".to_owned(),
        Some(own) => {
            format!("internal:dm:{}:{}", segment(&own.name()), segment(&consumer.to_string_lossy()))
        }
    }
}

/// This user's name in /etc/passwd; else (in a container, for instance) from the environment, else the uid.
fn user() -> String {
    let listed = user_entry().and_then(|entry| entry.into_iter().next()).filter(|name| !name.is_empty());
    let from_variable =
        || Some(variable("USER").or_else(|| variable("LOGNAME"))?.to_string_lossy().into_owned());
    let number = || rustix::process::geteuid().as_raw().to_string();
    listed.or_else(from_variable).unwrap_or_else(number)
}

/// How to start background processes, and how to wake consumers, according to `THREAD_NOTIFIER`.
pub fn launcher() -> Launcher {
    let own = own_program().unwrap_or_else(|_| PathBuf::from("thread"));
    let waking = WakeBy::from_setting(variable("THREAD_NOTIFIER").as_deref(), &path(), &own);
    // Runs the same program even if its file was replaced in the meantime.
    let program = if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { own };
    Launcher { program, waking }
}

pub fn path() -> OsString {
    variable("PATH").unwrap_or_default()
}
