//! Errors in the form that OpenAI's clients read: `{"error":{"message","type","param","code"}}`.

use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use thread_sessions::RequestError;
use utoipa::{IntoResponses, ToSchema};

use crate::http::error::HttpError;

/// Where the paths begin whose errors have this form.
const PREFIX: &str = "/v1/";

/// The longest error that is translated, in bytes.
const LONGEST: usize = 64 * 1024;

/// Tells OpenAI's clients not to send a request again, whatever the status.
pub const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

pub type Result<T> = std::result::Result<T, OpenAiError>;

/// What every error of these paths is answered with.
#[derive(Serialize, ToSchema)]
#[schema(as = OpenAiError)]
pub struct Body {
    error: Details,
}

#[derive(Serialize, ToSchema)]
#[schema(as = OpenAiErrorDetails)]
struct Details {
    /// What is wrong, and what to do about it.
    message: String,
    /// `invalid_request_error`, `authentication_error`, `permission_error`, `rate_limit_error` or `server_error`.
    r#type: String,
    /// The field of the request that is wrong.
    param: Option<String>,
    code: Option<String>,
}

/// The error responses of these paths, for the description.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only described")]
pub enum Failures {
    #[response(status = "4XX")]
    OfClient(Body),
    #[response(status = "5XX")]
    OfGateway(Body),
}

/// An error response.
#[derive(Debug)]
pub struct OpenAiError {
    pub status: StatusCode,
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    /// A request that was carried out and has failed must not be sent again.
    pub is_final: bool,
}

impl OpenAiError {
    /// A field of the request is wrong.
    pub fn of_param(param: &str, message: impl Into<String>) -> OpenAiError {
        OpenAiError { param: Some(param.to_owned()), ..OpenAiError::bad(message) }
    }

    /// The request is wrong.
    pub fn bad(message: impl Into<String>) -> OpenAiError {
        let (status, message) = (StatusCode::BAD_REQUEST, message.into());
        OpenAiError { status, message, param: None, code: None, is_final: false }
    }

    /// There is no such thing.
    pub fn not_found(message: impl Into<String>) -> OpenAiError {
        OpenAiError { status: StatusCode::NOT_FOUND, ..OpenAiError::bad(message) }
    }

    /// A field, or a value of it, that this server does not have.
    pub fn unsupported(param: &str, why: &str) -> OpenAiError {
        let code = Some("unsupported_parameter");
        OpenAiError { code, ..OpenAiError::of_param(param, format!("'{param}' is not supported - {why}")) }
    }

    /// The run has failed.
    pub fn run_failed(why: &str) -> OpenAiError {
        OpenAiError {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            code: Some("run_failed"),
            is_final: true,
            ..OpenAiError::bad(why)
        }
    }

    /// The gateway is ending, while the run continues. A client that sends the request again joins it.
    pub fn ending() -> OpenAiError {
        OpenAiError {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: Some("unavailable"),
            ..OpenAiError::bad("the gateway is ending, and the run continues - send the same request again")
        }
    }

    /// What a client reads, also in a stream.
    pub fn body(&self) -> Value {
        let error = json!({
            "message": self.message,
            "type": type_of(self.status),
            "param": self.param,
            "code": self.code,
        });
        json!({ "error": error })
    }
}

/// The type of an error, as OpenAI names them.
fn type_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "server_error",
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.is_final {
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}

impl From<HttpError> for OpenAiError {
    fn from(HttpError { status, error, code }: HttpError) -> OpenAiError {
        OpenAiError { status, code: Some(code), ..OpenAiError::bad(error) }
    }
}

impl From<RequestError> for OpenAiError {
    fn from(error: RequestError) -> OpenAiError {
        HttpError::from(error).into()
    }
}

/// Errors of `/v1/…` that come from elsewhere, such as those about the token, in the same form.
pub async fn translated(request: Request, next: Next) -> Response {
    let is_ours = request.uri().path().starts_with(PREFIX);
    let response = next.run(request).await;
    let status = response.status();
    if !is_ours || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let bytes = to_bytes(body, LONGEST).await.unwrap_or_default();
    let read: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let body = match read["error"].as_str() {
        Some(error) => {
            let told =
                json!({ "message": error, "type": type_of(status), "param": null, "code": read["code"] });
            json!({ "error": told }).to_string().into()
        }
        None => bytes,
    };
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, body.into())
}
