//! Prompts as messages, and messages as content blocks.

use agent_client_protocol_schema::v1::{
    AudioContent, ContentBlock, EmbeddedResourceResource, ImageContent, ResourceLink, TextContent,
};
use serde_json::{Value, json};
use thread_protocol::{COMMANDS, Content};

/// The gateway's commands that make sense in an editor, with their descriptions. Others would lead the connection to
/// another session, or say what the editor shows anyway.
pub const OFFERED: [(&str, &str); 2] = [
    ("clear", "Make the agent forget what was said so far; the conversation stays"),
    ("status", "Show the status of the gateway and of this session"),
];

/// A prompt as a message: text in which links stay where they are, and which the text of files follows; then images,
/// recordings and other files as parts.
///
/// # Errors
///
/// What is wrong with it.
pub fn prompt(blocks: &[ContentBlock]) -> Result<Content, &'static str> {
    let (mut text, mut files, mut parts) = (String::new(), String::new(), Vec::new());
    let media = |kind: &str, data: &str, mime_type: &str| json!({ "type": kind, "source": { "type": "data", "value": data, "mimeType": mime_type } });
    for block in blocks {
        match block {
            ContentBlock::Text(said) => text.push_str(&said.text),
            ContentBlock::ResourceLink(link) => text.push_str(&reference(&link.name, &link.uri)),
            ContentBlock::Resource(file) => match &file.resource {
                EmbeddedResourceResource::TextResourceContents(file) => {
                    let name = file.uri.rsplit('/').next().unwrap_or_default();
                    text.push_str(&reference(name, &file.uri));
                    files.push_str(&format!("\n\n<context ref=\"{}\">\n{}\n</context>", file.uri, file.text));
                }
                EmbeddedResourceResource::BlobResourceContents(file) => {
                    let name = file.uri.rsplit('/').next().unwrap_or_default();
                    text.push_str(&reference(name, &file.uri));
                    parts.push(json!({ "type": "binary", "data": file.blob, "filename": name }));
                }
                _ => return Err("this kind of file is not known"),
            },
            ContentBlock::Image(image) => parts.push(media("image", &image.data, &image.mime_type)),
            ContentBlock::Audio(audio) => parts.push(media("audio", &audio.data, &audio.mime_type)),
            _ => return Err("this kind of content is not known"),
        }
    }
    text.push_str(&files);
    match (text.trim().is_empty(), parts.is_empty()) {
        (true, true) => Err("the prompt is empty"),
        (_, true) => Ok(Content::Text(text)),
        (true, false) => Ok(Content::Parts(parts)),
        (false, false) => {
            parts.insert(0, json!({ "type": "text", "text": text }));
            Ok(Content::Parts(parts))
        }
    }
}

fn reference(name: &str, uri: &str) -> String {
    format!("[@{name}]({uri})")
}

/// A prompt as the gateway takes it, and whether it is a command for the gateway. Any other text that begins with a slash
/// goes to the agent, which may have commands of its own.
pub fn to_send(text: String) -> (String, bool) {
    let word = |rest: &str| rest.split(char::is_whitespace).next().unwrap_or_default().to_owned();
    match text.strip_prefix('/').map(word) {
        Some(word) if OFFERED.iter().any(|(name, _)| *name == word) => (text, true),
        // It would be taken for a command, or for one that is sent to the agent.
        Some(word) if word.starts_with('/') || COMMANDS.contains(&&*word) => (format!("/{text}"), false),
        _ => (text, false),
    }
}

/// A message as content blocks. What has no form there, such as a part of an unknown type, is left out.
pub fn blocks(content: &Content) -> Vec<ContentBlock> {
    match content {
        Content::Text(text) if text.is_empty() => Vec::new(),
        Content::Text(text) => vec![ContentBlock::Text(TextContent::new(text))],
        Content::Parts(parts) => parts.iter().filter_map(block).collect(),
    }
}

