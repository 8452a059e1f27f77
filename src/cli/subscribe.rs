//! `thread subscribe`: registering a consumer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueHint};
use serde_json::json;

use super::consumer::one_of;
use super::{ConsumerArg, Globals, environment, limit, output, settings, wake_consumer, warn_if_clamped};
use crate::error::Code;
use crate::failure::{Result, WithHint, failed, usage};
use crate::files::log::{Quoted, log};
use crate::files::{self, Files};
use crate::maintenance::report;
use crate::model::duration;
use crate::model::event::{NewEvent, Type};
use crate::model::filter::{Filter, FilterError, Scope};
use crate::model::position::Position;
use crate::model::run::{Deliver, Options, UNLIMITED};
use crate::model::subscription::{ConsumerId, NO_HANDLER, NewSubscription, Subscription};
use crate::run::control::notify_supervisors;

/// Register a consumer: which command to start, and for which events
///
/// The handler is run by `sh -c`, in this directory, with THREAD_DIR, THREAD_CONSUMER and THREAD_LAST_ACKED_ID set,
/// whenever there are events past the consumer's cursor that match the filter; there is never more than one run at
/// a time, unless --concurrency makes it a pool. With --deliver wake it takes events with `thread pop` and acknowledges them; with --deliver stdin it
/// gets them as NDJSON on stdin, and exit 0 acknowledges them all. If there is a backlog, it is started at once. A
/// consumer that was subscribed before continues at its cursor.
///
/// It inherits the environment of the process that starts it, usually the pusher: its PATH, and its secrets.
/// --clear-env drops most of it, and --env sets what the handler needs.
///
/// A run that does not move the cursor has failed, and is tried again after the waits of --backoff. After
/// --max-attempts such runs the consumer stalls until a new event comes; with --deliver stdin, the event
/// that failed becomes a dead letter instead (see `thread dead`). By default one bad event holds up those
/// after it for 2 m 36 s. A handler on stdin that ends with exit 65 reports that the event is bad: it becomes
/// a dead letter at once, and holds up nothing. A handler that cannot be run (exit 126 or 127) stalls the
/// consumer at once. By exit 75 a handler says that it cannot do its work now, such as while a service is
/// down: it is tried again after the waits of --backoff, however often, and that is no attempt.
///
/// A handler whose own events match its filter starts itself again and again. Filter them out: --filter
/// "type = 'message' AND metadata ->> 'reply_to' IS NULL" matches messages that are not answers.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread subscribe -t inbox bot ./agent.sh --deliver stdin
  thread subscribe -t inbox mailer --deliver ndjson -- python3 mail.py
  thread subscribe -t inbox mailer 'sh send.sh' --deliver stdin \\
    --concurrency 8 --key source
  thread subscribe -t inbox bot 'claude -p \"$(thread guide --for handler)\"' \\
    --filter \"type = 'message'\" --timeout 10m")]
