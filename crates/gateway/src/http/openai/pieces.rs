//! What clients of OpenAI's interfaces get of a run: pieces of text and reasoning, calls of their own tools, and the
//! end.
//!
//! Folded from the events from the message on, through [`RunView`]. What comes out depends on them alone, so a stream
//! that is picked up continues exactly where it was cut, and what a client was shown is known later.

use serde_json::Value;
use thread_conversation::{Change, Entry, Outcome, Permission, Record, RunView, Status, text_of};

/// A piece of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Text of the answer. `is_new`: it does not continue the text before it.
    Text {
        text: String,
        is_new: bool,
    },
    /// What the agent thinks or does, for people.
    Reasoning(String),
    /// A call of one of the client's tools: what is shown of the run ends with it.
    Call {
        name: String,
        arguments: String,
    },
    /// The attempt has failed, or was cut off; another follows.
    Failed(String),
    End(End),
}

/// How a run ends.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    Answered { cut: bool },
    Cancelled(String),
    Failed(String),
}

/// How many tokens a run has used, as far as the agent says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    pub input: u64,
    pub output: u64,
    pub total: u64,
}

/// What a run has shown so far.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    view: RunView,
    subject: i64,
    /// What was streamed in this attempt, and of that, since the last call.
    streamed: String,
    segment: String,
    /// Whether the next text does not continue the one before it.
    breaks: bool,
    /// Whether any text was shown.
    has_text: bool,
    pub used: Option<Used>,
    cut: bool,
    /// Where people answer requests for permission.
    link: String,
}

impl Shown {
    /// Of the run of a message, or the one that the agent has begun itself with that event. `link` is the address of
    /// the session.
    pub fn of(subject: i64, link: String) -> Shown {
        Shown { view: RunView::of(subject), subject, link, ..Shown::default() }
    }

    pub fn has_started(&self) -> bool {
        self.view.has_started()
    }

    /// Takes in the next record, and says what is shown of it. `is_ending`: it ends this run.
    pub fn feed(&mut self, record: &Record, is_ending: bool) -> Vec<Piece> {
        if record.id() < self.subject {
            return Vec::new();
        }
        self.view.begin(record);
        if is_ending {
            return self.end(record);
        }
        if let Entry::Model { turn, .. } = &record.entry
            && self.view.has(record)
        {
            self.cut = turn.finish_reason == "length";
            self.use_tokens(&turn.usage);
        }
        let for_client = record.for_client;
        let piece = match self.view.apply(record) {
            Some(Change::Text { text, .. }) => {
                self.streamed.push_str(text);
                self.segment.push_str(text);
                let text = text.to_owned();
                Some(self.text(text))
            }
            Some(Change::Thinking(text)) => Some(Piece::Reasoning(text.to_owned())),
            Some(Change::Called { call, is_new: true, .. }) => {
                let (name, arguments) = (call.name.clone(), written(&call.arguments));
                let title = call.title.clone().unwrap_or_else(|| format!("{name} {arguments}"));
                self.breaks = true;
                self.segment.clear();
                Some(match for_client {
                    true => Piece::Call { name, arguments },
                    false => Piece::Reasoning(format!("\n[{title}]\n")),
                })
            }
            Some(Change::Asked(asked)) => {
                let text = asks(asked, &self.link);
                Some(Piece::Reasoning(text))
            }
            Some(Change::Status(Status::Waiting)) => {
                Some(Piece::Reasoning("Waiting until fewer agents are running.\n".to_owned()))
            }
            Some(Change::AttemptFailed { error, .. }) => {
                let error = error.to_owned();
                self.begin_again();
                Some(Piece::Failed(error))
            }
            Some(Change::Attempt { .. }) if !self.streamed.is_empty() => {
                self.begin_again();
                Some(Piece::Failed("it was cut off".to_owned()))
            }
            _ => None,
        };
        Vec::from_iter(piece)
    }

    fn text(&mut self, text: String) -> Piece {
        let is_new = std::mem::take(&mut self.breaks) && self.has_text;
        self.has_text = true;
        Piece::Text { text, is_new }
    }

    fn begin_again(&mut self) {
        self.streamed.clear();
        self.segment.clear();
        self.breaks = true;
    }

    fn use_tokens(&mut self, usage: &Value) {
        let number = |names: [&str; 2]| names.iter().find_map(|name| usage[*name].as_u64());
        let input = number(["prompt_tokens", "input_tokens"]);
        let output = number(["completion_tokens", "output_tokens"]);
        if let (Some(input), Some(output)) = (input, output) {
            let before = self.used.unwrap_or_default();
            let (input, output) = (before.input + input, before.output + output);
            self.used = Some(Used { input, output, total: input + output });
        }
    }

    fn end(&mut self, record: &Record) -> Vec<Piece> {
        let Some(ending) = record.entry.ending() else { return Vec::new() };
        let mut pieces = Vec::new();
        let end = match ending.outcome {
            Outcome::Cancelled => End::Cancelled(ending.text.to_owned()),
            Outcome::Failed => End::Failed(ending.text.to_owned()),
            Outcome::Answered => {
                if let Entry::Answer { answer, .. } = &record.entry
                    && let Some(total) = answer.total_tokens.filter(|_| self.used.is_none())
                {
                    // How many of them were of the prompt is not known.
                    self.used = Some(Used { input: 0, output: total, total });
                }
                let rest = self.rest_of(&text_of(ending.text));
                pieces.extend(rest.map(|text| self.text(text)));
                End::Answered { cut: self.cut }
            }
        };
        pieces.push(Piece::End(end));
        pieces
    }

    /// What of an answer was not streamed. One that differs from what was streamed is shown whole.
    fn rest_of(&mut self, answer: &str) -> Option<String> {
        let said = || [&self.streamed, &self.segment].into_iter();
        if said().any(|said| !said.is_empty() && said.trim() == answer.trim()) {
            return None;
        }
        let streamed = said().find(|said| answer.starts_with(said.as_str()));
        let rest = match streamed {
            Some(said) => &answer[said.len()..],
            None => {
                self.breaks = true;
                answer
            }
        };
        (!rest.is_empty()).then(|| rest.to_owned())
    }
}

/// A request for permission, for people.
fn asks(asked: &Permission, link: &str) -> String {
    let title = if asked.title.is_empty() { "The agent asks for permission." } else { &asked.title };
    format!("\nPermission is needed: {title}\nAnswer at {link}\n")
}

/// The arguments of a call, as the JSON text of an object.
fn written(arguments: &Value) -> String {
    if arguments.is_null() { "{}".to_owned() } else { arguments.to_string() }
}