fn block(part: &Value) -> Option<ContentBlock> {
    if let Some(text) = part["text"].as_str() {
        return Some(ContentBlock::Text(TextContent::new(text)));
    }
    let source = &part["source"];
    let text = |key: &str| source[key].as_str().or_else(|| part[key].as_str());
    let mime_type = text("mimeType").unwrap_or_default();
    if source["type"] == "data" {
        let data = text("value")?;
        return match part["type"].as_str()? {
            "image" => Some(ContentBlock::Image(ImageContent::new(data, mime_type))),
            "audio" => Some(ContentBlock::Audio(AudioContent::new(data, mime_type))),
            _ => None,
        };
    }
    let url = text("url").or_else(|| text("value"))?;
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(url);
    let mime_type = Some(mime_type.to_owned()).filter(|mime_type| !mime_type.is_empty());
    Some(ContentBlock::ResourceLink(ResourceLink::new(name, url).mime_type(mime_type)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(blocks: Value) -> Result<Content, &'static str> {
        prompt(&serde_json::from_value::<Vec<ContentBlock>>(blocks).unwrap())
    }

    #[test]
    fn a_prompt_is_one_text_with_its_links_in_place_and_its_files_behind_it() {
        let text = |text: &str| json!({ "type": "text", "text": text });
        let prompt = sent(json!([
            text("See "),
            { "type": "resource_link", "name": "a.rs", "uri": "file:///w/a.rs" },
            text(" and "),
            { "type": "resource", "resource": { "uri": "file:///w/b.rs", "text": "fn b() {}" } },
            text("."),
        ]));
        let expected = "See [@a.rs](file:///w/a.rs) and [@b.rs](file:///w/b.rs).\n\n\
            <context ref=\"file:///w/b.rs\">\nfn b() {}\n</context>";
        assert_eq!(prompt, Ok(Content::Text(expected.to_owned())));
        for empty in [json!([text(" \n")]), json!([])] {
            assert_eq!(sent(empty), Err("the prompt is empty"));
        }
        let image = json!({ "type": "image", "data": "QQ==", "mimeType": "image/png" });
        let source = |mime_type: &str| json!({ "type": "data", "value": "QQ==", "mimeType": mime_type });
        let shown = json!({ "type": "image", "source": source("image/png") });
        assert_eq!(sent(json!([image])), Ok(Content::Parts(vec![shown.clone()])));
        let mixed = json!([
            text("Like "),
            image,
            { "type": "audio", "data": "QQ==", "mimeType": "audio/wav" },
            { "type": "resource", "resource": { "uri": "file:///w/a.zip", "blob": "UEs=" } },
        ]);
        let parts = json!([
            text("Like [@a.zip](file:///w/a.zip)"),
            shown,
            { "type": "audio", "source": source("audio/wav") },
            { "type": "binary", "data": "UEs=", "filename": "a.zip" },
        ]);
        let Value::Array(parts) = parts else { panic!() };
        assert_eq!(sent(mixed), Ok(Content::Parts(parts)));
    }

    #[test]
    fn only_the_commands_that_are_offered_are_the_gateways() {
        for (text, sent, is_command) in [
            ("hello", "hello", false),
            ("/status", "/status", true),
            ("/clear", "/clear", true),
            ("/compact now", "/compact now", false),
            ("/new x", "//new x", false),
            ("/session 1", "//session 1", false),
            ("//status", "///status", false),
        ] {
            assert_eq!(to_send(text.to_owned()), (sent.to_owned(), is_command));
        }
    }

    #[test]
    fn parts_are_blocks() {
        let parts = json!([
            { "type": "text", "text": "a" },
            { "type": "image", "source": { "type": "data", "value": "QQ==", "mimeType": "image/png" } },
            { "type": "audio", "source": { "type": "data", "value": "QQ==", "mimeType": "audio/wav" } },
            { "type": "binary", "mimeType": "text/csv", "url": "/storage/b/t.csv?token=x" },
            { "type": "image", "source": { "type": "url", "value": "https://h/i.png" } },
            { "type": "novelty" },
        ]);
        let Value::Array(parts) = parts else { panic!() };
        let shown = serde_json::to_value(blocks(&Content::Parts(parts))).unwrap();
        assert_eq!(
            shown,
            json!([
                { "type": "text", "text": "a" },
                { "type": "image", "data": "QQ==", "mimeType": "image/png" },
                { "type": "audio", "data": "QQ==", "mimeType": "audio/wav" },
                { "type": "resource_link", "name": "t.csv", "uri": "/storage/b/t.csv?token=x", "mimeType": "text/csv" },
                { "type": "resource_link", "name": "i.png", "uri": "https://h/i.png" },
            ])
        );
        assert!(blocks(&Content::Text(String::new())).is_empty());
    }
}
