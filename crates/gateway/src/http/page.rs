//! The page for browsers: for now, how to connect.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use serde::Deserialize;

use crate::access::token::{TokenCheck, cookie_name};
use crate::gateway::Gateway;

const PAGE: &str = include_str!("page.html");

/// How long the cookie lasts, in seconds: a month.
const COOKIE_AGE: u32 = 30 * 24 * 3600;

#[derive(Deserialize)]
pub struct Link {
    token: Option<String>,
}

/// `GET /`; with `?token=`, sets the cookie and redirects to the same page without the token.
pub async fn page(
    State(gateway): State<Arc<Gateway>>,
    Extension(check): Extension<TokenCheck>,
    Query(link): Query<Link>,
) -> Response {
    let policy = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    match (link.token, check) {
        (Some(token), _) if gateway.admits(&token) => {
            let name = cookie_name(gateway.port);
            let cookie = format!("{name}={token}; HttpOnly; SameSite=Strict; Path=/; Max-Age={COOKIE_AGE}");
            (
                StatusCode::SEE_OTHER,
                policy,
                [(header::SET_COOKIE, cookie)],
                [(header::LOCATION, "/".to_owned())],
            )
                .into_response()
        }
        (None, TokenCheck::Valid) => (policy, Html(PAGE)).into_response(),
        (None, TokenCheck::Missing) => {
            (StatusCode::UNAUTHORIZED, policy, "open the link that the gateway printed when it was started\n")
                .into_response()
        }
        _ => {
            gateway.counters.wrong_token();
            (StatusCode::UNAUTHORIZED, policy, "wrong token\n").into_response()
        }
    }
}
