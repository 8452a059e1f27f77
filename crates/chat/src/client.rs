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
const SILENCE: Duration = Duration::from_secs(60);

/// How long a connection may take, and how long to wait for an answer while nothing comes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The largest frame that is read, in bytes.
const MAX: usize = 128 * 1024 * 1024;

#[derive(Debug, Error)]
pub enum Error {
    /// The connection is gone, or was never there; another try may help.
    #[error("{0}")]
    Lost(String),
    /// The gateway refused.
    #[error("{0}")]
    Refused(String),
    /// The gateway does not serve anybody who calls it by this name.
    #[error("403 Forbidden")]
    Forbidden,
    /// What answers there is not a gateway.
    #[error("{0}")]
    Foreign(String),
    /// Closed by the gateway for a reason that another try does not change.
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

/// Something that happened in the session.
#[derive(Debug, Clone, Deserialize, serde::Serialize)]
pub struct Event {
    pub event: String,
    pub payload: Value,
    /// The event's id in its thread; what is no event of a thread has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
}

impl Event {
    /// A text of the payload, empty where there is none.
    pub fn text(&self, key: &str) -> &str {
        self.payload.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

pub struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    next_id: u64,
    /// Events that came while an answer was waited for.
    waiting: VecDeque<Event>,
    let_in: bool,
}

impl Client {
    /// Connects and introduces itself. `client_id` tells the gateway after a lost connection that it
    /// is the same client.
    pub async fn connect(url: &str, token: Option<&str>, client_id: &str) -> Result<Client, Error> {
        // An answer may have 16 MiB, and be six times as long as JSON.
        let limits = WebSocketConfig::default().max_message_size(Some(MAX)).max_frame_size(Some(MAX));
        let connecting = connect_async_with_config(url, Some(limits), false);
        let connecting = timeout(PATIENCE, connecting).await;
        let connected = connecting.map_err(|_| Error::Lost("no answer within 30 s".to_owned()))?;
        let (socket, _) = connected.map_err(not_connected)?;
        let mut client = Client { socket, next_id: 1, waiting: VecDeque::new(), let_in: false };
        let mut hello = json!({ "version": "1", "clientType": "terminal", "clientId": client_id });
        if let Some(token) = token {
            hello["token"] = token.into();
        }
        client.request("connect", hello).await?;
        client.let_in = true;
        Ok(client)
    }

    /// Asks for something and waits for the answer.
    pub async fn request(&mut self, method: &str, params: Value) -> Result<Value, Error> {
        let asked = self.next_id.to_string();
        self.next_id += 1;
        let frame = json!({ "type": "req", "id": asked, "method": method, "params": params });
        self.socket.send(Message::text(frame.to_string())).await.map_err(lost)?;
        // Much may have been said that comes first, and a connection may be slow.
        loop {
            let frame = timeout(PATIENCE, self.frame()).await;
            match frame.map_err(|_| Error::Lost("no answer within 30 s".to_owned()))?? {
                Frame::Event(event) => self.waiting.push_back(event),
                Frame::Res { id, ok: true, payload, .. } if id == asked => return Ok(payload),
                Frame::Res { id, error, .. } if id == asked => return Err(Error::Refused(message(error))),
                Frame::Res { .. } => {}
            }
        }
    }

    /// The next event. May be dropped and called again without losing one.
    pub async fn event(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(event);
            }
            if let Frame::Event(event) = self.frame().await? {
                return Ok(event);
            }
        }
    }

    async fn frame(&mut self) -> Result<Frame, Error> {
        loop {
            let heard = timeout(SILENCE, self.socket.next()).await;
            let heard = heard.map_err(|_| Error::Lost("nothing was heard for a minute".to_owned()))?;
            match heard.ok_or_else(|| Error::Lost("the connection ended".to_owned()))?.map_err(lost)? {
                // What a newer gateway may say besides is none of ours.
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

    /// A client that was let in once may come back, but not with the same frame if that was too large.
    fn closed(&self, close: Option<CloseFrame>) -> Error {
        match close {
            Some(close) if !self.let_in || u16::from(close.code) == TOO_LARGE => {
                Error::Closed { code: close.code.into(), reason: close.reason.to_string() }
            }
            _ => Error::Lost("the gateway ended the connection".to_owned()),
        }
    }
}

/// The code with which the gateway refuses a frame of more than 1 MiB.
pub const TOO_LARGE: u16 = 1009;

/// An error is a text; a newer gateway may say more in an object.
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

/// Why there is no connection: whether waiting helps depends on who answered what.
fn not_connected(error: WsError) -> Error {
    match error {
        WsError::Http(response) => match response.status() {
            status if status.is_server_error() => Error::Lost(format!("it answered {status}")),
            StatusCode::FORBIDDEN => Error::Forbidden,
            status => Error::Foreign(format!("it answered {status}")),
        },
        // It was ended in the middle.
        WsError::Protocol(ProtocolError::HandshakeIncomplete) => lost(error),
        WsError::Protocol(e) => Error::Foreign(e.to_string()),
        error => lost(error),
    }
}
