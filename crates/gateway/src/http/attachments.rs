//! Uploading and downloading attachments.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Multipart, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use thread_sessions::SessionId;

use super::error::{Failures, HttpError};
use crate::access::connection_limits::Permit;
use crate::gateway::Gateway;
use crate::log::refused;
use crate::storage::{BUCKET, Object, sign};

/// The largest attachment, in bytes.
pub const MAX: usize = 25 * 1024 * 1024;

/// Prefixes of the types that a browser may display. All others are downloads.
const SHOWN: &[&str] = &["image/", "audio/", "video/", "application/pdf", "text/plain"];

/// `POST /api/v1/agent/attachments`: stores the first field with a file name.
///
/// The body is a form with a file of at most 25 MiB.
#[utoipa::path(post, path = "/api/v1/agent/attachments", tag = "ag-ui",
    request_body(content = Value, content_type = "multipart/form-data"),
    responses((status = 200, body = Value), Failures))]
pub async fn upload(
    State(gateway): State<Arc<Gateway>>,
    mut form: Multipart,
) -> Result<Json<Value>, HttpError> {
    let bad = |e: axum::extract::multipart::MultipartError| HttpError::new(e.status(), e.body_text());
    while let Some(field) = form.next_field().await.map_err(bad)? {
        let Some(name) = field.file_name().map(plain_name) else { continue };
        let bytes = field.bytes().await.map_err(bad)?;
        if bytes.len() > MAX {
            return Err(HttpError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "an attachment has at most 25 MiB".into(),
            ));
        }
        let mime_type = type_of(&bytes);
        let path = format!("{}/{name}", uuid::Uuid::new_v4());
        let Some(object) = Object::new(BUCKET, &path) else {
            return Err(HttpError::new(StatusCode::BAD_REQUEST, "the file's name cannot be used".into()));
        };
        store(&gateway, &object, bytes).await?;
        let url = gateway.storage.url(&object);
        return Ok(Json(
            json!({ "bucket": object.bucket, "path": object.path, "mime_type": mime_type, "url": url }),
        ));
    }
    Err(HttpError::new(StatusCode::BAD_REQUEST, "the form has no file".into()))
}

/// Whether a content part has a file in it.
pub fn is_inline(part: &Value) -> bool {
    is_binary(part) || part["source"]["type"] == "data" && part["source"]["value"].is_string()
}

fn is_binary(part: &Value) -> bool {
    part["type"] == "binary" && part["data"].is_string()
}

/// The file that a content part has in it.
///
/// # Errors
///
/// It is not base64.
pub fn inline_bytes(part: &Value) -> Result<Vec<u8>, HttpError> {
    let data = if is_binary(part) { &part["data"] } else { &part["source"]["value"] };
    let decoded = STANDARD.decode(data.as_str().unwrap_or_default().trim());
    decoded.map_err(|_| HttpError::new(StatusCode::BAD_REQUEST, "an inline file is not base64".into()))
}

/// Stores the file that a content part has in it, and puts its URL in its place. A file that the session has
/// already is not stored again.
///
/// # Errors
///
/// It is not base64, or too large; it cannot be stored.
pub async fn store_inline(
    gateway: &Arc<Gateway>,
    session: SessionId,
    part: &mut Value,
) -> Result<(), HttpError> {
    if !is_inline(part) {
        return Ok(());
    }
    let is_binary = is_binary(part);
    let bytes = inline_bytes(part)?;
    let mime_type = type_of(&bytes);
    let given = if is_binary { &part["filename"] } else { &part["metadata"]["filename"] };
    let extension = infer::get(&bytes).map_or("bin", |kind| kind.extension());
    let name = given.as_str().map_or_else(|| format!("file.{extension}"), plain_name);
    // The same file in the same session is the same object, so that a message may be sent again.
    let path = format!("{}/{name}", session.made_from(&bytes));
    let object = Object::new(BUCKET, &path);
    let object = object
        .ok_or_else(|| HttpError::new(StatusCode::BAD_REQUEST, "a file's name cannot be used".into()))?;
    // Of an earlier version, or after a power cut, it may be there in part.
    let bytes = Bytes::from(bytes);
    if !gateway.storage.has(&object, bytes.clone()).await {
        store(gateway, &object, bytes).await?;
    }
    let url = gateway.storage.url(&object);
    if is_binary {
        if let Some(part) = part.as_object_mut() {
            part.shift_remove("data");
        }
        part["url"] = url.into();
        part["mimeType"] = mime_type.into();
    } else {
        part["source"] = json!({ "type": "url", "value": url, "mimeType": mime_type });
    }
    Ok(())
}