pub struct Subscribe {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The handler: a command for sh
    #[arg(value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    command: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "COMMAND", value_hint = ValueHint::CommandString, allow_hyphen_values = true,
          hide = true)]
    handler: Option<String>,
    /// The handler as separate words, which sh takes literally
    #[arg(value_name = "WORD", last = true, conflicts_with_all = ["command", "handler", "no_handler"],
          value_hint = ValueHint::CommandWithArguments)]
    words: Vec<String>,
    /// The consumer is never started, and pops for itself
    ///
    /// With --concurrency, several programs share it: each takes events with `thread pop --claim`.
    #[arg(long, conflicts_with_all = ["command", "handler"])]
    no_handler: bool,
    /// Which events: an SQL condition [default: all]
    ///
    /// Over id, created_at, source, type, subtype, content and metadata.
    #[arg(long, value_name = "SQL", allow_hyphen_values = true)]
    filter: Option<String>,
    /// How the handler gets events: wake, stdin or ndjson [default: wake]
    ///
    /// With wake, it pops for itself. With stdin, it gets events on stdin, and exit 0 acknowledges them. With ndjson, it
    /// is kept, and answers each event: it gets each event as a line on stdin, and answers with a line on stdout, in any order.
    /// It prints {"ack":17} for an event that is done; {"nack":17} to get it again after the
    /// next wait of --backoff, or after "delay":"30s"; {"reject":17} to make it a dead letter. "error":"..." says why,
    /// and "attempt":false with nack means that it was no attempt. Answers may come in any order. Whatever else it
    /// prints goes to its log. When stdin is closed, it answers what it has, and ends.
    #[arg(long, value_name = "HOW", value_parser = deliver(), hide_possible_values = true)]
    deliver: Option<Deliver>,
    /// Most events at a time [default: 100, or 1 in a pool on stdin]
    ///
    /// With --deliver ndjson, so many may be without an answer; 1 means in order. With --deliver stdin, a batch also ends at 1 MiB, and
    /// exit 0 acknowledges all of them, read or not. After a failure they are delivered one at a time, so those that
    /// were already done come twice. With --deliver stdin and 1, THREAD_EVENT_ID is the event, and the handler may use
    /// `thread step`; without --concurrency, an event that sleeps holds back those after it.
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    batch_size: Option<u64>,
    /// Failed runs before giving up, or never [default: 5]
    ///
    /// A run has failed if it made no progress.
    #[arg(long, value_name = "N", value_parser = max_attempts, allow_negative_numbers = true)]
    max_attempts: Option<u32>,
    /// Dead letters in a row before a stall [default: 10]
    ///
    /// Or never. Once so many were made without a success between them, the consumer stalls instead of making more:
    /// an outage must not turn the backlog into dead letters. Those by exit 65 do not count.
    #[arg(long, value_name = "N", value_parser = stall_after, allow_negative_numbers = true)]
    stall_after: Option<StallAfter>,
    /// When a stalled consumer tries again [default: 10m]
    ///
    /// It tries one event. Counted from the end of its last run; never, if it is to wait for a newer event or `thread resume`.
    #[arg(long, value_name = "D", value_parser = probe)]
    probe: Option<Probe>,
    /// Waits between attempts; the last repeats [default: 1s,5s,30s,2m,10m]
    #[arg(long, value_name = "D,D,...", value_parser = duration::parse_list)]
    backoff: Option<WholeList>,
    /// End a run after this time [default: none]
    ///
    /// Its whole process group gets TERM, and KILL 10 s later. With --deliver ndjson, the time for the oldest event without an answer, counted again from each answer.
    #[arg(long, value_name = "D", value_parser = timeout)]
    timeout: Option<Timeout>,
    /// A pool: so many runs at once [default: one, in order]
    ///
    /// Each has its own events, with --deliver stdin or ndjson. Events are finished one by one then: one that waits for its next attempt does not
    /// hold back those after it, unless --key says so. `thread nack`, `reject` and `ack ID...` finish single events.
    #[arg(long, value_name = "N", value_parser = places, allow_negative_numbers = true)]
    concurrency: Option<u32>,
    /// In a pool, keep events with the same value in order
    ///
    /// An SQL expression, such as "content ->> '$.customer'". Never two of them are handled at once, and one that waits holds back only those with its value. Events for which
    /// it is NULL, or fails, are free. The rules are those of --filter; an empty text removes it.
    #[arg(long, value_name = "SQL", allow_hyphen_values = true)]
    key: Option<String>,
    /// Most unfinished events past the cursor, in a pool or with ndjson, before nothing new starts [default: 10000]
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true, hide_short_help = true)]
    ahead: Option<u64>,
    /// How long ndjson handlers stay idle [default: 10m]
    ///
    /// Then their stdin is closed, so that they end; the next event starts them again.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    idle: Option<Duration>,
    /// Where to begin: beginning, now, an event id, a time, or how long ago [default: its cursor]
    ///
    /// As in `thread seek`. The cursor is where it was when it was subscribed before; otherwise it begins with the first
    /// event.
    #[arg(long, value_name = "WHERE", value_parser = Position::parse, allow_negative_numbers = true)]
    from: Option<Position>,
    /// Change settings of an existing subscription
    ///
    /// All else stays, as do its cursor, its dead letters and a pause. --filter '', --timeout none and
    /// --clear-env=false return to the defaults; --defaults does so for all that is not given.
    #[arg(long)]
    replace: bool,
    /// With --replace: options that are not given return to their defaults
    #[arg(long, requires = "replace", hide_short_help = true)]
    defaults: bool,
    /// Where the handler runs [default: this directory]
    ///
    /// A relative path moves along with the thread.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    cwd: Option<PathBuf>,
    /// A variable for the handler; may be repeated
    ///
    /// Everyone who can read the thread can read it.
    #[arg(long, value_name = "KEY=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Pass only harmless variables to the handler
    ///
    /// Of those of the dispatcher: HOME, LANG, LANGUAGE, LC_*, LOGNAME, PATH, TMPDIR, TZ, USER and THREAD_NOTIFIER.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          hide_possible_values = true)]
    clear_env: Option<bool>,
}

