//! The command line: its options, and how failures are reported.

mod check;
mod install;
mod run;
mod serve;
mod stop;

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::launcher;
use crate::seat::Seat;
use crate::settings::{Settings, Stay};
use clap::{Args, Parser, Subcommand, ValueHint};
use serde_json::json;
use thread::Queue;
pub use thread::failure::{Failure, Result};
use thread::files::surrounding;
use thread::model::location::Location;
use thread::queue::locations;
use thread::run::Launcher;

/// Connect any agent program to a thread
///
/// A conversation with an agent is a thread: each message, and everything the agent does in answer, is an event.
/// `thread agent install` subscribes an agent; from then on each message that is pushed is given to PROGRAM, and
/// PROGRAM's output is pushed as it comes.
///
/// Without a command, this is the handler that `install` subscribes: it gives the consumer's messages to
/// PROGRAM one after another, and ends when there is nothing left to do, or has been for --idle.
#[derive(Parser)]
#[command(name = "thread agent", bin_name = "thread agent", version, max_term_width = 100)]
#[command(arg_required_else_help = true, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true, after_help = EXAMPLE)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(flatten)]
    seat: Seat,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    stay: Stay,
    /// The agent program and its arguments
    #[arg(last = true, group = "who", required_unless_present = "url")]
    #[arg(value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    program: Vec<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

const EXAMPLE: &str = "\
Example:
  thread init talk
  thread agent install --thread talk -- sh -c 'tr a-z A-Z'
  thread push --thread talk --source external:cli:here:dm:me:me --type message --content hello
  thread peek --thread talk --last-event-id 0 --follow";

#[derive(Args)]
pub struct Globals {
    /// The thread's directory [default: $THREAD_DIR, or the one you are in]
    #[arg(short, long, global = true, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub thread: Option<PathBuf>,
    /// Print JSON, for errors too
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Subcommand)]
enum Command {
    Install(install::Command),
    Check(check::Command),
    Run(run::Command),
    Stop(stop::Command),
    /// Copy what a sub-agent does to its parent
    #[command(name = "_report", hide = true)]
    Report,
    /// Ask a model, as the adapter says on stdin
    #[command(name = "_model", hide = true)]
    Model,
}

/// Executes `thread-agent-<scheme>` with these arguments, in place of this process, if the thread is in a location that
/// only that program knows. Returns only if this one knows it, or there is none.
fn hand_over(named: Option<PathBuf>, words: &[OsString]) -> Result<()> {
    let location = named.or_else(|| variable("THREAD_DIR").map(PathBuf::from)).map(Location::from);
    let Some(location) = location.filter(|location| !locations::is_known(location)) else { return Ok(()) };
    let name = format!("thread-agent-{}", location.scheme().unwrap_or_default());
    let Ok(program) = launcher::program(&name) else { return Ok(()) };
    let failed = std::process::Command::new(&program).args(words).exec();
    Err(Failure::failed(format_args!("cannot run {}: {failed}", program.display()), "check the file"))
}

/// Opens the named thread, else that of `THREAD_DIR`, else, as git does, the one around the current
/// directory.
pub fn open(named: Option<PathBuf>) -> Result<Queue> {
    let named = named.or_else(|| variable("THREAD_DIR").map(PathBuf::from));
    let surrounding = || surrounding(&std::env::current_dir().ok()?);
    let path = named.or_else(surrounding).ok_or_else(|| {
        Failure::usage(
            "no thread given, and the current directory is not inside one",
            "give --thread PATH or set THREAD_DIR; `thread init PATH` makes one",
        )
    })?;
    Ok(Queue::open(path)?)
}

/// Returns the current directory.
pub fn current_directory() -> Result<PathBuf> {
    std::env::current_dir().map_err(|e| {
        Failure::failed(format_args!("cannot find the current directory: {e}"), "change to one that exists")
    })
}

/// Returns the launcher for this program's pushes.
pub fn find_launcher() -> Result<Launcher> {
    let hint = "install it next to thread-agent, or put it on PATH";
    launcher::launcher().map_err(|what| Failure::failed(what, hint))
}

/// Returns an environment variable; an empty one counts as unset.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

pub fn main(mut args: Vec<OsString>) -> ExitCode {
    // `help --help` is the same as `help`.
    if args.get(1).is_some_and(|word| word == "help") {
        args.retain(|word| word != "--help" && word != "-h");
    }
    let words = args.get(1..).unwrap_or_default().to_vec();
    let json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e)
            if e.use_stderr()
                && e.kind() != clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            return report(&Failure::of_usage(&e.render().to_string(), "see `thread agent --help`"), json);
        }
        Err(e) => {
            // Help or version, not an error. A reader that has closed the pipe does not need it.
            drop(e.print());
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let named = match &cli.command {
        Some(Command::Run(command)) => command.parent.clone(),
        _ => cli.globals.thread.clone(),
    };
    if let Err(failure) = hand_over(named, &words) {
        return report(&failure, json);
    }
    let done = match cli.command {
        Some(Command::Install(command)) => command.run(&cli.globals),
        Some(Command::Run(command)) => command.run(&cli.globals),
        Some(Command::Stop(command)) => command.run(&cli.globals),
        Some(Command::Check(command)) => command.run(&cli.globals),
        Some(Command::Report) => run::report(&cli.globals),
        Some(Command::Model) => crate::model::serve()
            .map_err(|e| Failure::failed(format_args!("the model cannot be asked: {e}"), "try again")),
        None => serve::run(cli.seat, cli.settings, cli.stay, cli.program, &cli.globals),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure, json),
    }
}

/// Prints a line of data. It is no error if the reader has closed the pipe.
pub fn print(line: impl fmt::Display) -> Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format_args!("cannot print: {e}"), "check where stdout goes"))
        }
        _ => Ok(()),
    }
}

fn report(failure: &Failure, as_json: bool) -> ExitCode {
    let Failure { what, hint, code, exit } = failure;
    let plain = |text: &str| text.replace(|c: char| c.is_control(), " ");
    let line = match as_json {
        true => json!({ "error": what, "suggestion": hint, "code": code.as_str() }).to_string(),
        false => format!("Error: {} - {}", plain(what), plain(hint)),
    };
    // If stderr is closed, the exit code still reports the failure.
    drop(writeln!(std::io::stderr(), "{line}"));
    ExitCode::from(*exit)
}
