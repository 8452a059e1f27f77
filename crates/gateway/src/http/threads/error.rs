//! Errors of looking at threads, with what to do about them.

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use thread::error::DatabaseErrorKind;
use thread::{Error, failure};
use thread_sessions::RequestError;

use crate::http::error::HttpError;

/// An error response.
pub struct ApiError(HttpError);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

impl ApiError {
    pub fn bad(what: impl Into<String>) -> ApiError {
        ApiError(HttpError::new(StatusCode::BAD_REQUEST, what.into()))
    }

    pub fn into_http(self) -> HttpError {
        self.0
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> ApiError {
        let RequestError::Thread(e) = error else {
            return ApiError(match error {
                RequestError::UnknownSession(_) => HttpError::new(
                    StatusCode::NOT_FOUND,
                    "the thread is gone; see /api/v1/threads".to_owned(),
                ),
                RequestError::Locked => {
                    let what = "the thread is locked by another program; try again later".to_owned();
                    HttpError { code: error.code(), ..HttpError::new(StatusCode::SERVICE_UNAVAILABLE, what) }
                }
                error => error.into(),
            });
        };
        let status = match &e {
            Error::UnknownConsumer(_) | Error::UnknownStep { .. } | Error::NotItsEvent { .. } => {
                StatusCode::NOT_FOUND
            }
            Error::InvalidFilter(_)
            | Error::SlowFilter { .. }
            | Error::InvalidEvent(_)
            | Error::ReservedKey(_) => StatusCode::BAD_REQUEST,
            Error::KeyConflict { .. }
            | Error::NotPending { .. }
            | Error::StillPending { .. }
            | Error::PopsForItself(_)
            | Error::NotHeard(_)
            | Error::Unresponsive { .. }
            | Error::NotEnded { .. } => StatusCode::CONFLICT,
            Error::TooManyFiles(_) => StatusCode::SERVICE_UNAVAILABLE,
            Error::NotOwner(_) => StatusCode::FORBIDDEN,
            Error::Database(e) if matches!(e.kind, DatabaseErrorKind::Locked | DatabaseErrorKind::Full) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            tracing::error!("a request about a thread: {e}");
        }
        ApiError(HttpError { status, error: format!("{e} - {}", failure::hint(&e)), code: e.code().as_str() })
    }
}

/// The body of a request, as JSON.
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, ApiError> {
        match axum::Json::<T>::from_request(request, state).await {
            Ok(axum::Json(body)) => Ok(Body(body)),
            Err(JsonRejection::JsonDataError(e)) => Err(ApiError::bad(e.body_text())),
            Err(e) => Err(ApiError(HttpError::new(e.status(), e.body_text()))),
        }
    }
}

/// The names in the path of a request.
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, ApiError> {
        let found = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        found
            .map(|axum::extract::Path(names)| Path(names))
            .map_err(|e: PathRejection| ApiError(HttpError::new(StatusCode::NOT_FOUND, e.body_text())))
    }
}
