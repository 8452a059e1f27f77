//! The command line: one module per command, each with its options, help and behaviour.
//!
//! This file owns the top level: choosing the command, its help, and the output that several commands share.

mod output;

mod ack;
mod ask;
mod await_;
mod background;
mod backup;
mod batch;
mod capture;
mod claim;
mod clone;
mod completions;
mod config;
mod consumer;
mod dead;
mod dispatch;
mod doctor;
mod environment;
mod event;
mod export;
mod external;
mod globals;
mod guide;
mod import;
mod info;
mod init;
mod logs;
mod ls;
mod man;
mod meanings;
mod nack;
mod narrow;
mod number;
mod opened;
mod pause;
mod peek;
mod pop;
mod pretty;
mod progress;
mod prune;
mod push;
mod reading;
mod redo;
mod reject;
mod reply;
mod resume;
mod root;
mod schedule;
mod scheduled;
mod seek;
mod session;
mod settings;
mod signals;
mod sleep;
mod socket;
mod stdin;
mod step;
mod stop;
mod subscribe;
mod unsubscribe;
mod workers;

use std::ffi::OsString;
use std::panic;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde_json::json;

use self::consumer::ConsumerArg;
use self::globals::Globals;
use self::number::{event_id, limit};
use crate::error::Code;
use crate::failure::{Failure, Result, failed, usage};
use crate::files::DB;
use crate::files::log::log;
use crate::model::subscription::ConsumerId;
use crate::queue::Queue;
use crate::run;
use crate::store::Moved;

/// Durable event queues for agents, in a directory, with no daemon
///
/// A thread is a directory made by `thread init`. Programs push events into it; consumers subscribe with a
/// shell command and an SQL filter, and their command is started when there is something new for them.
/// Delivery is at least once: an event is offered to a consumer until the consumer acknowledges it.
#[derive(Parser)]
#[command(name = "thread", version, max_term_width = 100)]
#[command(after_help = EXAMPLE, after_long_help = format!("{EXAMPLE}\n\n{REFERENCE}"))]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "\
Example:
  thread init inbox && git diff | thread push -t inbox -";

const REFERENCE: &str = "\
Environment:
  THREAD_DIR       default for --thread
  THREAD_CONSUMER  default for --consumer
  THREAD_EVENT_ID  default for `thread reply --to` and --event; set for handlers of single events
  THREAD_NOTIFIER  what starts handlers after a push:
                     embedded  the push itself
                     off       nothing, until `thread dispatch` is run
                     <path>    this notifier program
                     auto      `notifier` if it is on PATH, else embedded
                   The default is auto.

Exit codes:
  0  done
  1  operation failed, or an event of `push --sync` became a dead letter
  2  usage error
  3  nothing came in time
  75 not now: the event sleeps (`thread sleep`, `thread await`)

If you are an agent and new to this, read `thread guide`.";

/// Printed by `thread` without arguments.
const ORIENTATION: &str = "\
thread keeps durable event queues for agents: each is a directory, and there is no daemon.

The first minute:
  thread init inbox
  thread subscribe -t inbox bot cat --deliver stdin
  thread push -t inbox 'Hello'
  thread logs -t inbox bot
  thread info -t inbox

Next: `thread --help` lists all commands; `thread guide` is for agents.

";

