//! A session as a client of this interface would show it: exchanges, folded from the events of its thread.
//!
//! Pure. The texts themselves are not kept, only their digests, and the beginning of each answer.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thread_conversation::{ClientInput, Entry, Message, Record};

use super::conversation::Exchange as Brought;
use super::pieces::{Piece, Shown};
use super::text::{Digest, digest, hex, normal, unhex};

/// The events that a path is made of.
pub const EVENTS: &str = "type = 'message' OR subtype IN ('run', 'token', 'model', 'turn_cut', 'toolcall', 'error', \
                          'cancelled', 'clear', 'forked')";

/// How much of an answer is kept, in characters of its normal form.
const HEAD: usize = 64;

/// The most exchanges of a path. A longer session is none that a client could continue.
const MOST: usize = 2000;

/// A session as its clients show it.
#[derive(Debug, Clone, Default)]
pub struct Path {
    /// The id up to which it was read.
    pub upto: i64,
    pub exchanges: Vec<Exchange>,
    /// There are more than are kept.
    pub is_too_long: bool,
    /// Of which `user` its requests were, and under which name of the client's.
    pub user: Option<String>,
    pub chat: Option<String>,
    /// The agent that its last request named.
    pub model: Option<String>,
    /// Whether any message came over this interface.
    pub is_ours: bool,
    /// The runs that have not ended, by their messages.
    open: BTreeMap<i64, Open>,
}

#[derive(Debug, Clone, Default)]
struct Open {
    shown: Shown,
    text: String,
}

/// A message and what was answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    /// The event of the message; of what the assistant said first, that event.
    pub message: i64,
    /// When that was stored.
    pub at: String,
    pub user: Option<Digest>,
    /// What the answer may look like: as it is stored, and as it was shown. Empty if there is none.
    pub forms: Vec<Digest>,
    /// The beginnings of these.
    heads: Vec<String>,
    /// The answer as a copy of the session has it.
    copied: Option<Digest>,
    pub is_open: bool,
    /// When it ended.
    pub ended_at: String,
    /// The digest of the request that brought it.
    pub body: Option<Digest>,
}

/// What a message says about the request that brought it: the key `openai` of its metadata.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct About {
    pub user: Option<String>,
    pub chat: Option<String>,
    pub body: Option<Digest>,
    /// What the client showed of the answer before it, if that was only its beginning.
    pub before: Option<Digest>,
    /// The name of the agent.
    pub model: Option<String>,
    /// The id of the response that it continues.
    pub previous: Option<String>,
    pub background: bool,
}

impl About {
    pub const KEY: &str = "openai";

    pub fn of(message: &Message) -> Option<About> {
        let about = message.other.get(About::KEY)?;
        let text = |key: &str| about[key].as_str().map(str::to_owned);
        let digest = |key: &str| about[key].as_str().and_then(unhex);
        Some(About {
            user: text("user"),
            chat: text("chat"),
            body: digest("body"),
            before: digest("before"),
            model: text("model"),
            previous: text("previous"),
            background: about["background"] == true,
        })
    }

    pub fn put(&self, metadata: &mut Map<String, Value>) {
        let mut about = Map::new();
        let digests = [("body", self.body), ("before", self.before)].map(|(key, of)| (key, of.map(hex)));
        let texts = [
            ("user", &self.user),
            ("chat", &self.chat),
            ("model", &self.model),
            ("previous", &self.previous),
        ];
        let texts = texts.map(|(key, of)| (key, of.clone()));
        for (key, value) in texts.into_iter().chain(digests) {
            about.extend(value.map(|value| (key.to_owned(), Value::from(value))));
        }
        if self.background {
            about.insert("background".to_owned(), true.into());
        }
        metadata.insert(About::KEY.to_owned(), about.into());
    }
}

