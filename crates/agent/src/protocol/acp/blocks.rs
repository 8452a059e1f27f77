//! Messages as content blocks of a prompt, and content blocks as text.

use std::path::Path;

use agent_client_protocol_schema::v1::{
    AudioContent, ContentBlock, EmbeddedResourceResource, ImageContent, PromptCapabilities, ResourceLink,
    TextContent,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::attachments::Attachment;
use thread_conversation::parts_of;

/// The largest image or recording that is sent, in bytes; larger ones are linked.
const LONGEST_SENT: u64 = 5 * 1024 * 1024;

/// Returns a message as blocks: its text, its attached files, and links for parts with any other URL.
pub fn blocks_of(content: &str, files: &[Attachment], takes: &PromptCapabilities) -> Vec<ContentBlock> {
    let text = |text: &str| ContentBlock::Text(TextContent::new(text));
    let mut files: Vec<&Attachment> = files.iter().collect();
    let mut blocks = match parts_of(content) {
        None => vec![text(content)],
        Some(parts) => {
            let block = |part: &Value| {
                if let Some(said) = part["text"].as_str() {
                    return Some(text(said));
                }
                let url = url_of(part)?;
                let path = url.split(['?', '#']).next().unwrap_or(url);
                let is_this = |file: &&Attachment| {
                    let object = file.object.as_deref().and_then(|object| path.strip_suffix(object));
                    object.is_some_and(|before| before.ends_with('/'))
                };
                if let Some(at) = files.iter().position(is_this) {
                    return Some(file_block(files.remove(at), takes));
                }
                let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(url);
                Some(ContentBlock::ResourceLink(ResourceLink::new(name, url)))
            };
            parts.iter().filter_map(block).collect()
        }
    };
    blocks.extend(files.into_iter().map(|file| file_block(file, takes)));
    blocks
}

fn url_of(part: &Value) -> Option<&str> {
    let source = &part["source"];
    let value = (source["type"] == "url").then(|| &source["value"]);
    [Some(&part["url"]), Some(&source["url"]), value].into_iter().flatten().find_map(Value::as_str)
}

/// Returns a file's contents if the agent takes them and they are small enough, else a link to the file.
fn file_block(file: &Attachment, takes: &PromptCapabilities) -> ContentBlock {
    let uri = file_uri(&file.path);
    let size = std::fs::metadata(&file.path).map(|about| about.len()).ok();
    let mime_type = file.mime_type.clone().unwrap_or_default();
    let is = |kind: &str| mime_type.strip_prefix(kind).is_some_and(|rest| rest.starts_with('/'));
    let is_sent = takes.image && is("image") || takes.audio && is("audio");
    let data =
        size.filter(|size| is_sent && *size <= LONGEST_SENT).and_then(|_| std::fs::read(&file.path).ok());
    match data.map(|data| STANDARD.encode(data)) {
        Some(data) if is("image") => ContentBlock::Image(ImageContent::new(data, mime_type).uri(uri)),
        Some(data) => ContentBlock::Audio(AudioContent::new(data, mime_type)),
        None => {
            let name = Path::new(&file.path).file_name().unwrap_or_default().to_string_lossy();
            let link = ResourceLink::new(name, uri).mime_type(file.mime_type.clone());
            ContentBlock::ResourceLink(link.size(size.and_then(|size| i64::try_from(size).ok())))
        }
    }
}

/// What a path in a URI has as it is.
const UNESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

fn file_uri(path: &str) -> String {
    format!("file://{}", utf8_percent_encode(path, UNESCAPED))
}

/// Returns an image or a recording as a content part; `None` for anything else.
pub fn part_of(content: &ContentBlock) -> Option<Value> {
    let (kind, mime_type, data) = match content {
        ContentBlock::Image(image) => ("image", &image.mime_type, &image.data),
        ContentBlock::Audio(audio) => ("audio", &audio.mime_type, &audio.data),
        _ => return None,
    };
    Some(json!({ "type": kind, "source": { "type": "data", "value": data, "mimeType": mime_type } }))
}

/// Returns the text of a content block or, if it has none, a description.
pub fn text_of(content: &ContentBlock) -> String {
    match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::ResourceLink(link) => format!("[{}]({})", link.name, link.uri),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            EmbeddedResourceResource::TextResourceContents(text) => text.text.clone(),
            EmbeddedResourceResource::BlobResourceContents(blob) => format!("[a file: {}]", blob.uri),
            _ => String::new(),
        },
        ContentBlock::Image(image) => format!("[an image: {}]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[a recording: {}]", audio.mime_type),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(content: &str, files: &[Attachment], takes: &PromptCapabilities) -> Value {
        serde_json::to_value(blocks_of(content, files, takes)).unwrap()
    }

    #[test]
    fn supported_files_are_sent_and_others_are_linked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a b.png").to_str().unwrap().to_owned();
        std::fs::write(&path, "picture").unwrap();
        let uri = file_uri(&path);
        assert!(uri.ends_with("/a%20b.png"), "{uri}");
        let object = Some("bucket/x.png".to_owned());
        let file = Attachment { path: path.clone(), mime_type: Some("image/png".into()), object };
        let content = json!([
            { "type": "image", "source": { "type": "url", "value": "http://here/sign/bucket/x.png" } },
            { "type": "binary", "url": "http://there/bucket/other.png?token=1" },
            { "type": "text", "text": "what is this?" },
        ])
        .to_string();
        let link = json!({ "type": "resource_link", "name": "other.png", "uri": "http://there/bucket/other.png?token=1" });
        let text = json!({ "type": "text", "text": "what is this?" });
        let own = json!({ "type": "resource_link", "name": "a b.png", "uri": uri, "mimeType": "image/png", "size": 7 });
        let takes = PromptCapabilities::default();
        assert_eq!(blocks(&content, std::slice::from_ref(&file), &takes), json!([own, link, text]));
        assert_eq!(
            blocks("text", std::slice::from_ref(&file), &takes),
            json!([{ "type": "text", "text": "text" }, own])
        );
        let picture = json!({ "type": "image", "data": "cGljdHVyZQ==", "mimeType": "image/png", "uri": uri });
        let takes = takes.image(true);
        assert_eq!(blocks(&content, std::slice::from_ref(&file), &takes), json!([picture, link, text]));
        std::fs::File::options().write(true).open(&path).unwrap().set_len(LONGEST_SENT + 1).unwrap();
        let large = blocks(&content, std::slice::from_ref(&file), &takes);
        assert_eq!(large[0]["type"], "resource_link");
    }
}
