//! The command line: one module per subcommand, each with its options, its help and what it does.
//!
//! This file owns what they share: naming the thread and the consumer, and reading numbers.

pub mod ack;
pub mod backup;
pub mod completions;
pub mod dead;
pub mod dispatch;
pub mod doctor;
pub mod guide;
pub mod info;
pub mod init;
pub mod logs;
pub mod man;
pub mod pause;
pub mod peek;
pub mod pop;
pub mod prune;
pub mod push;
pub mod reading;
pub mod resume;
pub mod seek;
pub mod stop;
pub mod subscribe;
pub mod unsubscribe;

mod hidden;
mod mistakes;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, FromArgMatches, Parser, Subcommand, ValueHint};
use serde_json::json;

use crate::error::{Failure, Result};
use crate::log::Level;
use crate::store::{self, Moved, Store};
use crate::subscription::{ConsumerId, Subscription};
use crate::thread::Thread;
use crate::{output, supervisor};

/// Durable event queues for agents, in a directory, with no daemon
///
/// A thread is a directory made by `thread init`. Programs push events into it; consumers
/// subscribe with a shell command and an SQL filter, and are started when there is something new
/// for them. Delivery is at least once: a consumer moves on only when it acknowledges.
#[derive(Parser)]
#[command(name = "thread", version, max_term_width = 100)]
#[command(after_help = EXAMPLE, after_long_help = format!("{EXAMPLE}\n\n{REFERENCE}"))]
struct Cli {
    #[command(flatten)]
    everywhere: Everywhere,
    #[command(subcommand)]
    command: Command,
}

/// What every command accepts.
#[derive(Args)]
struct Everywhere {
    /// Accepted with --help, for which it changes nothing
    #[arg(long, global = true, hide = true)]
    verbose: bool,
    /// Before the command's name it does what it does after it
    #[arg(long, global = true, hide = true)]
    json: bool,
}

const EXAMPLE: &str = "\
Example:
  thread init inbox
  thread subscribe --thread inbox --consumer bot --deliver stdin \\
    --handler './agent.sh' --filter \"type = 'message'\"
  git diff | thread push --thread inbox --source self --type message \\
    --content-file -";

const REFERENCE: &str = "\
Environment:
  THREAD_DIR       stands in for --thread
  THREAD_CONSUMER  stands in for --consumer
  THREAD_NOTIFIER  who starts handlers after a push:
                     embedded  the push itself
                     off       nobody, until somebody runs `thread dispatch`
                     <path>    this notifier program
                     auto      `notifier` if PATH has it, else embedded
                   When it is unset, as auto.

Exit codes:
  0  done
  1  it could not be done
  2  it was asked wrongly

An agent that is new to this should read `thread guide`.";

/// What somebody sees who types the name of the program alone.
const ORIENTATION: &str = "\
thread keeps durable event queues for agents: each is a directory, and there is no daemon.

The first minute:
  thread init inbox
  thread subscribe --thread inbox --consumer bot --deliver stdin --handler cat
  thread push --thread inbox --source self --type message --content 'Hello'
  thread logs --thread inbox --consumer bot
  thread info --thread inbox

Read on: `thread --help` has all commands, `thread guide` is for agents.
";

/// Lists the subcommands, each by its type and its module, which bears its name.
macro_rules! commands {
    ($($kind:ident in $name:ident,)*) => {
        #[derive(Subcommand)]
        enum Command {
            $($kind($name::$kind),)*
        }

        impl Command {
            fn run(self) -> Result<()> {
                match self {
                    $(Command::$kind(command) => command.run(),)*
                }
            }

            /// The description of the command of that name.
            fn described(name: &str) -> Option<clap::Command> {
                $(
                    if name == stringify!($name) {
                        return Some($name::$kind::augment_args(clap::Command::new(stringify!($name))));
                    }
                )*
                None
            }
        }
    };
}

