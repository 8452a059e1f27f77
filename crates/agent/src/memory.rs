//! What a model whose whole memory is the thread does next: a pure function of the thread's events.
//!
//! [`Memory`] is fed the events of a conversation in order. Pieces of answers need not be among them: prompts are made
//! of finished turns, of results of calls and of answers, so a turn that was cut off leaves nothing behind.

mod calls;
mod summary;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use self::calls::{Requested, prompt_of, requested};
pub use self::summary::Limits;
use self::summary::{Unit, covered, with_summary};
use crate::attachments;
use thread_conversation::{Entry, Message, ModelTurn, Record, STEERED, ToolCall, text_of};

/// What stands in a prompt for the answer to a message that got none: some models insist that user and assistant
/// take turns.
const NO_ANSWER: &str = "(no answer)";

/// What an attempt does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Ask the model for its next turn, with these messages. It is the attempt's turn of that number, counted from 1.
    Ask { messages: Vec<Value>, number: u64 },
    /// Ask the model for a summary of what was said up to this event, with these messages: the prompt is too long.
    Summarise { messages: Vec<Value>, upto: i64 },
    /// See to these calls of the last turn, which have no result yet.
    Call(Vec<DueCall>),
    /// Answer with this turn.
    Answer { turn: Box<ModelTurn>, message_id: Option<String> },
    /// End the run without an answer: the next message is to be seen before the next turn.
    Yield,
    /// There have been this many turns, which are all that there may be, and there is no answer.
    GiveUp(u64),
}

/// A call that has no result yet.
#[derive(Debug, Clone, PartialEq)]
pub struct DueCall {
    /// With null as arguments if they cannot be used.
    pub call: ToolCall,
    /// Why it cannot be made, for the model.
    pub hindrance: Option<String>,
    pub stage: Stage,
}

/// How far a call has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Nobody knows of it.
    New,
    /// Permission was asked for, under this id. With the answer, if there is one.
    Asked { request_id: String, choice: Option<String> },
    /// It was about to be made this many times, and may have been; the last event that says so.
    Begun { times: u64, event_id: i64 },
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
    summary: Option<Summary>,
    /// The answers to requests for permission, by the ids of the requests: the first of each that is one of its
    /// choices.
    permitted: BTreeMap<String, String>,
}

/// The newest summary.
#[derive(Debug, Clone)]
struct Summary {
    event_id: i64,
    /// The last event that it covers.
    upto: i64,
    text: String,
}

/// A message, and what was said in answer to it.
#[derive(Debug, Clone, Default)]
struct Exchange {
    said: String,
    has_begun: bool,
    /// The finished turns of all attempts.
    turns: Vec<Turn>,
    /// The results of calls as the model gets them, by the ids of the calls.
    results: BTreeMap<String, String>,
    /// How often a call was about to be made, and the last event that says so, by the call's id.
    made: BTreeMap<String, (u64, i64)>,
    /// The last attempt's requests for permission, with their choices, by the ids of the calls.
    asked: BTreeMap<String, (String, Vec<String>)>,
    /// How many turns of the last attempt were finished or cut off.
    tried: u64,
    ending: Option<Ending>,
}

/// A finished turn.
#[derive(Debug, Clone)]
struct Turn {
    turn: ModelTurn,
    /// The id that it was streamed under.
    message_id: Option<String>,
    calls: Vec<Requested>,
    /// The last event that belongs to it: the last result of a call, once all have one.
    end: i64,
}

