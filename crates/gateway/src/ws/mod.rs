//! The WebSocket at `/ws`: protocol v1, described in docs/PROTOCOL.md.

mod agent;
mod caller;
mod commands;
mod connection;
mod handshake;
mod methods;
mod reading;
mod runs;
mod sessions;
mod socket;
mod watched;
mod watching;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::OnUpgrade;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::access::connection_limits::Permit;
use crate::access::origin;
use crate::access::token::TokenCheck;
use crate::counters::Counted;
use crate::gateway::Gateway;

/// `GET /ws`.
pub async fn upgrade(
    State(gateway): State<Arc<Gateway>>,
    Extension(permit): Extension<Arc<Permit>>,
    Extension(check): Extension<TokenCheck>,
    mut request: Request,
) -> Response {
    let headers = request.headers();
    let Some(accept) = accept_key(headers) else {
        return (StatusCode::BAD_REQUEST, "this is for WebSockets of version 13\n").into_response();
    };
    let origins = origin::own(headers);
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    };
    tokio::spawn(async move {
        let _counted = Counted::new(&gateway.counters);
        // Fails only if the client is gone.
        if let Ok(upgraded) = upgrade.await {
            let proof = match check {
                TokenCheck::Valid(proof) => Some(proof),
                TokenCheck::Invalid | TokenCheck::Missing => None,
            };
            connection::serve(gateway, upgraded, permit, origins, proof).await;
        }
    });
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::SEC_WEBSOCKET_ACCEPT, accept),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// The response to the key of a WebSocket handshake; `None` if the request is not one.
fn accept_key(headers: &HeaderMap) -> Option<HeaderValue> {
    let has = |name, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(word))
    };
    let valid = has(header::CONNECTION, "upgrade")
        && has(header::UPGRADE, "websocket")
        && has(header::SEC_WEBSOCKET_VERSION, "13");
    let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| valid)?;
    HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDSHAKE: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn answer(headers: &[(&'static str, &'static str)]) -> Option<HeaderValue> {
        let pairs = headers.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()));
        accept_key(&pairs.collect::<HeaderMap>())
    }

    #[test]
    fn a_handshake_has_all_its_headers() {
        // The example of RFC 6455.
        assert_eq!(answer(&HANDSHAKE).unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        for missing in 0..HANDSHAKE.len() {
            let mut headers = HANDSHAKE.to_vec();
            let (name, _) = headers.remove(missing);
            assert_eq!(answer(&headers), None, "without {name}");
            if name != "sec-websocket-key" {
                headers.push((name, "12"));
                assert_eq!(answer(&headers), None, "with another {name}");
            }
        }
    }
}
