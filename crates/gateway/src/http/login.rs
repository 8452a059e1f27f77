//! Logging a browser in and out. A page shows the token in `Authorization`, once, and gets a cookie for it. The link
//! that is printed has the token in its fragment, which only the page sees.

use std::io;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::error::{Failures, HttpError};
use crate::access::logins::LIFETIME;
use crate::access::token::{Token, cookie_name, cookie_of};
use crate::gateway::Gateway;

pub const LOGIN: &str = "/api/v1/login";
pub const LOGOUT: &str = "/api/v1/logout";

/// Exchange the token for a cookie, for a page
///
/// The cookie has a random value and lasts for 30 days. A cookie that is sent is renewed instead.
#[utoipa::path(post, path = "/api/v1/login", tag = "sessions", responses((status = 204), Failures))]
pub async fn login(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Result<Response, HttpError> {
    // With `--no-auth`, no cookie is needed.
    let Some(token) = gateway.token.as_ref().and_then(Token::text) else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    // Another value would end what this browser has open.
    let known = cookie_of(&headers, &cookie_name(gateway.port)).map(str::to_owned);
    let own = gateway.clone();
    let begin = move || match known.filter(|known| own.logins.renew(known, &token)) {
        Some(known) => Ok(known),
        None => own.logins.begin(&token),
    };
    let value = kept(gateway.common.lists.run(begin).await)?;
    Ok(with_cookie(&gateway, &value, LIFETIME.as_secs()))
}

/// `POST /api/v1/logout`: ends the login whose cookie is sent, for the page. Connections opened with it are closed.
///
/// # Errors
///
/// The root cannot be written to.
pub async fn logout(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Result<Response, HttpError> {
    let value = cookie_of(&headers, &cookie_name(gateway.port)).map(str::to_owned);
    if let (Some(value), Some(token)) = (value, gateway.token.as_ref().and_then(Token::text)) {
        let own = gateway.clone();
        kept(gateway.common.lists.run(move || own.logins.end(&value, &token)).await)?;
        gateway.access.send_replace(());
    }
    Ok(with_cookie(&gateway, "", 0))
}

fn kept<T>(done: Option<io::Result<T>>) -> Result<T, HttpError> {
    done.unwrap_or_else(|| Err(io::Error::other("the gateway could not do this"))).map_err(|e| {
        tracing::error!("a login cannot be kept or ended: {e}");
        HttpError::new(StatusCode::INSUFFICIENT_STORAGE, "the gateway cannot write to its directory".into())
    })
}

/// Sets the cookie for so many seconds.
fn with_cookie(gateway: &Gateway, value: &str, age: u64) -> Response {
    let name = cookie_name(gateway.port);
    let secure = if gateway.storage.base.starts_with("https://") { "; Secure" } else { "" };
    let cookie = format!("{name}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age}{secure}");
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)], [(header::CACHE_CONTROL, "no-store")])
        .into_response()
}
