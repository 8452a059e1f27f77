//! One connection to the gateway: frames of protocol v1 (docs/PROTOCOL.md).

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::http::StatusCode;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message, protocol::CloseFrame};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

/// The gateway pings every 20 s: a peer that is silent for this long is gone.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Limit for connecting, and for each frame while a response is awaited.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest frame that is accepted, in bytes.
const MAX_FRAME: usize = 128 * 1024 * 1024;

#[derive(Debug, Error)]
pub enum Error {
    /// The connection was lost, or could not be made; a retry may help.
    #[error("{0}")]
    Lost(String),
    /// The gateway refused a request.
    #[error("{0}")]
    Refused(String),
    /// The gateway does not accept this host name.
    #[error("403 Forbidden")]
    Forbidden,
    /// The server at this address is not a gateway.
    #[error("{0}")]
    NotAGateway(String),
    /// The gateway closed the connection for a reason that a retry does not change.
    #[error("the gateway closed the connection: {reason} ({code})")]
    Closed { code: u16, reason: String },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Frame {
    Res {
        id: String,
        ok: bool,
        #[serde(default)]
        payload: Value,
        #[serde(default)]
        error: Option<Value>,
    },
    Event(Event),
}

/// An event of the session.
#[derive(Debug, Clone, Deserialize, serde::Serialize)]
pub struct Event {
    pub event: String,
    pub payload: Value,
    /// The event's id in its thread; `None` if it is not stored there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
}

impl Event {
    /// A text in the payload; empty if there is none.
    pub fn text(&self, key: &str) -> &str {
        self.payload.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

pub struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    next_id: u64,
    /// Events received while a response was awaited.
    pending: VecDeque<Event>,
    connected: bool,
}

impl Client {
    /// Connects and sends `connect`. By `client_id`, the gateway recognizes the client after a reconnect.
    pub async fn connect(url: &str, token: Option<&str>, client_id: &str) -> Result<Client, Error> {
        // An answer may have 16 MiB, and six times that when escaped as JSON.
        let limits =
            WebSocketConfig::default().max_message_size(Some(MAX_FRAME)).max_frame_size(Some(MAX_FRAME));
        let connecting = connect_async_with_config(url, Some(limits), false);
        let connecting = timeout(RESPONSE_TIMEOUT, connecting).await;
        let connected = connecting.map_err(|_| Error::Lost("no answer within 30 s".to_owned()))?;
        let (socket, _) = connected.map_err(not_connected)?;
        let mut client = Client { socket, next_id: 1, pending: VecDeque::new(), connected: false };
        let mut params = json!({ "version": "1", "clientType": "terminal", "clientId": client_id });
        if let Some(token) = token {
            params["token"] = token.into();
        }
        client.request("connect", params).await?;
        client.connected = true;
        Ok(client)
    }

    /// Sends a request and waits for the response.
    pub async fn request(&mut self, method: &str, params: Value) -> Result<Value, Error> {
        let request_id = self.next_id.to_string();
        self.next_id += 1;
        let frame = json!({ "type": "req", "id": request_id, "method": method, "params": params });
        self.socket.send(Message::text(frame.to_string())).await.map_err(lost)?;
        // Many events may come first over a slow connection, so the limit is for each frame.
        loop {
            let frame = timeout(RESPONSE_TIMEOUT, self.frame()).await;
            match frame.map_err(|_| Error::Lost("no answer within 30 s".to_owned()))?? {
                Frame::Event(event) => self.pending.push_back(event),
                Frame::Res { id, ok: true, payload, .. } if id == request_id => return Ok(payload),
                Frame::Res { id, error, .. } if id == request_id => {
                    return Err(Error::Refused(message(error)));
                }
                Frame::Res { .. } => {}
            }
        }
    }

    /// The next event. Cancel-safe: no event is lost if the future is dropped.
    pub async fn event(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            if let Frame::Event(event) = self.frame().await? {
                return Ok(event);
            }
        }
    }

    async fn frame(&mut self) -> Result<Frame, Error> {
        loop {
            let received = timeout(IDLE_TIMEOUT, self.socket.next()).await;
            let received =
                received.map_err(|_| Error::Lost("nothing was received for a minute".to_owned()))?;
            match received.ok_or_else(|| Error::Lost("the connection ended".to_owned()))?.map_err(lost)? {
                // Frames that only a newer gateway knows are ignored.
                Message::Text(text) => {
                    if let Ok(frame) = serde_json::from_str(&text) {
                        return Ok(frame);
                    }
                }
                Message::Close(close) => return Err(self.closed(close)),
                _ => {}
            }
        }
    }

    /// Once `connect` has succeeded, a closed connection counts as lost, which is worth a reconnect, unless a
    /// frame was too large: it would be sent again.
    fn closed(&self, close: Option<CloseFrame>) -> Error {
        match close {
            Some(close) if !self.connected || u16::from(close.code) == TOO_LARGE => {
                Error::Closed { code: close.code.into(), reason: close.reason.to_string() }
            }
            _ => Error::Lost("the gateway ended the connection".to_owned()),
        }
    }
}

/// The close code for a frame of more than 1 MiB.
pub const TOO_LARGE: u16 = 1009;

/// The text of an error; a newer gateway may send an object instead.
fn message(error: Option<Value>) -> String {
    match error {
        Some(Value::String(text)) => text,
        Some(Value::Object(object)) => object.get("message").map_or_else(String::new, Value::to_string),
        _ => "the gateway gave no reason".to_owned(),
    }
}

fn lost(error: WsError) -> Error {
    Error::Lost(error.to_string())
}

/// Why a connection could not be made: the kind of failure decides whether a retry may help.
fn not_connected(error: WsError) -> Error {
    match error {
        WsError::Http(response) => match response.status() {
            status if status.is_server_error() => Error::Lost(format!("it answered {status}")),
            StatusCode::FORBIDDEN => Error::Forbidden,
            status => Error::NotAGateway(format!("it answered {status}")),
        },
        // The connection ended during the handshake.
        WsError::Protocol(ProtocolError::HandshakeIncomplete) => lost(error),
        WsError::Protocol(e) => Error::NotAGateway(e.to_string()),
        error => lost(error),
    }
}
