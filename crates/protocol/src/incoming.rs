//! What a client receives.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::event::{Event, Frame};

/// A frame, as a client receives it.
#[derive(Debug)]
pub enum Incoming {
    Response {
        id: String,
        /// The payload as JSON, or why the request failed.
        outcome: Result<Box<RawValue>, Refusal>,
    },
    Event(Box<Frame>),
    /// Something that this version does not know, to be ignored.
    Unknown {
        /// Its place, if it is an event of the thread.
        seq: Option<i64>,
    },
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refusal {
    pub error: String,
    /// The error's code. Empty from older gateways.
    pub code: String,
}

/// A frame that cannot be read. A client shows it and continues.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unreadable {
    /// The event's name, if it is one.
    pub event: Option<String>,
    /// The id of the request, if it is a response.
    pub id: Option<String>,
    /// The run that the event belongs to, if that can be read.
    pub run_id: Option<String>,
    pub seq: Option<i64>,
    pub why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.event, &self.id) {
            (Some(event), _) => write!(f, "the event '{event}'")?,
            (None, Some(id)) => write!(f, "the response to request {id}")?,
            (None, None) => f.write_str("a frame")?,
        }
        if let Some(seq) = self.seq {
            write!(f, " (seq {seq})")?;
        }
        write!(f, " cannot be read: {}", self.why)
    }
}

impl std::error::Error for Unreadable {}

#[derive(Deserialize)]
struct Envelope<'a> {
    r#type: String,
    event: Option<String>,
    id: Option<String>,
    ok: Option<bool>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    seq: Option<i64>,
    time: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Common {
    session_id: Option<String>,
    run_id: Option<String>,
}

impl Incoming {
    /// Reads a frame. Keys that are not known are ignored, however deep they are nested.
    ///
    /// # Errors
    ///
    /// The frame is not JSON, or it is a response or a known event that lacks something.
    pub fn parse(text: &str) -> Result<Incoming, Unreadable> {
        let frame: Envelope<'_> = serde_json::from_str(text)
            .map_err(|e| Unreadable { why: e.to_string(), ..Unreadable::default() })?;
        let unreadable = |why: String| Unreadable {
            event: frame.event.clone(),
            id: frame.id.clone(),
            run_id: frame
                .payload
                .and_then(|payload| serde_json::from_str::<Common>(payload.get()).ok()?.run_id),
            seq: frame.seq,
            why,
        };
        match (&*frame.r#type, frame.event.as_deref(), frame.id.as_deref()) {
            ("event", Some(event), _) => {
                let payload = frame.payload.map_or("null", RawValue::get);
                let Some(parsed) = Event::parse(event, payload) else {
                    return Ok(Incoming::Unknown { seq: frame.seq });
                };
                let event = parsed.map_err(|e| unreadable(e.to_string()))?;
                let common: Common = serde_json::from_str(payload).map_err(|e| unreadable(e.to_string()))?;
                let Common { session_id, run_id } = common;
                let Envelope { seq, time, .. } = frame;
                Ok(Incoming::Event(Box::new(Frame { event, session_id, run_id, seq, time })))
            }
            ("res", _, Some(id)) => {
                let outcome = match (frame.ok, frame.payload, frame.error) {
                    (Some(true), Some(payload), _) => Ok(payload.to_owned()),
                    (Some(false), _, error) => {
                        let code = frame.code.and_then(|code| serde_json::from_str(code.get()).ok());
                        Err(Refusal { error: reason(error), code: code.unwrap_or_default() })
                    }
                    _ => return Err(unreadable("it lacks 'ok' or 'payload'".to_owned())),
                };
                Ok(Incoming::Response { id: id.to_owned(), outcome })
            }
            ("event", None, _) => Err(unreadable("it has no 'event'".to_owned())),
            ("res", _, None) => Err(unreadable("it has no 'id'".to_owned())),
            _ => Ok(Incoming::Unknown { seq: frame.seq }),
        }
    }
}