commands! {
    Init in init,
    Push in push,
    Pop in pop,
    Peek in peek,
    Subscribe in subscribe,
    Unsubscribe in unsubscribe,
    Dispatch in dispatch,
    Ack in ack,
    Seek in seek,
    Info in info,
    Stop in stop,
    Pause in pause,
    Resume in resume,
    Logs in logs,
    Dead in dead,
    Prune in prune,
    Backup in backup,
    Doctor in doctor,
    Completions in completions,
    Man in man,
    Guide in guide,
}

/// Runs one command line, the program's name first. `as_json`: whether it asks for JSON.
///
/// # Errors
///
/// What the command failed with, or exit code 2 for a command line that cannot be understood.
pub fn run(args: Vec<OsString>, as_json: bool) -> Result<()> {
    if hidden::is_meant(&args) {
        return hidden::run(args);
    }
    if let [_, only] = &args[..]
        && (only == "--version" || only == "-V")
    {
        return version(as_json);
    }
    if let Some(command) = parse_alone(&args) {
        return command.run();
    }
    match Cli::try_parse_from(&args) {
        Ok(cli) => cli.command.run(),
        Err(e) if e.kind() == ErrorKind::DisplayVersion => version(as_json),
        Err(e) if e.kind() == ErrorKind::DisplayHelp => output::help(&e.render()),
        Err(e) => {
            if !as_json && mistakes::is_only_the_program(&e, &args) {
                output::text(ORIENTATION);
            }
            Err(mistakes::explain(&e, &args))
        }
    }
}

/// Understands a command line by the description of its own command alone. To describe all of them
/// takes a good part of the time that a push does, and is only of use for help and for mistakes.
fn parse_alone(args: &[OsString]) -> Option<Command> {
    let command = Command::described(args.get(1)?.to_str()?)?;
    let program = Everywhere::augment_args(clap::Command::new("thread")).subcommand(command);
    let matches = program.try_get_matches_from(args).ok()?;
    Command::from_arg_matches(&matches).ok()
}

/// Prints which program this is; as JSON, with what its threads are made of.
fn version(as_json: bool) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    if !as_json {
        return output::line(format_args!("thread {version}"));
    }
    output::json(&json!({
        "version": version,
        "sqlite": rusqlite::version(),
        "schema": store::schema::additions(),
    }))
}

/// Names the thread.
#[derive(Args)]
pub struct ThreadArg {
    /// The thread's directory [default: $THREAD_DIR]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    thread: Option<PathBuf>,
}

impl ThreadArg {
    /// The directory named by `--thread` or `THREAD_DIR`, as given.
    pub fn path(&self) -> Result<PathBuf> {
        let named = self.thread.clone().or_else(|| from_environment("THREAD_DIR").map(PathBuf::from));
        named.ok_or_else(|| {
            Failure::asked_wrongly(
                "no thread is named",
                "give --thread <path> or set THREAD_DIR; `thread init <path>` makes one",
            )
        })
    }

    pub fn open(&self) -> Result<Thread> {
        Thread::open(&self.path()?)
    }
}

/// Names the consumer.
#[derive(Args)]
pub struct ConsumerArg {
    /// The consumer's name [default: $THREAD_CONSUMER]
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
}

impl ConsumerArg {
    /// The name given by `--consumer` or `THREAD_CONSUMER`.
    pub fn name(&self) -> Result<String> {
        self.name_if_given()?.ok_or_else(|| {
            Failure::asked_wrongly("no consumer is named", "give --consumer <name> or set THREAD_CONSUMER")
        })
    }

    /// That name, for what can do without one.
    pub fn name_if_given(&self) -> Result<Option<String>> {
        let from_environment = || {
            from_environment("THREAD_CONSUMER").map(|name| {
                name.into_string()
                    .map_err(|_| Failure::asked_wrongly("THREAD_CONSUMER is not valid UTF-8", "mend it"))
            })
        };
        match self.consumer.clone().map(Ok).or_else(from_environment).transpose()? {
            Some(name) if name.is_empty() => {
                Err(Failure::asked_wrongly("--consumer is empty", "name the consumer"))
            }
            named => Ok(named),
        }
    }

