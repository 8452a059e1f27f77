//! `thread push`: storing events, then bringing the JSONL log up to date and waking consumers.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use rustix::fs::OFlags;
use serde_json::json;

use super::batch::Batch;
use super::error::{Failure, Result, WithHint};
use super::progress::Progress;
use super::{Globals, environment, output, signals};
use crate::error::Error;
use crate::files::log::Level;
use crate::model::event::{Defaults, NewEvent};
use crate::queue::Queue;
use crate::run::dispatch::Dispatched;
use crate::run::wake::{self, Waking};
use crate::store::Stored;

/// The largest content, in bytes: no larger row fits the database.
const MAX_CONTENT: u64 = 999_000_000;

/// Store an event, or a batch of them, and wake its consumers
///
/// Stores one event and prints its id. On exit 0 the event survives power loss. The JSONL log is then
/// brought up to date and consumers are woken; trouble with either is a warning, because the event is
/// stored and pushing it again would store it twice.
///
/// With --batch, stdin is NDJSON: one JSON object per line with source, type, content and optionally
/// subtype, metadata (an object) and idempotency_key; --source, --type and --subtype are defaults for
/// lines without them. Other keys are ignored, so `thread peek` pipes into `thread push --batch`. The
/// batch is stored whole or not at all; the number stored is printed.
#[derive(Args)]
#[command(override_usage = "\
thread push [OPTIONS] --source <S> --type <T> --content <TEXT>
       thread push [OPTIONS] --source <S> --type <T> --content-file <FILE>
       thread push [OPTIONS] --batch")]
#[command(after_help = "\
Examples:
  thread push --thread inbox --source self --type message --content 'Hello'
  git diff | thread push --thread inbox --source self --type record \\
    --subtype decision --content-file -
  jq -c '{content: .}' build.jsonl |
    thread push --thread inbox --batch --source ci --type record")]
pub struct Push {
    /// Who sends it, e.g. external:telegram:tg-main:dm:alice:alice, internal:dm:default:bot or self
    #[arg(long, allow_hyphen_values = true)]
    source: Option<String>,
    /// message (between actors) or record (an actor's own trace)
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// A finer kind, e.g. toolcall or decision
    #[arg(long, allow_hyphen_values = true)]
    subtype: Option<String>,
    /// The payload; for long text, or text that a shell may mangle, use --content-file
    #[arg(long, allow_hyphen_values = true)]
    content: Option<String>,
    /// Read the payload from a file, or from stdin with "-": any size, byte for byte, UTF-8
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["content", "batch"])]
    content_file: Option<PathBuf>,
    /// Metadata beside the content, as strings: --meta run_id=17 stage=plan
    #[arg(long, value_name = "KEY=VALUE", num_args = 1.., conflicts_with = "metadata")]
    meta: Vec<String>,
    /// Metadata as a JSON object
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    metadata: Option<String>,
    /// Store it only once, however often it is pushed with this key
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    idempotency_key: Option<String>,
    /// Store many events, read as NDJSON from stdin
    #[arg(long)]
    batch: bool,
}

impl Push {
    pub fn run(self, globals: &Globals) -> Result<()> {
        if self.batch { self.push_batch(globals) } else { self.push_one(globals) }
    }

    fn push_one(self, globals: &Globals) -> Result<()> {
        let path = globals.path()?;
        let event = self.into_event()?;
        if let Some(form) = event.source_warning() {
            output::warn(format_args!(
                "the source '{}' does not fit the form {form}; stored as it is",
                event.source
            ));
        }
        let mut queue = Queue::open(path)?;
        let mut stored = None;
        let appended = queue.append(&mut |put| {
            stored = Some(put(&event)?);
            signals::defer();
            Ok(())
        })?;
        let (id, created_at, repeated) = match stored {
            Some(Stored::Repeated { id, created_at }) => (id, created_at, true),
            _ => (appended.last_id.unwrap_or_default(), appended.created_at, false),
        };
        queue.log_push(&event, id, repeated);
        let dispatch = finish(&mut queue, &event.source, &mut |_| {});
        confirm(match globals.json {
            true => print_json(&event, id, &created_at, dispatch),
            false => output::line(id),
        });
        Ok(())
    }

    /// The one event that the options and the content make.
    fn into_event(self) -> Result<NewEvent<'static>> {
        let source = required(self.source, "source")?;
        let kind = required(self.kind, "type")?;
        if self.content.is_none() && self.content_file.is_none() {
            return Err(missing("content", "--content-file - to read it from stdin, or --content"));
        }
        let metadata = if self.meta.is_empty() { self.metadata } else { Some(object_of(&self.meta)?) };
        let content = match &self.content_file {
            Some(file) => read_content(file)?,
            None => self.content.unwrap_or_default(),
        };
        let mut event =
            NewEvent::new(source, &kind, self.subtype.map(Into::into), content).map_err(Error::from)?;
        if let Some(json) = metadata {
            event = event.with_metadata(&json).map_err(Error::from)?;
        }
        if let Some(key) = self.idempotency_key {
            event = event.with_key(key).map_err(Error::from)?;
        }
        Ok(event)
    }

    fn push_batch(self, globals: &Globals) -> Result<()> {
        let interrupted = Failure::failed("interrupted, nothing was stored", "push the whole batch again");
        signals::on_interrupt(Some(&interrupted), globals.json)?;
        let mut queue = globals.open()?;
        let defaults = Defaults { source: self.source, kind: self.kind, subtype: self.subtype };
        let mut batch = Batch::open(queue.files())?;
        let appended = queue.append(&mut |put| {
            batch.for_each(&defaults, &mut |event| put(event).map(drop))?;
            signals::defer();
            Ok(())
        })?;
        if let Some((count, line, form)) = batch.odd_sources {
            output::warn(match count {
                1 => format!("the source on line {line} does not fit the form {form}; stored as it is"),
                _ => format!(
                    "{count} sources do not fit their form, first on line {line}: {form}; stored as they are"
                ),
            });
        }
        if let Some(last_source) = &batch.last_source {
            queue.log_batch(&appended);
            let mut progress = Progress::of("writing events.jsonl", None);
            finish(&mut queue, last_source, &mut |events| progress.advance(events));
        }
        confirm(match globals.json {
            true => output::json(&json!({
                "count": appended.count,
                "first_id": appended.first_id,
                "last_id": appended.last_id,
            })),
            false => output::line(appended.count),
        });
        Ok(())
    }
}

