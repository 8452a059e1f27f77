//! Internal commands, with which this program starts itself in the background. They have a parser of their
//! own, so that they appear in no help, manual, completion or suggestion.

use std::ffi::OsString;
use std::time::Duration;

use clap::Parser;
use signal_hook::consts::SIGTERM;

use super::{catch_panic, environment, signals, usage_error};
use crate::error::Error;
use crate::failure::Result;
use crate::files::Files;
use crate::files::log::log;
use crate::model::location::Location;
use crate::model::subscription::ConsumerId;
use crate::queue::locations::files_of;
use crate::run::launcher::{GUARD, LEASE, SUPERVISE, TIMER, WAKE, set_lease};
use crate::run::spawn::{self, Inherited};
use crate::run::{guard, supervisor, timer, wake};

#[derive(Parser)]
#[command(name = "thread")]
struct Background {
    command: String,
    #[arg(long)]
    thread: Location,
    /// Of the guard, the link to its supervisor.
    #[arg(long)]
    lock_fd: i32,
    /// The soft limit on open files.
    #[arg(long)]
    open_files: Option<u64>,
    /// The consumer to supervise or guard.
    #[arg(long, required_if_eq_any([("command", SUPERVISE), ("command", GUARD)]), allow_hyphen_values = true)]
    consumer: Option<String>,
    /// The pid of the worker that starts further runs.
    #[arg(long)]
    worker: Option<u32>,
    /// How long the runs are this machine's without a renewal, in milliseconds.
    #[arg(long)]
    lease_ms: Option<u64>,
    /// Delay before waking, in milliseconds.
    #[arg(long, default_value_t = 0)]
    delay_ms: u64,
}

pub fn is_internal(args: &[OsString]) -> bool {
    args.get(1).is_some_and(|word| word == SUPERVISE || word == WAKE || word == GUARD || word == TIMER)
}

pub fn run(args: &[OsString]) -> Result<()> {
    let Background { command, thread, lock_fd, open_files, consumer, worker, lease_ms, delay_ms } =
        Background::try_parse_from(args).or_else(|e| usage_error(&e, "thread"))?;
    // SAFETY: nothing was opened yet.
    let lock_fd = unsafe { spawn::settle(Inherited { lock_fd, open_files }) }
        .map_err(|source| Error::Spawn { what: "a process in the background", source })?;
    let is_guard = command == GUARD;
    // A guard keeps nothing open.
    let files = if is_guard { None } else { files_of(&thread).ok() };
    let done = catch_panic(|| match consumer {
        Some(consumer) if is_guard => {
            // SAFETY: the parent passed this descriptor on, and nothing else in this process uses it.
            Ok(unsafe { guard::guard(&thread, &ConsumerId::stored(consumer), lock_fd) }?)
        }
        Some(consumer) => {
            let shutdown = signals::as_shutdown_requests(&[SIGTERM])?;
            let consumer = ConsumerId::stored(consumer);
            let lease = lease_ms.map_or(LEASE, Duration::from_millis);
            // For the timer that it may start.
            set_lease(lease);
            // SAFETY: as above.
            Ok(unsafe { supervisor::supervise(&thread, &consumer, lock_fd, worker, lease, &shutdown) }?)
        }
        None => {
            // For the supervisors that it starts.
            lease_ms.map(Duration::from_millis).into_iter().for_each(set_lease);
            let (launcher, delay) = (environment::launcher(), Duration::from_millis(delay_ms));
            if command == TIMER {
                let shutdown = signals::as_shutdown_requests(&[SIGTERM])?;
                // SAFETY: as above.
                return Ok(unsafe { timer::keep(&thread, &launcher, lock_fd, &shutdown) }?);
            }
            // SAFETY: as above.
            Ok(unsafe { wake::in_background(&thread, &launcher, delay, lock_fd) }?)
        }
    });
    // No one reads stderr here, so the failure goes to the log, unless the thread was moved or removed.
    if let Err(failure) = &done
        && let Some(files) = if is_guard { files_of(&thread).ok() } else { files.filter(Files::still_there) }
    {
        log!(files, Error, "{command}: {failure}");
    }
    done
}