/// An alias, because clap derives a repeatable option from a field of type `Vec`.
type WholeList = Vec<Duration>;

/// Aliases, because clap takes an `Option` in an `Option` for another kind of option.
type StallAfter = Option<u32>;
type Timeout = Option<Duration>;
type Probe = Option<Duration>;

fn deliver() -> impl TypedValueParser<Value = Deliver> {
    PossibleValuesParser::new(Deliver::ALL.map(Deliver::as_str))
        .map(move |word| Deliver::ALL.into_iter().find(|way| way.as_str() == word).unwrap_or_default())
}

/// The most places that a pool may have.
const MOST_PLACES: u64 = 1000;

fn places(text: &str) -> std::result::Result<u32, String> {
    match limit(text)? {
        number @ 1..=MOST_PLACES => Ok(number as u32),
        _ => Err(format!("it must be at most {MOST_PLACES}")),
    }
}

fn attempts(text: &str) -> std::result::Result<u32, String> {
    u32::try_from(limit(text)?).map_err(|_| format!("it must be at most {}", u32::MAX))
}

fn max_attempts(text: &str) -> std::result::Result<u32, String> {
    match text {
        "never" => Ok(UNLIMITED),
        number => attempts(number).map_err(|why| format!("{why}, or never")),
    }
}

fn stall_after(text: &str) -> std::result::Result<StallAfter, String> {
    match text {
        "never" => Ok(None),
        number => attempts(number).map(Some).map_err(|why| format!("{why}, or never")),
    }
}

fn timeout(text: &str) -> std::result::Result<Timeout, String> {
    if text == "none" { Ok(None) } else { duration::parse_positive(text).map(Some) }
}

