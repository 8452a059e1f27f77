//! How the programs of this workspace start handlers and find one another.
//!
//! The settings are those of `thread` itself (`THREAD_NOTIFIER`, `PATH`): a push has the same effect from
//! each of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use thread::run::launcher::{directories, executable_in, is_executable};
use thread::run::{Launcher, WakeBy};

/// Returns the launcher for this program's pushes, which starts supervisors and wakes consumers.
///
/// # Errors
///
/// A message, if the program `thread` is neither in this executable's directory nor on `PATH`.
pub fn launcher() -> Result<Launcher, String> {
    let program = program("thread")?;
    let setting = std::env::var_os("THREAD_NOTIFIER");
    let waking = WakeBy::from_setting(setting.as_deref(), &path(), &program);
    Ok(Launcher { program, waking })
}

/// Returns the path of a program of this workspace: in this executable's directory, else on `PATH`.
///
/// # Errors
///
/// A message, if it is in neither place.
pub fn program(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(|dir| dir.join(name));
    beside
        .filter(|path| is_executable(path))
        .or_else(|| on_path(name))
        .ok_or_else(|| format!("there is no program '{name}' next to this one or on PATH"))
}

/// Returns the first executable file of that name on `PATH`.
pub fn on_path(name: &str) -> Option<PathBuf> {
    executable_in(directories(&path()), name)
}

fn path() -> OsString {
    std::env::var_os("PATH").unwrap_or_default()
}
