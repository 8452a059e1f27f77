//! The options that describe one event: source, type, content and metadata.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::Utc;
use clap::{Args, ValueHint};

use super::stdin::{self, NoteIfSlow};
use super::{capture, environment, output};
use crate::error::Code;
use crate::failure::{Result, WithHint, failed, usage};
use crate::model::due::Due;
use crate::model::duration;
use crate::model::event::{Defaults, NewEvent, Type};
use crate::model::location::Location;
use crate::queue::scheduled::local_zone;

/// The largest content, in bytes: SQLite allows no larger row.
const MAX_CONTENT: u64 = 999_000_000;

#[derive(Args)]
pub struct EventArgs {
    /// The payload: any size, byte for byte, UTF-8; - or, if stdin is a pipe or
    /// a file, nothing to read it from there
    #[arg(value_name = "TEXT", conflicts_with_all = ["content", "content_file"])]
    text: Option<String>,
    /// Who sends it, e.g. self, internal:dm:default:bot or external:telegram:tg-main:dm:alice:alice
    /// [default: you, or in a handler self]
    ///
    /// The default is internal:dm:default:USER, with your name. In a handler it is self, but into another
    /// thread internal:dm:THREAD:CONSUMER, with the handler's own.
    #[arg(long, allow_hyphen_values = true)]
    source: Option<String>,
    /// message (between actors) or record (an actor's own trace) [default: message]
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// A finer kind, e.g. toolcall or decision
    #[arg(long, allow_hyphen_values = true)]
    subtype: Option<String>,
    /// The payload as an option; - is not special
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, hide = true)]
    content: Option<String>,
    /// Read the payload from a file, or - for stdin
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with = "content")]
    content_file: Option<PathBuf>,
    /// A metadata field, as a string; may be repeated
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "metadata")]
    meta: Vec<String>,
    /// Metadata as a JSON object
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    metadata: Option<String>,
    /// Consumers skip it once it is this old
    ///
    /// That is, those that were not given it by then. It stays stored, with expires_at in its metadata. If it is
    /// scheduled, its age counts from when it is due.
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub expires: Option<Duration>,
    /// Store it once, however often it is pushed
    ///
    /// That is, under this key.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    idempotency_key: Option<String>,
}

impl EventArgs {
    /// The event for `thread` that the options and the content describe. `reply_to` is the id of the event it
    /// answers; `due`: when it is to become an event, if it is scheduled.
    pub fn into_event(
        self,
        thread: &Location,
        reply_to: Option<i64>,
        due: Option<Due>,
    ) -> Result<NewEvent<'static>> {
        // First, so that invalid options fail before stdin is read.
        let event = self.without_content(thread)?;
        let mut event = NewEvent { content: self.content()?.into(), ..event };
        if let Some(id) = reply_to {
            event = event.with_reply_to(id)?;
        }
        if let Some(due) = due {
            event = event.with_due(due)?;
        }
        if let Some(after) = self.expires {
            event = event.with_expiry(after, Utc::now())?;
        }
        if let Some(key) = self.idempotency_key {
            event = event.with_key(key)?;
        }
        Ok(event)
    }

    /// The event that the options describe, without its content and key, and without its expiry.
    pub fn without_content(&self, thread: &Location) -> Result<NewEvent<'static>> {
        let source = self.source.clone().unwrap_or_else(|| environment::default_source(thread));
        let kind = self.kind.as_deref().unwrap_or(Type::Message.as_str());
        if Type::parse(kind).is_none() {
            return usage(
                format_args!("the type '{}' is neither message nor record", output::plain(kind)),
                "a finer kind is a subtype: --type record --subtype <KIND>; nothing was stored",
            );
        }
        let subtype = self.subtype.clone().map(Into::into);
        let event = NewEvent::new(source, kind, subtype, "")?;
        let metadata = match &self.meta[..] {
            [] => self.metadata.clone(),
            words => Some(object_of(words)?),
        };
        Ok(match metadata {
            Some(json) => event.with_metadata(&json)?,
            None => event,
        })
    }

    /// Defaults for the lines of a batch.
    pub fn defaults(self, thread: &Location) -> Defaults {
        Defaults {
            source: Some(self.source.unwrap_or_else(|| environment::default_source(thread))),
            kind: Some(self.kind.unwrap_or_else(|| Type::Message.as_str().to_owned())),
            subtype: self.subtype,
            due: None,
            expires: self.expires,
            zone: Some(local_zone()),
        }
    }

    fn content(&self) -> Result<String> {
        if self.content.as_deref() == Some("-") && stdin::is_a_pipe() {
            output::warn("--content - is stored as a hyphen; `thread push -` reads the content from stdin");
        }
        match (self.text.as_deref(), &self.content_file, &self.content) {
            (Some("-"), ..) => read_content(Path::new("-")),
            (_, Some(file), _) => read_content(file),
            (Some(text), ..) => Ok(text.to_owned()),
            (.., Some(text)) => Ok(text.clone()),
            (None, None, None) => {
                let piped = if stdin::is_given() { read_content(Path::new("-"))? } else { String::new() };
                if !piped.is_empty() {
                    return Ok(piped);
                }
                // Nobody who gave no content meant an empty one.
                usage(
                    "the event has no content",
                    "give it as an argument, or - to read it from stdin; nothing was stored",
                )
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a file that the caller names")]
fn read_content(path: &Path) -> Result<String> {
    let from_stdin = path.as_os_str() == "-";
    let name = if from_stdin { "stdin".into() } else { path.to_string_lossy() };
    let mut bytes = Vec::new();
    let read = if let Some(input) = capture::take_input().filter(|_| from_stdin) {
        bytes = input;
        Ok(bytes.len())
    } else if from_stdin {
        NoteIfSlow::new("waiting for stdin, which is to be the event's content").before_read();
        environment::stdin().lock().take(MAX_CONTENT + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(MAX_CONTENT + 1).read_to_end(&mut bytes))
    };
    read.with_hint(
        format_args!("cannot read the content from {name}"),
        "check the file; nothing was stored",
    )?;
    if from_stdin && bytes.is_empty() && stdin::is_closed() {
        return failed(
            Code::Io,
            "cannot read the content from stdin, which is closed or not connected to anything",
            "give it a file or a pipe, or store an empty event with --content ''; nothing was stored",
        );
    }
    if bytes.len() as u64 > MAX_CONTENT {
        return failed(
            Code::TooLarge,
            format_args!("the content from {name} is larger than {MAX_CONTENT} bytes"),
            "store it in a file and push its path; nothing was stored",
        );
    }
    String::from_utf8(bytes).or_else(|e| {
        usage(
            format_args!("the content from {name} is not UTF-8 (byte {})", e.utf8_error().valid_up_to()),
            "encode it, for instance with base64; nothing was stored",
        )
    })
}

/// A JSON object of strings from `key=value` words.
fn object_of(words: &[String]) -> Result<String> {
    let wrong = |what: String| usage(what, "give --meta as key=value, each key once; nothing was stored");
    let mut object = serde_json::Map::new();
    for word in words {
        let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return wrong(format!("--meta '{word}' is not of the form key=value"));
        };
        if object.insert(key.to_owned(), value.into()).is_some() {
            return wrong(format!("--meta names '{key}' twice"));
        }
    }
    Ok(serde_json::Value::Object(object).to_string())
}
