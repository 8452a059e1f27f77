//! `POST /api/v1/login`: sets the cookie by which a browser is let in, for a page that shows the token in
//! `Authorization`. The link that is printed has the token in its fragment, which only the page sees.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::error::ErrorBody;
use crate::access::token::cookie_name;
use crate::gateway::Gateway;

/// How long the cookie lasts, in seconds: a month.
const COOKIE_AGE: u32 = 30 * 24 * 3600;

/// Exchange the token for a cookie, for a page
#[utoipa::path(post, path = "/api/v1/login", tag = "sessions", responses(
    (status = 204),
    (status = "4XX", body = ErrorBody),
))]
pub async fn login(State(gateway): State<Arc<Gateway>>) -> Response {
    // With `--no-auth`, nobody needs a cookie.
    let Some(token) = &gateway.token else { return StatusCode::NO_CONTENT.into_response() };
    let (name, token) = (cookie_name(gateway.port), token.text());
    let secure = if gateway.storage.base.starts_with("https://") { "; Secure" } else { "" };
    let cookie = format!("{name}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={COOKIE_AGE}{secure}");
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)], [(header::CACHE_CONTROL, "no-store")])
        .into_response()
}
