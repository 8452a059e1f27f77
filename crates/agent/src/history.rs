//! The whole conversation in a thread, for an agent that is given it with each message.
//!
//! The messages have the ids that they have had before: an agent that remembers them knows which of them are new.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use serde_json::{Value, json};
use thread::model::filter::{Filter, Scope};
use thread::queue::{Remaining, Selection};
use thread::{Event, Queue, Result};

use crate::memory::said;
use thread_conversation::{Entry, Outcome, Record, is_ending, text_of};

/// The events that a conversation is made of.
const EVENTS: &str = "type = 'message' OR subtype IN ('run', 'messages', 'error', 'cancelled', 'forked', 'state', \
                      'state_delta')";

/// The longest conversation, in bytes. The oldest messages of a longer one are left out.
const LONGEST: usize = 8 * 1024 * 1024;

/// A message, and what was said in answer to it.
#[derive(Debug, Default)]
struct Exchange {
    said: String,
    has_begun: bool,
    /// The agent's messages of the last attempt.
    messages: Vec<Value>,
    /// The event that ended it.
    ended: Option<i64>,
}

/// Returns what was said after the event `cleared`, as messages of AG-UI, up to the message `last`, and the state that
/// the agent and its client have shared.
///
/// # Errors
///
/// Those of the database.
pub fn history(queue: &mut Queue, cleared: i64, last: i64) -> Result<(Vec<Value>, Value)> {
    let filter = Filter::new(EVENTS, Scope::Reading)?;
    let mut selection = Selection { after: cleared.min(last - 1), limit: None, filter };
    let mut exchanges: BTreeMap<i64, Exchange> = BTreeMap::new();
    let (mut begun, mut state) = (0, Value::Null);
    loop {
        let mut page: Vec<Event> = Vec::new();
        let remaining = queue.read_page(&mut selection, &mut |row| {
            page.push(row.to_event());
            ControlFlow::Continue(())
        })?;
        for event in page {
            let record = Record::of(event);
            let id = record.id();
            let ends = record.entry.ends().filter(|of| exchanges.contains_key(of));
            match record.entry {
                Entry::Message(message) => {
                    exchanges.insert(id, Exchange { said: said(&message), ..Exchange::default() });
                }
                Entry::RunStarted { reply_to: Some(of), .. } => {
                    begun = of;
                    if let Some(exchange) = exchanges.get_mut(&of) {
                        (exchange.has_begun, exchange.messages) = (true, Vec::new());
                    }
                }
                Entry::Messages(messages) => {
                    if let Some(exchange) = exchanges.get_mut(&begun) {
                        exchange.messages = messages;
                    }
                }
                // A message that was copied without an answer gets none here either.
                Entry::Forked(_) => exchanges.values_mut().for_each(|exchange| {
                    exchange.has_begun = true;
                    exchange.ended.get_or_insert(id);
                }),
                Entry::State(new) => state = new,
                Entry::StateDelta(delta) => {
                    // One that does not fit was refused when it came, or is another agent's.
                    let patch = serde_json::from_value::<json_patch::Patch>(delta);
                    drop(patch.map(|patch| json_patch::patch(&mut state, &patch)));
                }
                entry => {
                    let Some((of, ending)) = ends.zip(entry.ending()) else { continue };
                    if !is_ending(queue, id, &entry)? {
                        continue;
                    }
                    let is_answer = ending.outcome == Outcome::Answered;
                    let text = if is_answer { Some(ending.text) } else { ending.partial };
                    let text = text.map(text_of).filter(|text| !text.is_empty());
                    let Some(exchange) = exchanges.get_mut(&of) else { continue };
                    exchange.ended.get_or_insert(id);
                    exchange.has_begun |= is_answer;
                    if !is_answer || exchange.messages.is_empty() {
                        let spoken = |text| json!({ "id": format!("msg_{of}_answer"), "role": "assistant", "content": text });
                        exchange.messages = text.map(spoken).into_iter().collect();
                    }
                }
            }
        }
        if remaining == Remaining::None {
            break;
        }
    }
    let current = exchanges.remove(&last).unwrap_or_default();
    let mut past: Vec<(i64, i64, Exchange)> = exchanges
        .into_iter()
        // What was withdrawn before the agent saw it was never said.
        .filter(|(id, exchange)| *id > cleared && exchange.has_begun)
        .filter_map(|(id, exchange)| Some((exchange.ended?, id, exchange)))
        .collect();
    // In the order in which they were answered.
    past.sort_by_key(|(ended, id, _)| (*ended, *id));
    let user = |id: i64, said: String| json!({ "id": format!("msg_{id}"), "role": "user", "content": said });
    let (mut messages, mut left) = (VecDeque::from([user(last, current.said)]), LONGEST);
    for (_, id, exchange) in past.into_iter().rev() {
        let exchange = [user(id, exchange.said)].into_iter().chain(exchange.messages).collect::<Vec<_>>();
        let size = exchange.iter().map(|message| message.to_string().len()).sum();
        let Some(less) = left.checked_sub(size) else { break };
        left = less;
        exchange.into_iter().rev().for_each(|message| messages.push_front(message));
    }
    Ok((messages.into(), state))
}