async fn store(gateway: &Gateway, object: &Object, bytes: Bytes) -> Result<(), HttpError> {
    if !gateway.root.is_there() {
        return Err(HttpError::new(
            StatusCode::INSUFFICIENT_STORAGE,
            "the gateway's directory is gone".into(),
        ));
    }
    gateway.storage.put(object, bytes).await.map_err(|e| {
        tracing::error!("an attachment cannot be stored: {e}");
        HttpError::new(StatusCode::INSUFFICIENT_STORAGE, "the attachment cannot be stored".into())
    })
}

/// A file name without directories and unusual characters, for use as the last segment of a path.
fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String =
        name.rsplit(['/', '\\']).next().unwrap_or_default().chars().map(plain).take(100).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "file".to_owned() } else { name.to_owned() }
}

/// The MIME type, determined from the content.
fn type_of(bytes: &[u8]) -> &'static str {
    match infer::get(bytes).map(|kind| kind.mime_type()) {
        // Served as HTML or XML, an upload could run scripts in the gateway's origin.
        Some(kind) if kind.starts_with("text/") || kind.contains("xml") => "text/plain",
        Some(kind) => kind,
        None => {
            let beginning = &bytes[..bytes.len().min(4096)];
            let text = match std::str::from_utf8(beginning) {
                Ok(_) => true,
                Err(e) => e.error_len().is_none() && bytes.len() > beginning.len(),
            };
            if text && !beginning.contains(&0) { "text/plain" } else { "application/octet-stream" }
        }
    }
}

#[derive(Deserialize)]
pub struct Signed {
    #[serde(default)]
    token: String,
}

/// `GET /storage/v1/object/sign/{bucket}/{path}?token=…`: for anyone with a signed URL.
pub async fn download(
    State(gateway): State<Arc<Gateway>>,
    Extension(permit): Extension<Arc<Permit>>,
    Path((bucket, path)): Path<(String, String)>,
    Query(signed): Query<Signed>,
) -> Result<Response, HttpError> {
    let missing = || HttpError::new(StatusCode::NOT_FOUND, "there is no such object".into());
    let object = Object::new(&bucket, &path).ok_or_else(missing)?;
    gateway.storage.signer.check(&object, &signed.token).map_err(|e| {
        refused(permit.client().address, sign::PREFIX, &e.to_string());
        HttpError::new(StatusCode::FORBIDDEN, e.to_string())
    })?;
    let unread = |e: object_store::Error| {
        tracing::error!("an attachment cannot be read: {e}");
        HttpError::new(StatusCode::BAD_GATEWAY, "the attachment cannot be read".into())
    };
    let found = gateway.storage.get(&object).await.map_err(unread)?.ok_or_else(missing)?;
    let (size, mut stream) = (found.size, found.pieces);
    // The first chunk is long enough to determine the type.
    let first = stream.next().await.transpose().map_err(unread)?.unwrap_or_default();
    let mime_type = type_of(&first);
    let shown = SHOWN.iter().any(|kind| mime_type.starts_with(kind)) && mime_type != "image/svg+xml";
    let headers = [
        (header::CONTENT_TYPE, mime_type.to_owned()),
        (header::CONTENT_LENGTH, size.to_string()),
        (header::CONTENT_DISPOSITION, if shown { "inline" } else { "attachment" }.to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox".to_owned()),
        (header::CACHE_CONTROL, "private, max-age=3600".to_owned()),
    ];
    let first = futures_util::stream::once(async move { Ok(first) });
    Ok((headers, Body::from_stream(first.chain(stream))).into_response())
}
