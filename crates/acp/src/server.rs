//! What the editor sends: requests are answered here, by `requests`, or by the sessions that are open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, AgentCapabilities, CancelNotification, CancelRequestNotification,
    CloseSessionRequest, Error, Implementation, InitializeRequest, InitializeResponse, LoadSessionRequest,
    McpCapabilities, PROTOCOL_LEVEL_METHOD_NAMES, PromptCapabilities, PromptRequest, ResumeSessionRequest,
    SessionCapabilities, SessionCloseCapabilities, SessionDeleteCapabilities, SessionListCapabilities,
    SessionResumeCapabilities, SetSessionConfigOptionRequest, SetSessionModeRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::content;
use crate::editor::Editor;
use crate::options::Options;
use crate::orders::{Chosen, Order, Orders, WAITING};
use crate::problem::not_open;
use crate::requests;
use crate::rpc::{Incoming, Line};
use crate::session::Session;

/// How many requests to the gateway may be under way. No more are read until then.
const AT_ONCE: usize = 64;

/// How long requests may take to end when the editor sends nothing more.
const LAST: Duration = Duration::from_secs(2);

const INITIALIZE: &str = AGENT_METHOD_NAMES.initialize;
const NEW: &str = AGENT_METHOD_NAMES.session_new;
const LOAD: &str = AGENT_METHOD_NAMES.session_load;
const RESUME: &str = AGENT_METHOD_NAMES.session_resume;
const LIST: &str = AGENT_METHOD_NAMES.session_list;
const DELETE: &str = AGENT_METHOD_NAMES.session_delete;
const PROMPT: &str = AGENT_METHOD_NAMES.session_prompt;
const SET_MODE: &str = AGENT_METHOD_NAMES.session_set_mode;
const SET_OPTION: &str = AGENT_METHOD_NAMES.session_set_config_option;
const CLOSE: &str = AGENT_METHOD_NAMES.session_close;
const CANCEL: &str = AGENT_METHOD_NAMES.session_cancel;
const CANCEL_REQUEST: &str = PROTOCOL_LEVEL_METHOD_NAMES.cancel_request;

type Result<T> = std::result::Result<T, Error>;

/// The program. Copies are the same one.
#[derive(Clone)]
pub struct Server {
    options: Arc<Options>,
    editor: Editor,
    /// The sessions that are open, by their ids.
    sessions: Arc<Mutex<HashMap<String, Orders>>>,
}

/// Gives a session an order that nobody repeats: a cancel, or an answer. If too many wait there, it comes after those.
fn deliver(orders: &Orders, order: Order, under_way: &mut JoinSet<()>) {
    // A closed session needs it no more.
    if let Err(TrySendError::Full(order)) = orders.try_send(order) {
        let orders = orders.clone();
        under_way.spawn(async move { drop(orders.send(order).await) });
    }
}

impl Server {
    pub fn new(options: Options, editor: Editor) -> Server {
        Server { options: Arc::new(options), editor, sessions: Arc::default() }
    }

    /// Lives as long as the editor. What the agents do continues.
    pub async fn run(self, mut lines: mpsc::Receiver<Line>) {
        let mut under_way = JoinSet::new();
        loop {
            let line = tokio::select! {
                line = lines.recv() => line,
                () = self.editor.gone() => return,
            };
            let Some(line) = line else { break };
            match Incoming::parse(&line) {
                None => {}
                Some(Incoming::Request { id, method, params }) => {
                    self.request(id, method, params, &mut under_way).await;
                }
                Some(Incoming::Notification { method, params }) => {
                    self.notification(&method, params, &mut under_way);
                }
                Some(Incoming::Response { id, outcome }) => {
                    if let Some((orders, order)) = self.editor.answered(&id, outcome) {
                        deliver(&orders, order, &mut under_way);
                    }
                }
                Some(Incoming::Malformed { id, error }) => {
                    self.editor.respond(&id, Err::<(), _>(error)).await
                }
            }
            while under_way.try_join_next().is_some() {}
            if under_way.len() >= AT_ONCE {
                under_way.join_next().await;
            }
        }
        self.sessions().clear();
        let _ = timeout(LAST, under_way.join_all()).await;
    }

    async fn request(&self, id: Value, method: String, params: Value, under_way: &mut JoinSet<()>) {
        let done = match &*method {
            INITIALIZE => match parsed::<InitializeRequest>(params) {
                Ok(_) => {
                    self.editor.respond(&id, Ok(initialized())).await;
                    Ok(())
                }
                Err(e) => Err(e),
            },
            NEW | LOAD | RESUME | LIST | DELETE => {
                under_way.spawn(self.clone().ask_gateway(id.clone(), method, params));
                Ok(())
            }
            PROMPT => parsed(params).and_then(|request: PromptRequest| {
                let content = content::prompt(&request.prompt).map_err(invalid)?;
                self.order(&request.session_id.0, Order::Prompt { id: id.clone(), content })
            }),
            SET_MODE => parsed(params).and_then(|request: SetSessionModeRequest| {
                let chosen = Box::new(Chosen::Mode(request.mode_id.to_string()));
                self.order(&request.session_id.0, Order::Choose { id: id.clone(), chosen })
            }),
            SET_OPTION => parsed(params).and_then(|request: SetSessionConfigOptionRequest| {
                let value = request.value.as_value_id().ok_or_else(|| invalid("the value must be an id"))?;
                let (option, value) = (request.config_id.to_string(), value.to_string());
                let chosen = Box::new(Chosen::Option { id: option, value });
                self.order(&request.session_id.0, Order::Choose { id: id.clone(), chosen })
            }),
            CLOSE => parsed(params).and_then(|request: CloseSessionRequest| {
                self.order(&request.session_id.0, Order::Close { id: id.clone() })?;
                self.sessions().remove(&*request.session_id.0);
                Ok(())
            }),
            _ => Err(Error::method_not_found().data(json!({ "method": method }))),
        };
        if let Err(error) = done {
            self.editor.respond(&id, Err::<(), _>(error)).await;
        }
    }

