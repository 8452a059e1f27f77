//! Calls of tools, and their results.

use agent_client_protocol_schema::v1::{
    Content, ContentBlock, SessionUpdate, TextContent, ToolCall, ToolCallContent, ToolCallLocation,
    ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use serde_json::Value;
use thread_protocol::event;

use super::Transcript;

/// The id of a call for editors, for which it must be unique in the session: agents use theirs again in each run.
pub fn call_id(run: &str, call: &str) -> String {
    format!("{run}/{call}")
}

/// What a request for permission shows of its call. `details` has a line of JSON for each change to a file, and text.
pub fn details(details: &str) -> Vec<ToolCallContent> {
    let (mut shown, mut lines) = (Vec::new(), Vec::new());
    for line in details.lines() {
        match serde_json::from_str::<ToolCallContent>(line) {
            Ok(ToolCallContent::Diff(diff)) => shown.push(ToolCallContent::Diff(diff)),
            _ => lines.push(line),
        }
    }
    let text = lines.join("\n");
    if !text.trim().is_empty() {
        shown.push(text_content(&text));
    }
    shown
}

pub fn text_content(text: &str) -> ToolCallContent {
    ToolCallContent::Content(Content::new(ContentBlock::Text(TextContent::new(text))))
}

/// Values of the protocol's own form, which agents have sent as such. Others are left out, and so are terminals, which are
/// not the editor's.
fn content_of(values: &[Value]) -> Vec<ToolCallContent> {
    let known = values.iter().filter_map(|value| serde_json::from_value(value.clone()).ok());
    known.filter(|content| !matches!(content, ToolCallContent::Terminal(_))).collect()
}

fn kind_of(word: Option<&str>) -> ToolKind {
    word.and_then(|word| serde_json::from_value(word.into()).ok()).unwrap_or_default()
}

impl Transcript {
    /// A call, or a correction of it.
    pub(super) fn called(&mut self, run: &str, call: &event::ToolCall) -> SessionUpdate {
        self.call(run, call_id(run, &call.call_id), call)
    }

    fn call(&mut self, run: &str, id: String, call: &event::ToolCall) -> SessionUpdate {
        let title = call.title.clone().unwrap_or_else(|| call.tool_name.clone());
        let input = Some(call.arguments.clone()).filter(|arguments| !arguments.is_null());
        let locations: Vec<ToolCallLocation> = call
            .locations
            .iter()
            .filter_map(|location| serde_json::from_value(location.clone()).ok())
            .collect();
        let is_new = self.calls.insert(id.clone(), run.to_owned()).is_none();
        if is_new {
            let shown = ToolCall::new(id, title).kind(kind_of(call.kind.as_deref()));
            let shown = shown.status(ToolCallStatus::InProgress).locations(locations).raw_input(input);
            return SessionUpdate::ToolCall(shown.name(call.tool_name.clone()));
        }
        let mut fields = ToolCallUpdateFields::new().title(title).raw_input(input);
        if call.kind.is_some() {
            fields = fields.kind(kind_of(call.kind.as_deref()));
        }
        if !locations.is_empty() {
            fields = fields.locations(locations);
        }
        SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields))
    }

    pub(super) fn returned(&mut self, run: &str, result: &event::ToolResult) -> Vec<SessionUpdate> {
        self.result(run, call_id(run, &result.call_id), result)
    }

    fn result(&mut self, run: &str, id: String, result: &event::ToolResult) -> Vec<SessionUpdate> {
        let mut updates = Vec::new();
        if !self.calls.contains_key(&id) {
            // It was too large to be shown, or had its result already.
            let call = event::ToolCall {
                call_id: result.call_id.clone(),
                tool_name: result.tool_name.clone(),
                arguments: Value::Null,
                title: None,
                kind: None,
                locations: Vec::new(),
            };
            updates.push(self.call(run, id.clone(), &call));
        }
        self.calls.remove(&id);
        let mut content = content_of(&result.content);
        let fields = match (&result.error, &result.result) {
            (Some(error), _) => {
                content.push(text_content(error));
                ToolCallUpdateFields::new().status(ToolCallStatus::Failed)
            }
            (None, output) => {
                // Not every editor shows raw output.
                if let (true, Some(text)) = (content.is_empty(), output.as_ref().and_then(Value::as_str)) {
                    content.extend((!text.is_empty()).then(|| text_content(text)));
                }
                let output = output.clone().filter(|output| !output.is_null());
                ToolCallUpdateFields::new().status(ToolCallStatus::Completed).raw_output(output)
            }
        };
        let fields = if content.is_empty() { fields } else { fields.content(content) };
        updates.push(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields)));
        updates
    }

    /// The run is over. A call that is still open had a result that was too large to be shown.
    pub(super) fn left_open(&mut self, run: &str) -> Vec<SessionUpdate> {
        let of_run = |of: &String| of == run;
        let open: Vec<String> =
            self.calls.iter().filter(|(_, of)| of_run(of)).map(|(id, _)| id.clone()).collect();
        self.calls.retain(|_, of| !of_run(of));
        let done = |id| {
            let fields = ToolCallUpdateFields::new().status(ToolCallStatus::Completed);
            SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields))
        };
        open.into_iter().map(done).collect::<Vec<SessionUpdate>>()
    }

    /// What a sub-agent does: its calls, with its name. The rest is in the result of the call that it works for.
    pub(super) fn sub_agent(&mut self, run: &str, told: &event::SubAgent) -> Vec<SessionUpdate> {
        let text = |key: &str| told.payload[key].as_str().map(str::to_owned);
        let Some(call) = text("call_id") else { return Vec::new() };
        let id = call_id(run, &format!("{}/{call}", told.sub_agent));
        // Without the digits that tell it apart from others of its name.
        let name = told.sub_agent.rsplit_once('-').map_or(&*told.sub_agent, |(name, _)| name);
        let tool_name = text("name").unwrap_or_default();
        let list = |key: &str| told.payload[key].as_array().cloned().unwrap_or_default();
        match &*told.event {
            "tool_call" => {
                let title = text("title").unwrap_or_else(|| tool_name.clone());
                let call = event::ToolCall {
                    call_id: call,
                    tool_name,
                    arguments: told.payload["arguments"].clone(),
                    title: Some(format!("{name}: {title}")),
                    kind: text("kind"),
                    locations: list("locations"),
                };
                vec![self.call(run, id, &call)]
            }
            "tool_result" => {
                let result = event::ToolResult {
                    call_id: call,
                    tool_name,
                    result: told.payload.get("result").cloned(),
                    error: text("error"),
                    content: list("content"),
                    unreported: false,
                };
                self.result(run, id, &result)
            }
            _ => Vec::new(),
        }
    }
}
