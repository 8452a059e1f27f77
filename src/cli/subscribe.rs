//! `thread subscribe`: registering a consumer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use serde_json::json;

use super::consumer::one_of;
use super::error::{Result, WithHint, failed, usage};
use super::{ConsumerArg, Globals, event_id, limit, output, wake_consumer, warn_if_clamped};
use crate::files::log::{Quoted, log};
use crate::files::{self, Files};
use crate::model::duration;
use crate::model::filter::{Filter, Scope};
use crate::model::run::{Deliver, Options};
use crate::model::subscription::{ConsumerId, NO_HANDLER, NewSubscription};
use crate::run::control::notify_supervisors;

/// Register a consumer: which command to start, and for which events
///
/// The handler is run by `sh -c`, in this directory, with THREAD_DIR, THREAD_CONSUMER and
/// THREAD_LAST_ACKED_ID set, whenever there are events past the consumer's cursor that match the filter;
/// there is never more than one run at a time. With --deliver wake it takes events with `thread pop` and
/// acknowledges them; with --deliver stdin it gets them as NDJSON on stdin, and exit 0 acknowledges them
/// all. If there is a backlog, it is started at once. A consumer that was subscribed before continues from
/// its cursor. With --replace a script that subscribes can be run twice: a subscription that is the same is
/// left alone.
///
/// A run that does not move the cursor has failed, and is tried again after the waits of --backoff. After
/// --max-attempts such runs the consumer stalls until a new event comes; with --deliver stdin, the event
/// that failed becomes a dead letter instead (see `thread dead`), so that it does not hold up the others.
///
/// A handler whose own events match its filter starts itself again and again. Filter them out: --filter
/// "type = 'message' AND metadata ->> 'reply_to' IS NULL" matches messages that are not answers.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread subscribe -t inbox bot ./agent.sh --deliver stdin
  thread subscribe -t inbox bot 'claude -p \"$(thread guide --for handler)\"' \\
    --filter \"type = 'message'\" --timeout 10m")]
pub struct Subscribe {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The handler: a command for sh
    #[arg(value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    command: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, allow_hyphen_values = true)]
    handler: Option<String>,
    /// The consumer is never started, and pops for itself
    #[arg(long, conflicts_with_all = ["command", "handler"])]
    no_handler: bool,
    /// An SQL condition over id, created_at, source, type, subtype, content and metadata [default: every event]
    #[arg(long, value_name = "SQL", allow_hyphen_values = true)]
    filter: Option<String>,
    /// wake: the handler pops for itself; stdin: it gets the events on stdin
    #[arg(long, value_name = "HOW", default_value = "wake", value_parser = deliver(), hide_possible_values = true)]
    deliver: Deliver,
    /// Most events per run with --deliver stdin (a batch also ends at 1 MiB)
    #[arg(long, value_name = "N", default_value = "100", value_parser = limit, allow_negative_numbers = true)]
    batch_size: u64,
    /// Runs without progress before giving up
    #[arg(long, value_name = "N", default_value = "5", value_parser = attempts, allow_negative_numbers = true)]
    max_attempts: u32,
    /// Waits between attempts; the last repeats
    #[arg(long, value_name = "D,D,...", default_value = "1s,5s,30s,2m,10m", value_parser = duration::parse_list)]
    backoff: WholeList,
    /// End a run after this time: TERM to its whole process group, KILL 10 s later
    #[arg(long, value_name = "D", value_parser = duration::parse_positive)]
    timeout: Option<Duration>,
    /// Where to begin: all, new, or after this event id [default: the stored cursor, or all]
    #[arg(long, value_name = "all|new|ID", value_parser = from, allow_negative_numbers = true)]
    from: Option<From>,
    /// Change an existing subscription; its cursor, dead letters and a pause stay
    #[arg(long)]
    replace: bool,
    /// Where the handler runs; a relative path moves along with the thread [default: the current directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    cwd: Option<PathBuf>,
    /// A variable for the handler's environment, readable by anybody who can read the thread; may be given
    /// several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Pass none of the dispatcher's variables to the handler but HOME, LANG, LANGUAGE, LC_*, LOGNAME,
    /// PATH, TMPDIR, TZ, USER and THREAD_NOTIFIER
    #[arg(long)]
    clear_env: bool,
}

/// An alias, because clap derives a repeatable option from a field of type `Vec`.
type WholeList = Vec<Duration>;

#[derive(Debug, Clone, Copy)]
enum From {
    New,
    After(i64),
}

fn deliver() -> impl TypedValueParser<Value = Deliver> {
    let ways = [Deliver::Wake, Deliver::Stdin];
    PossibleValuesParser::new(ways.map(Deliver::as_str))
        .map(move |word| ways.into_iter().find(|way| way.as_str() == word).unwrap_or_default())
}

fn attempts(text: &str) -> std::result::Result<u32, String> {
    u32::try_from(limit(text)?).map_err(|_| format!("it must be at most {}", u32::MAX))
}