fn probe(text: &str) -> std::result::Result<Probe, String> {
    if text == "never" { Ok(None) } else { duration::parse_positive(text).map(Some) }
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
        // The check must work before the thread exists: a missing handler is reported either way.
        if handler.is_none() && (!self.replace || self.defaults) {
            return no_handler();
        }
        let mut queue = globals.open()?;
        let cwd = match &self.cwd {
            Some(given) if given.is_relative() => queue.files().relative(&dir),
            _ => dir,
        };
        let before = match self.replace {
            true => queue.store.subscription(&consumer)?,
            false => None,
        };
        let kept = before.as_ref().filter(|_| !self.defaults);
        let mut options = kept.map_or_else(Options::default, |before| before.options.clone());
        options.deliver = self.deliver.unwrap_or(options.deliver);
        let was_pool = options.is_pool();
        options.max_attempts = self.max_attempts.unwrap_or(options.max_attempts);
        options.stall_after = self.stall_after.unwrap_or(options.stall_after);
        options.probe = self.probe.unwrap_or(options.probe);
        options.idle = self.idle.unwrap_or(options.idle);
        options.backoff = self.backoff.take().unwrap_or(options.backoff);
        options.timeout = self.timeout.unwrap_or(options.timeout);
        options.clear_env = self.clear_env.unwrap_or(options.clear_env);
        options.env = if env.is_empty() { options.env } else { env };
        options.no_handler = self.no_handler || (options.no_handler && handler.is_none());
        let way = options.deliver.as_str();
        if options.no_handler && options.deliver != Deliver::Wake {
            return usage(
                format_args!("--deliver {way} needs a handler"),
                format_args!("leave out one of --no-handler and --deliver {way}"),
            );
        }
        if self.idle.is_some() && options.deliver != Deliver::Ndjson {
            return usage("--idle is for handlers that are kept", "add --deliver ndjson");
        }
        options.concurrency = self.concurrency.or(options.concurrency);
        // A pool is for events that are handled at the same time, not for batches.
        let is_new_pool = options.is_pool() && !was_pool && options.deliver == Deliver::Stdin;
        let batch_size = self.batch_size.or(is_new_pool.then_some(1));
        options.batch_size = batch_size.unwrap_or(options.batch_size);
        options.key = self.key.take().or(options.key).filter(|text| !text.trim().is_empty());
        options.ahead = self.ahead.unwrap_or(options.ahead);
        if options.is_pool() && options.deliver == Deliver::Wake && !options.no_handler {
            return usage(
                "--concurrency is for handlers that are given their events",
                "add --deliver stdin or --deliver ndjson, or give --no-handler for `thread pop --claim`",
            );
        }
        if options.key.is_some() && !options.finishes_singly() {
            return usage(
                "--key is for events that finish one by one",
                "add --concurrency N or --deliver ndjson",
            );
        }
        if self.ahead.is_some() && !options.finishes_singly() {
            return usage(
                "--ahead is for events that finish one by one",
                "add --concurrency N or --deliver ndjson",
            );
        }
        if let Some(key) = &options.key {
            check_key(key)?;
        }
        let filter = self.filter.take().or_else(|| kept?.filter.clone());
        let filter = filter.filter(|text| !text.trim().is_empty());
        if let Some(filter) = Filter::new(filter.as_deref().unwrap_or_default(), Scope::Subscription)? {
            note_failures(&filter);
        }
        let from = self.from.map(|from| queue.id_at(from)).transpose()?;
        let new = NewSubscription {
            consumer: consumer.clone(),
            handler_cmd: match (handler.clone(), kept) {
                (Some(handler), _) => handler,
                (None, Some(before)) => before.handler_cmd.clone(),
                (None, None) => return no_handler(),
            },
            filter,
            cwd: match kept {
                Some(before) if self.cwd.is_none() => before.cwd.clone(),
                _ => Some(cwd),
            },
            options,
            from,
            replace: self.replace,
        };
        let moved = queue.subscribe(&new)?;
        if let Some((moved, id)) = moved.zip(from) {
            warn_if_clamped(moved, id);
        }
        let (command, filter) = (&new.handler_cmd, new.filter.as_deref().unwrap_or_default());
        let (command, filter) = (Quoted(command), Quoted(filter));
        log!(queue, Info, "subscribe: consumer={consumer} handler_cmd={command} filter={filter}");
        if self.replace {
            // Ends a wait of the replaced subscription.
            notify_supervisors(&mut queue);
        }
        wake_consumer(&mut queue, &consumer);
        if let Some(before) = &before {
            note_changes(queue.files(), before, &new);
        }
        let pops = new.options.no_handler || new.handler_cmd.contains("thread");
        if self.deliver.is_none() && new.options.deliver == Deliver::Wake && handler.is_some() && !pops {
            output::note(
                "the handler gets no events on stdin: it has to take them with `thread pop`, and acknowledge \
                 them with `thread ack`; give --deliver stdin for events on stdin, where exit 0 acknowledges",
            );
        }
        if new.options.deliver == Deliver::Stdin && !new.options.is_pool() && sleeps(queue.files(), &new) {
            output::note(
                "without --concurrency, an event that sleeps (`thread sleep`, `thread await`) holds back those after it",
            );
        }
        if globals.json { print_json(queue.files(), &new) } else { output::line(&consumer) }
    }

    /// The handler command, given as an argument or an option; `None` if none is given.
    fn handler(&mut self) -> Result<Option<String>> {
        if self.no_handler {
            return Ok(Some(NO_HANDLER.to_owned()));
        }
        if let [program, ..] = &self.words[..] {
            if program.is_empty() {
                return usage("the handler is empty", "give the command to start after --");
            }
            // Fails only for NUL, which no argument can contain.
            return Ok(shlex::try_join(self.words.iter().map(String::as_str)).ok());
        }
        let word = self.command.take().or_else(|| self.consumer.spare_word());
        match one_of("handler", word, "--handler", self.handler.take())? {
            Some(handler) if handler.trim().is_empty() => {
                usage("the handler is empty", "give the command to start")
            }
            handler => Ok(handler),
        }
    }
}