/// Lists the commands, each by its type and the module named after the command.
macro_rules! commands {
    ($($(#[$attribute:meta])* $kind:ident in $name:ident,)*) => {
        #[derive(Subcommand)]
        enum Command {
            $($(#[$attribute])* $kind($name::$kind),)*
        }

        impl Command {
            fn run(self, globals: &Globals) -> Result<()> {
                match self {
                    $(Command::$kind(command) => command.run(globals),)*
                }
            }

            /// The clap description of the command `name`; `None` if there is no such command.
            fn description_of(name: &str) -> Option<clap::Command> {
                // A module may not be called `await`.
                $({
                    let known = stringify!($name).trim_end_matches('_');
                    if name == known {
                        return Some($name::$kind::augment_args(clap::Command::new(known)));
                    }
                })*
                None
            }
        }
    };
}

commands! {
    Init in init,
    Push in push,
    Ask in ask,
    Reply in reply,
    Pop in pop,
    Peek in peek,
    #[command(alias = "sub")]
    Subscribe in subscribe,
    #[command(alias = "unsub")]
    Unsubscribe in unsubscribe,
    Dispatch in dispatch,
    Workers in workers,
    Ack in ack,
    Nack in nack,
    Reject in reject,
    Claim in claim,
    Step in step,
    Sleep in sleep,
    Await in await_,
    Seek in seek,
    Redo in redo,
    #[command(alias = "list")]
    Ls in ls,
    #[command(alias = "status")]
    Info in info,
    #[command(aliases = ["kill", "cancel"])]
    Stop in stop,
    Pause in pause,
    Resume in resume,
    #[command(alias = "log")]
    Logs in logs,
    #[command(aliases = ["dlq", "dead-letters"])]
    Dead in dead,
    Scheduled in scheduled,
    Schedule in schedule,
    Prune in prune,
    Config in config,
    Backup in backup,
    Export in export,
    Import in import,
    Clone in clone,
    Doctor in doctor,
    Session in session,
    Completions in completions,
    Man in man,
    Guide in guide,
}

impl Command {
    /// Executes another program in place of this one, if only that knows the place of the thread.
    fn hand_over(&self, globals: &Globals, args: &[OsString]) -> Result<()> {
        let location = match self {
            Command::Init(init) => Some(&init.path),
            // One program has to know both.
            Command::Clone(clone) => {
                external::hand_over(&clone.from, args)?;
                return external::hand_over(&clone.to, args);
            }
            Command::Ls(ls) => ls.place(),
            Command::Info(info) => info.root.root.as_ref(),
            Command::Prune(prune) => prune.root.root.as_ref(),
            Command::Doctor(doctor) => doctor.root.root.as_ref(),
            _ => None,
        };
        let location = location.cloned().or_else(|| globals.named());
        location.map_or(Ok(()), |location| external::hand_over(&location, args))
    }
}

/// Runs the program with these arguments, including the program's name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    signals::init();
    let as_json = asks_for_json(&args);
    match catch_panic(|| run(args, as_json)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // A panic may have cut off a command of a session.
            capture::end();
            let exit = exit_of(&failure);
            match exit {
                0 => output::warn(format_args!("{failure}; what was pushed is stored")),
                _ if failure.what.is_empty() => {}
                _ => output::to_stderr(&output::failure_line(&failure, as_json)),
            }
            ExitCode::from(exit)
        }
    }
}

/// The exit code of a command that failed: once it has stored something, not 1.
fn exit_of(failure: &Failure) -> u8 {
    match signals::code_once_stored() {
        Some(exit) if failure.exit == 1 => exit,
        _ => failure.exit,
    }
}

fn run(args: Vec<OsString>, as_json: bool) -> Result<()> {
    if background::is_internal(&args) {
        return background::run(&args);
    }
    if let [_, command, line] = &args[..]
        && command == completions::CONSUMERS
    {
        return completions::print_consumers(&line.to_string_lossy());
    }
    let parsed = parse_alone(&args)
        .or_else(|_| Cli::try_parse_from(&args).map(|Cli { command, globals }| (command, globals)));
    let error = match parsed {
        Err(error) => error,
        Ok((command, globals)) => {
            command.hand_over(&globals, &args)?;
            globals.enter()?;
            return command.run(&globals);
        }
    };
    match error.kind() {
        ErrorKind::DisplayVersion => return version(as_json),
        ErrorKind::DisplayHelp => return output::help(&help(&args).unwrap_or(error).render()),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            if args.len() == 1 {
                output::to_stderr(ORIENTATION);
            }
            return usage("no command given", format_args!("see `{} --help`", named_command(&args)));
        }
        ErrorKind::InvalidSubcommand => external::run(&args)?,
        _ => {}
    }
    usage_error(&error, &named_command(&args))
}

/// The requested help, including the external commands. Finding those takes time, so only help does it.
fn help(args: &[OsString]) -> Option<clap::Error> {
    let programs = external::listed();
    let long = format!("{programs}{EXAMPLE}\n\n{REFERENCE}");
    let command = Cli::command().after_help(programs + EXAMPLE).after_long_help(long);
    command.try_get_matches_from(args).err()
}

/// The longest known command that the arguments name, for instance `thread dead list`.
fn named_command(args: &[OsString]) -> String {
    let mut command = Cli::command();
    command.build();
    for word in args.iter().skip(1).take_while(|word| *word != "--") {
        if let Some(found) = command.find_subcommand(word) {
            command = found.clone();
        }
    }
    command.get_bin_name().unwrap_or("thread").to_owned()
}

/// An error of the argument parser in this program's form. `command` is the command as far as it was
/// recognized, for instance `thread dead list`.
fn usage_error<T>(error: &clap::Error, command: &str) -> Result<T> {
    use clap::error::{ContextKind, ContextValue};
    let similar = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let similar = similar.into_iter().find_map(|kind| {
        let word = match error.get(kind)? {
            ContextValue::String(one) => one,
            // The most similar comes last.
            ContextValue::Strings(several) => several.last()?,
            _ => return None,
        };
        // A command may be similar by an alias, which no help shows.
        let is_command = kind == ContextKind::SuggestedSubcommand && command == "thread";
        Some(if is_command { name_of(word) } else { word.clone() })
    });
    let meant = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if command == "thread" => meanings::of(word).map(str::to_owned),
        _ => None,
    };
    let similar = meant.or(similar);
    let did_you_mean = similar.map(|word| format!("did you mean '{word}'? ")).unwrap_or_default();
    let hint = format_args!("{did_you_mean}see `{command} --help`");
    Err(Failure::of_usage(&error.render().to_string(), hint))
}

