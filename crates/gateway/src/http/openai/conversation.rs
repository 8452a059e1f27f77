//! A conversation as a client brings it: with each request, from the beginning.

use serde_json::{Value, json};
use thread_protocol::Content;

use super::error::{OpenAiError, Result};
use super::text::{Digest, digest, normal};
use crate::http::agui::input::ToolMessage;

/// A conversation as a client shows it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// What the messages of the roles `system` and `developer` say.
    pub instructions: Vec<String>,
    pub past: Vec<Exchange>,
    pub asks: Asks,
}

/// What a user said, and what the assistant answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exchange {
    /// `None` if the assistant began.
    pub user: Option<Content>,
    /// The texts of the assistant's messages, without empty ones.
    pub answer: Vec<String>,
}

/// What the conversation ends with.
#[derive(Debug, Clone, PartialEq)]
pub enum Asks {
    Message(Content),
    /// Results of calls of the client's tools.
    Results(Vec<Output>),
}

/// The result of a call of one of the client's tools.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    pub call_id: String,
    pub content: Value,
}

impl Default for Asks {
    fn default() -> Asks {
        Asks::Results(Vec::new())
    }
}

impl Output {
    /// As an AG-UI client sends it.
    pub fn message(&self, call_id: String) -> ToolMessage {
        ToolMessage { tool_call_id: call_id, content: self.content.clone(), error: None }
    }
}

impl Exchange {
    /// The digest of what the user said.
    pub fn user_digest(&self) -> Option<Digest> {
        self.user.as_ref().map(|said| digest(&normal(&said.text())))
    }

    /// The answer in normal form; empty if there is none.
    pub fn answer(&self) -> String {
        normal(&self.whole_answer())
    }

    /// The whole answer, as one text.
    pub fn whole_answer(&self) -> String {
        self.answer.join("\n\n")
    }
}

/// A piece of a conversation, in the order of the client's messages.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    System(String),
    User(Content),
    /// Its text; empty if it only calls tools.
    Assistant(String),
    Result(Output),
}

impl Conversation {
    /// # Errors
    ///
    /// It ends with neither a message of the user nor results of calls.
    pub fn of(said: Vec<Said>, param: &str) -> Result<Conversation> {
        let (mut all, mut instructions): (Vec<Exchange>, _) = (Vec::new(), Vec::new());
        let (mut results, mut last_is_users) = (Vec::new(), false);
        for one in said {
            last_is_users = matches!(one, Said::User(_)) || last_is_users && matches!(one, Said::System(_));
            match one {
                Said::System(text) => {
                    instructions.push(text);
                    continue;
                }
                Said::Result(result) => {
                    results.push(result);
                    continue;
                }
                Said::User(content) => all.push(Exchange { user: Some(content), answer: Vec::new() }),
                Said::Assistant(text) => {
                    if all.is_empty() {
                        all.push(Exchange::default());
                    }
                    let is_empty = text.trim().is_empty();
                    if let Some(exchange) = all.last_mut().filter(|_| !is_empty) {
                        exchange.answer.push(text);
                    }
                }
            }
            results.clear();
        }
        let asks = match results.is_empty() {
            false => Asks::Results(results),
            true => match all.pop().filter(|_| last_is_users).and_then(|last| last.user) {
                Some(content) if is_empty(&content) => {
                    return Err(OpenAiError::of_param(param, "the last message is empty"));
                }
                Some(content) => Asks::Message(content),
                None => {
                    let what = "the last message must be the user's, or the result of a call";
                    return Err(OpenAiError::of_param(param, what));
                }
            },
        };
        // An assistant's message without anything said before or in it.
        all.retain(|exchange| exchange.user.is_some() || !exchange.answer.is_empty());
        Ok(Conversation { instructions, past: all, asks })
    }
}

fn is_empty(content: &Content) -> bool {
    matches!(content, Content::Text(text) if text.trim().is_empty())
}

/// The content of a user's message, as sessions have it. Text parts alone become text.
///
/// # Errors
///
/// It is neither a text nor parts of a kind that the agent can be given.
pub fn content_of(value: &Value, param: &str) -> Result<Content> {
    let parts = match value {
        Value::String(text) => return Ok(Content::Text(text.clone())),
        Value::Array(parts) => parts,
        _ => return Err(OpenAiError::of_param(param, "the content is neither a text nor a list of parts")),
    };
    let parts: Vec<Value> = parts.iter().map(|part| part_of(part, param)).collect::<Result<_>>()?;
    if parts.iter().all(|part| part["type"] == "text") {
        let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        return Ok(Content::Text(texts.join("\n")));
    }
    Ok(Content::Parts(parts))
}

/// The text of a content: a text, or parts of which those with a text count.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

fn part_of(part: &Value, param: &str) -> Result<Value> {
    let text = |text: &str| json!({ "type": "text", "text": text });
    let kind = part["type"].as_str().unwrap_or_default();
    Ok(match kind {
        "text" | "input_text" | "output_text" => text(part["text"].as_str().unwrap_or_default()),
        "image_url" | "input_image" => {
            let url = part["image_url"].as_str().or_else(|| part["image_url"]["url"].as_str());
            media("image", url.unwrap_or_default(), None)
        }
        "input_audio" => {
            let data = part["input_audio"]["data"].as_str().or_else(|| part["data"].as_str());
            json!({ "type": "audio", "source": { "type": "data", "value": data.unwrap_or_default() } })
        }
        "file" | "input_file" => {
            let file = if part["file"].is_object() { &part["file"] } else { part };
            let source = file["file_data"].as_str().or_else(|| file["file_url"].as_str());
            match source {
                Some(source) => media("document", source, file["filename"].as_str()),
                None => {
                    let why = "there is no store of files; send the file itself, as 'file_data'";
                    return Err(OpenAiError::unsupported("file_id", why));
                }
            }
        }
        _ => {
            let what = format!("a content part of the type '{kind}' cannot be given to the agent");
            return Err(OpenAiError::of_param(param, what));
        }
    })
}

