//! Starting background processes, and choosing what wakes consumers after a push.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::notifier::quoted;
use super::spawn;
use crate::error::{Error, Result};
use crate::files::lock::Lock;
use crate::files::{self, Files};
use crate::model::run::ProcessId;
use crate::model::subscription::ConsumerId;

/// The subcommand that a supervisor runs as.
pub const SUPERVISE: &str = "_supervise";

/// The subcommand that dispatches in the background.
pub const WAKE: &str = "_wake";

/// The subcommand that guards a supervisor's handlers.
pub const GUARD: &str = "_guard";

/// The subcommand that attends to waits.
pub const TIMER: &str = "_timer";

/// The lock that the `_wake` process holds.
pub(super) const WAKE_LOCK: &str = "run/_wake.lock";

/// How long a lease of a consumer's runs lasts, unless [`set_lease`] changes it.
pub const LEASE: Duration = Duration::from_secs(120);

/// In milliseconds; 0 for [`LEASE`].
static LEASE_MS: AtomicU64 = AtomicU64::new(0);

/// Sets how long supervisors started from now on, also by a `_wake` process of this one, have a consumer's runs for
/// this machine without a renewal, where several machines share a thread.
pub fn set_lease(length: Duration) {
    LEASE_MS.store(u64::try_from(length.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// How background processes are started, and how consumers are woken after a push.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The program `thread`, or another that accepts the subcommands [`SUPERVISE`], [`WAKE`] and [`GUARD`] and
    /// passes their arguments to [`supervise`](super::supervisor::supervise),
    /// [`in_background`](super::wake::in_background) and [`guard`](super::guard::guard()).
    pub program: PathBuf,
    pub waking: WakeBy,
}

/// What starts handlers after a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WakeBy {
    /// The pushing process itself.
    Dispatch,
    /// An external program that runs commands later.
    Notifier {
        program: PathBuf,
        /// The first word of the command it will run: how a shell finds the program `thread`.
        dispatch_with: String,
    },
    /// Nothing: a user or a worker must run `thread dispatch`.
    Nobody,
}

impl WakeBy {
    /// Parses the setting `THREAD_NOTIFIER`: the path of a program, `embedded`, `off` or `auto`. `auto`,
    /// which is also the meaning of an unset or empty setting, is the program `notifier` if one is found in
    /// `path` (in the format of `PATH`), and `embedded` otherwise. `thread` is the file of the program
    /// `thread`.
    pub fn from_setting(setting: Option<&OsStr>, path: &OsStr, thread: &Path) -> WakeBy {
        let program = match setting.filter(|setting| !setting.is_empty()) {
            Some(setting) if setting == "embedded" => None,
            Some(setting) if setting == "off" => return WakeBy::Nobody,
            Some(setting) if setting != "auto" => Some(PathBuf::from(setting)),
            _ => executable_in(directories(path), "notifier"),
        };
        let Some(program) = program else { return WakeBy::Dispatch };
        let dispatch_with = match executable_in(directories(path), "thread") {
            Some(found) if files::is_same(&found, thread) => "thread".to_owned(),
            _ => quoted(&thread.to_string_lossy()),
        };
        WakeBy::Notifier { program, dispatch_with }
    }
}

/// The directories of a list in the format of `PATH`. Empty entries are dropped, not read as the current
/// directory.
pub fn directories(path: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path).filter(|dir| !dir.as_os_str().is_empty()).collect()
}

/// The first executable file called `name` in these directories.
pub fn executable_in(dirs: Vec<PathBuf>, name: impl AsRef<Path>) -> Option<PathBuf> {
    dirs.into_iter().map(|dir| dir.join(&name)).find(|path| is_executable(path))
}

/// Whether this user may run the file.
pub fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

impl Launcher {
    /// Starts a consumer's supervisor, which holds `lock` from then on. `for_worker`: it ends after one run, and
    /// leaves waits and further runs to this process. Returns its process.
    pub(super) fn start_supervisor(
        &self,
        files: &Files,
        consumer: &ConsumerId,
        lock: &Lock,
        for_worker: bool,
    ) -> Result<Option<ProcessId>> {
        let own = std::process::id().to_string();
        let mut args = vec!["--consumer", consumer.as_str()];
        if for_worker {
            args.extend(["--worker", &own]);
        }
        self.start("a supervisor", SUPERVISE, &args, files, lock).map(ProcessId::of)
    }

    /// Starts the process that dispatches in the background after a delay, unless one is running already.
    pub(super) fn start_background(&self, files: &Files, delay: Duration) -> Result<()> {
        let Some(lock) = Lock::try_take(files, WAKE_LOCK)? else { return Ok(()) };
        let args = ["--delay-ms", &delay.as_millis().to_string()];
        self.start("a process in the background", WAKE, &args, files, &lock).map(drop)
    }

    /// Starts the process that attends to the waits of a thread, which holds `lock` from then on.
    pub(super) fn start_timer(&self, files: &Files, lock: &Lock) -> Result<()> {
        self.start("the timer", TIMER, &[], files, lock).map(drop)
    }

    /// Starts a subcommand of the program as a background process that holds `lock` from then on. `what`
    /// names the process in errors. Returns its pid.
    #[expect(
        clippy::disallowed_methods,
        reason = "supervisors inherit the environment, without what is a handler's own"
    )]
    fn start(
        &self,
        what: &'static str,
        subcommand: &str,
        args: &[&str],
        files: &Files,
        lock: &Lock,
    ) -> Result<u32> {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = files::simulated::system() {
            let copy = lock.file().try_clone();
            let started = copy.and_then(|lock| system.process(subcommand, args, files.path(), lock));
            return started.map_err(|source| Error::Spawn { what, source });
        }
        let mut command = Command::new(&self.program);
        command.arg0("thread").arg(subcommand).arg("--thread").arg(files.location().as_os_str()).args(args);
        let failed = |source| Error::Spawn { what, source };
        let inherited = spawn::detached_with_lock(&mut command, lock).map_err(failed)?;
        command.arg("--lock-fd").arg(inherited.lock_fd.to_string());
        if let Some(soft) = inherited.open_files {
            command.arg("--open-files").arg(soft.to_string());
        }
        let lease = LEASE_MS.load(Ordering::Relaxed);
        if lease != 0 {
            command.arg("--lease-ms").arg(lease.to_string());
        }
        // If a handler pushes, its own variables must not reach the handlers that this starts.
        for (name, _) in std::env::vars_os().filter(|(name, _)| spawn::is_ours(name)) {
            command.env_remove(name);
        }
        // Only the worker itself reports to the service manager.
        command.env_remove("NOTIFY_SOCKET");
        command.spawn().map(|child| child.id()).map_err(failed)
    }
}
