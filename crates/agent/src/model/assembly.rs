//! Putting a message together from the pieces in which it is streamed.

use serde::Deserialize;
use serde_json::{Map, Value};
use thread_conversation::ModelTurn;

use super::Heard;

/// The longest message, in bytes. The adapter has the same limit for an answer.
const LONGEST: usize = 16 * 1024 * 1024;

/// What an element of an array counts for besides its text: many that are empty must not fill the memory either.
const ELEMENT: usize = 64;

/// Fields whose pieces do not continue one another: some servers send the whole in each.
const WHOLE: [&str; 4] = ["role", "id", "type", "name"];

/// A part of the stream, or the whole response if it is not streamed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Chunk {
    choices: Vec<Choice>,
    usage: Option<Value>,
    model: Option<String>,
    pub error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice {
    index: u64,
    /// `message` if it is not streamed.
    #[serde(alias = "message")]
    delta: Option<Map<String, Value>>,
    finish_reason: Option<String>,
}

/// A message that is being put together.
#[derive(Debug, Default)]
pub struct Assembly {
    message: Map<String, Value>,
    size: usize,
    finish_reason: Option<String>,
    usage: Value,
    model: String,
}

/// The message is longer than it may be.
#[derive(Debug, PartialEq)]
pub struct TooLong;

impl Assembly {
    /// Takes in a part, and returns what it adds to the answer and to the thinking.
    ///
    /// # Errors
    ///
    /// [`TooLong`].
    pub fn push(&mut self, chunk: Chunk) -> Result<Vec<Heard>, TooLong> {
        let mut heard = Vec::new();
        if let Some(usage) = chunk.usage.filter(Value::is_object) {
            self.usage = usage;
        }
        if let Some(model) = chunk.model.filter(|_| self.model.is_empty()) {
            self.model = model;
        }
        // Others are alternatives, which were not asked for.
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            if choice.finish_reason.is_some() {
                self.finish_reason = choice.finish_reason;
            }
            let Some(delta) = choice.delta else { continue };
            let text = |key: &str| delta.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
            // A server may send its thinking under both names.
            let thinking = text("reasoning_content").or_else(|| text("reasoning"));
            heard.extend(thinking.map(|text| Heard::Thinking(text.to_owned())));
            heard.extend(text("content").map(|text| Heard::Token(text.to_owned())));
            merge_object(&mut self.message, delta, &mut self.size);
            if self.size > LONGEST {
                return Err(TooLong);
            }
        }
        Ok(heard)
    }

    /// Whether the model has said that it is done.
    pub fn is_finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Whether it has said nothing at all.
    pub fn is_empty(&self) -> bool {
        self.message.is_empty()
    }

    /// The whole turn.
    pub fn finish(mut self) -> ModelTurn {
        self.message.entry("role").or_insert_with(|| "assistant".into());
        let calls = self.message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten().filter_map(Value::as_object_mut) {
            // It only says which pieces belong together.
            call.shift_remove("index");
        }
        ModelTurn {
            message: self.message,
            finish_reason: self.finish_reason.unwrap_or_else(|| "stop".to_owned()),
            usage: self.usage,
            model: self.model,
            ..ModelTurn::default()
        }
    }
}

fn merge_object(into: &mut Map<String, Value>, from: Map<String, Value>, size: &mut usize) {
    for (key, value) in from {
        match into.get_mut(&key) {
            Some(known) => merge(&key, known, value, size),
            None => {
                *size += key.len();
                let mut known = Value::Null;
                merge(&key, &mut known, value, size);
                into.insert(key, known);
            }
        }
    }
}

