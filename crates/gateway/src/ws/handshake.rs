//! The first request of a connection, `connect`: who the client is, and whether it is let in.

use std::time::Duration;

use thread_protocol::method::{Connect, ConnectParams, Connected, Method};
use thread_protocol::{Call, Close, MAX_FRAME_BEFORE_CONNECT, METHODS, Request, VERSION, code, response};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::socket::{End, Reader, Writer};
use crate::access::connection_limits::Permit;
use crate::access::token::Proof;
use crate::gateway::Gateway;
use crate::session::write::{Author, short};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits for `connect` and answers it. Returns the client's identity, and why it was admitted.
pub async fn handshake(
    gateway: &Gateway,
    permit: &Permit,
    reader: &mut Reader,
    writer: &mut Writer,
    admitted: Option<Proof>,
) -> Result<(Author, Proof), End> {
    let request = async {
        loop {
            match reader.next().await? {
                None => {}
                Some(text) if text.len() > MAX_FRAME_BEFORE_CONNECT && admitted.is_none() => {
                    return Err(End::Close(Close::FrameTooBig));
                }
                Some(text) => return Request::parse(&text).map_err(End::Malformed),
            }
        }
    };
    let request = timeout(CONNECT_TIMEOUT, request).await.map_err(|_| End::Close(Close::NotConnected))??;
    let refusal = match check(gateway, permit, &request, admitted) {
        Ok((author, proof)) => {
            reader.trust();
            let connected = Connected {
                gateway_version: env!("CARGO_PKG_VERSION").to_owned(),
                supported_methods: METHODS.iter().map(|name| (*name).to_owned()).collect(),
                client_id: author.client.clone(),
                agents: gateway.agents.summaries(),
            };
            let text = response::payload::<Connect>(&request.id, &connected);
            send(writer, text.into()).await?;
            return Ok((author, proof));
        }
        Err(refusal) => refusal,
    };
    let (message, code, why) = refusal;
    send(writer, response::error(&request.id, &message, code).into()).await?;
    Err(End::Close(why))
}

async fn send(writer: &mut Writer, text: Utf8Bytes) -> Result<(), End> {
    writer.feed(&text).await.map_err(|_| End::Gone)?;
    writer.flush().await.map_err(|_| End::Gone)
}

/// Checks the first request. An error is the message for the client, its code, and why its connection is closed.
fn check(
    gateway: &Gateway,
    permit: &Permit,
    request: &Request,
    admitted: Option<Proof>,
) -> Result<(Author, Proof), (String, &'static str, Close)> {
    let refuse = |message: &str, code, why| Err((message.to_owned(), code, why));
    if request.method != Connect::NAME {
        return refuse("the first request must be connect", code::NOT_CONNECTED, Close::NotConnected);
    }
    if request.params.get("version").and_then(|version| version.as_str()) != Some(VERSION) {
        return refuse("the gateway speaks version \"1\"", code::UNSUPPORTED_VERSION, Close::Version);
    }
    let offered = request.params.get("token").and_then(|token| token.as_str());
    let proof = match offered {
        Some(token) => gateway.admits(token).then(|| Proof::Token(token.to_owned())),
        None => admitted,
    };
    let Some(proof) = proof else {
        gateway.counters.wrong_tokens.count();
        return refuse("wrong or missing token", code::UNAUTHORIZED, Close::Unauthorized);
    };
    if !permit.admit() {
        gateway.counters.refused.count();
        return refuse("too many connections; try again later", code::TOO_MANY_CONNECTIONS, Close::Full);
    }
    let params = match Call::parse(&request.method, request.params.clone()) {
        Ok(Call::Connect(params)) => params,
        Ok(_) => ConnectParams::default(),
        Err(e) => return refuse(&e.to_string(), e.code(), Close::NotConnected),
    };
    let client = params.client_id.unwrap_or_else(|| short(uuid::Uuid::new_v4()));
    for (key, name) in [("clientType", &params.client_type), ("clientId", &client)] {
        if !(1..=64).contains(&name.chars().count()) || name.chars().any(char::is_control) {
            let error = format!("bad params: '{key}' must be a text of 1 to 64 characters");
            return refuse(&error, code::BAD_PARAMS, Close::NotConnected);
        }
    }
    Ok((Author { client, client_type: params.client_type }, proof))
}
