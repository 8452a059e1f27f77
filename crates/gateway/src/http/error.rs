//! Errors of requests over HTTP: a status, and `{"error":…}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::RequestError;

/// An error response, with its status.
pub struct HttpError(pub StatusCode, pub String);

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl From<RequestError> for HttpError {
    fn from(error: RequestError) -> HttpError {
        error.log("a request over HTTP");
        let status = match &error {
            RequestError::BadParams(_) => StatusCode::BAD_REQUEST,
            RequestError::UnknownSession(_)
            | RequestError::UnknownRun(_)
            | RequestError::UnknownPermission(_) => StatusCode::NOT_FOUND,
            RequestError::KeyConflict(_) => StatusCode::CONFLICT,
            RequestError::Locked => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        HttpError(status, error.to_string())
    }
}