/// The name of the command that has this name or alias.
fn name_of(word: &str) -> String {
    Cli::command().find_subcommand(word).map_or(word, |found| found.get_name()).to_owned()
}

/// Parses a command line with only its own command described, by the first word that is the name of one. Describing all
/// commands takes a good part of the time of a push, and only help and error messages need it.
///
/// # Errors
///
/// What is wrong with the arguments; `None` if no word is a command.
fn parse_alone(args: &[OsString]) -> std::result::Result<(Command, Globals), Option<clap::Error>> {
    let command = args.iter().skip(1).find_map(|word| Command::description_of(word.to_str()?)).ok_or(None)?;
    let program = Globals::augment_args(clap::Command::new("thread")).subcommand(command);
    let matches = program.try_get_matches_from(args)?;
    Ok((Command::from_arg_matches(&matches)?, Globals::from_arg_matches(&matches)?))
}

fn version(as_json: bool) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    match as_json {
        true => output::line(json!({ "version": version, "sqlite": rusqlite::version() })),
        false => output::line(format_args!("thread {version}")),
    }
}

/// Message and location of the first panic.
static PANIC: OnceLock<String> = OnceLock::new();

/// Runs `work` and turns a panic into a failure, which must not look like success or print a backtrace
/// into a pipe.
fn catch_panic(work: impl FnOnce() -> Result<()>) -> Result<()> {
    panic::set_hook(Box::new(|about| {
        let location = about.location().map(|at| format!(" ({at})")).unwrap_or_default();
        PANIC.set(format!("{}{location}", about.payload_as_str().unwrap_or("no message"))).ok();
    }));
    panic::catch_unwind(panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let message = PANIC.get().map_or("", String::as_str);
        failed(Code::Failed, format_args!("a bug in thread: {message}"), "please report it")
    })
}

/// Whether to print errors as JSON. Decided before the arguments are parsed, because parsing may fail.
fn asks_for_json(args: &[OsString]) -> bool {
    let options: Vec<&OsString> = args.iter().take_while(|arg| *arg != "--").collect();
    options.iter().any(|arg| *arg == "--json" || *arg == "--format=json")
        || options.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json")
}

/// Fails if --root is given a thread, which has no threads in it.
fn refuse_as_root(root: &Path) -> Result<()> {
    if !root.join(DB).exists() {
        return Ok(());
    }
    usage(
        format_args!("{} is a thread itself", root.display()),
        "name it by --thread, or give --root the directory that it is in",
    )
}

/// Warns if the requested position was past the newest event.
fn warn_if_clamped(moved: Moved, asked: i64) {
    if let Moved::Clamped(newest) = moved {
        output::warn(format_args!(
            "event {asked} does not exist yet; the cursor is at {newest}, so that no future event is skipped"
        ));
    }
}

/// Wakes a consumer after a change that concerns it. The change is stored, so a failure here is a warning.
fn wake_consumer(queue: &mut Queue, consumer: &ConsumerId) {
    signals::defer();
    if let Err(e) = run::wake::wake_consumer(queue, &environment::launcher(), consumer) {
        log!(queue, Warn, "wake: consumer={consumer} not woken: {e}");
        output::warn(format_args!("'{consumer}' was not woken: {e}"));
    }
}

fn print_consumer(consumer: &ConsumerId, globals: &Globals) -> Result<()> {
    let name = consumer.as_str();
    globals.print(output::plain(name), json!({ "consumer_id": name }))
}

fn print_cursor(consumer: &ConsumerId, at: i64, globals: &Globals) -> Result<()> {
    globals.print(at, json!({ "consumer_id": consumer.as_str(), "last_acked_id": at }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_panic_reports_its_location() {
        let failure = catch_panic(|| panic!("of {}", "some kind")).unwrap_err();
        drop(panic::take_hook());
        assert!(failure.what.starts_with("a bug in thread: of some kind (src/cli.rs:"), "{failure}");
    }
}
