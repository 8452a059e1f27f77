//! `thread mcp`: a thread, or all sessions, as tools for an LLM.

#![allow(rustdoc::bare_urls, reason = "the doc comments are the help text, where URLs appear as they are")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueHint};
use rmcp::ServiceExt;
use rmcp::transport::stdio;
use thread::Queue;
use thread::failure::{Failure, Result, WithHint};
use thread::files::surrounding;
use thread::model::location::Location;
use thread::model::subscription::ConsumerId;
use thread_agent::cli::variable;
use thread_agent::launcher;
use thread_agent::sub_agent::is_sub_agent;
use thread_conversation::CONSUMER;
use thread_mcp::scope::{Scope, source};
use thread_mcp::server::Server;
use thread_sessions::watch::ChangeWatcher;
use thread_sessions::{Root, SessionId};
use tokio::signal::unix::{SignalKind, signal};

/// Give a thread, or all sessions, to an LLM as tools
///
/// A server of the Model Context Protocol on stdin and stdout, for Claude Code, Codex, Gemini CLI, editors and
/// other hosts; they start it. With --root it has tools for finding conversations, and for what runs; `thread
/// serve` offers those over HTTP, too. docs/MCP.md describes how to configure hosts.
#[derive(Parser)]
#[command(name = "thread mcp", bin_name = "thread mcp", version, max_term_width = 100, after_help = EXAMPLES)]
struct Options {
    /// The thread that the tools are for [default: $THREAD_DIR, or the one you are in, unless --root is given]
    #[arg(short, long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    thread: Option<PathBuf>,
    /// All sessions in this folder, the --root of `thread serve`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    root: Option<PathBuf>,
    /// All sessions in the same root as the thread, if it is a session
    #[arg(long, conflicts_with = "root")]
    sessions: bool,
    /// Offer the tool `subscribe`, too: it registers shell commands
    #[arg(long)]
    allow_subscribe: bool,
    /// Whose messages it pushes: internal:dm:default:NAME
    #[arg(long, value_name = "NAME", default_value = "mcp", value_parser = name)]
    name: String,
    /// The consumer that is a session's agent
    #[arg(long, value_name = "NAME", default_value = CONSUMER)]
    consumer: String,
}

/// How long calls may take to end when there is no client any more.
const LAST: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  claude mcp add -s user thread -- thread mcp --root ~/.local/share/thread/sessions
  codex mcp add inbox -- thread mcp --thread ~/inbox";

fn name(text: &str) -> std::result::Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.@/".contains(c);
    match !text.is_empty() && text.len() <= 64 && text.chars().all(fits) {
        true => Ok(text.to_owned()),
        false => Err("it must be 1 to 64 of a-z, 0-9, -, _, ., @ and /".to_owned()),
    }
}

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) if !e.use_stderr() => {
            // Help or version. If the reader closed the pipe, there is nothing more to print.
            drop(e.print());
            return ExitCode::SUCCESS;
        }
        Err(e) => return report(&Failure::of_usage(&e.render().to_string(), "see `thread mcp --help`")),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = match runtime.with_hint("cannot start", "check the limits on threads") {
        Ok(runtime) => runtime,
        Err(failure) => return report(&failure),
    };
    let done = runtime.block_on(run(options));
    // A thread that is blocked on reading stdin must not delay the exit.
    runtime.shutdown_timeout(Duration::from_millis(300));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

fn report(failure: &Failure) -> ExitCode {
    let plain = |text: &str| text.replace(|c: char| c.is_control(), " ");
    eprintln!("Error: {} - {}", plain(&failure.what), plain(&failure.hint));
    ExitCode::from(failure.exit)
}

async fn run(options: Options) -> Result<()> {
    let failed = "the system refuses what is needed";
    let listen = |kind| signal(kind).with_hint(failed, "check the limits on this process");
    let children = listen(SignalKind::child())?;
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let told_to_end = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let watcher = ChangeWatcher::new().with_hint(failed, "check the limits on this process")?;
    let launcher = launcher::launcher()
        .map_err(|what| Failure::failed(what, "install it next to thread-mcp, or put it on PATH"))?;
    let (thread, root) = locations(&options)?;
    let mut scope = Scope::new(watcher, launcher);
    // Processes of a thread that is not a session can be seen and ended too.
    scope.has_processes = root.is_some() || options.sessions;
    scope.thread = thread;
    scope.root = root.map(Arc::new);
    scope.source = source(&options.name);
    scope.consumer = ConsumerId::stored(options.consumer);
    scope.allow_subscribe = options.allow_subscribe;
    scope.is_local = true;
    tokio::spawn(reap(children));
    let scope = Arc::new(scope);
    let session = async {
        let server = Server::new(Arc::clone(&scope)).serve(stdio()).await;
        let hint = "start it from a host, see docs/MCP.md";
        let server =
            server.map_err(|e| Failure::failed(format_args!("the client does not speak MCP: {e}"), hint))?;
        // Ends when the client closes its side.
        drop(server.waiting().await);
        Ok(())
    };
    let done = tokio::select! {
        done = session => done,
        // For a host that does not want to wait.
        () = told_to_end => Ok(()),
    };
    scope.ending.cancel();
    scope.calls.close();
    drop(tokio::time::timeout(LAST, scope.calls.wait()).await);
    done
}

/// The thread and the root that the server is for.
fn locations(options: &Options) -> Result<(Option<PathBuf>, Option<Root>)> {
    let mut thread = options.thread.clone();
    if thread.is_none() && options.root.is_none() {
        let surrounding = || surrounding(&std::env::current_dir().ok()?);
        thread = variable("THREAD_DIR").map(PathBuf::from).or_else(surrounding);
        if thread.is_none() {
            return Err(Failure::usage(
                "no thread given, and the current directory is not inside one",
                "give --thread PATH, or --root DIR for all sessions",
            ));
        }
    }
    if let Some(scheme) = thread.as_ref().and_then(|path| Location::from(path).scheme().map(str::to_owned)) {
        let what = format!("there are tools for threads in directories, not for {scheme}:// ones");
        return Err(Failure::usage(what, "name a thread's directory"));
    }
    let thread = thread.map(|path| Ok::<_, Failure>(Queue::open(path)?.path().to_owned())).transpose()?;
    let around = || thread.as_deref().filter(|_| options.sessions).and_then(root_of);
    let root = options.root.clone().or_else(around);
    let open = |dir: PathBuf| {
        let hint = "name the --root of `thread serve`; no one else may write to it";
        let (root, _) = Root::open(&dir).with_hint(format_args!("cannot use {}", dir.display()), hint)?;
        Ok::<_, Failure>(root)
    };
    Ok((thread, root.map(open).transpose()?))
}

/// The folder of the sessions that a thread, or the parent of a sub-agent's, is among.
fn root_of(thread: &std::path::Path) -> Option<PathBuf> {
    let session = match is_sub_agent(thread) {
        true => thread.parent()?.parent()?,
        false => thread,
    };
    SessionId::parse_name(session.file_name()?)?;
    Some(session.parent()?.to_owned())
}

/// Reaps supervisors, which nothing else waits for.
async fn reap(mut children: tokio::signal::unix::Signal) {
    use rustix::process::{WaitOptions, wait};
    while children.recv().await.is_some() {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
}