    fn notification(&self, method: &str, params: Value, under_way: &mut JoinSet<()>) {
        // What is malformed, or not known, needs no answer.
        match method {
            CANCEL => {
                if let Ok(cancel) = parsed::<CancelNotification>(params)
                    && let Some(orders) = self.sessions().get(&*cancel.session_id.0)
                {
                    deliver(orders, Order::Cancel, under_way);
                }
            }
            CANCEL_REQUEST => {
                let id = parsed::<CancelRequestNotification>(params)
                    .and_then(|cancel| serde_json::to_value(cancel.request_id).map_err(Error::from));
                let Ok(id) = id else { return };
                // The session that has it knows it.
                for orders in self.sessions().values() {
                    deliver(orders, Order::CancelRequest { id: id.clone() }, under_way);
                }
            }
            _ => {}
        }
    }

    /// Tells an open session to do something.
    fn order(&self, session: &str, order: Order) -> Result<()> {
        let mut sessions = self.sessions();
        match sessions.get(session).map(|orders| orders.try_send(order)) {
            Some(Ok(())) => Ok(()),
            Some(Err(TrySendError::Full(_))) => {
                Err(Error::new(-32603, "too many requests wait for the gateway - try again later"))
            }
            Some(Err(TrySendError::Closed(_))) | None => {
                sessions.remove(session);
                Err(not_open(session))
            }
        }
    }

    async fn ask_gateway(self, id: Value, method: String, params: Value) {
        let (options, editor) = (&self.options, &self.editor);
        match &*method {
            NEW => {
                let opened = async { requests::new_session(options, editor, parsed(params)?).await };
                self.open(&id, opened.await).await;
            }
            LOAD => {
                let opened = async {
                    let request: LoadSessionRequest = parsed(params)?;
                    self.sessions().remove(&*request.session_id.0);
                    requests::load(options, editor, request).await
                };
                self.open(&id, opened.await).await;
            }
            RESUME => {
                let opened = async {
                    let request: ResumeSessionRequest = parsed(params)?;
                    self.sessions().remove(&*request.session_id.0);
                    requests::resume(options, editor, request).await
                };
                self.open(&id, opened.await).await;
            }
            LIST => {
                let listed = async { requests::list(options, parsed(params)?).await };
                editor.respond(&id, listed.await).await;
            }
            _ => {
                let deleted = async { requests::delete(options, parsed(params)?).await };
                editor.respond(&id, deleted.await).await;
            }
        }
    }

    /// Answers the request that has opened a session, and lets that live.
    async fn open(&self, id: &Value, opened: Result<(Session, impl Serialize)>) {
        let (session, response) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.editor.respond(id, Err::<(), _>(error)).await,
        };
        let (orders, taken) = mpsc::channel(WAITING);
        let answers = orders.downgrade();
        self.sessions().insert(session.id.clone(), orders);
        self.editor.respond(id, Ok(response)).await;
        self.editor.update(&session.id, session.commands()).await;
        tokio::spawn(session.run(taken, answers));
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Orders>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn initialized() -> InitializeResponse {
    let sessions = SessionCapabilities::new()
        .list(SessionListCapabilities::new())
        .resume(SessionResumeCapabilities::new())
        .close(SessionCloseCapabilities::new())
        .delete(SessionDeleteCapabilities::new());
    let capabilities = AgentCapabilities::new()
        .load_session(true)
        .mcp_capabilities(McpCapabilities::new().http(true).sse(true))
        .prompt_capabilities(PromptCapabilities::new().embedded_context(true).image(true).audio(true))
        .session_capabilities(sessions);
    InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .agent_info(Implementation::new("thread-acp", env!("CARGO_PKG_VERSION")).title("thread".to_owned()))
}

fn parsed<T: DeserializeOwned>(params: Value) -> Result<T> {
    serde_json::from_value(params).map_err(|e| Error::invalid_params().data(e.to_string()))
}

fn invalid(why: &str) -> Error {
    Error::new(-32602, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cancel_waits_behind_a_full_queue() {
        let (orders, mut taken) = mpsc::channel(1);
        let mut under_way = JoinSet::new();
        deliver(&orders, Order::Close { id: 1.into() }, &mut under_way);
        deliver(&orders, Order::Cancel, &mut under_way);
        assert!(matches!(taken.recv().await, Some(Order::Close { .. })));
        assert!(matches!(taken.recv().await, Some(Order::Cancel)));
        // Nobody waits for a session that is closed.
        drop(taken);
        deliver(&orders, Order::Cancel, &mut under_way);
        under_way.join_all().await;
    }
}
