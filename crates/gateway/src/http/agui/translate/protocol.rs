//! A client of AG-UI that insists on the protocol.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::super::writer::Version;

/// The name of the tool that the client has.
pub const OWN_TOOL: &str = "draw";

/// What a client knows after each event.
#[derive(Debug, Clone)]
pub struct Client {
    version: Version,
    has_begun: bool,
    pub is_over: bool,
    /// The message of text or reasoning that is open.
    open: Option<(&'static str, String)>,
    /// The messages so far, in all streams.
    messages: BTreeSet<String>,
    /// The call that is open.
    open_call: Option<String>,
    /// The calls of this stream, and those of all streams, each with whether it has a result.
    calls: BTreeSet<String>,
    results: BTreeMap<String, bool>,
    /// Those of the client's own tool.
    own: BTreeSet<String>,
    /// The sub-agents that are at work, and those of this stream.
    at_work: BTreeSet<String>,
    pub state: Value,
    /// All text, in one piece.
    pub text: String,
}

impl Client {
    pub fn new(version: Version) -> Client {
        Client {
            version,
            has_begun: false,
            is_over: false,
            open: None,
            messages: BTreeSet::new(),
            open_call: None,
            calls: BTreeSet::new(),
            results: BTreeMap::new(),
            own: BTreeSet::new(),
            at_work: BTreeSet::new(),
            state: json!({}),
            text: String::new(),
        }
    }

    /// It continues the run in another stream.
    pub fn continues(&mut self) {
        assert!(self.is_over);
        (self.has_begun, self.is_over) = (false, false);
        self.calls.clear();
    }

    pub fn take(&mut self, event: &Value) {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let kind = event["type"].as_str().unwrap();
        assert!(!self.is_over, "after the end: {event}");
        assert_eq!(self.has_begun, kind != "RUN_STARTED", "a stream has one beginning: {event}");
        assert!(event["timestamp"].is_i64(), "{event}");
        let is_zero = self.version == Version::Zero;
        assert!(!is_zero || !(kind.starts_with("REASONING") || kind.starts_with("SUBAGENT")), "{event}");
        assert!(is_zero || !kind.starts_with("THINKING"), "{event}");
        if let Some(sub) = event["subagentRunId"].as_str().filter(|_| !kind.starts_with("SUBAGENT")) {
            assert!(self.at_work.contains(sub), "of a sub-agent that is not at work: {event}");
        }
        match kind {
            "RUN_STARTED" => self.has_begun = true,
            "RUN_FINISHED" | "RUN_ERROR" => self.ends(),
            "TEXT_MESSAGE_START" => self.opens("text", text("messageId")),
            "TEXT_MESSAGE_CONTENT" => {
                self.has_open("text", &text("messageId"));
                assert_ne!(text("delta"), "");
                self.text += &text("delta");
            }
            "TEXT_MESSAGE_END" => self.closes("text", &text("messageId")),
            "REASONING_START" => self.opens("reasoning", text("messageId")),
            "REASONING_MESSAGE_START" => {
                self.closes("reasoning", &text("messageId"));
                self.open = Some(("said", text("messageId")));
            }
            "REASONING_MESSAGE_CONTENT" => self.has_open("said", &text("messageId")),
            "REASONING_MESSAGE_END" => {
                self.closes("said", &text("messageId"));
                self.open = Some(("reasoning", text("messageId")));
            }
            "REASONING_END" => self.closes("reasoning", &text("messageId")),
            "THINKING_START" => {
                assert_eq!(self.open, None);
                self.open = Some(("thinking", String::new()));
            }
            "THINKING_TEXT_MESSAGE_START" => {
                self.closes("thinking", "");
                self.open = Some(("said", String::new()));
            }
            "THINKING_TEXT_MESSAGE_CONTENT" => self.has_open("said", ""),
            "THINKING_TEXT_MESSAGE_END" => {
                self.closes("said", "");
                self.open = Some(("thinking", String::new()));
            }
            "THINKING_END" => self.closes("thinking", ""),
            "TOOL_CALL_START" => {
                let id = text("toolCallId");
                // A sub-agent makes calls while the agent speaks.
                let is_between = self.open.is_none() || event["subagentRunId"].is_string();
                assert!(is_between && self.open_call.is_none(), "{event}");
                assert!(self.calls.insert(id.clone()), "called twice: {event}");
                self.results.entry(id.clone()).or_default();
                if text("toolCallName") == OWN_TOOL {
                    self.own.insert(id.clone());
                }
                self.open_call = Some(id);
            }
            "TOOL_CALL_ARGS" => assert_eq!(self.open_call, Some(text("toolCallId")), "{event}"),
            "TOOL_CALL_END" => assert_eq!(self.open_call.take(), Some(text("toolCallId")), "{event}"),
            "TOOL_CALL_RESULT" => {
                let id = text("toolCallId");
                // Calls of the client's own tools, and those of sub-agents, are not opened again by another stream.
                let is_again = event["subagentRunId"].is_string() || self.own.contains(&id);
                assert!(is_zero || is_again || self.calls.contains(&id), "not of this stream: {event}");
                let has = self.results.get_mut(&id);
                let has = has.unwrap_or_else(|| panic!("of an unknown call: {event}"));
                assert!(!std::mem::replace(has, true), "a second result: {event}");
                assert!(self.messages.insert(text("messageId") + "\0" + &text("toolCallId")), "{event}");
            }
            "SUBAGENT_STARTED" => {
                assert!(self.results.contains_key(&text("parentToolCallId")), "{event}");
                assert!(self.at_work.insert(text("subagentRunId")), "begins twice: {event}");
            }
            "SUBAGENT_FINISHED" | "SUBAGENT_ERROR" => {
                assert!(self.at_work.remove(&text("subagentRunId")), "is not at work: {event}");
            }
            "STATE_SNAPSHOT" => self.state = event["snapshot"].clone(),
            "STATE_DELTA" => {
                let patch: json_patch::Patch = serde_json::from_value(event["delta"].clone()).unwrap();
                json_patch::patch(&mut self.state, &patch).unwrap();
            }
            // What an attempt has said before is a message of its own.
            "CUSTOM" if text("name") == "thread.attempt" => assert_eq!(self.open, None, "{event}"),
            "CUSTOM" => {}
            _ => panic!("unknown: {event}"),
        }
    }

    fn ends(&mut self) {
        assert_eq!((&self.open, &self.open_call), (&None, &None), "something is open at the end");
        assert!(self.at_work.is_empty(), "sub-agents are at work at the end: {:?}", self.at_work);
        self.is_over = true;
    }

    fn opens(&mut self, kind: &'static str, id: String) {
        assert_eq!(self.open, None, "{id} is opened");
        assert!(self.messages.insert(id.clone()), "a second message {id}");
        self.open = Some((kind, id));
    }

    fn has_open(&self, kind: &str, id: &str) {
        let open = self.open.as_ref().map(|(kind, id)| (*kind, &**id));
        assert_eq!(open, Some((kind, id)));
    }

    fn closes(&mut self, kind: &str, id: &str) {
        self.has_open(kind, id);
        self.open = None;
    }
}
