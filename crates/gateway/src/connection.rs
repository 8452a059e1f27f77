//! One WebSocket: a reader, a writer, and between them a worker that executes the client's requests.
//!
//! The reader never waits for the other two, so that it notices when too many requests are unanswered; the
//! writer never waits for the reader. Requests of one client are executed one after the other.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Error as WsError;
use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep_until, timeout};

use crate::client::Client;
use crate::gateway::Gateway;
use crate::outbox::{Out, Outbox};
use crate::protocol::frame::{self, Request};
use crate::protocol::{Close, MAX_UNANSWERED, VERSION};
use crate::requests;
use crate::session::speak::Speaker;

const PING_EVERY: Duration = Duration::from_secs(20);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for the client in each step of closing a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves a connection to its end.
pub async fn serve(
    gateway: Arc<Gateway>,
    socket: WebSocket,
    address: IpAddr,
    origin: String,
    admitted: bool,
) {
    let (sink, stream) = socket.split();
    let (outbox, waiting) = Outbox::new();
    let writer = tokio::spawn(write(gateway.clone(), sink, waiting, outbox.clone()));
    let mut reader = Reader { stream, last_received: Instant::now() };
    let (requests, queued) = mpsc::unbounded_channel();
    let unanswered = Arc::new(AtomicUsize::new(0));
    let why = match handshake(&gateway, &mut reader, &outbox, address, admitted).await {
        Ok(speaker) => {
            let client = Client::new(gateway.clone(), outbox.clone(), speaker, origin);
            let worker = tokio::spawn(requests::serve(client, queued, unanswered.clone()));
            let why = tokio::select! {
                why = read(&mut reader, &requests, &unanswered, &outbox) => why,
                // The writer ends first if the client reads too slowly, or at shutdown.
                () = outbox.closed() => None,
            };
            worker.abort();
            why
        }
        Err(why) => why,
    };
    if let Some(why) = why {
        outbox.close(why);
    }
    drop(outbox);
    // Ends in bounded time, whether or not the client answers the close frame.
    let done = async {
        let rest =
            async { while let Ok(Some(Ok(_))) = timeout(CLOSE_TIMEOUT, reader.stream.next()).await {} };
        tokio::join!(writer, rest)
    };
    timeout(2 * CLOSE_TIMEOUT, done).await.ok();
}

struct Reader {
    stream: SplitStream<WebSocket>,
    last_received: Instant,
}

/// What a client sent.
enum Received {
    Text(axum::extract::ws::Utf8Bytes),
    Close(Close),
    /// The connection is gone.
    Gone,
}

impl Reader {
    /// Waits for the next text frame.
    async fn next(&mut self) -> Received {
        loop {
            let next = tokio::select! {
                next = self.stream.next() => next,
                () = sleep_until((self.last_received + IDLE_TIMEOUT).into()) => return Received::Close(Close::Silent),
            };
            self.last_received = Instant::now();
            match next {
                Some(Ok(Message::Text(text))) => return Received::Text(text),
                Some(Ok(Message::Binary(_))) => return Received::Close(Close::NotText),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Received::Gone,
                Some(Err(e)) => return close_for(e).map_or(Received::Gone, Received::Close),
            }
        }
    }
}

/// Why to close the connection after a read error; `None` if it is gone.
fn close_for(error: WsError) -> Option<Close> {
    let error = error.into_inner();
    match error.downcast_ref::<tungstenite::Error>()? {
        tungstenite::Error::Capacity(_) => Some(Close::FrameTooBig),
        tungstenite::Error::Utf8(_) | tungstenite::Error::Protocol(_) => Some(Close::Malformed),
        _ => None,
    }
}