fn from(text: &str) -> std::result::Result<From, String> {
    match text {
        "all" => Ok(From::After(0)),
        "new" => Ok(From::New),
        id => event_id(id).map(From::After).map_err(|_| "it must be 'all', 'new' or an event id".to_owned()),
    }
}

/// Parses `KEY=VALUE` for a handler's environment.
fn variable(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it must be KEY=VALUE")?;
    let is_name = !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if name.is_empty() || !is_name {
        return Err("a name consists of A-Z a-z 0-9 _, and does not begin with a digit".to_owned());
    }
    if name.starts_with("THREAD_") && name != "THREAD_NOTIFIER" {
        return Err("the names that begin with THREAD_ are thread's own".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

impl Subscribe {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        let handler = self.handler()?;
        if self.no_handler && self.deliver == Deliver::Stdin {
            return usage(
                "--deliver stdin needs a handler",
                "leave out one of --no-handler and --deliver stdin",
            );
        }
        let name = self.consumer.required()?;
        let consumer = ConsumerId::new(&name).or_else(|why| {
            usage(
                format_args!("the consumer name '{}' {why}", output::plain(&name)),
                "use 1 to 128 of A-Z a-z 0-9 . _ - : @, beginning with a letter or digit",
            )
        })?;
        let dir = directory(self.cwd.as_deref())?;
        let env: BTreeMap<String, String> = self.env.iter().cloned().collect();
        if env.len() < self.env.len() {
            return usage("a variable is given twice by --env", "give each once");
        }
        let mut queue = globals.open()?;
        let cwd = match self.cwd {
            Some(given) if given.is_relative() => queue.files().relative(&dir),
            _ => dir,
        };
        let filter = self.filter.filter(|text| !text.trim().is_empty());
        Filter::new(filter.as_deref().unwrap_or_default(), Scope::Subscription)?;
        let from = match self.from {
            Some(From::New) => Some(queue.store().newest()?),
            Some(From::After(id)) => Some(id),
            None => None,
        };
        let new = NewSubscription {
            consumer: consumer.clone(),
            handler_cmd: handler,
            filter,
            cwd: Some(cwd),
            options: Options {
                deliver: self.deliver,
                batch_size: self.batch_size,
                max_attempts: self.max_attempts,
                backoff: self.backoff,
                timeout: self.timeout,
                env,
                clear_env: self.clear_env,
                no_handler: self.no_handler,
            },
            from,
            replace: self.replace,
        };
        let moved = queue.subscribe(&new)?;
        if let Some((moved, id)) = moved.zip(from) {
            warn_if_clamped(moved, id);
        }
        log!(
            queue,
            Info,
            "subscribe: consumer={consumer} handler_cmd={} filter={}",
            Quoted(&new.handler_cmd),
            Quoted(new.filter.as_deref().unwrap_or_default())
        );
        if self.replace {
            // Ends a wait of the replaced subscription.
            notify_supervisors(queue.files());
        }
        wake_consumer(&mut queue, &consumer);
        if globals.json { print_json(queue.files(), &new) } else { output::line(&consumer) }
    }

    /// The handler command, given as an argument or an option.
    fn handler(&mut self) -> Result<String> {
        if self.no_handler {
            return Ok(NO_HANDLER.to_owned());
        }
        let word = self.command.take().or_else(|| self.consumer.spare_word());
        match one_of("handler", word, "--handler", self.handler.take())? {
            None => usage(
                "no handler given",
                "give the command to start after the consumer's name, or --no-handler",
            ),
            Some(handler) if handler.trim().is_empty() => {
                usage("the handler is empty", "give the command to start")
            }
            Some(handler) => Ok(handler),
        }
    }
}

fn print_json(files: &Files, new: &NewSubscription) -> Result<()> {
    let options = &new.options;
    output::line(json!({
        "consumer_id": new.consumer.as_str(),
        "handler_cmd": new.handler_cmd,
        "filter": new.filter,
        "cwd": new.cwd.as_ref().map(|cwd| files.resolve(cwd).to_string_lossy().into_owned()),
        "deliver": options.deliver.as_str(),
        "batch_size": options.batch_size,
        "max_attempts": options.max_attempts,
        "backoff": duration::format_list(&options.backoff),
        "timeout": options.timeout.map(duration::format),
        "env": options.env,
        "clear_env": options.clear_env,
    }))
}

/// The absolute path of the directory to run the handler in.
fn directory(given: Option<&Path>) -> Result<PathBuf> {
    let Some(dir) = given else {
        return std::env::current_dir()
            .with_hint("cannot find the current directory", "change to one that exists, or give --cwd");
    };
    if !dir.is_dir() {
        return failed(
            format_args!("{} is not a directory", dir.display()),
            "give --cwd a directory that exists",
        );
    }
    files::absolute(dir).with_hint("cannot find the current directory", "give --cwd an absolute path")
}
