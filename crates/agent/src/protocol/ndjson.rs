//! A persistent program: one line of JSON in for each message, lines of JSON out.
//!
//! Each line in is the message's event as `thread peek` prints it, with its attached files as `attachments`, the
//! client's input (`tools`, `state`, `context`, `forwarded_props`) and, for a new process, the conversation so far
//! as `transcript`; or `{"event":"tool_result",…}`, the result of one of the client's tools. Lines out are
//! `{"event":"token","content":…}` and the like, with the keys of the corresponding events in the thread. They may
//! repeat the `run_id` of the line in: then a line that comes too late is recognised, and dropped.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Done, Output, Prompt, Protocol, send};
use crate::lines::Lines;
use thread_conversation::{ClientInput, Cost, Spent, Status, ToolCall, ToolResult, Usage};

#[derive(Debug, Default)]
pub struct Ndjson {
    lines: Lines,
    /// The run that is being answered.
    run_id: Option<String>,
}

/// A line, and the run that it names.
#[derive(Debug, Deserialize)]
struct Named {
    run_id: Option<String>,
    #[serde(flatten)]
    line: Line,
}

/// A line printed by the program. Unknown keys are ignored.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line {
    Token {
        content: String,
    },
    Thinking {
        content: String,
    },
    ToolCall {
        call_id: String,
        #[serde(default)]
        name: String,
        #[serde(default)]
        arguments: Value,
    },
    ToolResult {
        call_id: String,
        #[serde(default)]
        name: String,
        result: Option<Value>,
        error: Option<Value>,
    },
    Status {
        content: String,
    },
    State {
        state: Value,
    },
    StateDelta {
        delta: Vec<Operation>,
    },
    Final {
        content: Option<String>,
        total_tokens: Option<u64>,
        stage: Option<String>,
        #[serde(default)]
        usage: Value,
        #[serde(default)]
        cost: Value,
    },
    Error {
        error: String,
        #[serde(default)]
        retryable: bool,
        #[serde(default)]
        usage: Value,
        #[serde(default)]
        cost: Value,
    },
}

/// An operation of a JSON Patch.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Operation {
    Add { path: String, value: Value },
    Remove { path: String },
    Replace { path: String, value: Value },
    Move { from: String, path: String },
    Copy { from: String, path: String },
    Test { path: String, value: Value },
}

impl Protocol for Ndjson {
    fn name(&self) -> &'static str {
        "ndjson"
    }

    fn takes(&self, _: &str) -> bool {
        true
    }

    fn started(&mut self) {
        *self = Ndjson::default();
    }

    fn prompt(&mut self, prompt: Prompt, out: &mut Vec<u8>) {
        let mut event: Value = serde_json::from_str(&prompt.event).unwrap_or_default();
        event["run_id"] = prompt.run.run_id.clone().into();
        self.run_id = Some(prompt.run.run_id);
        if let Some(metadata) = event.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.shift_remove(ClientInput::KEY);
        }
        hand_over(&prompt.input, &mut event);
        if !prompt.attachments.is_empty() {
            let files = prompt.attachments.into_iter();
            event["attachments"] =
                files.map(|file| json!({ "path": file.path, "mime_type": file.mime_type })).collect();
        }
        if !prompt.transcript.is_empty() {
            event["transcript"] = json!(prompt.transcript);
        }
        send(out, event);
    }

    fn read(&mut self, bytes: &[u8], _: &mut Vec<u8>) -> Vec<Output> {
        let mut output = Vec::new();
        for line in self.lines.push(bytes) {
            let read = match line {
                Ok(line) if line.trim_ascii().is_empty() => continue,
                Ok(line) => self.read_line(&line),
                Err(too_long) => Err(too_long.to_string()),
            };
            output.extend(read.unwrap_or_else(|why| vec![Output::Done(Done::Broken(why))]));
        }
        output
    }

    fn tool_result(&mut self, result: &ToolResult, input: &ClientInput, out: &mut Vec<u8>) {
        let ToolResult { call_id, name, outcome, .. } = result;
        let mut line =
            json!({ "event": "tool_result", "run_id": self.run_id, "call_id": call_id, "name": name });
        match outcome {
            Ok(result) => line["result"] = result.clone(),
            Err(error) => line["error"] = error.clone().into(),
        }
        hand_over(input, &mut line);
        send(out, line);
    }
}

/// Adds a client's input to a line for the program.
fn hand_over(input: &ClientInput, line: &mut Value) {
    for (field, value) in input.fields() {
        line[field] = value.clone();
    }
}