/// Adds a piece of a value: texts and arrays continue, and elements of arrays with the same `index` are one.
fn merge(key: &str, into: &mut Value, from: Value, size: &mut usize) {
    match (into, from) {
        (_, Value::Null) => {}
        (Value::String(known), Value::String(more)) if WHOLE.contains(&key) => {
            if known.is_empty() {
                *size += more.len();
                *known = more;
            }
        }
        (Value::String(known), Value::String(more)) => {
            *size += more.len();
            known.push_str(&more);
        }
        (Value::Object(known), Value::Object(more)) => merge_object(known, more, size),
        (Value::Array(known), Value::Array(more)) => {
            for element in more {
                let index = element.get("index").and_then(Value::as_u64);
                let same =
                    |one: &&mut Value| index.is_some() && one.get("index").and_then(Value::as_u64) == index;
                match known.iter_mut().rev().find(same) {
                    Some(one) => merge(key, one, element, size),
                    None => {
                        *size += ELEMENT;
                        let mut one = Value::Null;
                        merge(key, &mut one, element, size);
                        known.push(one);
                    }
                }
            }
        }
        (known, Value::Object(more)) => {
            let mut object = Map::new();
            merge_object(&mut object, more, size);
            *known = Value::Object(object);
        }
        (known, Value::Array(more)) => {
            *known = Value::Array(Vec::new());
            merge(key, known, Value::Array(more), size);
        }
        (known, value) => {
            *size += value.as_str().map_or(ELEMENT, str::len);
            *known = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn assembled(deltas: &[Value]) -> (ModelTurn, Vec<Heard>) {
        let mut assembly = Assembly::default();
        let mut heard = Vec::new();
        for delta in deltas {
            let chunk = json!({ "choices": [{ "index": 0, "delta": delta }] });
            heard.extend(assembly.push(serde_json::from_value(chunk).unwrap()).unwrap());
        }
        (assembly.finish(), heard)
    }

    #[test]
    fn text_and_thinking_are_told_as_they_come_and_kept_together() {
        let (turn, heard) = assembled(&[
            json!({ "role": "assistant", "content": "" }),
            json!({ "reasoning_content": "hm", "reasoning": "hm" }),
            json!({ "role": "assistant", "content": "a" }),
            json!({ "content": "b", "signature": "xy" }),
            json!({ "content": null, "signature": "z", "extra": { "n": 1 } }),
        ]);
        let said = [Heard::Thinking("hm".into()), Heard::Token("a".into()), Heard::Token("b".into())];
        assert_eq!(heard, said);
        let message = json!({
            "role": "assistant", "content": "ab", "reasoning_content": "hm", "reasoning": "hm",
            "signature": "xyz", "extra": { "n": 1 }
        });
        assert_eq!((Value::Object(turn.message), turn.finish_reason.as_str()), (message, "stop"));
    }

    #[test]
    fn pieces_of_calls_belong_together_by_their_index() {
        let call = |index: u64, more: Value| {
            let mut call = json!({ "index": index });
            call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({ "tool_calls": [call] })
        };
        let (turn, _) = assembled(&[
            call(0, json!({ "id": "a", "type": "function", "function": { "name": "ls", "arguments": "" } })),
            call(
                1,
                json!({ "id": "b", "type": "function", "function": { "name": "cat", "arguments": "{" } }),
            ),
            call(0, json!({ "id": "a", "function": { "name": "ls", "arguments": "{}" } })),
            call(1, json!({ "function": { "arguments": "}" } })),
        ]);
        let call = |id: &str, name: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": "{}" } });
        assert_eq!(turn.message["tool_calls"], json!([call("a", "ls"), call("b", "cat")]));
    }

    #[test]
    fn a_message_is_not_endless() {
        let mut assembly = Assembly::default();
        let mut push = |delta: Value| {
            let chunk = json!({ "choices": [{ "delta": delta }] });
            assembly.push(serde_json::from_value(chunk).unwrap()).map(drop)
        };
        assert_eq!(push(json!({ "content": "x".repeat(LONGEST - 100) })), Ok(()));
        assert_eq!(push(json!({ "list": vec![Value::Null; 2] })), Err(TooLong));
    }
}
