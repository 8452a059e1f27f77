//! `--read-only`: requests that would change something are refused, whatever they are for.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use thread_protocol::code;

use super::error::HttpError;
use super::login::{LOGIN, LOGOUT};
use crate::gateway::{Gateway, READ_ONLY};

pub async fn only_looking(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let looks = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    // Reading requires a login too.
    let looks = looks || [LOGIN, LOGOUT].contains(&request.uri().path());
    if gateway.read_only && !looks {
        let (status, error) = (StatusCode::FORBIDDEN, READ_ONLY.to_owned());
        return HttpError { status, error, code: code::READ_ONLY }.into_response();
    }
    next.run(request).await
}
