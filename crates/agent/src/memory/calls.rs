//! The calls in a model's turn, and what a prompt has of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use thread_conversation::{ModelTurn, ToolCall, ToolResult};

/// How many calls of one turn are made.
const MOST: usize = 128;

/// How much of arguments that cannot be read is told to the model, in bytes.
const SHOWN: usize = 500;

/// What a prompt has as the result of a call that was never made.
const NOT_MADE: &str = "Error: the call was not made";

/// A call that a model wants to make.
#[derive(Debug, Clone, PartialEq)]
pub struct Requested {
    /// Its id is that of the event that has the turn, and its place in it: models use ids again, or give none.
    pub call: ToolCall,
    /// Why it cannot be made, for the model.
    pub hindrance: Option<String>,
    /// The id that the model knows it by.
    id: String,
}

/// The calls in a turn that is stored as this event.
pub fn requested(event_id: i64, turn: &ModelTurn) -> Vec<Requested> {
    let calls = turn.message.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
    let mut known = BTreeSet::new();
    let request = |(at, call): (usize, &Value)| {
        let call_id = format!("call_{event_id}_{}", at + 1);
        let given = call["id"].as_str().filter(|id| !id.is_empty() && known.insert((*id).to_owned()));
        let id = given.unwrap_or(&call_id).to_owned();
        let name = call["function"]["name"].as_str().unwrap_or_default();
        let (arguments, hindrance) = match arguments(&call["function"]["arguments"]) {
            _ if at >= MOST => (
                Value::Null,
                Some(format!("only the first {MOST} calls of a turn are made, and this is not one")),
            ),
            Ok(arguments) => (Value::Object(arguments), None),
            Err(why) => (Value::Null, Some(why)),
        };
        Requested { call: ToolCall::new(call_id, name, arguments), hindrance, id }
    };
    calls.enumerate().map(request).collect()
}

/// The arguments of a call: JSON text by OpenAI's rules, an object as some servers have it.
fn arguments(given: &Value) -> Result<Map<String, Value>, String> {
    let text = match given {
        Value::Object(object) => return Ok(object.clone()),
        Value::Null => return Ok(Map::new()),
        Value::String(text) if text.trim().is_empty() => return Ok(Map::new()),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    serde_json::from_str(&text).map_err(|e| {
        let shown = &text[..text.floor_char_boundary(SHOWN)];
        let more = if shown.len() < text.len() { "…" } else { "" };
        format!("the arguments are not a JSON object ({e}), so the call was not made: {shown}{more}")
    })
}

/// The result of a call as the model gets it.
pub fn text(result: &ToolResult) -> String {
    match &result.outcome {
        Ok(Value::String(text)) => text.clone(),
        Ok(other) => other.to_string(),
        Err(error) => format!("Error: {error}"),
    }
}

/// What a prompt has of a turn: the message as the model sent it, and a result for each of its calls, as servers
/// demand.
pub fn prompt_of(turn: &ModelTurn, calls: &[Requested], results: &BTreeMap<String, String>) -> Vec<Value> {
    let mut message = turn.message.clone();
    if message.get("content").is_none_or(Value::is_null) {
        message.insert("content".to_owned(), "".into());
    }
    match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
        Some(sent) if !calls.is_empty() => {
            sent.iter_mut().zip(calls).for_each(|(sent, call)| complete(sent, call))
        }
        _ => drop(message.shift_remove("tool_calls")),
    }
    let result = |requested: &Requested| {
        let text = results.get(&requested.call.call_id).map_or(NOT_MADE, String::as_str);
        json!({ "role": "tool", "tool_call_id": requested.id, "content": text })
    };
    [Value::Object(message)].into_iter().chain(calls.iter().map(result)).collect()
}

/// Adds to a call what the model has left out, and takes away arguments that servers could not read again.
fn complete(sent: &mut Value, requested: &Requested) {
    if !sent.is_object() {
        *sent = json!({});
    }
    sent["id"] = requested.id.clone().into();
    if !sent["type"].is_string() {
        sent["type"] = "function".into();
    }
    if !sent["function"].is_object() {
        sent["function"] = json!({});
    }
    sent["function"]["name"] = requested.call.name.clone().into();
    let given = sent["function"]["arguments"].as_str();
    if given.is_none_or(|text| serde_json::from_str::<Map<String, Value>>(text).is_err()) {
        let arguments = match &requested.call.arguments {
            Value::Object(arguments) => json!(arguments).to_string(),
            _ => "{}".to_owned(),
        };
        sent["function"]["arguments"] = arguments.into();
    }
}
