//! Attachments in the content parts of a message: `{"type":"binary","mimeType","url"}`, or
//! `{"type":"image","source":{"type":"url","value","mimeType"}}` and the like.

use serde_json::{Map, Value, json};
use thread_agent::attachments::{ATTACHMENTS, FILES};
use thread_sessions::{RequestError, Result};

use super::sign::PREFIX;
use super::{Object, Storage};

/// Extracts the attachments of a message: adds the files to `metadata`, and leaves in `parts` what stays
/// true: of a URL of this gateway its path alone, of another store's URL all but the signature. Returns those
/// of this gateway.
///
/// # Errors
///
/// A URL that was not signed by this gateway, has expired, or has an origin that is neither the gateway's own
/// (one of `own`) nor named by `--storage-origin`.
pub fn extract(
    storage: &Storage,
    own: &[String],
    parts: &mut [Value],
    metadata: &mut Map<String, Value>,
) -> Result<Vec<Object>> {
    let (mut attachments, mut files, mut objects) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts {
        let Some((url, mime_type)) = url_of(part) else { continue };
        let refuse = |why: &str| RequestError::BadParams(format!("an attachment is refused: {why}"));
        let (mut origin, object, token) =
            split(url).ok_or_else(|| refuse("its URL does not belong to a store"))?;
        if origin.is_empty() || origin == storage.base || own.contains(&origin) {
            origin.clear();
            storage.signer.check(&object, token).map_err(|e| refuse(&e.to_string()))?;
            files.push(Value::from(storage.file_of(&object).to_string_lossy()));
        } else if !storage.other_origins.contains(&origin) {
            return Err(refuse("its URL has another origin"));
        }
        attachments.push(json!({ "bucket": object.bucket, "path": object.path, "mime_type": mime_type }));
        *url = format!("{origin}{PREFIX}{}", object.name());
        if origin.is_empty() {
            objects.push(object);
        }
    }
    let single_or_array =
        |mut all: Vec<Value>| if all.len() == 1 { all.remove(0) } else { Value::Array(all) };
    // A client must not name other files by setting these keys itself.
    metadata.shift_remove(ATTACHMENTS);
    metadata.shift_remove(FILES);
    if !attachments.is_empty() {
        metadata.insert(ATTACHMENTS.into(), single_or_array(attachments));
    }
    if !files.is_empty() {
        metadata.insert(FILES.into(), Value::Array(files));
    }
    Ok(objects)
}

/// Signs the URLs of a stored message's attachments again: those that a gateway accepted from a client, according
/// to the message's metadata, and that are files of this gateway. Any program can push a message with other URLs in
/// it, and a signature opens a file.
pub fn sign(storage: &Storage, parts: &mut [Value], metadata: &Map<String, Value>) {
    let taken: &[Value] = match metadata.get(ATTACHMENTS) {
        Some(Value::Array(all)) => all,
        Some(one) => std::slice::from_ref(one),
        None => return,
    };
    for part in parts {
        let Some((url, _)) = url_of(part) else { continue };
        let Some((origin, object, _)) = split(url) else { continue };
        let is_taken = |one: &Value| one["bucket"] == *object.bucket && one["path"] == *object.path;
        if origin.is_empty() && taken.iter().any(is_taken) {
            *url = storage.url(&object);
        }
    }
}

/// The objects that a message's metadata names.
pub fn named(metadata: &Map<String, Value>) -> Vec<Object> {
    let named = match metadata.get(ATTACHMENTS) {
        Some(Value::Array(all)) => all.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    named.iter().filter_map(|one| Object::new(one["bucket"].as_str()?, one["path"].as_str()?)).collect()
}

/// The URL of an attachment, and its MIME type if the part has one.
fn url_of(part: &mut Value) -> Option<(&mut String, Value)> {
    let kind = part.get("type")?.as_str()?.to_owned();
    let (holder, keys) = match kind.as_str() {
        "binary" => (part, ["url", "url"]),
        "image" | "audio" | "video" | "document" | "file" => {
            let source = part.get_mut("source")?;
            if source.get("type")? != "url" {
                return None;
            }
            (source, ["value", "url"])
        }
        _ => return None,
    };
    let mime_type = holder.get("mimeType").cloned().unwrap_or_default();
    let key = keys.into_iter().find(|key| holder.get(*key).is_some_and(Value::is_string))?;
    match holder.get_mut(key)? {
        Value::String(url) => Some((url, mime_type)),
        _ => None,
    }
}

/// The origin (empty if there is none), object and token of a signed URL.
fn split(url: &str) -> Option<(String, Object, &str)> {
    let (origin, rest) = match url.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_at(rest.find('/')?);
            (format!("{scheme}://{host}").to_ascii_lowercase(), path)
        }
        None => (String::new(), url),
    };
    let rest = rest.strip_prefix(PREFIX)?;
    let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (bucket, path) = name.split_once('/')?;
    let token = query.split('&').find_map(|pair| pair.strip_prefix("token="));
    Some((origin, Object::new(bucket, path)?, token.unwrap_or_default()))
}