fn required(value: Option<String>, name: &str) -> Result<String> {
    value.ok_or_else(|| missing(name, &format!("--{name}")))
}

fn missing(name: &str, give: &str) -> Failure {
    Failure::usage(
        format_args!("the event has no {name}"),
        format_args!("give {give}, or --batch; nothing was stored"),
    )
}

fn read_content(path: &Path) -> Result<String> {
    let from_stdin = path.as_os_str() == "-";
    let name = if from_stdin { "stdin".into() } else { path.to_string_lossy() };
    let mut bytes = Vec::new();
    let read = if from_stdin {
        io::stdin().lock().take(MAX_CONTENT + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(MAX_CONTENT + 1).read_to_end(&mut bytes))
    };
    read.with_hint(
        format_args!("cannot read the content from {name}"),
        "check the file; nothing was stored",
    )?;
    if from_stdin && bytes.is_empty() && stdin_is_closed() {
        return Err(Failure::failed(
            "cannot read the content from stdin, which is closed or not connected to anything",
            "connect it, or store an empty event with --content ''; nothing was stored",
        ));
    }
    if bytes.len() as u64 > MAX_CONTENT {
        return Err(Failure::failed(
            format_args!("the content from {name} is larger than {MAX_CONTENT} bytes"),
            "store it in a file and push its path; nothing was stored",
        ));
    }
    String::from_utf8(bytes).map_err(|e| {
        Failure::usage(
            format_args!("the content from {name} is not UTF-8 (byte {})", e.utf8_error().valid_up_to()),
            "encode it, for instance with base64; nothing was stored",
        )
    })
}

/// Whether nobody gave this process a stdin. Where it is closed, the runtime opens `/dev/null` there, for
/// reading and writing, as others do who start a program without one; a shell's `</dev/null` is for
/// reading only.
fn stdin_is_closed() -> bool {
    let null = rustix::fs::stat("/dev/null").map(|null| null.st_rdev);
    let stdin = rustix::fs::fstat(io::stdin()).map(|stdin| stdin.st_rdev);
    let mode = rustix::fs::fcntl_getfl(io::stdin()).map(|flags| flags & OFlags::RWMODE);
    stdin.is_ok() && stdin == null && mode == Ok(OFlags::RDWR)
}

/// What follows a commit: the JSONL log, then the consumers. Whatever happens, the events stay stored.
/// Returns one word for what became of the waking.
fn finish(queue: &mut Queue, source: &str, progress: &mut dyn FnMut(u64)) -> &'static str {
    if let Err(e) = queue.publish(progress) {
        let advice = match e {
            Error::LogAhead(_) => "run `thread doctor --fix`",
            _ => "the next push brings the log up to date",
        };
        output::warn(format_args!("events.jsonl is behind: {e}; the event is stored; {advice}"));
    }
    match wake::wake(queue, &environment::launcher(), source) {
        Ok(Waking::Queued) => "queued",
        Ok(Waking::AlreadyQueued) => "already-queued",
        Ok(Waking::Off) => "off",
        Ok(Waking::LeftToOwner) => "left-to-owner",
        Ok(Waking::Dispatched(all)) => {
            let failed = all.iter().find_map(|(consumer, done)| match done {
                Dispatched::Failed(e) => Some((consumer, e)),
                _ => None,
            });
            let Some((consumer, e)) = failed else { return "embedded" };
            output::warn(format_args!("'{consumer}' was not woken: {e}; the event is stored"));
            "failed"
        }
        Err(e) => {
            queue.log(Level::Warn, format_args!("push: consumers were not woken: {e}"));
            output::warn(format_args!("consumers were not woken: {e}; the event is stored"));
            "failed"
        }
    }
}

/// An answer that cannot be printed must not make the caller push again.
fn confirm(printed: Result<()>) {
    if let Err(failure) = printed {
        output::warn(format_args!("{failure}; what was pushed is stored"));
    }
}

fn print_json(event: &NewEvent<'_>, id: i64, created_at: &str, dispatch: &str) -> Result<()> {
    let mut line = Vec::new();
    event.row(id, created_at).write_json(&mut line);
    line.pop();
    line.extend_from_slice(format!(",\"dispatch\":\"{dispatch}\"}}\n").as_bytes());
    output::bytes(&line).map(drop)
}

/// A JSON object of strings from `key=value` words.
fn object_of(words: &[String]) -> Result<String> {
    let wrong =
        |what: String| Failure::usage(what, "give --meta as key=value, each key once; nothing was stored");
    let mut object = serde_json::Map::new();
    for word in words {
        let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(wrong(format!("--meta '{word}' is not of the form key=value")));
        };
        if object.insert(key.to_owned(), value.into()).is_some() {
            return Err(wrong(format!("--meta names '{key}' twice")));
        }
    }
    Ok(serde_json::Value::Object(object).to_string())
}
