//! `GET /api/v1/sessions/{session}/events/{id}/content`: the content of one event, of any size, in pieces.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use thread_sessions::{RequestError, SessionId};

use super::error::{Failures, HttpError};
use crate::gateway::Gateway;

/// How much is read at a time, in bytes. SQLite comes to each piece over all pages of the content before it.
const PIECE: usize = 1024 * 1024;

/// The whole content of an event of a session
#[utoipa::path(get, path = "/api/v1/sessions/{session}/events/{id}/content", tag = "sessions",
    params(("session" = String, Path), ("id" = i64, Path)),
    responses((status = 200, content_type = "text/plain", body = String), Failures))]
pub async fn content(
    State(gateway): State<Arc<Gateway>>,
    Path((session, id)): Path<(String, i64)>,
) -> Result<Response, HttpError> {
    let missing = || HttpError::new(StatusCode::NOT_FOUND, "there is no such event".into());
    let session = SessionId::parse(&session).ok_or_else(missing)?;
    let read = move |offset| {
        let gateway = gateway.clone();
        async move { gateway.read(session, move |queue| Ok(queue.read_content(id, offset, PIECE)?)).await }
    };
    streamed(read).await?.ok_or_else(missing)
}

/// A response with what `read` returns from each offset on, until that is empty; `None` if there is nothing at all.
///
/// # Errors
///
/// Errors of the first reading.
pub async fn streamed<F>(read: impl Fn(u64) -> F + Send + 'static) -> Result<Option<Response>, RequestError>
where
    F: Future<Output = Result<Option<Vec<u8>>, RequestError>> + Send,
{
    let Some(first) = read(0).await? else { return Ok(None) };
    // A piece is read once the client has taken the one before it.
    let pieces = stream::unfold((read, Some(first), 0), move |(read, piece, offset)| async move {
        let piece = match piece {
            Some(piece) => piece,
            None => match read(offset).await {
                Ok(piece) => piece.unwrap_or_default(),
                // Ends the response without its end, so that it is not taken for the whole content.
                Err(e) => return Some((Err(std::io::Error::other(e.to_string())), (read, None, offset))),
            },
        };
        let offset = offset + piece.len() as u64;
        (!piece.is_empty()).then(|| (Ok(Bytes::from(piece)), (read, None, offset)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (header::CACHE_CONTROL, "private, no-store"),
    ];
    Ok(Some((headers, Body::from_stream(pieces)).into_response()))
}