/// Whether a handler lets its events sleep, as far as its command and the scripts that this names say so.
#[expect(clippy::disallowed_methods, reason = "looks at the handler's script")]
fn sleeps(files: &Files, new: &NewSubscription) -> bool {
    const LONGEST_SCRIPT: u64 = 64 * 1024;
    let says_so = |text: &str| ["thread sleep", "thread await"].iter().any(|words| text.contains(words));
    let dir = new.cwd.as_deref().map(|cwd| files.resolve(cwd)).unwrap_or_default();
    let read = |word: String| {
        let path = dir.join(word);
        let is_script =
            std::fs::metadata(&path).is_ok_and(|about| about.is_file() && about.len() <= LONGEST_SCRIPT);
        let text = if is_script { std::fs::read(path).ok() } else { None };
        text.map(|text| String::from_utf8_lossy(&text).into_owned())
    };
    let mut scripts = shlex::split(&new.handler_cmd).unwrap_or_default().into_iter().filter_map(read);
    says_so(&new.handler_cmd) || scripts.any(|text| says_so(&text))
}

fn check_key(text: &str) -> Result<()> {
    match Filter::new_key(text) {
        Err(FilterError::Invalid(problem)) => usage(
            format_args!("--key {problem}"),
            "give one SQL expression over id, created_at, source, type, subtype, content and metadata",
        ),
        Err(e) => Err(crate::error::Error::from(e).into()),
        Ok(_) => Ok(()),
    }
}

/// Notes that a filter fails on events that are likely to come: one with text, and one with JSON.
fn note_failures(filter: &Filter) {
    let event = |content| NewEvent::new("self", Type::Message.as_str(), None, content);
    let failure = ["words", "{}"].into_iter().find_map(|content| {
        let event = event(content).ok()?;
        filter.matches(&event.row(1, "2026-03-18T10:30:00.123Z")).err()
    });
    if let Some(failure) = failure {
        output::note(format_args!(
            "the filter can fail, and an event on which it fails does not match: {failure}"
        ));
    }
}

fn no_handler<T>() -> Result<T> {
    usage("no handler given", "give the command to start after the consumer's name, or --no-handler")
}

/// Says what --replace has changed.
fn note_changes(files: &Files, before: &Subscription, new: &NewSubscription) {
    let settings = |handler: &str, filter: Option<&str>, cwd: Option<&Path>, options: &Options| {
        let mut all = vec![("handler", json!(handler)), ("filter", json!(filter))];
        all.extend(report::settings(files, cwd, options));
        all
    };
    let was = settings(&before.handler_cmd, before.filter_text(), before.cwd.as_deref(), &before.options);
    let is = settings(&new.handler_cmd, new.filter.as_deref(), new.cwd.as_deref(), &new.options);
    let changed = was.iter().zip(&is).filter(|(was, is)| was != is).map(|((name, was), (_, is))| {
        let [was, is] = [was, is].map(|value| settings::as_text(name, value));
        format!("{name} was {was} and is {is}")
    });
    let changed: Vec<String> = changed.collect();
    if !changed.is_empty() {
        output::note(changed.join("; "));
    }
}

fn print_json(files: &Files, new: &NewSubscription) -> Result<()> {
    let mut object = json!({
        "consumer_id": new.consumer.as_str(),
        "handler_cmd": new.handler_cmd,
        "filter": new.filter,
    });
    for (name, value) in report::settings(files, new.cwd.as_deref(), &new.options) {
        object[name] = value;
    }
    output::line(object)
}

/// The absolute path of the directory to run the handler in.
fn directory(given: Option<&Path>) -> Result<PathBuf> {
    let Some(dir) = given else {
        return environment::current_dir()
            .with_hint("cannot find the current directory", "change to one that exists, or give --cwd");
    };
    if !dir.is_dir() {
        return failed(
            Code::FileNotFound,
            format_args!("{} is not a directory", dir.display()),
            "give --cwd a directory that exists",
        );
    }
    files::absolute(dir).with_hint("cannot find the current directory", "give --cwd an absolute path")
}
