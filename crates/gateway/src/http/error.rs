//! Errors of requests over HTTP: a status, and `{"error":…,"code":…}`.

use axum::Json;
use axum::body::to_bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use thread::error::Code;
use thread_protocol::code;
use thread_sessions::RequestError;
use utoipa::{IntoResponses, ToSchema};

/// The longest text of an error that is passed on, in bytes.
const LONGEST: usize = 64 * 1024;

/// What every error is answered with.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorBody {
    /// What is wrong, and what to do about it.
    pub error: String,
    /// Which error it is: one of the words that docs/PROTOCOL.md and SPEC.md list.
    pub code: &'static str,
}

/// The error responses of every request, for the description.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described")]
pub enum Failures {
    #[response(status = "4XX")]
    OfClient(ErrorBody),
    #[response(status = "5XX")]
    OfGateway(ErrorBody),
}

/// An error response.
pub struct HttpError {
    pub status: StatusCode,
    pub error: String,
    pub code: &'static str,
}

impl HttpError {
    /// An error identified by its status alone.
    pub fn new(status: StatusCode, error: String) -> HttpError {
        HttpError { status, error, code: code_of(status) }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody { error: self.error, code: self.code })).into_response()
    }
}

/// The code of an error about which nothing is known but its status.
fn code_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => code::UNAUTHORIZED,
        StatusCode::FORBIDDEN => code::FORBIDDEN,
        StatusCode::NOT_FOUND => code::NOT_FOUND,
        StatusCode::CONFLICT => code::CONFLICT,
        StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge.as_str(),
        StatusCode::TOO_MANY_REQUESTS => code::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE => code::UNAVAILABLE,
        StatusCode::INSUFFICIENT_STORAGE => Code::DiskFailed.as_str(),
        status if status.is_client_error() => code::BAD_REQUEST,
        _ => Code::Failed.as_str(),
    }
}

/// Errors that libraries respond with, such as those of a body or a method, in the same form.
pub async fn as_json(response: Response) -> Response {
    let is_json = |response: &Response| {
        let kind = response.headers().get(header::CONTENT_TYPE);
        kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
    };
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) || is_json(&response) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let text = to_bytes(body, LONGEST).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let text = match text.trim() {
        "" => status.canonical_reason().unwrap_or("the request failed").to_lowercase(),
        text => text.to_owned(),
    };
    let response = HttpError::new(status, text).into_response();
    let own = response.headers().clone();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.extend(own);
    Response::from_parts(parts, response.into_body())
}

impl From<RequestError> for HttpError {
    fn from(error: RequestError) -> HttpError {
        error.log("a request over HTTP");
        let status = match &error {
            RequestError::BadParams(_) => StatusCode::BAD_REQUEST,
            RequestError::UnknownSession(_)
            | RequestError::Unknown(_)
            | RequestError::UnknownRun(_)
            | RequestError::UnknownPermission(_) => StatusCode::NOT_FOUND,
            RequestError::KeyConflict(_) | RequestError::NotNow(_) => StatusCode::CONFLICT,
            RequestError::Locked => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        HttpError { status, error: error.to_string(), code: error.code() }
    }
}
