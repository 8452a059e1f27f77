//! `thread serve`: conversations with agents for many clients at once.
//!
//! A conversation is a thread, and every message in it is an event on disk. The gateway reads and writes
//! these threads for its clients; its own state is only the open connections.
//!
//! | module | owns |
//! |---|---|
//! | `access` | tokens, logins, origins, host names, proxies, limits on connections |
//! | `agent`, `agents` | the agents that sessions can have, and how a session comes to one |
//! | `session` | sessions on disk: creating, writing, listing, searching; who reads them, and from where |
//! | `inspect` | looking at threads and their consumers, those of `--thread` too; what people do about them
//! | `ws` | the WebSocket: connections, methods, commands, stored events as frames |
//! | `http` | accepting connections, routes, looking at threads, AG-UI, OpenAI's interface, attachments, health and metrics |
//! | `storage` | attachments and their signed URLs |

mod access;
mod agents;
mod counters;
mod gateway;
mod health;
mod http;
mod inspect;
mod log;
mod options;
mod published;
mod session;
mod storage;
mod webhooks;
mod ws;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use clap::error::ErrorKind;
use object_store::ObjectStore;
use thread::failure::Failure;
use thread::run::scope::Scope;
use thread::run::starter::{News, Starter};
use thread_sessions::{Catalogue, ChangeWatcher};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::access::connection_limits::ConnectionLimits;
use crate::access::logins::Logins;
use crate::access::origin::{self, Origins};
use crate::access::proxy::Proxies;
use crate::access::token::Token;
use crate::agents::Agents;
use crate::gateway::Gateway;
use crate::health::Health;
use crate::http::server;
use crate::inspect::Inspector;
use crate::inspect::threads::Threads;
use crate::options::Options;
use crate::published::Published;
use crate::session::blocking_pool::{BlockingPool, SESSIONS, THREADS};
use crate::session::context::Context;
use crate::session::hub::Hub;
use crate::session::run_log::RunLog;
use crate::session::{root, stream};
use crate::storage::Storage;
use crate::webhooks::Hooks;

/// How often deletions that were not finished are looked for.
const CONTINUE_DELETIONS: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // If the reader closed the pipe, there is nothing more to print.
            e.print().ok();
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            return report(&Failure::of_usage(&e.to_string(), "see `thread serve --help`"));
        }
    };
    let remote = match options.storage.as_deref().map(storage::remote).transpose() {
        Ok(remote) => remote,
        Err(e) => return report(&e),
    };
    let names: Vec<String> = options.hook.iter().map(|hook| hook.variable.clone()).collect();
    let secrets: HashMap<String, String> =
        names.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?))).collect();
    // SAFETY: the runtime is not started yet, so no other thread reads the environment.
    unsafe { forget_credentials(remote.is_some(), &names) };
    log::start(options.log);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(THREADS)
        .thread_stack_size(1024 * 1024)
        .enable_all()
        .build();
    let done = runtime
        .map_err(|e| Failure::failed(format!("cannot start the runtime: {e}"), "check the limits on threads"))
        .and_then(|runtime| {
            let done = runtime.block_on(run(options, remote, &secrets));
            // Blocking tasks that take longer are abandoned: no client is left to get their results.
            runtime.shutdown_timeout(Duration::from_millis(300));
            done
        });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => report(&e),
    }
}

fn report(error: &Failure) -> ExitCode {
    eprintln!("Error: {error}");
    ExitCode::from(error.exit)
}

/// Removes secrets from the environment of this process, which agents inherit: those with these names, and the
/// credentials of the store.
///
/// # Safety
///
/// No other thread may use the environment at the same time.
unsafe fn forget_credentials(of_store: bool, names: &[String]) {
    let is_secret = |name: &OsStr| {
        of_store && name.as_encoded_bytes().starts_with(b"AWS_")
            || names.iter().any(|secret| **secret == *name)
    };
    for name in std::env::vars_os().map(|(name, _)| name).filter(|name| is_secret(name)) {
        // SAFETY: as promised by the caller.
        unsafe { std::env::remove_var(name) };
    }
}

