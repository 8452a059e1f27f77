//! What is read from the environment: variables, `PATH`, and where one is.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::files::surrounding;
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

/// The thread that the current directory is in.
pub fn surrounding_thread() -> Option<PathBuf> {
    surrounding(&std::env::current_dir().ok()?)
}

/// Changes the current directory.
pub fn enter(dir: &Path) -> std::io::Result<()> {
    std::env::set_current_dir(dir)
}

/// How this program starts background processes, and how it wakes consumers: by `THREAD_NOTIFIER`,
/// which is a program, `embedded`, `off`, or (unset, empty or `auto`) `notifier` where `PATH` has it,
/// else embedded.
pub fn launcher() -> Launcher {
    let notifier = match variable("THREAD_NOTIFIER") {
        Some(value) if value == "embedded" => None,
        Some(value) if value == "off" => return Launcher { program: this_program(), waking: WakeBy::Nobody },
        Some(value) if value != "auto" => Some(PathBuf::from(value)),
        _ => on_path("notifier"),
    };
    let waking = match notifier {
        Some(program) => WakeBy::Notifier { program, dispatch_with: program_word() },
        None => WakeBy::Dispatch,
    };
    Launcher { program: this_program(), waking }
}

/// This very program, even when its file has been replaced meanwhile.
fn this_program() -> PathBuf {
    if cfg!(target_os = "linux") {
        return PathBuf::from("/proc/self/exe");
    }
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("thread"))
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
pub fn on_path(name: &str) -> Option<PathBuf> {
    path_directories().iter().map(|dir| dir.join(name)).find(|path| is_executable(path))
}

/// The folders of `PATH`, without those that an empty word would mean.
pub fn path_directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect()
}

/// Whether this user may run the file.
pub fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
