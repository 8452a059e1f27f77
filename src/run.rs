//! Starting handlers, standing beside them, and ending them.
//!
//! A push ends by waking consumers (`wake`): through a notifier, by dispatching itself, or not at
//! all. `dispatch` finds out who has something pending, takes the consumer's lock and hands it to a
//! `supervisor`, a process of its own, which starts the `handler`, waits for its end, records it,
//! unlocks, and looks again.
//!
//! Nothing here decides which program becomes a supervisor: its user says so with a [`Launcher`].

pub mod control;
pub mod dispatch;
mod handler;
pub mod notifier;
mod outcome;
pub mod process;
pub mod shutdown;
pub mod spawn;
pub mod stop;
pub mod supervisor;
pub mod wake;
pub mod worker;

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::files::Files;
use crate::files::lock::Lock;
use crate::model::subscription::ConsumerId;

pub use dispatch::dispatch;
pub use wake::{Waking, wake};

/// How background processes are started, and how consumers are woken after a push.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The program `thread`, or another that passes the arguments it gets to
    /// [`supervisor::supervise`] and [`wake::in_background`].
    pub program: PathBuf,
    pub waking: WakeBy,
}

/// Who starts handlers after a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WakeBy {
    /// The pushing process itself.
    Dispatch,
    /// An external program that runs commands later.
    Notifier {
        program: PathBuf,
        /// The first word of the command it is to run: how a shell finds the program `thread`.
        dispatch_with: String,
    },
    /// Nobody: somebody runs `thread dispatch`.
    Nobody,
}

impl Launcher {
    /// Starts a consumer's supervisor, which holds `lock` from then on.
    fn start_supervisor(&self, files: &Files, consumer: &ConsumerId, lock: &Lock) -> Result<()> {
        self.start("a supervisor", supervisor::COMMAND, ["--consumer", consumer.as_str()], files, lock)
    }

    /// Starts the process that dispatches in the background after a delay, unless one is at work.
    fn start_background(&self, files: &Files, delay: Duration) -> Result<()> {
        let Some(lock) = Lock::try_take(files, wake::LOCK)? else { return Ok(()) };
        let args = ["--delay-ms", &delay.as_millis().to_string()];
        self.start("a process in the background", wake::COMMAND, args, files, &lock)
    }

    /// Starts a background process for a thread, as the new holder of `lock`: the program's subcommand of
    /// that name. `what` it is, for the error.
    fn start(
        &self,
        what: &'static str,
        subcommand: &str,
        args: [&str; 2],
        files: &Files,
        lock: &Lock,
    ) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg0("thread").arg(subcommand).arg("--thread").arg(files.path()).args(args);
        command.arg("--lock-fd").arg(lock.file().as_raw_fd().to_string());
        // What a handler is told belongs to that handler, even when it is its push that starts this.
        for (name, _) in std::env::vars_os().filter(|(name, _)| spawn::is_ours(name)) {
            command.env_remove(name);
        }
        // What a service manager hears of a worker comes from the worker alone.
        command.env_remove("NOTIFY_SOCKET");
        let started = spawn::detached(&mut command, Some(lock)).spawn();
        started.map(drop).map_err(|source| Error::Spawn { what, source })
    }
}
