//! Translates the events of one run to AG-UI.
//!
//! The input is the session's events from the message on. The output, ids included, depends only on them, so
//! a resumed stream continues exactly where it was interrupted.

use std::hash::{DefaultHasher, Hasher};

use serde_json::{Value, json};
use thread::Event;
use thread_agent::conversation::Entry;

use crate::session::event::SessionEvent;

/// The client's version of AG-UI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// 0.x, which has other events for reasoning, and none that says how a run ended.
    Zero,
    One,
}

/// The message that is open in the stream, with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Open {
    Nothing,
    Text(String),
    Reasoning(String),
}

/// Whether the run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    GoesOn,
    Ended,
}

pub struct Translator {
    version: Version,
    thread_id: String,
    run_id: String,
    /// The id of the message that the run answers.
    message: i64,
    /// Whether the run has started. Before that, events with its id belong to another run of that id.
    started: bool,
    open: Open,
    /// Whether a text message has been opened: only the first gets the message id given by the agent.
    opened_text: bool,
    streamed: Streamed,
}

/// The text streamed in this attempt, as its length and a hash.
#[derive(Default)]
struct Streamed {
    bytes: usize,
    hash: DefaultHasher,
}

impl Streamed {
    fn add(&mut self, text: &str) {
        self.bytes += text.len();
        self.hash.write(text.as_bytes());
    }

    fn matches(&self, whole: &str) -> bool {
        let mut other = Streamed::default();
        other.add(whole);
        self.bytes == other.bytes && self.hash.finish() == other.hash.finish()
    }
}

impl Translator {
    /// For the run that answers a message. `thread_id` and `run_id` are the client's names for them.
    pub fn new(version: Version, thread_id: String, run_id: String, message: i64) -> Translator {
        let (open, streamed) = (Open::Nothing, Streamed::default());
        Translator { version, thread_id, run_id, message, started: false, open, opened_text: false, streamed }
    }

    /// Translates the next event.
    pub fn feed(&mut self, stored: &SessionEvent) -> (Vec<Value>, Run) {
        let SessionEvent { event, run_id, entry, .. } = stored;
        let mut output = Vec::new();
        if event.id == self.message {
            let mut started =
                json!({ "type": "RUN_STARTED", "threadId": self.thread_id, "runId": self.run_id });
            if self.version == Version::One {
                started["protocolVersion"] = "1.0".into();
            }
            return (vec![started], Run::GoesOn);
        }
        if let Entry::RunStarted { attempt, reply_to } = entry {
            if *reply_to == self.message {
                self.started = true;
                self.streamed = Streamed::default();
                if *attempt > 1 {
                    output.push(custom("attempt", json!({ "attempt": attempt })));
                }
            }
            return (output, Run::GoesOn);
        }
        if stored.ends == Some(self.message) {
            self.end(event, entry, &mut output);
            return (output, Run::Ended);
        }
        if !self.started || run_id.as_ref() != Some(&self.run_id) {
            return (output, Run::GoesOn);
        }
        self.piece(event, entry, &mut output);
        (output, Run::GoesOn)
    }