/// The text of an error; another version may send an object.
fn reason(error: Option<&RawValue>) -> String {
    let error = error.and_then(|error| serde_json::from_str::<Value>(error.get()).ok());
    match error {
        Some(Value::String(text)) => text,
        Some(Value::Object(object)) => match object.get("message") {
            Some(Value::String(text)) => text.clone(),
            _ => Value::Object(object).to_string(),
        },
        _ => "the gateway gave no reason".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::content::Content;
    use crate::event::*;

    /// Payloads as docs/PROTOCOL.md has them.
    fn examples() -> Vec<(&'static str, Value)> {
        let time = "2026-01-02T03:04:05.678Z";
        let entry = json!({ "content": "p", "priority": "high", "status": "in_progress" });
        let choice = json!({ "id": "y", "name": "Yes", "kind": "allow_once" });
        let value = json!({ "id": "plan", "name": "Plan", "description": "d" });
        let mode = json!({ "id": "mode", "name": "Mode", "category": "mode", "current": "plan", "choices": [value] });
        vec![
            (
                "message",
                json!({
                    "role": "user", "content": [{ "type": "text", "text": "a" }], "messageId": "m", "timestamp": time,
                    "fromSelf": true, "source": "external:x", "priority": "now", "metadata": { "k": [1] },
                    "large": { "bytes": 2_000_000, "url": "/u" },
                }),
            ),
            (
                "message",
                json!({ "role": "system", "content": "a", "messageId": "m", "timestamp": time, "fromSelf": false }),
            ),
            ("queued", json!({ "requestId": "1", "position": 2, "message": "two" })),
            ("status", json!({ "status": "started", "attempt": 1 })),
            ("status", json!({ "status": "executing_tool" })),
            ("token", json!({ "content": "t", "delta": true, "messageId": null })),
            ("thinking", json!({ "content": "t", "delta": true, "messageId": "m" })),
            ("tool_call", json!({ "callId": "c", "toolName": "n", "arguments": { "a": null } })),
            ("tool_result", json!({ "callId": "c", "toolName": "n", "result": null })),
            ("tool_result", json!({ "callId": "c", "toolName": "n", "error": "e" })),
            ("tool_result", json!({ "callId": "c", "toolName": "n", "error": "e", "unreported": true })),
            (
                "final",
                json!({
                    "messageId": "m", "content": "answer", "totalTokens": 3, "latencyMs": null, "stage": null,
                    "timestamp": time,
                }),
            ),
            ("error", json!({ "message": "e", "errorCode": "attempt_failed", "retryable": true })),
            ("error", json!({ "message": "e", "errorCode": "run_failed", "retryable": false })),
            ("error", json!({ "message": "e", "errorCode": "session_deleted", "retryable": false })),
            ("cancelled", json!({ "message": "c" })),
            ("title", json!({ "title": "t" })),
            (
                "sub_agent",
                json!({ "parentCallId": "c", "subAgent": "s", "event": "token", "payload": { "content": "x" } }),
            ),
            ("permission", json!({ "requestId": "r", "title": "rm", "callId": null, "choices": [choice] })),
            ("permission", json!({ "requestId": "r", "choice": "y" })),
            ("clients", json!({ "clients": 2 })),
            ("plan", json!({ "entries": [entry] })),
            ("commands", json!({ "commands": [{ "name": "compact", "description": "d", "hint": "h" }] })),
            ("options", json!({ "options": [mode], "refused": "why" })),
            ("option", json!({ "id": "mode", "value": "plan" })),
            (
                "large",
                json!({ "source": "self", "type": "record", "subtype": null, "bytes": 3, "url": "/u" }),
            ),
        ]
    }

    fn event_of(text: &str) -> Frame {
        match Incoming::parse(text) {
            Ok(Incoming::Event(frame)) => *frame,
            other => panic!("{text}: {other:?}"),
        }
    }

    /// `depth` arrays in each other.
    fn nested(depth: usize) -> String {
        "[".repeat(depth) + &"]".repeat(depth)
    }

    #[test]
    fn every_event_is_written_as_it_was_read_without_what_is_not_known() {
        let named: std::collections::BTreeSet<&str> = examples().iter().map(|(name, _)| *name).collect();
        assert_eq!(named, EVENTS.iter().copied().collect());
        for (n, (name, mut payload)) in (1..).zip(examples()) {
            payload["sessionId"] = "s".into();
            payload["runId"] = if n % 2 == 0 { Value::Null } else { "r".into() };
            let written =
                json!({ "type": "event", "event": name, "payload": payload, "seq": n, "time": "T" });
            let text = written.to_string();
            let frame = event_of(&text);
            assert_eq!(frame.event.name(), name);
            let (session, run, time) = (&frame.session_id, &frame.run_id, &frame.time);
            let again = frame.event.text(session.as_deref(), run.as_deref(), frame.seq, time.as_deref());
            assert_eq!(serde_json::from_str::<Value>(&again).unwrap(), written);
            // Keys that are not known, nested deeper than any parser of values would go.
            let more = format!(r#""payload":{{"more":{},"#, nested(100_000));
            let text = text.replacen(r#""payload":{"#, &more, 1).replacen('{', r#"{"x":{},"#, 1);
            assert_eq!(event_of(&text), frame, "{text:.200}");
        }
    }

    /// None of a frame's values is replaced by a default.
    #[test]
    fn every_key_of_an_event_is_needed_but_those_that_may_be_absent_or_null() {
        for (name, payload) in examples() {
            for (key, value) in payload.as_object().unwrap() {
                let mut payload = payload.clone();
                payload.as_object_mut().unwrap().shift_remove(key);
                let text = json!({ "type": "event", "event": name, "payload": payload }).to_string();
                let optional = [
                    "priority",
                    "metadata",
                    "large",
                    "attempt",
                    "messageId",
                    "totalTokens",
                    "latencyMs",
                    "stage",
                    "callId",
                    "subtype",
                    "result",
                    "error",
                    "source",
                    "unreported",
                    "refused",
                ];
                let may_lack = optional.contains(&key.as_str())
                    && !(key == "messageId" && ["message", "final"].contains(&name))
                    && !(key == "callId" && name != "permission")
                    && !(key == "source" && name != "message");
                assert_eq!(Incoming::parse(&text).is_ok(), may_lack, "{name} without {key}: {value}");
            }
        }
    }

    #[test]
    fn a_frame_has_its_keys_in_order() {
        let event = Event::from(Title { title: "t".into() });
        assert_eq!(
            event.text(Some("s"), None, Some(7), Some("T")),
            r#"{"type":"event","event":"title","payload":{"title":"t","sessionId":"s","runId":null},"seq":7,"time":"T"}"#
        );
        assert_eq!(
            event.text(None, Some("r"), None, None),
            r#"{"type":"event","event":"title","payload":{"title":"t","sessionId":null,"runId":"r"}}"#
        );
    }

    #[test]
    fn what_is_not_known_is_ignored_and_keeps_its_place() {
        for (text, place) in [
            (r#"{"type":"event","event":"novelty","payload":{},"seq":4}"#, Some(4)),
            (r#"{"type":"event","event":"novelty"}"#, None),
            (r#"{"type":"greeting","id":"1"}"#, None),
        ] {
            let parsed = Incoming::parse(text);
            assert!(matches!(parsed, Ok(Incoming::Unknown { seq }) if seq == place), "{text}: {parsed:?}");
        }
        let text = r#"{"type":"event","event":"status","payload":{"status":"dreaming","runId":"r"}}"#;
        let frame = event_of(text);
        let status = Status { status: RunStatus::Other("dreaming".into()), attempt: None };
        assert_eq!((frame.event, frame.session_id), (Event::Status(status), None));
        let text = r#"{"type":"event","event":"error","payload":{"message":"m","errorCode":"e9","retryable":false}}"#;
        let Event::Error(error) = event_of(text).event else { panic!("{text}") };
        assert_eq!(error.error_code.as_str(), "e9");
    }

    #[test]
    fn a_frame_that_cannot_be_read_says_which_and_why() {
        for (text, said) in [
            ("x", "a frame cannot be read: expected value at line 1 column 1"),
            (r#"{"event":"final"}"#, "a frame cannot be read: missing field `type`"),
            (
                r#"{"type":"event","event":"final","payload":{"content":"a"},"seq":9}"#,
                "the event 'final' (seq 9) cannot be read: missing field `messageId`",
            ),
            (
                r#"{"type":"event","event":"permission","payload":{"requestId":"r","title":"t"}}"#,
                "the event 'permission' cannot be read: neither a permission request nor the answer to one",
            ),
            (r#"{"type":"event","event":"title"}"#, "the event 'title' cannot be read: invalid type: null"),
            (
                r#"{"type":"res","id":"3","ok":true}"#,
                "the response to request 3 cannot be read: it lacks 'ok' or 'payload'",
            ),
            (r#"{"type":"event","seq":2}"#, "a frame (seq 2) cannot be read: it has no 'event'"),
            (r#"{"type":"res","ok":false}"#, "a frame cannot be read: it has no 'id'"),
        ] {
            let error = Incoming::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_frame_that_cannot_be_read_tells_its_run_if_it_can() {
        let run = |payload: &str| {
            let text = format!(r#"{{"type":"event","event":"final","payload":{payload},"seq":9}}"#);
            Incoming::parse(&text).unwrap_err().run_id
        };
        assert_eq!(run(r#"{"content":7,"runId":"r"}"#).as_deref(), Some("r"));
        assert_eq!((run("[]"), run(r#"{"runId":7}"#)), (None, None));
    }

    #[test]
    fn what_is_nested_too_deep_for_a_value_is_read_as_text() {
        for depth in [125, 100_000] {
            let deep = nested(depth);
            let content = format!(r#"[{{"type":"x","y":{deep}}}]"#);
            let text = format!(
                r#"{{"type":"event","event":"final","payload":{{"messageId":"m","content":{content},
                   "timestamp":"t","sessionId":"s","runId":null}}}}"#
            );
            let Event::Final(answer) = event_of(&text).event else { panic!("{text:.200}") };
            match answer.content {
                Content::Text(read) => assert_eq!(read, content),
                Content::Parts(parts) => assert_eq!((depth, Value::from(parts).to_string()), (125, content)),
            }
            let text = format!(
                r#"{{"type":"event","event":"tool_call","payload":{{"callId":"c","toolName":"n","arguments":{deep}}}}}"#
            );
            let Event::ToolCall(call) = event_of(&text).event else { panic!("{text:.200}") };
            let read = call.arguments.as_str().map_or_else(|| call.arguments.to_string(), str::to_owned);
            assert_eq!(read, deep);
        }
    }

    #[test]
    fn a_response_has_a_payload_or_a_reason() {
        let response = |text: &str| match Incoming::parse(text) {
            Ok(Incoming::Response { id, outcome }) => {
                (id, outcome.map(|payload| payload.get().to_owned()).map_err(|why| (why.error, why.code)))
            }
            other => panic!("{text}: {other:?}"),
        };
        let nothing = crate::method::Nothing {};
        let ok = crate::response::payload::<crate::method::PermissionAnswer>("1", &nothing);
        assert_eq!(ok, r#"{"type":"res","id":"1","ok":true,"payload":{}}"#);
        assert_eq!(response(&ok), ("1".into(), Ok("{}".into())));
        let refused = crate::response::error("2", "no", "not_found");
        assert_eq!(refused, r#"{"type":"res","id":"2","ok":false,"error":"no","code":"not_found"}"#);
        assert_eq!(response(&refused), ("2".into(), Err(("no".into(), "not_found".into()))));
        for (error, reason) in [
            (r#","error":{"message":"no"}"#, "no"),
            (r#","error":{"code":1}"#, r#"{"code":1}"#),
            ("", "the gateway gave no reason"),
        ] {
            let text = format!(r#"{{"type":"res","id":"3","ok":false{error}}}"#);
            assert_eq!(response(&text), ("3".into(), Err((reason.into(), String::new()))));
        }
    }
}