impl Path {
    /// Takes in the next event. `ends` is the message whose run it ends.
    pub fn note(&mut self, record: &Record, ends: Option<i64>) {
        let id = record.id();
        self.upto = self.upto.max(id);
        for (message, open) in &mut self.open {
            for piece in open.shown.feed(record, ends == Some(*message)) {
                if let Piece::Text { text, is_new } = piece {
                    open.text.push_str(if is_new { "\n\n" } else { "" });
                    open.text.push_str(&text);
                }
            }
        }
        match &record.entry {
            Entry::Message(message) => self.message(record, message),
            // What the assistant said first, where a conversation was brought.
            Entry::Answer { answer, reply_to: None, began: None } if self.exchanges.is_empty() => {
                let mut exchange = Exchange::new(record);
                exchange.answered(&thread_conversation::text_of(&answer.content), &record.event.created_at);
                exchange.copied = exchange.forms.first().copied();
                self.exchanges.push(exchange);
            }
            Entry::Clear => {
                self.exchanges.clear();
                self.open.clear();
            }
            // What was copied is over, and was brought by other requests.
            Entry::Forked(_) => {
                self.open.clear();
                for exchange in &mut self.exchanges {
                    (exchange.is_open, exchange.body) = (false, None);
                }
            }
            entry => {
                let Some((of, ending)) = ends.zip(entry.ending()) else { return };
                let open = self.open.remove(&of).unwrap_or_default();
                let Some(exchange) = self.exchanges.iter_mut().rfind(|exchange| exchange.message == of)
                else {
                    return;
                };
                let said = match &record.entry {
                    Entry::Answer { answer, .. } => Some(thread_conversation::text_of(&answer.content)),
                    _ => ending.partial.map(str::to_owned),
                };
                exchange.answered(&said.unwrap_or_default(), &record.event.created_at);
                let is_answer = matches!(record.entry, Entry::Answer { .. });
                exchange.copied = exchange.forms.first().copied().filter(|_| is_answer);
                exchange.answered(&open.text, &record.event.created_at);
            }
        }
    }

    fn message(&mut self, record: &Record, message: &Message) {
        let about = About::of(message).unwrap_or_default();
        self.is_ours |= message.other.contains_key(About::KEY);
        self.user = self.user.take().or(about.user);
        self.chat = self.chat.take().or(about.chat);
        self.model = about.model.or(self.model.take());
        if let (Some(before), Some(last)) = (about.before, self.exchanges.last_mut()) {
            last.forms.push(before);
        }
        let id = record.id();
        let said = thread_conversation::text_of(&message.content);
        let mut exchange = Exchange::new(record);
        exchange.user = Some(digest(&normal(&said)));
        (exchange.is_open, exchange.body) = (true, about.body);
        self.is_too_long |= self.exchanges.len() >= MOST;
        if !self.is_too_long {
            self.exchanges.push(exchange);
            let mut shown = Shown::of(id, String::new());
            shown.feed(record, false);
            self.open.insert(id, Open { shown, text: String::new() });
        }
    }

    /// What an open run has said so far.
    pub fn said_so_far(&self, message: i64) -> &str {
        self.open.get(&message).map_or("", |open| &open.text)
    }
}

impl Exchange {
    fn new(record: &Record) -> Exchange {
        Exchange {
            message: record.id(),
            at: record.event.created_at.clone(),
            user: None,
            forms: Vec::new(),
            heads: Vec::new(),
            copied: None,
            is_open: false,
            ended_at: String::new(),
            body: None,
        }
    }

    fn answered(&mut self, text: &str, at: &str) {
        self.is_open = false;
        self.ended_at = at.to_owned();
        let text = normal(text);
        let form = digest(&text);
        if !text.is_empty() && !self.forms.contains(&form) {
            self.forms.push(form);
            self.heads.push(text.chars().take(HEAD).collect());
        }
    }

    /// Whether an answer in normal form may be the beginning of this one. That nothing was shown of it says little: it
    /// counts only while the run is open, and for a client that has named the conversation.
    pub fn may_begin_with(&self, beginning: &str, is_named: bool) -> bool {
        if beginning.is_empty() {
            return self.is_open && is_named;
        }
        self.is_open
            || self.heads.iter().any(|head| beginning.starts_with(&**head) || head.starts_with(beginning))
    }

    /// Whether a copy of this is what a client shows that brings an exchange.
    pub fn is_copied_as(&self, brought: &Brought) -> bool {
        let answer = brought.answer();
        !self.is_open && self.copied == (!answer.is_empty()).then(|| digest(&answer))
    }

    /// Whether a client that brings an exchange shows this one. Texts of users are not compared, unless there is
    /// nothing else.
    pub fn is_shown_by(&self, brought: &Brought) -> bool {
        match brought.answer() {
            none if none.is_empty() => {
                let shows_none = self.forms.is_empty() || self.forms.contains(&digest(""));
                shows_none && !self.is_open && self.user.is_some() && self.user == brought.user_digest()
            }
            answer => self.forms.contains(&digest(&answer)),
        }
    }
}

/// The parts of the input that an agent gets with a message, in addition to its tools.
pub fn instructions(texts: &[String]) -> Option<Value> {
    let about =
        |text: &String| serde_json::json!({ "description": "instructions of the client", "value": text });
    (!texts.is_empty()).then(|| texts.iter().map(about).collect())
}

/// A client's input with its tools and instructions.
pub fn handed(tools: Vec<Value>, texts: &[String]) -> ClientInput {
    let mut handed = ClientInput::default();
    if !tools.is_empty() {
        handed.0.insert(ClientInput::TOOLS.to_owned(), tools.into());
    }
    if let Some(context) = instructions(texts) {
        handed.0.insert(ClientInput::CONTEXT.to_owned(), context);
    }
    handed
}
