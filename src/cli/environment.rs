//! What is read from the environment: variables and `PATH`.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::run::notifier::quoted;
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

/// How this program starts background processes, and how it wakes consumers: by `THREAD_NOTIFIER`,
/// which is a program, `embedded`, `off`, or (unset, empty or `auto`) `notifier` where `PATH` has it,
/// else embedded.
pub fn launcher() -> Launcher {
    // Even when its file has been replaced meanwhile.
    let program = match cfg!(target_os = "linux") {
        true => PathBuf::from("/proc/self/exe"),
        false => std::env::current_exe().unwrap_or_else(|_| PathBuf::from("thread")),
    };
    let by = |notifier| WakeBy::Notifier { program: notifier, dispatch_with: program_word() };
    let waking = match variable("THREAD_NOTIFIER") {
        Some(value) if value == "embedded" => WakeBy::Dispatch,
        Some(value) if value == "off" => WakeBy::Nobody,
        Some(value) if value != "auto" => by(value.into()),
        _ => on_path("notifier").map_or(WakeBy::Dispatch, by),
    };
    Launcher { program, waking }
}

/// How a shell finds this program: by the name `thread`, or else by its absolute path.
fn program_word() -> String {
    let same_file = |a: &Path, b: &Path| match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    };
    match (on_path("thread"), std::env::current_exe()) {
        (Some(found), Ok(own)) if same_file(&found, &own) => "thread".to_owned(),
        (_, Ok(own)) => quoted(&own.to_string_lossy()),
        (_, Err(_)) => "thread".to_owned(),
    }
}

/// The first executable file of that name on `PATH`.
fn on_path(name: &str) -> Option<PathBuf> {
    executable_in(path_directories(), name)
}

/// The folders of `PATH`, without those that an empty word would mean.
pub fn path_directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect()
}

/// The first executable file of that name in these folders.
pub fn executable_in(dirs: Vec<PathBuf>, name: impl AsRef<Path>) -> Option<PathBuf> {
    dirs.into_iter().map(|dir| dir.join(&name)).find(|path| is_executable(path))
}

/// Whether this user may run the file.
pub fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