impl Ndjson {
    /// Returns the output in a line; nothing if it belongs to another run.
    fn read_line(&mut self, line: &[u8]) -> Result<Vec<Output>, String> {
        let Named { run_id, line } = serde_json::from_slice(line).map_err(|e| {
            let shown: String = String::from_utf8_lossy(line).trim().chars().take(80).collect();
            format!("the agent program printed a line that is not part of the protocol ({e}): {shown}")
        })?;
        if run_id.is_some() && run_id != self.run_id {
            return Ok(Vec::new());
        }
        let spent = match &line {
            Line::Final { usage, cost, .. } | Line::Error { usage, cost, .. } => {
                Spent { usage: Usage::reported(usage), cost: Cost::reported(cost), ..Spent::default() }
            }
            _ => Spent::default(),
        };
        let output = output_of(line)?;
        if matches!(output, Output::Done(_)) {
            self.run_id = None;
        }
        let used = (!spent.is_nothing()).then_some(Output::Used(spent));
        Ok(used.into_iter().chain([output]).collect())
    }
}

fn output_of(line: Line) -> Result<Output, String> {
    Ok(match line {
        Line::Token { content } => Output::Token(content),
        Line::Thinking { content } => Output::Thinking(content),
        Line::ToolCall { call_id, name, arguments } => Output::Call(ToolCall::new(call_id, name, arguments)),
        Line::ToolResult { call_id, name, result, error } => {
            let outcome = match error {
                Some(Value::String(error)) => Err(error),
                Some(error) => Err(error.to_string()),
                None => Ok(result.unwrap_or_default()),
            };
            Output::Result(ToolResult::new(call_id, name, outcome))
        }
        Line::Status { content } => {
            Output::Status(Status::of(&content).ok_or_else(|| format!("'{content}' is not a status"))?)
        }
        Line::State { state } => Output::State(state),
        Line::StateDelta { delta } => Output::StateDelta(serde_json::to_value(delta).unwrap_or_default()),
        Line::Final { content, total_tokens, stage, usage, .. } => {
            let total = Some(Usage::reported(&usage).total()).filter(|total| *total > 0);
            let total_tokens = total_tokens.or(total);
            Output::Done(Done::Answered { content, total_tokens, stage })
        }
        Line::Error { error, retryable, .. } => Output::Done(Done::Failed { error, retryable }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_may_come_in_pieces() {
        let mut program = Ndjson::default();
        let mut read = |bytes: &str| program.read(bytes.as_bytes(), &mut Vec::new());
        assert_eq!(read("{\"event\":\"token\",\"con"), []);
        let output = read("tent\":\"a\"}\n\n{\"event\":\"final\"}\n{");
        let done = Done::Answered { content: None, total_tokens: None, stage: None };
        assert_eq!(output, [Output::Token("a".into()), Output::Done(done)]);
    }

    #[test]
    fn a_line_that_names_another_run_is_dropped() {
        let mut program = Ndjson { run_id: Some("this".into()), ..Ndjson::default() };
        let mut read = |line: &str| program.read(format!("{line}\n").as_bytes(), &mut Vec::new());
        let token = |text: &str| vec![Output::Token(text.into())];
        assert_eq!(read(r#"{"event":"token","content":"a","run_id":"this"}"#), token("a"));
        assert_eq!(read(r#"{"event":"token","content":"b","run_id":"that"}"#), []);
        assert_eq!(read(r#"{"event":"token","content":"c"}"#), token("c"));
        assert_eq!(read(r#"{"event":"final","run_id":"that"}"#), []);
        assert_eq!(read(r#"{"event":"final","run_id":"this"}"#).len(), 1);
        assert_eq!(read(r#"{"event":"final","run_id":"this"}"#), [], "that run is over");
    }

    #[test]
    fn a_state_is_any_json_and_its_changes_are_a_json_patch() {
        let output = |line: &str| Ndjson::default().read(format!("{line}\n").as_bytes(), &mut Vec::new());
        assert_eq!(output(r#"{"event":"state","state":null}"#), [Output::State(Value::Null)]);
        let delta = json!([{ "op": "add", "path": "/a", "value": null }, { "op": "move", "from": "/a", "path": "/b" }]);
        let line = json!({ "event": "state_delta", "delta": delta }).to_string();
        assert_eq!(output(&line), [Output::StateDelta(delta)]);
    }

    #[test]
    fn a_line_that_is_not_part_of_the_protocol_is_an_error() {
        for line in [
            r#"{"event":"state_delta","delta":[{"op":"dance","path":""}]}"#,
            r#"{"event":"state"}"#,
            "hello",
            "[]",
            "{}",
            r#"{"event":"dance"}"#,
            r#"{"event":"token"}"#,
            "\u{0}\u{1}",
        ] {
            let output = Ndjson::default().read(format!("{line}\n").as_bytes(), &mut Vec::new());
            assert!(matches!(&output[..], [Output::Done(Done::Broken(_))]), "{line}: {output:?}");
        }
    }
}