/// Waits for `connect`. Returns the client's identity.
///
/// # Errors
///
/// Why to close the connection; `None` if it is gone.
async fn handshake(
    gateway: &Gateway,
    reader: &mut Reader,
    outbox: &Outbox,
    address: IpAddr,
    admitted: bool,
) -> Result<Speaker, Option<Close>> {
    let text = match timeout(CONNECT_TIMEOUT, reader.next()).await {
        Err(_) => return Err(Some(Close::NotConnected)),
        Ok(Received::Close(why)) => return Err(Some(why)),
        Ok(Received::Gone) => return Err(None),
        Ok(Received::Text(text)) => text,
    };
    let request = parse(&text, outbox).map_err(Some)?;
    let refuse = |message: &str, why| {
        outbox.send(frame::refused(&request.id, message));
        Err(Some(why))
    };
    if request.method != "connect" {
        return refuse("the first request must be connect", Close::NotConnected);
    }
    let text = |key: &str| request.params.get(key).and_then(|value| value.as_str());
    if text("version") != Some(VERSION) {
        return refuse("the gateway speaks version \"1\"", Close::Version);
    }
    if !text("token").map_or(admitted, |token| gateway.admits(token)) {
        gateway.wrong_token(address).await;
        return refuse("wrong or missing token", Close::Unauthorized);
    }
    let Some(client_type) = text("clientType").filter(|name| is_name(name)) else {
        return refuse("bad params: 'clientType' must be a text of 1 to 64 characters", Close::NotConnected);
    };
    let client = match text("clientId") {
        None => uuid::Uuid::new_v4().to_string(),
        Some(client) if is_name(client) => client.to_owned(),
        Some(_) => {
            return refuse(
                "bad params: 'clientId' must be a text of 1 to 64 characters",
                Close::NotConnected,
            );
        }
    };
    let payload = serde_json::json!({
        "gatewayVersion": env!("CARGO_PKG_VERSION"),
        "supportedMethods": crate::methods::NAMES,
        "clientId": client,
    });
    outbox.send(frame::done(&request.id, payload));
    Ok(Speaker { client, client_type: client_type.to_owned() })
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

/// Parses a request. If that fails and it has an id, the client gets an error response.
fn parse(text: &str, outbox: &Outbox) -> Result<Request, Close> {
    Request::parse(text).map_err(|malformed| {
        if let Some(id) = malformed.id {
            outbox.send(frame::refused(&id, malformed.why));
        }
        Close::Malformed
    })
}

/// Reads requests until the connection ends. Returns why to close it; `None` if it is gone.
async fn read(
    reader: &mut Reader,
    requests: &mpsc::UnboundedSender<Request>,
    unanswered: &AtomicUsize,
    outbox: &Outbox,
) -> Option<Close> {
    loop {
        let text = match reader.next().await {
            Received::Text(text) => text,
            Received::Close(why) => return Some(why),
            Received::Gone => return None,
        };
        match parse(&text, outbox) {
            Ok(request) => {
                if unanswered.fetch_add(1, Ordering::Relaxed) >= MAX_UNANSWERED {
                    return Some(Close::TooManyRequests);
                }
                requests.send(request).ok()?;
            }
            Err(why) => return Some(why),
        }
    }
}

/// Writes queued frames and pings until the connection ends.
async fn write(
    gateway: Arc<Gateway>,
    mut sink: SplitSink<WebSocket, Message>,
    mut waiting: mpsc::UnboundedReceiver<Out>,
    outbox: Outbox,
) {
    let backlog = outbox.backlog.clone();
    // Would keep the channel open, and the loop running, after all other senders are gone.
    drop(outbox);
    let mut pings = interval(PING_EVERY);
    pings.tick().await;
    let why = loop {
        let done = tokio::select! {
            biased;
            () = gateway.shutting_down() => break Close::GoingAway,
            () = backlog.overflow.notified() => break Close::SlowReader,
            out = waiting.recv() => match out {
                Some(Out::Frame(first)) => tokio::select! {
                    done = write_some(&mut sink, first, &mut waiting, &backlog) => done,
                    () = backlog.overflow.notified() => break Close::SlowReader,
                    () = gateway.shutting_down() => break Close::GoingAway,
                },
                Some(Out::Close(why)) => break why,
                None => return,
            },
            _ = pings.tick() => sink.send(Message::Ping(Default::default())).await.map(|()| None),
        };
        match done {
            Ok(None) => {}
            Ok(Some(why)) => break why,
            // The client is gone.
            Err(_) => return,
        }
    };
    // Frames queued from here on are dropped.
    waiting.close();
    let frame = CloseFrame { code: why.code(), reason: why.reason().into() };
    timeout(CLOSE_TIMEOUT, sink.send(Message::Close(Some(frame)))).await.ok();
}

/// Writes a frame and those queued behind it. Returns why to close, if that was queued, too.
async fn write_some(
    sink: &mut SplitSink<WebSocket, Message>,
    first: axum::extract::ws::Utf8Bytes,
    waiting: &mut mpsc::UnboundedReceiver<Out>,
    backlog: &crate::follow::feed::Backlog,
) -> Result<Option<Close>, WsError> {
    let mut next = Some(Out::Frame(first));
    while let Some(out) = next {
        match out {
            Out::Frame(frame) => {
                let size = frame.len();
                sink.feed(Message::Text(frame)).await?;
                backlog.remove(size);
            }
            Out::Close(why) => return Ok(Some(why)),
        }
        next = waiting.try_recv().ok();
    }
    sink.flush().await.map(|()| None)
}