#[derive(Debug, Clone)]
struct Ending {
    event_id: i64,
    /// The answer, or what had been said of it.
    text: Option<String>,
    is_answer: bool,
    /// The run ended between two turns: see [`Step::Yield`].
    has_yielded: bool,
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
                    exchange.asked.clear();
                    self.begun = Some((*reply_to, record.run_id.clone()));
                }
            }
            Entry::Model { turn, message_id } => {
                if let Some(exchange) = self.exchange_of(record) {
                    let (turn, message_id, calls) = (turn.clone(), message_id.clone(), requested(id, turn));
                    exchange.turns.push(Turn { turn, message_id, calls, end: id });
                    exchange.tried += 1;
                }
            }
            Entry::ToolCall(call) => {
                if let Some(exchange) = self.exchange_of(record) {
                    let (times, event_id) = exchange.made.entry(call.call_id.clone()).or_default();
                    (*times, *event_id) = (*times + 1, id);
                }
            }
            Entry::ToolResult(result) => {
                if let Some(exchange) = self.exchange_of(record) {
                    exchange.results.entry(result.call_id.clone()).or_insert_with(|| calls::text(result));
                    if let Some(turn) = exchange.turns.last_mut() {
                        turn.end = id;
                    }
                }
            }
            Entry::Permission(asked) => {
                if let (Some(exchange), Some(call_id)) = (self.exchange_of(record), &asked.call_id) {
                    let choices = asked.choices.iter().map(|choice| choice.id.clone()).collect();
                    exchange.asked.insert(call_id.clone(), (asked.request_id.clone(), choices));
                }
            }
            Entry::PermissionAnswer(answer) => {
                let asks = |exchange: &Exchange| {
                    let mut asked = exchange.asked.values();
                    asked.any(|(id, choices)| *id == answer.request_id && choices.contains(&answer.choice))
                };
                if self.exchanges.values().any(asks) {
                    self.permitted.entry(answer.request_id.clone()).or_insert(answer.choice.clone());
                }
            }
            Entry::TurnCut { .. } => {
                if let Some(exchange) = self.exchange_of(record) {
                    exchange.tried += 1;
                }
            }
            Entry::Summary { text, upto } => {
                if self.summary.as_ref().is_none_or(|before| before.upto < *upto) {
                    self.summary = Some(Summary { event_id: id, upto: *upto, text: text.clone() });
                }
            }
            Entry::Clear => (self.cleared, self.summary) = (id, None),
            // Messages that were copied without an answer get none here either.
            Entry::Forked(_) => {
                for (at, exchange) in &mut self.exchanges {
                    let none = Ending { event_id: *at, text: None, is_answer: false, has_yielded: false };
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
                let has_yielded = matches!(
                    entry,
                    Entry::Answer { answer, .. } if answer.stage.as_deref() == Some(STEERED)
                );
                if let Some(exchange) = self.exchanges.get_mut(&of) {
                    let ending = Ending { event_id: id, text, is_answer, has_yielded };
                    exchange.ending.get_or_insert(ending);
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
    pub fn next(&self, message: i64, limits: Limits) -> Option<Step> {
        let current = self.exchanges.get(&message)?;
        if let Some(Turn { turn, message_id, calls, .. }) = current.turns.last() {
            let taken = u64::try_from(current.turns.len()).unwrap_or(u64::MAX);
            let due =
                || calls.iter().filter(|requested| !current.results.contains_key(&requested.call.call_id));
            if calls.is_empty() {
                return Some(Step::Answer { turn: Box::new(turn.clone()), message_id: message_id.clone() });
            }
            if taken >= limits.turns {
                return Some(Step::GiveUp(taken));
            }
            if due().next().is_some() {
                let due = due().map(|Requested { call, hindrance, .. }| DueCall {
                    call: call.clone(),
                    hindrance: hindrance.clone(),
                    stage: self.stage(current, &call.call_id),
                });
                return Some(Step::Call(due.collect()));
            }
            if limits.yields {
                return Some(Step::Yield);
            }
        }
        let past = self.exchanges.range(self.cleared + 1..).filter(|(id, _)| **id != message);
        let mut past: Vec<(i64, &Exchange)> = past
            .filter_map(|(_, exchange)| Some((exchange.ending.as_ref()?.event_id, exchange)))
            // What was withdrawn before the model saw it was never said.
            .filter(|(_, exchange)| exchange.has_begun || exchange.is_answered())
            .collect();
        // In the order in which they were answered.
        past.sort_by_key(|(ended, _)| *ended);
        let upto = self.covered_upto();
        let past = past.into_iter().map(|(end, exchange)| {
            let messages = [user(&exchange.said)].into_iter().chain(exchange.answer()).collect();
            Unit { end, messages }
        });
        let turns =
            current.turns.iter().map(|turn| Unit { end: turn.end, messages: current.prompt_of(turn) });
        let [past, turns]: [Vec<Unit>; 2] = [past.collect(), turns.collect()];
        let [past, turns] =
            [past, turns].map(|units| units.into_iter().filter(|unit| unit.end > upto).collect::<Vec<_>>());
        let summary = self.summary.as_ref().map(|summary| summary.text.as_str());
        if let Some((upto, messages)) = covered(&past, &turns, &current.said, summary, limits) {
            return Some(Step::Summarise { messages, upto });
        }
        let said = |units: Vec<Unit>| units.into_iter().flat_map(|unit| unit.messages);
        let messages = said(past).chain([user(&current.said)]).chain(said(turns)).collect();
        Some(Step::Ask { messages: with_summary(messages, summary), number: current.tried + 1 })
    }

    /// The first event that a later prompt may need. `cleared` is the newest request to forget what was before, which
    /// may itself not be among the events; 0 if there is none. Messages that nobody has begun to answer are left to the
    /// consumer's cursor.
    pub fn needed_from(&self, cleared: i64) -> i64 {
        let cleared = self.cleared.max(cleared);
        let known = self.summary.as_ref().map_or(cleared, |summary| summary.event_id);
        if known == 0 {
            return 1;
        }
        let is_needed = |id: i64, exchange: &Exchange| match &exchange.ending {
            None => exchange.has_begun,
            Some(ending) => id > cleared && ending.event_id > self.covered_upto(),
        };
        let needed = self.exchanges.iter().filter(|(id, exchange)| is_needed(**id, exchange));
        needed.map(|(id, _)| *id).chain([known]).min().unwrap_or(known)
    }

    fn covered_upto(&self) -> i64 {
        self.summary.as_ref().map_or(0, |summary| summary.upto)
    }

    fn stage(&self, exchange: &Exchange, call_id: &str) -> Stage {
        if let Some(&(times, event_id)) = exchange.made.get(call_id) {
            return Stage::Begun { times, event_id };
        }
        match exchange.asked.get(call_id) {
            Some((request_id, _)) => Stage::Asked {
                request_id: request_id.clone(),
                choice: self.permitted.get(request_id).cloned(),
            },
            None => Stage::New,
        }
    }
}

impl Exchange {
    fn is_answered(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.is_answer)
    }

    /// The assistant's side of an exchange that is over.
    fn answer(&self) -> Vec<Value> {
        let text = self.ending.as_ref().and_then(|ending| ending.text.as_deref());
        let spoken = |text: &str| json!({ "role": "assistant", "content": text });
        // Another agent may have given the answer.
        let has_yielded = self.ending.as_ref().is_some_and(|ending| ending.has_yielded);
        let is_models = |last: &Turn| match self.is_answered() && !has_yielded {
            true => last.calls.is_empty() && text.unwrap_or_default() == last.turn.text(),
            false => true,
        };
        match self.turns.last() {
            Some(last) if is_models(last) => {
                let mut said = self.turns_so_far();
                // Some models insist on a word of theirs between results and the next message.
                said.extend((!last.calls.is_empty()).then(|| spoken(NO_ANSWER)));
                said
            }
            _ => vec![spoken(text.unwrap_or(NO_ANSWER))],
        }
    }

    /// The turns as the model sent them, with the results of their calls.
    fn turns_so_far(&self) -> Vec<Value> {
        self.turns.iter().flat_map(|turn| self.prompt_of(turn)).collect()
    }

    fn prompt_of(&self, turn: &Turn) -> Vec<Value> {
        prompt_of(&turn.turn, &turn.calls, &self.results)
    }
}

fn user(said: &str) -> Value {
    json!({ "role": "user", "content": said })
}

/// The text of a message, with the names of its files: a model that is given no tools cannot open them.
pub fn said(message: &Message) -> String {
    let mut text = text_of(&message.content);
    for name in attachments::names(&message.other) {
        let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        text.push_str(&format!("{separator}Attached, but not shown to you: {name}\n"));
    }
    text
}

#[cfg(test)]
mod tests;
