//! The editor: what is sent to it.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as threads};
use std::thread;

use agent_client_protocol_schema::v1::{
    CLIENT_METHOD_NAMES, Error, PROTOCOL_LEVEL_METHOD_NAMES, RequestPermissionRequest, SessionNotification,
    SessionUpdate,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::orders::{Order, Orders};

/// How many messages may wait for an editor that does not read. Then nothing more is read for it from the gateway.
const AHEAD: usize = 64;

/// The editor. Copies are the same one.
#[derive(Clone)]
pub struct Editor {
    lines: mpsc::Sender<String>,
    asked: Arc<Mutex<Asked>>,
}

/// Requests to the editor without a response.
#[derive(Default)]
struct Asked {
    last_id: u64,
    /// Whose they are, and the gateway's id of the request for permission.
    open: HashMap<u64, (mpsc::WeakSender<Order>, String)>,
}

/// Writes stdout in a thread of its own. It ends when the last copy of the editor is gone, or nobody reads, and closes the
/// channel then.
///
/// # Errors
///
/// There can be no more threads.
pub fn writer() -> io::Result<(Editor, threads::Receiver<()>)> {
    let (lines, mut taken) = mpsc::channel::<String>(AHEAD);
    let (writing, written) = threads::channel();
    thread::Builder::new().spawn(move || {
        let _until_the_end = writing;
        let mut stdout = io::stdout().lock();
        while let Some(line) = taken.blocking_recv() {
            if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
                break;
            }
        }
    })?;
    Ok((Editor { lines, asked: Arc::default() }, written))
}

impl Editor {
    /// Answers a request.
    pub async fn respond(&self, id: &Value, outcome: Result<impl Serialize, Error>) {
        let message = match outcome {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
        };
        self.send(&message).await;
    }

    /// Something has happened in a session.
    pub async fn update(&self, session: &str, update: SessionUpdate) {
        let params = SessionNotification::new(session.to_owned(), update);
        self.notify(CLIENT_METHOD_NAMES.session_update, params).await;
    }

    /// Asks for permission. The response becomes an [`Order`]. Returns the request's id, for [`Editor::withdraw`].
    pub async fn ask(
        &self,
        request: RequestPermissionRequest,
        orders: mpsc::WeakSender<Order>,
        request_id: String,
    ) -> u64 {
        let id = {
            let mut asked = self.asked();
            asked.last_id += 1;
            let id = asked.last_id;
            asked.open.insert(id, (orders, request_id));
            id
        };
        let method = CLIENT_METHOD_NAMES.session_request_permission;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": request })).await;
        id
    }

    /// Takes back a request for permission that was answered elsewhere.
    pub async fn withdraw(&self, id: u64) {
        if self.asked().open.remove(&id).is_some() {
            self.notify(PROTOCOL_LEVEL_METHOD_NAMES.cancel_request, json!({ "requestId": id })).await;
        }
    }

    /// Takes in a response. Returns what the session is to be told, if it is expected.
    pub fn answered(&self, id: &Value, outcome: Result<Value, Value>) -> Option<(Orders, Order)> {
        let (orders, request_id) = id.as_u64().and_then(|id| self.asked().open.remove(&id))?;
        // An error, as from an editor that does not know the request, is no choice either.
        let outcome = outcome.unwrap_or_default();
        let is_selected = outcome["outcome"]["outcome"] == "selected";
        let choice = outcome["outcome"]["optionId"].as_str().filter(|_| is_selected).map(str::to_owned);
        // A session that is closed needs no answer.
        Some((orders.upgrade()?, Order::Answer { request_id, choice }))
    }

    async fn notify(&self, method: &str, params: impl Serialize) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    async fn send(&self, message: &Value) {
        // If nobody reads any more, the program is about to end.
        let _ = self.lines.send(message.to_string()).await;
    }

    /// Waits until nobody reads any more.
    pub async fn gone(&self) {
        self.lines.closed().await;
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
