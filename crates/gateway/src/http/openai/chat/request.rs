//! The body of `POST /v1/chat/completions`.

use serde_json::{Value, json};

use super::super::conversation::{Conversation, Output, Said, content_of, text_of, tools_of};
use super::super::error::{OpenAiError, Result};

/// The longest `user`, in bytes.
const MAX_USER: usize = 512;

/// What a request asks for.
#[derive(Debug)]
pub struct ChatRequest {
    pub model: String,
    pub conversation: Conversation,
    pub tools: Vec<Value>,
    pub user: Option<String>,
    pub stream: bool,
    pub include_usage: bool,
}

impl ChatRequest {
    /// # Errors
    ///
    /// A field is missing or wrong, or asks for what an agent cannot do.
    pub fn read(body: &Value) -> Result<ChatRequest> {
        if !body.is_object() {
            return Err(OpenAiError::bad("the body is not a JSON object"));
        }
        refuse(body)?;
        let model = text(body, "model")?.ok_or_else(|| {
            OpenAiError::of_param("model", "'model' is missing - GET /v1/models lists them")
        })?;
        let messages = body["messages"].as_array();
        let messages = messages
            .ok_or_else(|| OpenAiError::of_param("messages", "'messages' must be a list of messages"))?;
        let said: Vec<Said> = messages.iter().enumerate().map(said).collect::<Result<_>>()?;
        let calls_none = body["tool_choice"] == "none";
        let tools = if calls_none { Vec::new() } else { tools_of(&body["tools"], true)? };
        Ok(ChatRequest {
            model,
            conversation: Conversation::of(said, "messages")?,
            tools,
            user: user(body)?,
            stream: flag(body, "stream")?,
            include_usage: body["stream_options"]["include_usage"] == true,
        })
    }
}

/// Refuses by name what would change the answer and cannot be done. Hints for sampling are ignored.
fn refuse(body: &Value) -> Result<()> {
    let is_set = |name: &str| !matches!(&body[name], Value::Null | Value::Bool(false));
    if body["n"].as_f64().is_some_and(|n| n > 1.0) {
        return Err(OpenAiError::unsupported("n", "an agent gives one answer"));
    }
    for name in ["logprobs", "top_logprobs"] {
        if is_set(name) && body[name] != 0 {
            return Err(OpenAiError::unsupported(name, "an agent does not say how likely a token was"));
        }
    }
    if is_set("response_format") && body["response_format"]["type"] != "text" {
        return Err(OpenAiError::unsupported("response_format", "an agent answers with text"));
    }
    if is_set("audio") || body["modalities"].as_array().is_some_and(|all| all.iter().any(|one| one != "text"))
    {
        return Err(OpenAiError::unsupported("modalities", "an agent answers with text"));
    }
    for name in ["functions", "function_call"] {
        if is_set(name) {
            return Err(OpenAiError::unsupported(name, "use 'tools'"));
        }
    }
    Ok(())
}

fn said((at, message): (usize, &Value)) -> Result<Said> {
    let param = format!("messages[{at}]");
    let content = &message["content"];
    Ok(match message["role"].as_str().unwrap_or_default() {
        "system" | "developer" => Said::System(text_of(content)),
        "user" => Said::User(content_of(content, &format!("{param}.content"))?),
        "assistant" => Said::Assistant(text_of(content)),
        "tool" => {
            let call_id = message["tool_call_id"].as_str().unwrap_or_default().to_owned();
            if call_id.is_empty() {
                return Err(OpenAiError::of_param(
                    &param,
                    "a message of the role 'tool' needs a 'tool_call_id'",
                ));
            }
            let content = json!(text_of(content));
            Said::Result(Output { call_id, content })
        }
        _ => {
            let what = "a message has the role 'system', 'developer', 'user', 'assistant' or 'tool'";
            return Err(OpenAiError::of_param(&format!("{param}.role"), what));
        }
    })
}

/// A field that is a text, if it is there.
pub fn text(body: &Value, name: &str) -> Result<Option<String>> {
    match &body[name] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        _ => Err(OpenAiError::of_param(name, format!("'{name}' must be a text"))),
    }
}

/// The `user` of a request, which has conversations of its own.
pub fn user(body: &Value) -> Result<Option<String>> {
    let user = text(body, "user")?.filter(|user| !user.is_empty());
    match user.as_ref().is_some_and(|user| user.len() > MAX_USER) {
        true => Err(OpenAiError::of_param("user", format!("'user' has at most {MAX_USER} bytes"))),
        false => Ok(user),
    }
}

/// A field that is true or false; false if it is not there.
pub fn flag(body: &Value, name: &str) -> Result<bool> {
    match &body[name] {
        Value::Null => Ok(false),
        Value::Bool(flag) => Ok(*flag),
        _ => Err(OpenAiError::of_param(name, format!("'{name}' must be true or false"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: Value) -> Result<ChatRequest> {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        ChatRequest::read(&body)
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_its_name() {
        for (name, more) in [
            ("n", json!({ "n": 2 })),
            ("logprobs", json!({ "logprobs": true })),
            ("top_logprobs", json!({ "top_logprobs": 3 })),
            ("response_format", json!({ "response_format": { "type": "json_object" } })),
            ("modalities", json!({ "modalities": ["text", "audio"] })),
            ("functions", json!({ "functions": [] })),
            ("tools[0].type", json!({ "tools": [{ "type": "web_search" }] })),
            ("model", json!({ "model": null })),
            ("stream", json!({ "stream": "yes" })),
            ("user", json!({ "user": "x".repeat(513) })),
            ("messages", json!({ "messages": [] })),
            ("messages[0].role", json!({ "messages": [{ "role": "x" }] })),
        ] {
            assert_eq!(read(more).unwrap_err().param.as_deref(), Some(name));
        }
    }

    #[test]
    fn hints_are_ignored() {
        let hints = json!({
            "n": 1, "logprobs": false, "top_logprobs": 0, "response_format": { "type": "text" }, "temperature": 2,
            "top_p": 0.1, "seed": 1, "stop": ["x"], "max_tokens": 5, "metadata": { "a": "b" }, "store": true,
            "stream_options": { "include_usage": true }, "logit_bias": {}, "reasoning_effort": "high",
            "parallel_tool_calls": false, "service_tier": "auto", "tool_choice": "none",
            "tools": [{ "type": "function", "function": { "name": "f" } }],
        });
        let read = read(hints).unwrap();
        assert!(read.include_usage && !read.stream && read.tools.is_empty());
    }
}
