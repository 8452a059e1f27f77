//! `thread dispatch`: starting the consumers that have something pending, once or continuously.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::socket::Socket;
use super::{Globals, environment, limit, output, refuse_as_root, signals};
use crate::error::Error;
use crate::failure::{Result, hint, usage};
use crate::files::COMMIT;
use crate::files::log::log;
use crate::model::duration;
use crate::run::dispatch::{Dispatched, dispatch};
use crate::run::due::make_due;
use crate::run::launcher::set_lease;
use crate::run::scope::Scope;
use crate::run::starter::News;
use crate::run::worker::follow;

/// Supervisors check a lease once a second.
const SHORTEST_LEASE: Duration = Duration::from_secs(4);

/// For how long a dispatch deletes what the thread is not to keep any more.
const KEEP_FOR: Duration = Duration::from_secs(1);

/// Start the handlers of all consumers that have something pending
///
/// Makes scheduled events that are due events, and starts every consumer that has something pending and is not running. Returns at once and prints nothing,
/// so it can run from cron. A push does this by itself; `dispatch` is for notifiers, for
/// THREAD_NOTIFIER=off, and for after a crash. With --json it prints the outcome for each consumer.
///
/// With --follow it is a worker: it keeps running and starts handlers as events are pushed, for pushers
/// that use THREAD_NOTIFIER=off and for those whose container ends with the push. On TERM, INT or HUP it
/// starts nothing more, gives the handlers it has started --grace to finish, and then stops them; a second
/// signal stops them at once. A run that is stopped this way costs no attempt. The worker notifies systemd
/// when it is ready, and may be process 1 of a container.
#[derive(Args)]
#[command(after_help = "\
Examples:
  * * * * * thread dispatch --thread ~/agents/inbox
  thread dispatch --follow --thread inbox --thread outbox
  thread dispatch --follow --root ~/agents --max-runs 8 --grace 30s
  thread dispatch --follow --thread inbox --socket /run/inbox.sock")]
pub struct Dispatch {
    /// Keep running, and start handlers as events come; --thread may be given several times
    #[arg(long)]
    follow: bool,
    /// Serve all threads in this directory, including new ones
    #[arg(long, value_name = "DIR", requires = "follow", value_hint = ValueHint::DirPath)]
    root: Vec<PathBuf>,
    /// At most N runs at a time; pushers and handlers then need THREAD_NOTIFIER=off, because their own pushes start
    /// runs too
    #[arg(long, value_name = "N", requires = "follow", value_parser = limit, allow_negative_numbers = true)]
    max_runs: Option<u64>,
    /// How long a machine has a consumer's runs for itself if it is cut off, in a thread that several machines
    /// share
    #[arg(long, value_name = "D", requires = "follow", default_value = "2m", value_parser = duration::parse)]
    lease: Duration,
    /// How long handlers may take to finish after the worker gets a signal to stop
    #[arg(long, value_name = "D", requires = "follow", default_value = "30s", value_parser = duration::parse)]
    grace: Duration,
    /// Also take pushes into the one thread, and nothing else, from those who may connect to this Unix socket: its
    /// owner and group (see `thread push --socket`)
    #[arg(long, value_name = "PATH", requires = "follow", conflicts_with = "root", value_hint = ValueHint::FilePath)]
    socket: Option<PathBuf>,
    /// The group of the socket [default: that of the worker]
    #[arg(long, value_name = "GROUP", requires = "socket")]
    socket_group: Option<String>,
}

impl Dispatch {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if self.follow {
            return self.run_worker(globals);
        }
        let mut queue = globals.open()?;
        signals::defer();
        let launcher = environment::launcher();
        if queue.files().is_owner() {
            make_due(&mut queue, &launcher)?;
        }
        let all = dispatch(&mut queue, &launcher)?;
        if all.iter().any(|(_, done)| matches!(done, Dispatched::LockHeld | Dispatched::HeldElsewhere)) {
            // A handler that keeps running, such as an agent's, takes events that arrive while it runs. Events that
            // another program stored gave it no notice.
            drop(queue.files().touch(COMMIT));
        }
        for (consumer, done) in &all {
            if let Dispatched::Broken(e) | Dispatched::Failed(e) = done {
                output::warn(format_args!("the consumer '{consumer}' was not started: {e}"));
            }
        }
        if let Err(e) = queue.apply_retention(KEEP_FOR) {
            log!(queue, Warn, "retention: {e}");
            output::warn(format_args!("old events were not deleted: {e}"));
        }
        if !globals.json {
            return Ok(());
        }
        let consumers: Vec<_> = all
            .iter()
            .map(|(consumer, done)| json!({ "consumer_id": consumer.as_str(), "outcome": word(done) }))
            .collect();
        output::line(json!({ "consumers": consumers }))
    }

    /// Runs as a worker until a signal ends it.
    fn run_worker(self, globals: &Globals) -> Result<()> {
        let max_runs = self.max_runs.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        let mut scope = Scope { threads: globals.thread.clone(), roots: self.root };
        if scope.threads.is_empty() && scope.roots.is_empty() {
            scope.threads.push(globals.location()?);
        }
        scope.roots.iter().try_for_each(|root| refuse_as_root(root))?;
        let socket = match (&self.socket, &scope.threads[..]) {
            (Some(path), [thread]) => Some(Socket::listen(path, self.socket_group.as_deref(), thread)?),
            (Some(_), _) => return usage("--socket is for one thread", "give one --thread with it"),
            (None, _) => None,
        };
        set_lease(self.lease.max(SHORTEST_LEASE));
        let shutdown = signals::as_shutdown_requests(&[SIGTERM, SIGINT, SIGHUP])?;
        let launcher = environment::launcher();
        follow(&scope, max_runs, &launcher, &shutdown, self.grace, &mut |news| match news {
            News::Ready => notify("READY=1"),
            News::Stopping => {
                socket.iter().for_each(Socket::close);
                notify("STOPPING=1");
            }
            News::Looked { .. } => {}
            News::Trouble { location, error: error @ Error::NotAThread(_) } => {
                output::warn(format_args!("{error}; waiting for it to appear at {location}"));
            }
            News::Trouble { location, error } => {
                let hint = hint(error);
                output::warn(format_args!("nothing is started in {location} for now: {error} - {hint}"));
            }
        })?;
        Ok(())
    }
}

/// The environment variable with the path of the service manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Sends the worker's state, such as `READY=1`, to the service manager, as sd_notify(3) does.
fn notify(state: &str) {
    let Some(name) = environment::variable(SOCKET) else { return };
    let address = match name.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => {
            use std::os::linux::net::SocketAddrExt;
            SocketAddr::from_abstract_name(name)
        }
        _ => SocketAddr::from_pathname(&name),
    };
    let send = |address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address);
    if let Err(e) = address.and_then(send) {
        output::warn(format_args!("cannot notify the service manager at {SOCKET}: {e}"));
    }
}

fn word(done: &Dispatched) -> &'static str {
    match done {
        Dispatched::Idle => "idle",
        Dispatched::Started => "started",
        Dispatched::LockHeld | Dispatched::HeldElsewhere | Dispatched::LeftToOthers => "running",
        Dispatched::LeftToBackground => "left-to-background",
        Dispatched::Waits(_) => "waiting",
        Dispatched::Queued => "queued",
        Dispatched::Broken(_) => "broken",
        Dispatched::Failed(_) => "failed",
    }
}