    fn piece(&mut self, event: &Event, entry: &Entry, output: &mut Vec<Value>) {
        match entry {
            Entry::Token { text, .. } | Entry::Thinking { text, .. } if text.is_empty() => {}
            Entry::Token { text, message_id } => {
                self.streamed.add(text);
                self.text(event, message_id.as_deref(), text, output);
            }
            Entry::Thinking { text, .. } => self.reasoning(event, text, output),
            Entry::ToolCall(call) => {
                self.close(output);
                let id = &call.call_id;
                output
                    .push(json!({ "type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": call.name }));
                output.push(json!({ "type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": call.arguments.to_string() }));
                output.push(json!({ "type": "TOOL_CALL_END", "toolCallId": id }));
            }
            Entry::ToolResult(result) => {
                self.close(output);
                let content = match &result.outcome {
                    Ok(Value::String(text)) | Err(text) => text.clone(),
                    Ok(value) => value.to_string(),
                };
                output.push(json!({
                    "type": "TOOL_CALL_RESULT",
                    "messageId": format!("result_{}", event.id),
                    "toolCallId": result.call_id,
                    "content": content,
                    "role": "tool",
                }));
            }
            Entry::Status(status) => output.push(custom("status", json!({ "status": status.as_str() }))),
            Entry::Error { error, .. } => {
                self.close(output);
                output.push(custom("attempt_failed", json!({ "message": error })));
            }
            Entry::SubAgent(sub) => output.push(custom(
                "sub_agent",
                json!({
                    "parentCallId": sub.parent_call_id,
                    "subAgent": sub.sub_agent,
                    "event": sub.event,
                    "payload": sub.payload,
                }),
            )),
            Entry::Permission(asked) => {
                let choices: Vec<Value> = asked
                    .choices
                    .iter()
                    .map(|c| json!({ "id": c.id, "name": c.name, "kind": c.kind }))
                    .collect();
                let value =
                    json!({ "requestId": asked.request_id, "title": asked.title, "choices": choices });
                output.push(custom("permission", value));
            }
            _ => {}
        }
    }

    fn end(&mut self, event: &Event, entry: &Entry, output: &mut Vec<Value>) {
        if let Entry::Answer { answer, .. } = entry
            && !answer.content.is_empty()
            && !self.streamed.matches(&answer.content)
        {
            self.close(output);
            // It was not streamed, or differs from what was streamed.
            self.text(event, answer.message_id.as_deref(), &answer.content, output);
        }
        self.close(output);
        let (thread_id, run_id) = (&self.thread_id, &self.run_id);
        let mut finished = json!({ "type": "RUN_FINISHED", "threadId": thread_id, "runId": run_id });
        let outcome = match entry {
            Entry::Error { error, .. } => {
                output.push(json!({ "type": "RUN_ERROR", "message": error, "code": "run_failed" }));
                return;
            }
            Entry::Cancelled { why, .. } => {
                output.push(custom("cancelled", json!({ "message": why })));
                "cancelled"
            }
            _ => "success",
        };
        if self.version == Version::One {
            finished["outcome"] = json!({ "type": outcome });
        }
        output.push(finished);
    }

    fn text(&mut self, event: &Event, given: Option<&str>, text: &str, output: &mut Vec<Value>) {
        if !matches!(self.open, Open::Text(_)) {
            self.close(output);
            let id = match given.filter(|_| !self.opened_text) {
                Some(id) => id.to_owned(),
                None => format!("text_{}", event.id),
            };
            self.opened_text = true;
            output.push(json!({ "type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant" }));
            self.open = Open::Text(id);
        }
        if let Open::Text(id) = &self.open {
            output.push(json!({ "type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": text }));
        }
    }

    fn reasoning(&mut self, event: &Event, text: &str, output: &mut Vec<Value>) {
        let zero = self.version == Version::Zero;
        if !matches!(self.open, Open::Reasoning(_)) {
            self.close(output);
            let id = format!("reasoning_{}", event.id);
            if zero {
                output.push(json!({ "type": "THINKING_START" }));
                output.push(json!({ "type": "THINKING_TEXT_MESSAGE_START" }));
            } else {
                output.push(json!({ "type": "REASONING_START", "messageId": id }));
                output
                    .push(json!({ "type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning" }));
            }
            self.open = Open::Reasoning(id);
        }
        if let Open::Reasoning(id) = &self.open {
            output.push(match zero {
                true => json!({ "type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": text }),
                false => json!({ "type": "REASONING_MESSAGE_CONTENT", "messageId": id, "delta": text }),
            });
        }
    }

    /// Closes the open message, if there is one.
    fn close(&mut self, output: &mut Vec<Value>) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => {}
            Open::Text(id) => output.push(json!({ "type": "TEXT_MESSAGE_END", "messageId": id })),
            Open::Reasoning(_) if self.version == Version::Zero => {
                output.push(json!({ "type": "THINKING_TEXT_MESSAGE_END" }));
                output.push(json!({ "type": "THINKING_END" }));
            }
            Open::Reasoning(id) => {
                output.push(json!({ "type": "REASONING_MESSAGE_END", "messageId": id }));
                output.push(json!({ "type": "REASONING_END", "messageId": id }));
            }
        }
    }
}

