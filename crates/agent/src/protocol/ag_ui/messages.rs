//! The messages of an agent behind AG-UI, as its events make them.

use serde_json::{Map, Value, json};

/// A conversation: what was said before the run, and what was said in it.
#[derive(Debug, Default)]
pub struct Messages {
    before: Vec<Value>,
    said: Vec<Value>,
}

impl Messages {
    pub fn after(before: Vec<Value>) -> Messages {
        Messages { before, said: Vec::new() }
    }

    pub fn all(&self) -> Vec<Value> {
        self.before.iter().chain(&self.said).cloned().collect()
    }

    pub fn said(&self) -> &[Value] {
        &self.said
    }

    /// The text of the last message that the agent wrote.
    pub fn last_text(&self) -> Option<&str> {
        let texts = self.said.iter().rev().filter(|message| message["role"] == "assistant");
        texts.filter_map(|message| message["content"].as_str()).find(|text| !text.is_empty())
    }

    /// The calls of the last message, if that is the agent's: their ids, names and arguments.
    pub fn last_calls(&self) -> Vec<(String, String, String)> {
        let last = self.said.last().filter(|last| last["role"] == "assistant");
        let calls = last.and_then(|last| last["toolCalls"].as_array()).into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let call = |call: &Value| {
            let function = &call["function"];
            (text(&call["id"]), text(&function["name"]), text(&function["arguments"]))
        };
        calls.map(call).collect()
    }

    /// Replaces everything: agents may have said more than their events did.
    pub fn replace(&mut self, all: Vec<Value>) {
        let is_new = |message: &Value| self.before.iter().all(|known| known["id"] != message["id"]);
        self.said = all.into_iter().filter(is_new).collect();
    }

    pub fn add(&mut self, message: Value) {
        self.said.push(message);
    }

    /// Begins a message, unless it is there.
    pub fn begin(&mut self, id: &str, role: &str) {
        if self.find(id).is_none() {
            self.said.push(json!({ "id": id, "role": role, "content": "" }));
        }
    }

    pub fn role(&self, id: &str) -> Option<&str> {
        self.said.iter().rev().find(|message| message["id"] == id)?["role"].as_str()
    }

    /// Adds to the text of a message.
    pub fn extend(&mut self, id: &str, text: &str) {
        if let Some(Value::String(content)) = self.find(id).and_then(|message| message.get_mut("content")) {
            content.push_str(text);
        }
    }

    /// Adds a call to the message that it belongs to.
    pub fn call(&mut self, parent: &str, call_id: &str, name: &str) {
        self.begin(parent, "assistant");
        let call =
            json!({ "id": call_id, "type": "function", "function": { "name": name, "arguments": "" } });
        let Some(message) = self.find(parent) else { return };
        match message.get_mut("toolCalls") {
            Some(Value::Array(calls)) => calls.push(call),
            _ => drop(message.insert("toolCalls".to_owned(), json!([call]))),
        }
    }

    /// Adds to the arguments of a call.
    pub fn extend_arguments(&mut self, call_id: &str, text: &str) {
        let arguments =
            self.find_call(call_id).and_then(|call| call.get_mut("function")?.get_mut("arguments"));
        if let Some(Value::String(arguments)) = arguments {
            arguments.push_str(text);
        }
    }

    /// Notes what only the maker of a model can read in a message or a call, and needs back.
    pub fn encrypted(&mut self, id: &str, value: &Value) {
        let at = match self.find(id) {
            Some(message) => Some(message),
            None => self.find_call(id).and_then(Value::as_object_mut),
        };
        if let Some(at) = at {
            at.insert("encryptedValue".to_owned(), value.clone());
        }
    }

    fn find(&mut self, id: &str) -> Option<&mut Map<String, Value>> {
        self.said.iter_mut().rev().find(|message| message["id"] == id)?.as_object_mut()
    }

    fn find_call(&mut self, id: &str) -> Option<&mut Value> {
        let calls =
            self.said.iter_mut().rev().filter_map(|message| message.get_mut("toolCalls")?.as_array_mut());
        calls.flatten().find(|call| call["id"] == id)
    }
}