async fn run(
    options: Options,
    remote: Option<Arc<dyn ObjectStore>>,
    secrets: &HashMap<String, String>,
) -> Result<(), Failure> {
    let dir = options.root.clone().map_or_else(default_root, Ok)?;
    let public = origin::parse("--public-url", options.public_url.as_slice())?.pop();
    let reached = (!options.listen.ip().is_loopback()).then(|| options.listen.to_string());
    if let Some(reached) = public.clone().or(reached).filter(|_| options.no_auth) {
        return Err(Failure::usage(
            format!("--no-auth would admit anyone who can reach {reached}"),
            "listen on a loopback address, such as 127.0.0.1:3336, without --public-url, or leave out --no-auth",
        ));
    }
    let origins = Origins::new(public.clone(), origin::parse("--origin", &options.origin)?);
    let launcher = agents::agent::launcher()?;
    let (url, model) = (&options.settings.url, &options.settings.model);
    let server = match (url, model) {
        (None, _) => None,
        (Some(url), model) => {
            options.settings.check()?;
            Some(
                model
                    .as_ref()
                    .map_or_else(|| format!("ag-ui:{url}"), |model| format!("openai:{url}#{model}")),
            )
        }
    };
    let agent = options.agent.as_deref().or(server.as_deref());
    let agents = match agent.is_some() || options.agents.is_some() {
        true => {
            let cwd = std::env::current_dir().map_err(|e| {
                Failure::failed(
                    format!("the current directory is gone: {e}"),
                    "start the gateway in another directory",
                )
            })?;
            let given = (&options.settings, &options.stay);
            Agents::new(agent, options.agents.as_deref(), options.agent_for_all, given, &cwd, &launcher)?
        }
        false => Agents::default(),
    };
    let (root, readable) = root::open(&dir).map_err(|e| {
        Failure::failed(
            format!("{} cannot be used: {e}", dir.display()),
            format!("choose another directory with --root, or run chmod 700 {}", dir.display()),
        )
    })?;
    if readable {
        eprintln!("Warning: others may list the sessions in {} - run chmod 700 on it", dir.display());
    }
    let root = Arc::new(root);
    let threads = Threads::new(root.clone(), &options.thread)?;
    let hooks = Hooks::new(&options.hook, &threads, |name| secrets.get(name).cloned())?;
    let token = if options.no_auth { None } else { Some(Token::of(root.dir())?) };
    let logins = Logins::of(root.dir());
    let other_origins = origin::parse("--storage-origin", &options.storage_origin)?;
    let (connections, unauthenticated) = connection_limits(options.max_connections);
    if connections < options.max_connections {
        eprintln!(
            "Warning: only {connections} connections are allowed at a time, half of the limit on open files - \
             raise that limit (ulimit -Hn), or give --max-connections {connections}"
        );
    }
    let cannot_listen = |e| {
        Failure::failed(
            format!("cannot listen on {}: {e}", options.listen),
            "choose another address with --listen",
        )
    };
    let listener = server::listen(options.listen).map_err(cannot_listen)?;
    let address = listener.local_addr().map_err(cannot_listen)?;
    let system_error = |e| {
        Failure::failed(
            format!("the system refuses what the gateway needs: {e}"),
            "check the limits on this process",
        )
    };
    let watcher = ChangeWatcher::new().map_err(system_error)?;
    let (shutdown_sender, shutdown) = watch::channel(false);
    let signals = until_shutdown(shutdown_sender).map_err(system_error)?;

    let local = format!("http://{address}");
    let url = public.unwrap_or_else(|| local.clone());
    let storage = Storage::open(root.dir(), url.clone(), remote, other_origins)?;
    let published = Arc::new(Published::new(root.dir(), &local).map_err(|e| {
        Failure::failed(
            format!("cannot write {}/address: {e}", root.dir().display()),
            "check that directory, its permissions and its disk",
        )
    })?);
    let storage = Arc::new(storage);
    let context = Context {
        root: root.clone(),
        storage: storage.clone(),
        watcher,
        pool: BlockingPool::new(SESSIONS),
        budget: Default::default(),
    };
    let (hub, catalogue) = (Hub::new(context), Arc::<Catalogue>::default());
    let inspector =
        Inspector::new(hub.context.clone(), catalogue.clone(), launcher.clone(), threads, options.read_only);
    let health = Health::start(root.clone()).map_err(system_error)?;
    let gateway = Arc::new(Gateway {
        root,
        token,
        logins,
        access: watch::Sender::new(()),
        origins,
        proxies: Proxies::new(&options.trusted_proxy),
        port: address.port(),
        agents,
        launcher,
        hub,
        catalogue,
        known: Default::default(),
        inspector: Arc::new(inspector),
        hooks,
        read_only: options.read_only,
        tallies: Default::default(),
        health,
        common: Default::default(),
        counters: Default::default(),
        storage,
        started: Instant::now(),
        shutdown,
    });
    tokio::spawn(signals);
    tracing::info!(address = local, url, root = %gateway.root.dir().display(), "started");
    match gateway.token.as_ref().and_then(Token::text) {
        Some(token) => println!("{url}/#token={token}"),
        None => println!("{url}/"),
    }
    if gateway.agents.is_empty() && !gateway.read_only && options.thread.is_empty() {
        eprintln!("Warning: new sessions have no agent, so messages get no answer - set one with --agent");
    }
    // With a thousand sessions, a copy would take as long as all the rest of a start.
    thread::run::spawn::without_copy();
    start_starter(&gateway).map_err(system_error)?;
    tokio::spawn(sweep_attachments(gateway.clone()));
    tokio::spawn(continue_deletions(gateway.clone()));
    let watched = gateway.clone();
    tokio::spawn(async move { watched.watch_access().await });
    if let Some(keep) = options.keep_stream.0 {
        let gateway = gateway.clone();
        tokio::spawn(async move { stream::sweep_forever(&gateway.hub.context, keep).await });
    }
    let keeping = tokio::spawn(keep_published(published.clone()));
    server::serve(gateway, listener, ConnectionLimits::new(connections, unauthenticated)).await;
    keeping.abort();
    published.withdraw();
    tracing::info!("stopped");
    Ok(())
}