fn custom(name: &str, value: Value) -> Value {
    json!({ "type": "CUSTOM", "name": name, "value": value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use thread_agent::conversation::{Answer, Message, ToolCall, ToolResult};

    fn types(version: Version, events: &[thread::NewEvent<'_>]) -> (Vec<String>, Run) {
        let mut translator = Translator::new(version, "t".into(), "r".into(), 1);
        let (mut types, mut last) = (Vec::new(), Run::GoesOn);
        for (id, event) in (1..).zip(events) {
            let (output, run) = translator.feed(&SessionEvent::stored(id, event));
            types.extend(output.iter().map(|event| event["type"].as_str().unwrap().to_owned()));
            last = run;
        }
        (types, last)
    }

    fn run() -> thread_agent::conversation::Run {
        thread_agent::conversation::Run { run_id: "r".into(), reply_to: 1, attempt: 1 }
    }

    fn message() -> thread::NewEvent<'static> {
        let message = Message { run_id: Some("r".into()), ..Message::text("hello") };
        message.event("external:web:main:dm:default:ada").unwrap()
    }

    #[test]
    fn each_message_is_begun_and_ended_around_what_comes_between() {
        let call = ToolCall { call_id: "c".into(), name: "ls".into(), arguments: Value::Null };
        let result = ToolResult { call_id: "c".into(), name: "ls".into(), outcome: Ok("a".into()) };
        let answer = Answer { content: "abc".into(), ..Answer::default() };
        let events = [
            message(),
            run().started(),
            run().thinking("m", "hm"),
            run().token("m", "a"),
            run().token("m", "b"),
            run().tool_call(&call),
            run().tool_result(&result),
            run().token("m", "c"),
            run().answer(&answer),
        ];
        let (output, last) = types(Version::One, &events);
        let expected = "RUN_STARTED REASONING_START REASONING_MESSAGE_START REASONING_MESSAGE_CONTENT \
            REASONING_MESSAGE_END REASONING_END TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_CONTENT \
            TEXT_MESSAGE_END TOOL_CALL_START TOOL_CALL_ARGS TOOL_CALL_END TOOL_CALL_RESULT TEXT_MESSAGE_START \
            TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_FINISHED";
        assert_eq!(
            (output.join(" "), last),
            (expected.split_whitespace().collect::<Vec<_>>().join(" "), Run::Ended)
        );
        let (output, _) = types(Version::Zero, &events);
        assert!(
            output.join(" ").contains("THINKING_TEXT_MESSAGE_END THINKING_END") && output.len() == 18,
            "{output:?}"
        );
    }

    #[test]
    fn an_answer_that_did_not_stream_is_sent_whole() {
        let answer = Answer { content: "other".into(), ..Answer::default() };
        let (output, _) =
            types(Version::One, &[message(), run().started(), run().token("m", "a"), run().answer(&answer)]);
        assert_eq!(
            output[1..].join(" "),
            "TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT \
             TEXT_MESSAGE_END RUN_FINISHED"
        );
    }

    #[test]
    fn a_failed_attempt_goes_on_and_a_failed_run_is_an_error() {
        let events = [
            message(),
            run().started(),
            run().token("m", "a"),
            run().attempt_failed("killed", None),
            thread_agent::conversation::Run { attempt: 2, ..run() }.started(),
            run().token("m2", "b"),
            run().failed("no", ""),
        ];
        let (output, last) = types(Version::One, &events);
        assert_eq!(
            output.join(" "),
            "RUN_STARTED TEXT_MESSAGE_START TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END CUSTOM CUSTOM TEXT_MESSAGE_START \
             TEXT_MESSAGE_CONTENT TEXT_MESSAGE_END RUN_ERROR"
        );
        assert_eq!(last, Run::Ended);
    }
}
