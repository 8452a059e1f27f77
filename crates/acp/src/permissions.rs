//! Requests for permission that have no answer yet.
//!
//! Editors are asked while a prompt of theirs is under way: at other times they need not listen. So a request that came
//! before, or that an editor has left open, is asked at its next prompt. Others may answer any time.

use agent_client_protocol_schema::v1::{
    PermissionOption, PermissionOptionKind, RequestPermissionRequest, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields,
};
use thread_protocol::Frame;
use thread_protocol::event::{Choice, ErrorCode, Event, Permission, PermissionRequest};

use crate::updates::calls::{call_id, details};

/// Those of a session, in their order.
#[derive(Debug, Default)]
pub struct Permissions(Vec<Waiting>);

#[derive(Debug)]
struct Waiting {
    run: String,
    request: PermissionRequest,
    asked: State,
}

/// Whether the editor knows of a request.
#[derive(Debug, PartialEq, Eq)]
enum State {
    No,
    /// By the request of that id.
    Yes(u64),
    /// It has chosen nothing.
    LeftOpen,
    /// It has answered; the gateway has not said so yet.
    Answered,
}

impl Permissions {
    /// Takes in an event. Returns the ids of requests to the editor that need no answer any more.
    pub fn apply(&mut self, frame: &Frame) -> Vec<u64> {
        let run = frame.run_id.as_deref().unwrap_or_default();
        match &frame.event {
            Event::Permission(Permission::Request(request)) => {
                // An adapter that was killed makes its request again, under the same id.
                self.0
                    .retain(|waiting| waiting.request.request_id != request.request_id || waiting.run != run);
                self.0.push(Waiting { run: run.to_owned(), request: request.clone(), asked: State::No });
                Vec::new()
            }
            Event::Permission(Permission::Answer(answer)) => {
                self.done(|waiting| waiting.request.request_id == answer.request_id)
            }
            Event::ToolResult(result) => self.done(|waiting| {
                waiting.run == run && waiting.request.call_id.as_ref() == Some(&result.call_id)
            }),
            // Ends nothing.
            Event::Error(error) if error.error_code == ErrorCode::Reported => Vec::new(),
            Event::Final(_) | Event::Cancelled(_) | Event::Error(_) => {
                self.done(|waiting| waiting.run == run)
            }
            _ => Vec::new(),
        }
    }

    fn done(&mut self, is_done: impl Fn(&Waiting) -> bool) -> Vec<u64> {
        let done = self.0.extract_if(.., |waiting| is_done(waiting));
        let asked = |waiting: Waiting| match waiting.asked {
            State::Yes(id) => Some(id),
            State::No | State::LeftOpen | State::Answered => None,
        };
        done.filter_map(asked).collect()
    }

    /// A request that the editor has not been asked, with its id.
    pub fn next(&self, session: &str) -> Option<(String, RequestPermissionRequest)> {
        let waiting = self.0.iter().find(|waiting| waiting.asked == State::No)?;
        Some((waiting.request.request_id.clone(), waiting.for_editor(session)))
    }

    /// The editor has been asked.
    pub fn asked(&mut self, request_id: &str, id: u64) {
        self.set(request_id, State::Yes(id));
    }

    /// The editor has answered, and chosen something or not. Returns whether anybody still waits for that.
    pub fn answered(&mut self, request_id: &str, has_chosen: bool) -> bool {
        self.set(request_id, if has_chosen { State::Answered } else { State::LeftOpen })
    }

    /// There is another prompt: what the editor has left open is asked again.
    pub fn ask_again(&mut self) {
        let left = self.0.iter_mut().filter(|waiting| waiting.asked == State::LeftOpen);
        left.for_each(|waiting| waiting.asked = State::No);
    }

    fn set(&mut self, request_id: &str, state: State) -> bool {
        let found = self.0.iter_mut().find(|waiting| waiting.request.request_id == request_id);
        found.map(|waiting| waiting.asked = state).is_some()
    }
}