/// Starts consumers that are due in the sessions, on a dedicated thread: after a reboot, a kill, or a push by
/// another program. Pushes of the gateway start their consumers themselves.
fn start_starter(gateway: &Gateway) -> std::io::Result<()> {
    let scope = Scope { roots: vec![gateway.root.dir().to_owned()], threads: Vec::new() };
    let launcher = gateway.launcher.clone();
    let work = move || {
        let mut run_log = RunLog::new();
        let mut tell = |news: News<'_>| match news {
            News::Trouble { location, error } => {
                tracing::error!("{location}: nothing can be started there now: {error}");
            }
            News::Looked { queue, started, .. } => run_log.note(queue, started),
            News::Ready | News::Stopping => {}
        };
        match Starter::new(&scope, &launcher, &mut tell) {
            Ok(starter) => starter.run(),
            Err(e) => tracing::error!("what is due in the sessions cannot be started: {e}"),
        }
    };
    std::thread::Builder::new().name("starter".to_owned()).spawn(work).map(drop)
}

/// Sees to it that local clients find a gateway, also when another one was killed.
async fn keep_published(published: Arc<Published>) {
    let mut looks = tokio::time::interval(published::LOOK_EVERY);
    loop {
        looks.tick().await;
        published.keep();
    }
}

/// Finishes deletions that a killed gateway left unfinished, at the start and from then on: it may be another
/// gateway on the same root.
async fn continue_deletions(gateway: Arc<Gateway>) {
    let mut pause = tokio::time::interval(CONTINUE_DELETIONS);
    loop {
        pause.tick().await;
        gateway.continue_deletions().await;
    }
}

/// Removes attachments that have no session, at the start and every hour.
async fn sweep_attachments(gateway: Arc<Gateway>) {
    let mut hours = tokio::time::interval(Duration::from_secs(3600));
    loop {
        hours.tick().await;
        let root = gateway.root.clone();
        // If the root has vanished, or is not mounted, so have all sessions, and their state is unknown.
        gateway.storage.sweep(move |session| !root.is_there() || root.path_of(session).exists()).await;
    }
}

/// `$XDG_DATA_HOME/thread/sessions`.
fn default_root() -> Result<PathBuf, Failure> {
    thread_protocol::base_directory("XDG_DATA_HOME", ".local/share")
        .map(|data| data.join("thread/sessions"))
        .ok_or_else(|| {
            Failure::usage("there is no home directory to keep sessions in", "choose one with --root")
        })
}

/// Raises the limit on open files as far as `wanted` connections need, and returns how many to allow, of
/// connections that have shown a token and of those that have not. Each takes a descriptor, and so do the files of
/// sessions: at least a quarter of the limit is reserved for these, or a client that opens many connections would
/// keep others from being served.
fn connection_limits(wanted: u32) -> (u32, usize) {
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
    let unauthenticated = usize::try_from(files / 4).unwrap_or(usize::MAX);
    (wanted.min(u32::try_from(files / 2).unwrap_or(u32::MAX)), unauthenticated)
}

/// Reaps supervisors, which nothing else waits for, until SIGTERM or SIGINT; then starts the shutdown. The signals are
/// handled from the call on.
fn until_shutdown(shutdown: watch::Sender<bool>) -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut children = signal(SignalKind::child())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = children.recv() => {
                    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
                }
            }
        }
        shutdown.send_replace(true);
    })
}
