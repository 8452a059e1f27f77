//! A gateway that sends the frames that a test gives, including ones that no real gateway would send.

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::thread;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use thread_protocol::{Request, response};
use thread_testkit::World;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_tungstenite::accept_async;
use tokio_tungstenite::tungstenite::Message;

pub const SESSION: &str = "6e0a5f9e-0d2b-4f43-9a53-5c9f6c0f6d0a";

/// The frames that follow a request; `None` ends the connection instead.
pub type Reply = Option<Box<dyn Iterator<Item = String>>>;

pub struct Fake {
    world: World,
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Deref for Fake {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Fake {
    /// `reply` returns the frames for each request other than `connect` and `sessions.new`. Its iterator may wait for
    /// something before it continues.
    pub fn start(reply: impl FnMut(&Request) -> Reply + Send + 'static) -> Fake {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let fake = Fake {
            world: World::named("chat"),
            port: listener.local_addr().unwrap().port(),
            requests: Arc::default(),
        };
        let requests = Arc::clone(&fake.requests);
        // Ends with the test program.
        thread::spawn(move || serve(&runtime, &listener, &requests, reply));
        fake
    }

    /// A gateway that answers a message with these events of the run `r`, and nothing else.
    pub fn saying(events: impl Fn() -> Vec<(&'static str, Value)> + Send + 'static) -> Fake {
        Fake::start(move |request| {
            let frames: Vec<String> = match request.method.as_str() {
                "agent" => accepted(request).into_iter().chain(run(events())).collect(),
                _ => vec![response::ok(&request.id, &json!({}))],
            };
            Some(Box::new(frames.into_iter()))
        })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The requests so far for a method.
    pub fn requests(&self, method: &str) -> Vec<Request> {
        self.requests.lock().unwrap().iter().filter(|request| request.method == method).cloned().collect()
    }
}

/// The response to a message: it belongs to the run `r`.
pub fn accepted(request: &Request) -> Vec<String> {
    vec![response::ok(&request.id, &json!({ "runId": "r", "sessionId": SESSION, "status": "accepted" }))]
}

/// Events of the run `r`, with rising `seq`.
pub fn run(events: Vec<(&'static str, Value)>) -> Vec<String> {
    (1..).zip(events).map(|(seq, (event, payload))| frame(event, payload, seq)).collect()
}

pub fn frame(event: &str, mut payload: Value, seq: i64) -> String {
    payload["sessionId"] = SESSION.into();
    payload["runId"] = "r".into();
    json!({ "type": "event", "event": event, "payload": payload, "seq": seq }).to_string()
}

/// The answer of a run.
pub fn answer(text: &str) -> (&'static str, Value) {
    let payload = json!({
        "messageId": "m", "content": text, "totalTokens": null, "latencyMs": null, "stage": null,
        "timestamp": "2026-01-02T03:04:05.678Z",
    });
    ("final", payload)
}

fn serve(
    runtime: &Runtime,
    listener: &TcpListener,
    requests: &Mutex<Vec<Request>>,
    mut reply: impl FnMut(&Request) -> Reply,
) {
    runtime.block_on(async {
        while let Ok((socket, _)) = listener.accept().await {
            // A client that goes away ends its connection, not the gateway.
            let _ = talk(socket, requests, &mut reply).await;
        }
    });
}

async fn talk(
    socket: TcpStream,
    requests: &Mutex<Vec<Request>>,
    reply: &mut impl FnMut(&Request) -> Reply,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let mut socket = accept_async(socket).await?;
    while let Some(message) = socket.next().await {
        let Message::Text(text) = message? else { continue };
        let request = Request::parse(&text).unwrap();
        requests.lock().unwrap().push(request.clone());
        let own = |payload: Value| -> Reply {
            Some(Box::new(std::iter::once(response::ok(&request.id, &payload))))
        };
        let time = "2026-01-02T03:04:05.678Z";
        let frames = match request.method.as_str() {
            "connect" => own(json!({ "gatewayVersion": "0", "supportedMethods": [], "clientId": "c" })),
            "sessions.new" => own(json!({ "sessionId": SESSION, "title": "", "createdAt": time })),
            "sessions.switch" => own(json!({
                "sessionId": SESSION, "title": "", "recentMessages": [], "lastSeq": request.params["after"], "activeRun": null,
            })),
            _ => reply(&request),
        };
        let Some(frames) = frames else { return Ok(()) };
        for frame in frames {
            socket.send(Message::text(frame)).await?;
        }
    }
    Ok(())
}
