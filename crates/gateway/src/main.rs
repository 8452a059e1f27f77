//! `thread serve`: conversations with agents for many clients at once.
//!
//! A conversation is a thread, and every message in it is an event on disk. The gateway reads and writes
//! these threads for its clients; its own state is only the open connections.
//!
//! | module | owns |
//! |---|---|
//! | `server`, `page` | accepting connections, HTTP routes |
//! | `metrics` | health check, figures for Prometheus |
//! | `access` | tokens, origins, host names, throttling |
//! | `connection`, `outbox` | one WebSocket: reading, writing, pings, closing |
//! | `client` | one client: its session, and its position there |
//! | `requests`, `methods`, `commands`, `actions` | executing requests, by method or by command |
//! | `protocol` | frames, and stored events as frames |
//! | `agui` | the same conversations over AG-UI |
//! | `follow` | one reader per session, shared by all clients in it |
//! | `attachments`, `storage` | attachments and their signed URLs |
//! | `session` | sessions on disk: creating, writing, listing, reading, searching |

mod access;
mod actions;
mod agent;
mod agui;
mod attachments;
mod client;
mod commands;
mod connection;
mod counters;
mod error;
mod follow;
mod gateway;
mod log;
mod methods;
mod metrics;
mod options;
mod outbox;
mod page;
mod protocol;
mod requests;
mod server;
mod session;
mod session_id;
mod storage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use clap::error::ErrorKind;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::access::origin::Origins;
use crate::access::token::Token;
use crate::agent::Agent;
use crate::error::StartError;
use crate::follow::Hub;
use crate::follow::follower::Context;
use crate::follow::watcher::ChangeWatcher;
use crate::gateway::Gateway;
use crate::options::Options;
use crate::session::root::Root;
use crate::storage::Storage;

/// Size of the pool for blocking disk work. A push occupies a thread for a few milliseconds.
const BLOCKING: usize = 32;

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // If the reader closed the pipe, there is nothing more to print.
            e.print().ok();
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            let text = e.to_string();
            // clap puts the error, sometimes with a list below it, in the first paragraph.
            let what: Vec<&str> =
                text.split("\n\n").next().unwrap_or_default().lines().map(str::trim).collect();
            let what = what.join(" ");
            let what = what.strip_prefix("error: ").unwrap_or(&what);
            return report(&StartError::usage(what, "see `thread serve --help`"));
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(BLOCKING)
        .thread_stack_size(1024 * 1024)
        .enable_all()
        .build();
    let done = runtime
        .map_err(|e| {
            StartError::failed(format!("cannot start the runtime: {e}"), "check the limits on threads")
        })
        .and_then(|runtime| {
            let done = runtime.block_on(run(options));
            // Blocking tasks that take longer are abandoned: no client is left to get their results.
            runtime.shutdown_timeout(Duration::from_millis(300));
            done
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => report(&e),
    }
}

fn report(error: &StartError) -> ExitCode {
    eprintln!("{error}");
    ExitCode::from(if error.usage { 2 } else { 1 })
}

