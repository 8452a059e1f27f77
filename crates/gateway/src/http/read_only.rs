//! `--read-only`: requests that would change something are refused, whatever they are for.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::HttpError;
use super::login::{LOGIN, LOGOUT};
use crate::error::RequestError;
use crate::gateway::Gateway;

pub async fn only_looking(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let looks = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    // Whoever looks has to be let in.
    let looks = looks || [LOGIN, LOGOUT].contains(&request.uri().path());
    if gateway.read_only && !looks {
        return HttpError::from(RequestError::ReadOnly).into_response();
    }
    next.run(request).await
}
