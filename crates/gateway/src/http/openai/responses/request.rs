//! The body of `POST /v1/responses`.

use serde_json::{Value, json};

use super::super::chat::{flag, text, user};
use super::super::conversation::{Conversation, Output, Said, content_of, text_of, tools_of};
use super::super::error::{OpenAiError, Result};

/// What a request asks for.
#[derive(Debug)]
pub struct ResponseRequest {
    pub model: Option<String>,
    pub conversation: Conversation,
    pub tools: Vec<Value>,
    pub user: Option<String>,
    pub previous: Option<String>,
    pub background: bool,
    pub stream: bool,
}

impl ResponseRequest {
    /// # Errors
    ///
    /// A field is missing or wrong, or asks for what an agent cannot do.
    pub fn read(body: &Value) -> Result<ResponseRequest> {
        if !body.is_object() {
            return Err(OpenAiError::bad("the body is not a JSON object"));
        }
        refuse(body)?;
        let instructions = text(body, "instructions")?.filter(|text| !text.trim().is_empty());
        let mut items: Vec<Said> = instructions.into_iter().map(Said::System).collect();
        match &body["input"] {
            Value::String(text) => items.push(Said::User(text.as_str().into())),
            Value::Array(input) => {
                for one in input.iter().enumerate().map(said) {
                    items.extend(one?);
                }
            }
            _ => return Err(OpenAiError::of_param("input", "'input' must be a text or a list of items")),
        }
        let conversation = Conversation::of(items, "input")?;
        let previous = text(body, "previous_response_id")?;
        if previous.is_some() && !conversation.past.is_empty() {
            let what = "with 'previous_response_id', 'input' has one message, or results of calls";
            return Err(OpenAiError::of_param("input", what));
        }
        let calls_none = body["tool_choice"] == "none";
        let tools = if calls_none { Vec::new() } else { tools_of(&body["tools"], false)? };
        Ok(ResponseRequest {
            model: text(body, "model")?,
            conversation,
            tools,
            user: user(body)?,
            previous,
            background: flag(body, "background")?,
            stream: flag(body, "stream")?,
        })
    }
}

/// Refuses by name what would change the answer and cannot be done. Hints for sampling are ignored.
fn refuse(body: &Value) -> Result<()> {
    let is_set = |name: &str| !matches!(&body[name], Value::Null | Value::Bool(false));
    if is_set("top_logprobs") && body["top_logprobs"] != 0 {
        return Err(OpenAiError::unsupported("top_logprobs", "an agent does not say how likely a token was"));
    }
    let format = &body["text"]["format"]["type"];
    if !format.is_null() && format != "text" {
        return Err(OpenAiError::unsupported("text.format", "an agent answers with text"));
    }
    if is_set("conversation") {
        return Err(OpenAiError::unsupported("conversation", "use 'previous_response_id'"));
    }
    if is_set("prompt") {
        return Err(OpenAiError::unsupported("prompt", "there are no stored prompts; use 'instructions'"));
    }
    Ok(())
}

/// What an item says; `None` if it is nothing that was said.
fn said((at, item): (usize, &Value)) -> Result<Option<Said>> {
    let param = format!("input[{at}]");
    let content = &item["content"];
    let kind = item["type"].as_str().unwrap_or("message");
    Ok(Some(match (kind, item["role"].as_str().unwrap_or_default()) {
        ("message", "system" | "developer") => Said::System(text_of(content)),
        ("message", "user") => Said::User(content_of(content, &format!("{param}.content"))?),
        ("message", "assistant") => Said::Assistant(text_of(content)),
        ("message", _) => {
            let what = "a message has the role 'system', 'developer', 'user' or 'assistant'";
            return Err(OpenAiError::of_param(&format!("{param}.role"), what));
        }
        // What was called shows in its result.
        ("function_call", _) => Said::Assistant(String::new()),
        ("function_call_output", _) => {
            let call_id = item["call_id"].as_str().unwrap_or_default().to_owned();
            if call_id.is_empty() {
                return Err(OpenAiError::of_param(&param, "a 'function_call_output' needs a 'call_id'"));
            }
            let content = json!(text_of(&item["output"]));
            Said::Result(Output { call_id, content })
        }
        ("reasoning", _) => return Ok(None),
        (kind, _) => {
            let why = format!("items of the type '{kind}' cannot be given to the agent");
            return Err(OpenAiError::unsupported(&format!("{param}.type"), &why));
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::super::super::conversation::Asks;
    use super::*;

    #[test]
    fn input_is_a_text_or_items() {
        let read = |input: Value| ResponseRequest::read(&json!({ "input": input })).unwrap().conversation;
        assert_eq!(read("hi".into()).asks, Asks::Message("hi".into()));
        let items = json!([
            { "role": "developer", "content": "be brief" },
            { "role": "user", "content": [{ "type": "input_text", "text": "a" }] },
            { "type": "reasoning", "summary": [] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "b" }] },
            { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c", "output": "x" },
        ]);
        let read = read(items);
        assert_eq!((read.past.len(), read.past[0].answer.len()), (1, 1));
        assert!(matches!(&read.asks, Asks::Results(results) if results[0].call_id == "c"));
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_its_name() {
        for (name, body) in [
            ("input", json!({})),
            ("input", json!({ "input": [] })),
            ("top_logprobs", json!({ "input": "a", "top_logprobs": 2 })),
            ("text.format", json!({ "input": "a", "text": { "format": { "type": "json_object" } } })),
            ("conversation", json!({ "input": "a", "conversation": "conv_1" })),
            ("tools[0].type", json!({ "input": "a", "tools": [{ "type": "web_search" }] })),
            ("input[0].type", json!({ "input": [{ "type": "item_reference", "id": "x" }] })),
        ] {
            assert_eq!(ResponseRequest::read(&body).unwrap_err().param.as_deref(), Some(name));
        }
    }
}
