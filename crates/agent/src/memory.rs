//! What a model whose whole memory is the thread does next: a pure function of the thread's events.
//!
//! [`Memory`] is fed the events of a conversation in order. Pieces of answers need not be among them: prompts are made
//! of finished turns and of answers, so a turn that was cut off leaves nothing behind.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::attachments;
use thread_conversation::{Entry, Message, ModelTurn, Record, text_of};

/// What stands in a prompt for the answer to a message that got none: some models insist that user and assistant
/// take turns.
const NO_ANSWER: &str = "(no answer)";

/// What an attempt does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Ask the model for its next turn, with these messages. It is the attempt's turn of that number, counted from 1.
    Ask { messages: Vec<Value>, number: u64 },
    /// Answer with this turn.
    Answer { turn: Box<ModelTurn>, message_id: Option<String> },
}

/// A conversation, as far as its prompts depend on it.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// What was said up to this event is forgotten.
    cleared: i64,
    /// By the ids of the messages.
    exchanges: BTreeMap<i64, Exchange>,
    /// The message whose attempt began last, with the id of its run.
    begun: Option<(i64, Option<String>)>,
}

/// A message, and what was said in answer to it.
#[derive(Debug, Clone, Default)]
struct Exchange {
    said: String,
    has_begun: bool,
    /// The finished turns of all attempts, with the ids that they were streamed under.
    turns: Vec<(ModelTurn, Option<String>)>,
    /// How many turns of the last attempt were finished or cut off.
    tried: u64,
    ending: Option<Ending>,
}

#[derive(Debug, Clone)]
struct Ending {
    event_id: i64,
    /// The answer, or what had been said of it.
    text: Option<String>,
    is_answer: bool,
}

impl Memory {
    /// Takes in the next event. `is_ending` says whether it is the ending that it looks like.
    pub fn note(&mut self, record: &Record, is_ending: bool) {
        let id = record.id();
        match &record.entry {
            Entry::Message(message) => {
                let exchange = Exchange { said: said(message), ..Exchange::default() };
                self.exchanges.insert(id, exchange);
            }
            Entry::RunStarted { reply_to: Some(reply_to), .. } => {
                if let Some(exchange) = self.exchanges.get_mut(reply_to) {
                    (exchange.has_begun, exchange.tried) = (true, 0);
                    self.begun = Some((*reply_to, record.run_id.clone()));
                }
            }
            Entry::Model { turn, message_id } => {
                if let Some(exchange) = self.exchange_of(record) {
                    exchange.turns.push((turn.clone(), message_id.clone()));
                    exchange.tried += 1;
                }
            }
            Entry::TurnCut { .. } => {
                if let Some(exchange) = self.exchange_of(record) {
                    exchange.tried += 1;
                }
            }
            Entry::Clear => self.cleared = id,
            // Messages that were copied without an answer get none here either.
            Entry::Forked(_) => {
                for (at, exchange) in &mut self.exchanges {
                    let none = Ending { event_id: *at, text: None, is_answer: false };
                    exchange.has_begun = true;
                    exchange.ending.get_or_insert(none);
                }
            }
            entry => {
                let ended = entry.ends().filter(|_| is_ending).zip(entry.ending());
                let Some((of, ending)) = ended else { return };
                let is_answer = ending.outcome == thread_conversation::Outcome::Answered;
                let text = if is_answer { Some(ending.text) } else { ending.partial };
                let text = text.map(text_of).filter(|text| !text.is_empty());
                if let Some(exchange) = self.exchanges.get_mut(&of) {
                    exchange.ending.get_or_insert(Ending { event_id: id, text, is_answer });
                }
            }
        }
    }

    /// The exchange that a record belongs to: that whose attempt began last, if it has the same run id.
    fn exchange_of(&mut self, record: &Record) -> Option<&mut Exchange> {
        let (of, run_id) = self.begun.as_ref()?;
        (*run_id == record.run_id).then(|| self.exchanges.get_mut(of)).flatten()
    }

    /// What the run of this message does next; `None` if there is no such message.
    pub fn next(&self, message: i64) -> Option<Step> {
        let current = self.exchanges.get(&message)?;
        if let Some((turn, message_id)) = current.turns.last() {
            return Some(Step::Answer { turn: Box::new(turn.clone()), message_id: message_id.clone() });
        }
        let past = self.exchanges.range(self.cleared + 1..).filter(|(id, _)| **id != message);
        let mut past: Vec<(i64, &Exchange)> = past
            .filter_map(|(_, exchange)| Some((exchange.ending.as_ref()?.event_id, exchange)))
            // What was withdrawn before the model saw it was never said.
            .filter(|(_, exchange)| exchange.has_begun || exchange.is_answered())
            .collect();
        // In the order in which they were answered.
        past.sort_by_key(|(ended, _)| *ended);
        let mut messages = Vec::new();
        for (_, exchange) in past {
            messages.push(user(&exchange.said));
            messages.extend(exchange.answer());
        }
        messages.push(user(&current.said));
        Some(Step::Ask { messages, number: current.tried + 1 })
    }
}

impl Exchange {
    fn is_answered(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.is_answer)
    }

    /// The assistant's side of an exchange that is over.
    fn answer(&self) -> Vec<Value> {
        let text = self.ending.as_ref().and_then(|ending| ending.text.as_deref());
        // Another agent may have given the answer.
        let is_models =
            |(turn, _): &(ModelTurn, _)| !self.is_answered() || text.unwrap_or_default() == turn.text();
        match self.turns.last() {
            Some(last) if is_models(last) => self.turns.iter().map(|(turn, _)| verbatim(turn)).collect(),
            _ => vec![json!({ "role": "assistant", "content": text.unwrap_or(NO_ANSWER) })],
        }
    }
}

/// The message of a turn as the model sent it.
fn verbatim(turn: &ModelTurn) -> Value {
    let mut message = turn.message.clone();
    // A call without a result is refused, and there are no tools that could have given one.
    message.shift_remove("tool_calls");
    if message.get("content").is_none_or(Value::is_null) {
        message.insert("content".to_owned(), "".into());
    }
    Value::Object(message)
}

fn user(said: &str) -> Value {
    json!({ "role": "user", "content": said })
}

/// The text of a message, with the names of its files: a model that is given no tools cannot open them.
fn said(message: &Message) -> String {
    let mut text = text_of(&message.content);
    for name in attachments::names(&message.other) {
        let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        text.push_str(&format!("{separator}Attached, but not shown to you: {name}\n"));
    }
    text
}

#[cfg(test)]
mod tests;