    /// A consumer that is expected to exist: any name that may stand in the table.
    pub fn existing(&self) -> Result<ConsumerId> {
        self.name().map(ConsumerId::stored)
    }
}

/// A variable of the environment; an empty one counts as unset.
fn from_environment(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// What commands take that change how a consumer is started.
#[derive(Args)]
pub struct OneConsumer {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl OneConsumer {
    /// Carries out the change, logs it under `word`, and tells the supervisor, if there is one.
    pub fn change(
        &self,
        word: &str,
        change: fn(&mut Store, &ConsumerId) -> Result<Option<Subscription>>,
    ) -> Result<(Thread, ConsumerId)> {
        let consumer = self.consumer.existing()?;
        let mut thread = self.thread.open()?;
        let changed = change(&mut thread.store, &consumer)?.ok_or_else(|| unknown_consumer(&consumer))?;
        thread.log(Level::Info, format_args!("{word}: consumer={consumer}"));
        supervisor::nudge(&changed);
        Ok((thread, consumer))
    }
}

/// Prints which consumer was changed.
pub fn answer(consumer: &ConsumerId, as_json: bool) -> Result<()> {
    if as_json {
        return output::json(&json!({ "consumer_id": consumer.as_str() }));
    }
    output::line(output::plain(consumer.as_str()))
}

/// Where a cursor stands that was asked to go to `asked`; a warning says when that is past the
/// newest event.
pub fn cursor_after(moved: Moved, consumer: &ConsumerId, asked: i64) -> Result<i64> {
    match moved {
        Moved::UnknownConsumer => Err(unknown_consumer(consumer)),
        Moved::To(at) | Moved::StandsAt(at) => Ok(at),
        Moved::Clamped(newest) => {
            output::warn(format_args!(
                "event {asked} does not exist yet; the cursor stands at {newest}, so that nothing future is skipped"
            ));
            Ok(newest)
        }
    }
}

/// The subscription of a consumer that is expected to exist.
pub fn subscribed(thread: &Thread, consumer: &ConsumerId) -> Result<Subscription> {
    thread.store.subscription(consumer)?.ok_or_else(|| unknown_consumer(consumer))
}

/// What every command says of a consumer that is not subscribed.
pub fn unknown_consumer(consumer: &ConsumerId) -> Failure {
    Failure::could_not(
        format_args!("no consumer '{consumer}' is subscribed"),
        "see `thread info` for those that are, or `thread subscribe` it",
    )
}

/// Reads an event id: a plain decimal integer, 0 or more.
pub fn event_id(text: &str) -> std::result::Result<i64, String> {
    whole_number(text).ok_or_else(|| "an event id is a whole number, 0 or more".to_owned())
}

/// Reads a limit, or another number of things: a plain decimal integer, 1 or more.
pub fn limit(text: &str) -> std::result::Result<u64, String> {
    let number = whole_number(text).and_then(|n| u64::try_from(n).ok());
    number.filter(|&n| n >= 1).ok_or_else(|| "it is a whole number, 1 or more".to_owned())
}

/// Digits only: no sign, no blank, no fraction, nothing after them.
fn whole_number(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn numbers_are_plain_decimal_integers() {
        assert_eq!(event_id("0"), Ok(0));
        assert_eq!(event_id("9223372036854775807"), Ok(i64::MAX));
        for bad in ["", "12abc", "1.5", "-1", "+1", " 1", "0x10", "9223372036854775808", "١"] {
            assert!(event_id(bad).is_err(), "{bad}");
            assert!(limit(bad).is_err(), "{bad}");
        }
        assert!(limit("0").is_err());
    }
}
