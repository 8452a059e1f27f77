//! `thread push`: storing events, then bringing the copy up to date and waking consumers.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use rustix::fs::FileType;
use serde_json::json;

use crate::batch::{self, About, Batch};
use crate::cmd::ThreadArg;
use crate::error::{Failure, OrFix, Result};
use crate::event::{Event, NewEvent};
use crate::interrupt::Interruptible;
use crate::journal::{self, Prepared};
use crate::log::{self, Level};
use crate::output;
use crate::progress::{Progress, Watched};
use crate::store::{self, Inserted, Stored};
use crate::thread::Thread;
use crate::wake::{self, OnCalls, Waking};

/// The largest content, in bytes: no larger row fits the database.
const MAX_CONTENT: u64 = 999_000_000;

/// Store an event, or a batch of them, and wake its consumers
///
/// Stores one event and prints its id. When this says yes (exit 0), the event survives power
/// loss. The JSONL copy is then brought up to date and consumers are woken; trouble with either
/// is a warning, because the event is stored and pushing it again would double it.
///
/// With --batch, stdin is NDJSON: an object a line with source, type, content and, if wanted,
/// subtype, metadata (an object) and idempotency_key. Other keys are ignored, so that `thread peek`
/// pipes into `thread push --batch`. The batch is stored whole or not at all; the number stored is
/// printed.
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
  jq -c '{source: \"ci\", type: \"record\", content: .}' build.jsonl |
    thread push --thread inbox --batch")]
pub struct Push {
    #[command(flatten)]
    thread: ThreadArg,
    /// Who sends it, e.g. external:telegram:tg-main:dm:alice:alice, internal:dm:default:bot or self
    #[arg(long, allow_hyphen_values = true)]
    source: Option<String>,
    /// message (between actors) or record (an actor's own trace)
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// A finer kind, e.g. toolcall or decision
    #[arg(long, allow_hyphen_values = true)]
    subtype: Option<String>,
    /// The payload; text that a shell may mangle, or long text, goes by --content-file
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
    /// Store it only once, however often it is pushed under this key
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    idempotency_key: Option<String>,
    /// Store many events, read as NDJSON from stdin
    #[arg(long)]
    batch: bool,
    /// Print what was stored as JSON
    #[arg(long)]
    json: bool,
}

impl Push {
    pub fn run(self) -> Result<()> {
        if self.batch { self.run_batch() } else { self.run_one() }
    }

    fn run_one(self) -> Result<()> {
        let path = self.thread.path()?;
        let as_json = self.json;
        let event = self.into_event()?;
        if let Some(form) = event.source_warning() {
            output::warn(format_args!(
                "the source '{}' does not fit the form {form}; stored as it is",
                event.source
            ));
        }
        let mut thread = Thread::open(&path)?;
        rotate_log(&thread);
        let on_calls = wake::put_on_call(&mut thread, &event);
        let mut before = None;
        let stored = append(&mut thread, |inserter| {
            if let Inserted::Before(event) = inserter.insert(&event)? {
                before = Some(*event);
            }
            Ok(())
        })?;
        let repeated = before.is_some();
        let stored = before
            .unwrap_or_else(|| event.row(stored.last_id.unwrap_or_default(), &stored.created_at).to_event());
        let again = if repeated { " repeated" } else { "" };
        thread.log(
            Level::Info,
            format_args!("push: source={} type={} id={}{again}", stored.source, stored.kind, stored.id),
        );
        let waking = finish(&mut thread, &event.source, on_calls, None);
        answered(if as_json { print_json(&stored, waking) } else { output::line(stored.id) });
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
        NewEvent::new(source, &kind, self.subtype.map(Into::into), content)
            .and_then(|event| match metadata {
                Some(json) => event.with_metadata(&json),
                None => Ok(event),
            })
            .and_then(|event| match self.idempotency_key {
                Some(key) => event.with_key(key),
                None => Ok(event),
            })
            .map_err(|unfit| {
                Failure::asked_wrongly(
                    format_args!("the event {unfit}"),
                    "see `thread push --help`; nothing was stored",
                )
            })
    }

    fn run_batch(self) -> Result<()> {
        let interruptible = Interruptible::begin(&interrupted(), self.json)?;
        let mut thread = self.thread.open()?;
        rotate_log(&thread);
        thread.store.leave_folding()?;
        let (stored, about, prepared) = store_batch(&mut thread, &interruptible)?;
        if let Some((count, line, form)) = about.odd_sources {
            output::warn(match count {
                1 => format!("the source on line {line} does not fit the form {form}; stored as it is"),
                _ => format!(
                    "{count} sources do not fit their form, first on line {line}: {form}; stored as they are"
                ),
            });
        }
        if let Some(last_source) = &about.last_source {
            thread.log(
                Level::Info,
                format_args!(
                    "push batch: count={} last_id={}",
                    stored.count,
                    stored.last_id.unwrap_or_default()
                ),
            );
            let fold = thread.store.wal_is_very_long().then(|| thread.files.db());
            std::thread::scope(|scope| {
                // Most of it is waiting for the disk. What does not succeed is left to the next process.
                if let Some(db) = fold {
                    let fold_back = move || store::fold_back(&db).ok();
                    drop(std::thread::Builder::new().spawn_scoped(scope, fold_back));
                }
                finish(&mut thread, last_source, OnCalls::default(), prepared);
            });
        }
        answered(if self.json {
            output::json(
                &json!({"count": stored.count, "first_id": stored.first_id, "last_id": stored.last_id}),
            )
        } else {
            output::line(stored.count)
        });
        Ok(())
    }
}