impl Waiting {
    fn for_editor(&self, session: &str) -> RequestPermissionRequest {
        let request = &self.request;
        let call = request.call_id.as_deref().unwrap_or(&request.request_id);
        let input = Some(request.arguments.clone()).filter(|arguments| !arguments.is_null());
        let mut fields = ToolCallUpdateFields::new().title(request.title.clone()).raw_input(input);
        let content = details(&request.details);
        if !content.is_empty() {
            fields = fields.content(content);
        }
        let call = ToolCallUpdate::new(call_id(&self.run, call), fields.status(ToolCallStatus::Pending));
        RequestPermissionRequest::new(session.to_owned(), call, request.choices.iter().map(option).collect())
    }
}

fn option(choice: &Choice) -> PermissionOption {
    let kind = serde_json::from_value(choice.kind.clone().into()).unwrap_or({
        // Of an agent with other words.
        let words = format!("{} {}", choice.kind, choice.id).to_lowercase();
        match words.contains("reject") || words.contains("deny") {
            true => PermissionOptionKind::RejectOnce,
            false => PermissionOptionKind::AllowOnce,
        }
    });
    PermissionOption::new(choice.id.clone(), choice.name.clone(), kind)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use thread_protocol::Incoming;

    use super::*;

    fn frame(event: &str, mut payload: Value, run: &str) -> Frame {
        payload["runId"] = run.into();
        let text = json!({ "type": "event", "event": event, "payload": payload, "seq": 1 }).to_string();
        let Ok(Incoming::Event(frame)) = Incoming::parse(&text) else { panic!("{text}") };
        *frame
    }

    fn request(id: &str) -> Frame {
        let choice = |id: &str, kind: &str| json!({ "id": id, "name": id, "kind": kind });
        let payload = json!({
            "requestId": id, "title": "Run make", "callId": "c", "arguments": { "a": 1 }, "details": "make",
            "choices": [choice("y", "allow_once"), choice("n", "reject_always"), choice("deny it", "")],
        });
        frame("permission", payload, "r")
    }

    #[test]
    fn an_editor_is_asked_once_with_all_that_is_known() {
        let mut permissions = Permissions::default();
        permissions.apply(&request("p"));
        let (id, asked) = permissions.next("s").unwrap();
        let asked = serde_json::to_value(asked).unwrap();
        assert_eq!((&*id, &asked["sessionId"]), ("p", &json!("s")));
        assert_eq!(
            asked["toolCall"],
            json!({
                "toolCallId": "r/c", "title": "Run make", "status": "pending", "rawInput": { "a": 1 },
                "content": [{ "type": "content", "content": { "type": "text", "text": "make" } }],
            })
        );
        let kinds: Vec<&Value> =
            asked["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
        assert_eq!(kinds, ["allow_once", "reject_always", "reject_once"]);
        permissions.asked("p", 7);
        assert!(permissions.next("s").is_none());
        // Left open, it is asked again at the next prompt.
        assert!(permissions.answered("p", false));
        assert!(permissions.next("s").is_none());
        permissions.ask_again();
        assert!(permissions.next("s").is_some());
        assert!(permissions.answered("p", true));
        permissions.ask_again();
        assert!(permissions.next("s").is_none());
        assert!(!permissions.answered("unknown", true));
    }

    #[test]
    fn a_request_that_is_settled_elsewhere_is_withdrawn() {
        let answer = json!({ "requestId": "p", "choice": "y" });
        let result = |call: &str| json!({ "callId": call, "toolName": "t", "result": 1 });
        let error =
            |code: &str, retryable| json!({ "message": "m", "errorCode": code, "retryable": retryable });
        for settled in [
            frame("permission", answer, "q"),
            frame("tool_result", result("c"), "r"),
            frame("cancelled", json!({ "message": "m" }), "r"),
            frame("error", error("attempt_failed", true), "r"),
            frame("error", error("run_failed", false), "r"),
        ] {
            let mut permissions = Permissions::default();
            permissions.apply(&request("p"));
            permissions.asked("p", 7);
            for other in [
                frame("tool_result", result("d"), "r"),
                frame("tool_result", result("c"), "q"),
                frame("cancelled", json!({ "message": "m" }), "q"),
            ] {
                assert!(permissions.apply(&other).is_empty());
            }
            assert_eq!(permissions.apply(&settled), [7], "{settled:?}");
            assert!(permissions.next("s").is_none());
        }
    }
}