async fn run(options: Options) -> Result<(), StartError> {
    let dir = options.root.clone().map_or_else(default_root, Ok)?;
    if options.no_auth && !options.listen.ip().is_loopback() {
        return Err(StartError::usage(
            format!("--no-auth would admit anybody who can reach {}", options.listen),
            "listen on a loopback address, such as 127.0.0.1:3336, or leave out --no-auth",
        ));
    }
    let origins = Origins::new(&options.origin)?;
    let launcher = agent::launcher()?;
    let agent = match &options.agent {
        Some(command) => {
            let cwd = std::env::current_dir().map_err(|e| {
                StartError::failed(
                    format!("the current directory is gone: {e}"),
                    "start the gateway in another directory",
                )
            })?;
            Some(Agent::new(command, options.protocol, cwd, &launcher)?)
        }
        None => None,
    };
    let root = Root::open(&dir).map_err(|e| {
        StartError::failed(
            format!("{} cannot be used: {e}", dir.display()),
            "choose another directory with --root",
        )
    })?;
    let token = if options.no_auth { None } else { Some(Token::of(root.dir())?) };
    let other_origins = Origins::new(&options.storage_origin)?.into_names();
    let storage = Storage::open(root.dir(), options.storage.as_deref(), other_origins)?;
    let connections = connection_limit(options.max_connections);
    if connections < options.max_connections {
        eprintln!(
            "Warning: only {connections} connections are allowed at a time, half of the limit on open files - \
             raise that limit (ulimit -Hn), or give --max-connections {connections}"
        );
    }
    let cannot_listen = |e| {
        StartError::failed(
            format!("cannot listen on {}: {e}", options.listen),
            "choose another address with --listen",
        )
    };
    let listener = server::listen(options.listen).map_err(cannot_listen)?;
    let address = listener.local_addr().map_err(cannot_listen)?;
    let system_error = |e| {
        StartError::failed(
            format!("the system refuses what the gateway needs: {e}"),
            "check the limits on this process",
        )
    };
    let watcher = ChangeWatcher::new().map_err(system_error)?;
    let (shutdown_sender, shutdown) = watch::channel(false);
    let signals = Signals::new().map_err(system_error)?;

    let url = format!("http://{address}");
    let published = Published::new(root.dir(), &url).map_err(|e| {
        StartError::failed(
            format!("cannot write {}/address: {e}", root.dir().display()),
            "check that directory, its permissions and its disk",
        )
    })?;
    let (root, storage) = (Arc::new(root), Arc::new(storage));
    let context =
        Context { root: root.clone(), launcher: launcher.clone(), watcher, storage: storage.clone() };
    let gateway = Arc::new(Gateway {
        root,
        token,
        origins,
        throttle: Default::default(),
        port: address.port(),
        agent,
        agent_for_all: options.agent_for_all,
        launcher,
        hub: Arc::new(Hub::new(context)),
        catalogue: Default::default(),
        tallies: Default::default(),
        counters: Default::default(),
        storage,
        started: Instant::now(),
        shutdown,
    });
    tokio::spawn(signals.until_shutdown(shutdown_sender));
    match &gateway.token {
        Some(token) => println!("{url}/?token={}", token.text()),
        None => println!("{url}/"),
    }
    if gateway.agent.is_none() {
        eprintln!("Warning: new sessions have no agent, so messages get no answer - set one with --agent");
    }
    server::serve(gateway, listener, connections).await;
    published.withdraw();
    Ok(())
}

/// `$XDG_DATA_HOME/thread/sessions`.
fn default_root() -> Result<PathBuf, StartError> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    variable("XDG_DATA_HOME")
        .or_else(|| variable("HOME").map(|home| home.join(".local/share")))
        .map(|data| data.join("thread/sessions"))
        .ok_or_else(|| {
            StartError::usage("there is no home directory to keep sessions in", "choose one with --root")
        })
}

/// Raises the limit on open files as far as `wanted` connections need, and returns how many to allow. Each
/// takes a descriptor, and so do the files of sessions: half of the limit is reserved for these, or a client
/// that opens many connections would keep all others from being served.
fn connection_limit(wanted: u32) -> u32 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let files = limit.maximum.unwrap_or(u64::MAX).min(2 * u64::from(wanted.max(8 * 1024)));
    if let Some(inherited) = limit.current.filter(|current| *current < files) {
        limit.current = Some(files);
        // If this fails, fewer connections are allowed.
        if setrlimit(Resource::Nofile, limit).is_ok() {
            thread::run::spawn::limit_open_files(inherited);
        }
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    wanted.min(u32::try_from(files / 2).unwrap_or(u32::MAX))
}

/// The file `address` in the root, by which local clients find the gateway.
struct Published {
    path: PathBuf,
    url: String,
}

impl Published {
    fn new(root: &std::path::Path, url: &str) -> std::io::Result<Published> {
        let path = root.join("address");
        let temporary = root.join(format!(".address-{}", std::process::id()));
        let placed =
            std::fs::write(&temporary, format!("{url}\n")).and_then(|()| std::fs::rename(&temporary, &path));
        if let Err(e) = placed {
            std::fs::remove_file(&temporary).ok();
            return Err(e);
        }
        Ok(Published { path, url: url.to_owned() })
    }

    /// Removes the file, unless another gateway has overwritten it.
    fn withdraw(&self) {
        if std::fs::read_to_string(&self.path).is_ok_and(|text| text.trim() == self.url) {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

/// The signals that the gateway handles.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    children: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            children: signal(SignalKind::child())?,
        })
    }

    /// Reaps supervisors, which nothing else waits for, until SIGTERM or SIGINT; then starts the shutdown.
    async fn until_shutdown(mut self, shutdown: watch::Sender<bool>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => break,
                _ = self.interrupt.recv() => break,
                _ = self.children.recv() => {
                    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
                }
            }
        }
        shutdown.send_replace(true);
    }
}