/// Stores what stdin holds. A file cannot keep anybody waiting, so it is read while it is stored.
fn store_batch(
    thread: &mut Thread,
    interruptible: &Interruptible,
) -> Result<(Stored, About, Option<Prepared>)> {
    let room = thread.dir().join("run");
    let (mut about, mut prepared) = (About::default(), None);
    let stdin = io::stdin();
    let stored = if let Some(size) = size_of_file(&stdin) {
        append(thread, |inserter| {
            let input = Watched::new(stdin, "storing the batch", Some(size));
            let (next, created_at) = inserter.next()?;
            prepared = Prepared::new(&room, next, created_at);
            let see = |event: &NewEvent<'_>| prepared.iter_mut().for_each(|prepared| prepared.add(event));
            about = batch::stream(input, see, |event| inserter.insert_soon(event))?;
            interruptible.settle();
            Ok(())
        })?
    } else {
        let mut batch = read_pipe(&stdin, &room)?;
        about = std::mem::take(&mut batch.about);
        if about.last_source.is_none() {
            return Ok((Stored::default(), about, None));
        }
        append(thread, |inserter| {
            let mut progress = Progress::of("storing the batch", Some(about.count));
            batch.for_each(|event| {
                progress.advance(1);
                inserter.insert_soon(event)
            })?;
            interruptible.settle();
            Ok(())
        })?
    };
    let prepared = prepared.and_then(|prepared| prepared.of(&stored));
    Ok((stored, about, prepared))
}

fn read_pipe(stdin: &io::Stdin, room: &Path) -> Result<Batch> {
    if stdin.is_terminal() {
        // Nothing is drawn between the lines that somebody types.
        return Batch::read(stdin.lock(), room);
    }
    Batch::read(Watched::new(stdin.lock(), "reading the batch", None), room)
}

fn interrupted() -> Failure {
    Failure::could_not("interrupted, nothing was stored", "push the whole batch again")
}

/// How much a file still holds, in bytes. None for what is no file.
fn size_of_file(stdin: &io::Stdin) -> Option<u64> {
    let about = rustix::fs::fstat(stdin).ok()?;
    let is_file = FileType::from_raw_mode(about.st_mode).is_file();
    let size = u64::try_from(about.st_size).unwrap_or(0);
    is_file.then(|| size.saturating_sub(rustix::fs::tell(stdin).unwrap_or(0)))
}

fn required(value: Option<String>, name: &str) -> Result<String> {
    value.ok_or_else(|| missing(name, &format!("--{name}")))
}

fn missing(name: &str, give: &str) -> Failure {
    Failure::asked_wrongly(
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
    read.or_fix(format_args!("cannot read the content from {name}"), "check the file; nothing was stored")?;
    if bytes.len() as u64 > MAX_CONTENT {
        return Err(Failure::could_not(
            format_args!("the content from {name} is larger than {MAX_CONTENT} bytes"),
            "store it in a file and push its path; nothing was stored",
        ));
    }
    String::from_utf8(bytes).map_err(|e| {
        Failure::asked_wrongly(
            format_args!("the content from {name} is not UTF-8 (byte {})", e.utf8_error().valid_up_to()),
            "encode it, for instance with base64; nothing was stored",
        )
    })
}

/// Step 1: store, all or nothing. Only this can make a push fail.
fn append(
    thread: &mut Thread,
    feed: impl FnOnce(&mut crate::store::Inserter<'_>) -> Result<()>,
) -> Result<Stored> {
    let stored = thread.store.append(feed);
    if let Err(failure) = &stored
        && failure.code == 1
    {
        thread.log(Level::Error, format_args!("push: {failure}"));
    }
    stored
}

/// Steps 2 and 3: the copy, then the consumers. What was stored stays stored, whatever happens.
fn finish(thread: &mut Thread, source: &str, on_calls: OnCalls, prepared: Option<Prepared>) -> Waking {
    if let Err(e) = journal::catch_up_with(&thread.files, &mut thread.store, prepared) {
        warn(
            thread,
            format!(
                "events.jsonl is behind: {e:#}; the event is stored, the next push brings the copy up to date"
            ),
        );
    }
    wake::wake(thread, source, on_calls).unwrap_or_else(|e| {
        warn(thread, format!("consumers were not woken: {e}; the event is stored"));
        Waking::Failed
    })
}

fn rotate_log(thread: &Thread) {
    if let Err(e) = log::rotate(&thread.files) {
        warn(thread, format!("logs/thread.log could not be rotated: {e}"));
    }
}

fn warn(thread: &Thread, text: String) {
    thread.log(Level::Warn, format_args!("push: {text}"));
    output::warn(text);
}

/// An answer that cannot be printed must not make the caller push again.
fn answered(printed: Result<()>) {
    if let Err(failure) = printed {
        output::warn(format_args!("{failure}; what was pushed is stored"));
    }
}

fn print_json(event: &Event, waking: Waking) -> Result<()> {
    let mut line = Vec::new();
    event.row().write_json(&mut line);
    line.pop();
    line.extend_from_slice(format!(",\"dispatch\":\"{}\"}}\n", waking.as_str()).as_bytes());
    output::bytes(&line).map(drop)
}

/// A JSON object of strings from `key=value` words.
fn object_of(words: &[String]) -> Result<String> {
    let wrong = |what: String| {
        Failure::asked_wrongly(what, "give --meta as key=value, each key once; nothing was stored")
    };
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
