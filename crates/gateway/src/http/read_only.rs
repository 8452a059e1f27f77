//! `--read-only`: requests that would change something are refused, whatever they are for.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::HttpError;
use crate::error::RequestError;
use crate::gateway::Gateway;

/// It sets a cookie, and changes nothing here.
const LOGIN: &str = "/api/v1/login";

pub async fn only_looking(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let looks = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if gateway.read_only && !looks && request.uri().path() != LOGIN {
        return HttpError::from(RequestError::ReadOnly).into_response();
    }
    next.run(request).await
}