/// A file in a message: its data, or one of this gateway's by URL. Of others only the URL is passed on, as text.
fn media(kind: &str, source: &str, name: Option<&str>) -> Value {
    if let Some((about, data)) = source.strip_prefix("data:").and_then(|rest| rest.split_once(',')) {
        let mime_type = about.split(';').next().unwrap_or_default();
        let source = json!({ "type": "data", "value": data, "mimeType": mime_type });
        return match name {
            Some(name) => json!({ "type": kind, "source": source, "metadata": { "filename": name } }),
            None => json!({ "type": kind, "source": source }),
        };
    }
    if source.contains(crate::storage::sign::PREFIX) {
        return json!({ "type": kind, "source": { "type": "url", "value": source } });
    }
    json!({ "type": "text", "text": format!("[{kind}: {source}]") })
}

/// The functions of the client, as AG-UI names them: `[{"name","description","parameters"}]`.
///
/// # Errors
///
/// A tool is not a function: this server has no tools of its own that a client could name.
pub fn tools_of(tools: &Value, nested: bool) -> Result<Vec<Value>> {
    let tools = match tools {
        Value::Null => return Ok(Vec::new()),
        Value::Array(tools) => tools,
        _ => return Err(OpenAiError::of_param("tools", "'tools' must be a list")),
    };
    let mut functions = Vec::with_capacity(tools.len());
    for (at, tool) in tools.iter().enumerate() {
        let param = format!("tools[{at}].type");
        if tool["type"] != "function" {
            let why = "only tools of the type 'function' are handed to the agent";
            return Err(OpenAiError::unsupported(&param, why));
        }
        let function = if nested { &tool["function"] } else { tool };
        let Some(name) = function["name"].as_str().filter(|name| !name.is_empty()) else {
            return Err(OpenAiError::of_param(&format!("tools[{at}]"), "a function needs a 'name'"));
        };
        let parameters = match &function["parameters"] {
            Value::Null => json!({ "type": "object", "properties": {} }),
            given => given.clone(),
        };
        let description = function["description"].as_str().unwrap_or_default();
        functions.push(json!({ "name": name, "description": description, "parameters": parameters }));
    }
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Said {
        Said::User(text.into())
    }

    fn assistant(text: &str) -> Said {
        Said::Assistant(text.into())
    }

    fn result(call_id: &str) -> Said {
        Said::Result(Output { call_id: call_id.into(), content: "r".into() })
    }

    #[test]
    fn a_conversation_is_exchanges_and_what_it_ends_with() {
        let system = || Said::System("be brief".into());
        let all =
            vec![system(), user("a"), assistant("b"), assistant(""), result("1"), assistant("c"), user("d")];
        let read = Conversation::of([all.clone(), vec![system()]].concat(), "messages").unwrap();
        let first = Exchange { user: Some("a".into()), answer: vec!["b".into(), "c".into()] };
        assert_eq!(read.instructions.len(), 2);
        assert_eq!((read.past, read.asks), (vec![first.clone()], Asks::Message("d".into())));
        let ends = [all, vec![assistant(""), result("2"), result("3")]].concat();
        let read = Conversation::of(ends, "messages").unwrap();
        let second = Exchange { user: Some("d".into()), answer: Vec::new() };
        assert_eq!(read.past, [first, second]);
        let Asks::Results(results) = read.asks else { panic!("{:?}", read.asks) };
        assert_eq!(results.iter().map(|one| &*one.call_id).collect::<Vec<_>>(), ["2", "3"]);
        let greeted = Conversation::of(vec![assistant("hi"), user("a")], "messages").unwrap();
        assert_eq!(greeted.past, [Exchange { user: None, answer: vec!["hi".into()] }]);
        for wrong in [vec![], vec![system()], vec![user("a"), assistant("b")], vec![user(" ")]] {
            Conversation::of(wrong, "messages").unwrap_err();
        }
    }

    #[test]
    fn parts_are_text_files_or_refused() {
        let text = json!([{ "type": "text", "text": "a" }, { "type": "input_text", "text": "b" }]);
        assert_eq!(content_of(&text, "p").unwrap(), Content::Text("a\nb".into()));
        let image = json!([{ "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA" } }]);
        let Content::Parts(parts) = content_of(&image, "p").unwrap() else { panic!() };
        assert_eq!(parts[0]["source"], json!({ "type": "data", "value": "AAAA", "mimeType": "image/png" }));
        let elsewhere = json!([{ "type": "input_image", "image_url": "https://example.org/a.png" }]);
        assert_eq!(content_of(&elsewhere, "p").unwrap().text(), "[image: https://example.org/a.png]");
        for wrong in
            [json!(1), json!([{ "type": "video" }]), json!([{ "type": "input_file", "file_id": "f" }])]
        {
            content_of(&wrong, "p").unwrap_err();
        }
    }
}
