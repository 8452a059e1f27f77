//! `thread subscribe`: registering a consumer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueHint};
use serde_json::json;

use crate::cmd::peek::bad_filter;
use crate::cmd::{ConsumerArg, ThreadArg, cursor_after, event_id, limit};
use crate::duration;
use crate::error::{Failure, OrFix, Result};
use crate::files;
use crate::filter::Scope;
use crate::log::{Level, Quoted};
use crate::output;
use crate::rule::{Deliver, Policy};
use crate::store::{NewSubscription, Subscribed};
use crate::subscription::ConsumerId;
use crate::wake;

/// Register a consumer: which command to start, and for which events
///
/// The handler is run by `sh -c`, in this directory, with THREAD_DIR, THREAD_CONSUMER and
/// THREAD_LAST_ACKED_ID set, whenever there are events past the consumer's cursor that match the
/// filter; never twice at a time. With --deliver wake it takes events with `thread pop` and
/// acknowledges them; with --deliver stdin it gets them as NDJSON on stdin, and exit 0
/// acknowledges them all. A backlog wakes it at once. A consumer that was subscribed before goes
/// on from its cursor.
///
/// A run that leaves the cursor where it was has failed, and is tried again after the waits of
/// --backoff. After --max-attempts such runs the consumer stalls until something new comes; with
/// --deliver stdin, the one event that failed is parked as a dead letter instead (see `thread
/// dead`), so that it does not hold up the others.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread subscribe --thread inbox --consumer bot --deliver stdin \\
    --handler './agent.sh'
  thread subscribe --thread inbox --consumer bot --filter \"type = 'message'\" \\
    --handler './agent.sh'")]
pub struct Subscribe {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The command to start, in the language of sh
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, allow_hyphen_values = true)]
    handler: String,
    /// An SQL condition over id, created_at, source, type, subtype, content and metadata [default: every event]
    #[arg(long, value_name = "SQL", allow_hyphen_values = true)]
    filter: Option<String>,
    /// wake: the handler pops for itself; stdin: it gets the events on stdin
    #[arg(long, value_name = "HOW", default_value = "wake", value_parser = deliver)]
    deliver: Deliver,
    /// Most events per run with --deliver stdin (a batch also ends at 1 MiB)
    #[arg(long, value_name = "N", default_value = "100", value_parser = limit, allow_negative_numbers = true)]
    batch_size: u64,
    /// Runs that get nowhere before giving up
    #[arg(long, value_name = "N", default_value = "5", value_parser = attempts, allow_negative_numbers = true)]
    max_attempts: u32,
    /// Waits between attempts; the last repeats
    #[arg(long, value_name = "D,D,…", default_value = "1s,5s,30s,2m,10m", value_parser = backoff)]
    backoff: Backoff,
    /// End a run after this time: TERM to its whole process group, KILL 10 s later
    #[arg(long, value_name = "D", value_parser = duration::parse_positive)]
    timeout: Option<Duration>,
    /// Where to begin: all, new, or after this event id [default: the stored cursor, or all]
    #[arg(long, value_name = "all|new|ID", value_parser = from, allow_negative_numbers = true)]
    from: Option<From>,
    /// Where the handler runs [default: the current directory]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    cwd: Option<PathBuf>,
    /// Print the subscription as JSON
    #[arg(long)]
    json: bool,
}

/// The waits between attempts: a type of its own, because the parser takes a list for repetition.
#[derive(Debug, Clone)]
struct Backoff(Vec<Duration>);

#[derive(Debug, Clone, Copy)]
enum From {
    All,
    New,
    After(i64),
}

fn deliver(text: &str) -> std::result::Result<Deliver, String> {
    Deliver::parse(text).ok_or_else(|| "it is either 'wake' or 'stdin'".to_owned())
}

fn attempts(text: &str) -> std::result::Result<u32, String> {
    limit(text)
        .ok()
        .and_then(|n| u32::try_from(n).ok())
        .ok_or_else(|| "a number of attempts is a whole number, 1 or more".to_owned())
}

fn backoff(text: &str) -> std::result::Result<Backoff, String> {
    duration::parse_list(text).map(Backoff)
}

fn from(text: &str) -> std::result::Result<From, String> {
    match text {
        "all" => Ok(From::All),
        "new" => Ok(From::New),
        id => event_id(id).map(From::After).map_err(|_| "it is 'all', 'new' or an event id".to_owned()),
    }
}

impl Subscribe {
    pub fn run(self) -> Result<()> {
        let name = self.consumer.name()?;
        let consumer = ConsumerId::new(&name).map_err(|why| {
            Failure::asked_wrongly(
                format_args!("the consumer name '{}' {why}", output::plain(&name)),
                "use 1 to 128 of A-Z a-z 0-9 . _ - : @, beginning with a letter or digit",
            )
        })?;
        if self.handler.trim().is_empty() {
            return Err(Failure::asked_wrongly("the handler is empty", "name the command to start"));
        }
        let cwd = directory(self.cwd.as_deref())?;
        let mut thread = self.thread.open()?;
        let filter = self.filter.filter(|text| !text.trim().is_empty());
        thread
            .store
            .check_filter(filter.as_deref().unwrap_or_default(), Scope::Subscription)
            .map_err(|refusal| bad_filter(&refusal))?;
        let from = match self.from {
            None => None,
            Some(From::All) => Some(0),
            Some(From::New) => Some(thread.store.newest_ever()?),
            Some(From::After(id)) => Some(id),
        };
        let policy = Policy {
            deliver: self.deliver,
            batch_size: self.batch_size,
            max_attempts: self.max_attempts,
            backoff: self.backoff.0,
            timeout: self.timeout,
        };
        let new = NewSubscription {
            consumer: &consumer,
            handler_cmd: &self.handler,
            filter: filter.as_deref(),
            cwd: &cwd,
            policy: &policy,
            from,
        };
        match thread.store.subscribe(&new)? {
            Subscribed::Exists => {
                return Err(Failure::could_not(
                    format_args!("the consumer '{consumer}' is subscribed already; nothing was changed"),
                    "`thread unsubscribe` it first; its cursor stays",
                ));
            }
            Subscribed::Added(Some(moved)) => {
                cursor_after(moved, &consumer, from.unwrap_or_default())?;
            }
            Subscribed::Added(None) => {}
        }
        thread.log(
            Level::Info,
            format_args!(
                "subscribe: consumer={consumer} handler_cmd={} filter={}",
                Quoted(&self.handler),
                Quoted(filter.as_deref().unwrap_or_default())
            ),
        );
        wake::wake_consumer(&mut thread, &consumer);
        if self.json {
            return output::json(&json!({
                "consumer_id": consumer.as_str(),
                "handler_cmd": self.handler,
                "filter": filter,
                "cwd": cwd.to_string_lossy(),
                "deliver": policy.deliver.as_str(),
                "batch_size": policy.batch_size,
                "max_attempts": policy.max_attempts,
                "backoff": duration::format_list(&policy.backoff),
                "timeout": policy.timeout.map(duration::format),
            }));
        }
        output::line(&consumer)
    }
}

/// The directory a handler is to run in, absolute.
fn directory(given: Option<&Path>) -> Result<PathBuf> {
    let Some(dir) = given else {
        return std::env::current_dir()
            .or_fix("the current directory cannot be found", "change to one that exists, or give --cwd");
    };
    if !dir.is_dir() {
        return Err(Failure::could_not(
            format_args!("{} is not a directory", dir.display()),
            "give --cwd a directory that exists",
        ));
    }
    files::absolute(dir).or_fix("the current directory cannot be found", "give --cwd an absolute path")
}
