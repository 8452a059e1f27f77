//! The methods: their names, params and payloads.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::code;
use crate::content::{Content, any};
use crate::event::{LargeContent, Priority, Role};

/// A method of the protocol.
pub trait Method {
    const NAME: &'static str;
    /// What a request carries.
    type Params: Serialize + DeserializeOwned;
    /// What the response to it carries, if it succeeds.
    type Payload: Serialize + DeserializeOwned;

    /// Whether a request that got no response may be sent again: done twice, it does what it does once.
    fn is_repeatable(_: &Self::Params) -> bool {
        true
    }
}

/// Why a request cannot be carried out, before anything was tried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The method, at most 100 characters of it.
    #[error("unknown method '{0}'")]
    Unknown(String),
    #[error("bad params: {0}")]
    BadParams(String),
}

impl CallError {
    /// The error's code.
    pub fn code(&self) -> &'static str {
        match self {
            CallError::Unknown(_) => code::UNKNOWN_METHOD,
            CallError::BadParams(_) => code::BAD_PARAMS,
        }
    }
}

macro_rules! methods {
    ($(
        $(#[$about:meta])*
        $method:ident = $name:literal: $params:ty => $payload:ty $(, repeatable if $repeatable:expr)?;
    )+) => {
        $(
            $(#[$about])*
            #[derive(Debug, Clone, Copy)]
            pub struct $method;

            impl Method for $method {
                const NAME: &'static str = $name;
                type Params = $params;
                type Payload = $payload;

                $(fn is_repeatable(params: &$params) -> bool {
                    let repeatable: fn(&$params) -> bool = $repeatable;
                    repeatable(params)
                })?
            }
        )+

        /// A request with its params.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Call {
            $($(#[$about])* $method($params),)+
        }

        /// The names of all methods.
        pub const METHODS: &[&str] = &[$($name),+];

        impl Call {
            /// Reads the params of a request for `method`. Keys that are not known are ignored.
            ///
            /// # Errors
            ///
            /// There is no such method, or a key is missing or has the wrong type.
            pub fn parse(method: &str, params: Map<String, Value>) -> Result<Call, CallError> {
                match method {
                    $($name => params_of::<$method>(params).map(Call::$method),)+
                    _ => Err(CallError::Unknown(method.chars().take(100).collect())),
                }
            }

            /// The method's name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Call::$method(_) => $name,)+
                }
            }
        }

        #[cfg(test)]
        pub(crate) fn schemas(
            params: &mut schemars::SchemaGenerator,
            payloads: &mut schemars::SchemaGenerator,
        ) -> Vec<(&'static str, schemars::Schema, schemars::Schema)> {
            vec![$((
                $name,
                crate::schema::of::<$params>(params),
                crate::schema::of::<$payload>(payloads),
            )),+]
        }
    };
}

fn params_of<M: Method>(params: Map<String, Value>) -> Result<M::Params, CallError> {
    serde_json::from_value(Value::Object(params)).map_err(|e| CallError::BadParams(e.to_string()))
}

methods! {
    /// The first request of a connection.
    Connect = "connect": ConnectParams => Connected;
    /// Sends a message.
    Agent = "agent": AgentParams => Accepted, repeatable if |params| params.idempotency_key.is_some();
    /// Cancels a run that is under way or queued.
    AgentCancel = "agent.cancel": CancelParams => CancelRequested;
    /// Lists sessions, most recently active first.
    SessionsList = "sessions.list": ListParams => SessionList;
    /// Creates a session and enters it.
    SessionsNew = "sessions.new": NewParams => NewSession, repeatable if |_| false;
    /// Enters a session.
    SessionsSwitch = "sessions.switch": SwitchParams => Switched;
    /// Creates a session with the beginning of another, and enters it.
    SessionsFork = "sessions.fork": ForkParams => NewSession, repeatable if |_| false;
    /// Reads messages.
    SessionsHistory = "sessions.history": HistoryParams => HistoryPage;
    /// Reads what happened between messages.
    SessionsSteps = "sessions.steps": StepsParams => StepsPage;
    /// Gives a session a title.
    SessionsRename = "sessions.rename": RenameParams => Renamed;
    /// Searches titles, messages, tool calls and errors.
    SessionsSearch = "sessions.search": SearchParams => SessionList;
    /// Stops the runs of a session and removes it.
    SessionsDelete = "sessions.delete": DeleteParams => Deleted;
    /// Answers a permission request.
    PermissionAnswer = "permission.answer": PermissionAnswerParams => Nothing;
    /// The state of the gateway and of a session.
    Status = "status": StatusParams => StatusPayload;
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConnectParams {
    /// The version of the protocol.
    #[cfg_attr(test, schemars(extend("const" = crate::VERSION)))]
    pub version: String,
    /// What kind of client it is.
    #[cfg_attr(test, schemars(length(min = 1, max = 64)))]
    pub client_type: String,
    /// Unless the HTTP request had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// With the same one after a reconnect, a client's messages are still `fromSelf`.
    #[cfg_attr(test, schemars(length(min = 1, max = 64)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Connected {
    pub gateway_version: String,
    pub supported_methods: Vec<String>,
    /// The one of the params, or a new one.
    pub client_id: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("dependentRequired" = {"idempotencyKey": ["sessionId"]})))]
#[serde(rename_all = "camelCase")]
pub struct AgentParams {
    /// By default the session that the client is in, or a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    pub message: Content,
    /// A word that is not known counts as `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Stored with the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// Needs a `sessionId`. A message that is sent again with the same key is stored once.
    #[cfg_attr(test, schemars(length(min = 1, max = 512)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Accepted {
    /// Null for a command.
    pub run_id: Option<String>,
    /// Null for a command of a client that is in no session.
    pub session_id: Option<String>,
    pub status: Acceptance,
}

words! {
    /// Whether a message has to wait.
    Acceptance {
        Accepted = "accepted",
        /// Other runs are ahead of it.
        Queued = "queued",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CancelParams {
    pub run_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CancelRequested {
    pub message: String,
}

impl Default for CancelRequested {
    fn default() -> CancelRequested {
        CancelRequested { message: "Cancellation requested".to_owned() }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ListParams {
    /// 10 by default.
    #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SessionList {
    pub sessions: Vec<SessionSummary>,
    /// How many there are in all.
    pub total: u64,
    /// Whether a search ended before it had seen everything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionSummary {
    #[cfg_attr(test, schemars(regex(pattern = crate::schema::UUID)))]
    pub id: String,
    pub title: String,
    pub last_message: Option<String>,
    pub last_activity: String,
    pub message_count: u64,
    /// What its newest run needs or does; nothing if it was answered or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SessionState>,
    /// When that run began, or was asked for if it waits. Absent if it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// If it is a copy, of what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkedFrom>,
    /// The text that a search has found.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matched: Option<String>,
    /// The event that has it, unless it is the title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_seq: Option<u64>,
}

words! {
    /// What a session needs or does.
    SessionState {
        /// Its agent asks for permission.
        Asks = "asks",
        Running = "running",
        /// A message waits for the agent.
        Waiting = "waiting",
        /// The last run failed.
        Failed = "failed",
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NewParams {
    #[cfg_attr(test, schemars(length(min = 1)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NewSession {
    pub session_id: String,
    pub title: String,
    pub created_at: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SwitchParams {
    pub session_id: String,
    /// Every event with a larger `seq` is sent before the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Switched {
    pub session_id: String,
    pub title: String,
    /// Oldest first.
    pub recent_messages: Vec<HistoryEntry>,
    /// Events that come after the response have a larger `seq`.
    #[cfg_attr(test, schemars(range(min = 0)))]
    pub last_seq: i64,
    /// The `runId` of the run under way.
    pub active_run: Option<String>,
    /// If it is a copy, of what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkedFrom>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ForkParams {
    pub session_id: String,
    /// The id of the first message that is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// By default that of the other, unless nothing was copied.
    #[cfg_attr(test, schemars(length(min = 1)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// Where a session that is a copy comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ForkedFrom {
    #[cfg_attr(test, schemars(regex(pattern = crate::schema::UUID)))]
    pub session_id: String,
    /// The title that it had then.
    pub title: String,
    /// The `seq` there of the first message that was not copied; null if all were.
    pub before: Option<i64>,
    /// Events here with a smaller `seq` are copies.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub seq: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HistoryParams {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// 20 by default.
    #[cfg_attr(test, schemars(range(min = 1, max = 200)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<MessageRef>,
}

/// A message, by its `seq` or its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "'before' is neither the seq nor the id of a message")]
pub enum MessageRef {
    Seq(#[cfg_attr(test, schemars(range(min = 1)))] u64),
    Id(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HistoryPage {
    /// Oldest first.
    pub messages: Vec<HistoryEntry>,
    pub has_more: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StepsParams {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Only events with a larger `seq`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Only events with a smaller `seq`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// 200 by default.
    #[cfg_attr(test, schemars(range(min = 1, max = 1000)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StepsPage {
    /// Frames of events, oldest first.
    #[cfg_attr(test, schemars(schema_with = "crate::schema::frames"))]
    pub events: Vec<Box<RawValue>>,
    /// Whether there are older ones.
    pub has_more: bool,
}

/// A message, an answer, or the end of a run that failed or was cancelled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    pub id: String,
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub seq: i64,
    #[cfg_attr(test, schemars(extend("enum" = ["user", "assistant", "system", "error", "cancelled"])))]
    pub role: Role,
    /// For a run that failed or was cancelled, what had been said until then.
    pub content: Content,
    pub timestamp: String,
    /// Who has sent it, as in the thread.
    #[serde(default)]
    pub source: String,
    pub run_id: Option<String>,
    /// The `seq` of the message that it answers.
    pub reply_to: Option<i64>,
    /// The keys that programs have added.
    #[serde(default, deserialize_with = "any::object")]
    pub metadata: Option<Map<String, Value>>,
    /// Set if the content is too large to be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub large: Option<LargeContent>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RenameParams {
    pub session_id: String,
    #[cfg_attr(test, schemars(length(min = 1)))]
    pub title: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Renamed {
    pub session_id: String,
    pub title: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SearchParams {
    /// What a title or a message contains, ignoring case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date_filter: Option<DateFilter>,
    /// 10 by default.
    #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Days of a session's last activity, in the gateway's time zone; weeks begin on Monday.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DateFilter {
    Today,
    Yesterday,
    ThisWeek,
    LastWeek,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeleteParams {
    pub session_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Deleted {
    pub session_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PermissionAnswerParams {
    pub session_id: String,
    pub request_id: String,
    /// The id of a choice of the request.
    pub choice: String,
}

/// A payload without keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Nothing {}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusParams {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StatusPayload {
    pub gateway: GatewayStatus,
    /// The session named, or the one that the client is in.
    pub session: Option<SessionStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct GatewayStatus {
    pub version: String,
    /// In seconds.
    pub uptime: u64,
    pub active_connections: u64,
    /// How many sessions have clients in them.
    pub active_sessions: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SessionStatus {
    #[cfg_attr(test, schemars(regex(pattern = crate::schema::UUID)))]
    pub id: String,
    pub message_count: u64,
    /// How many runs wait for another one to end.
    pub queued_requests: u64,
    /// The `runId` of the run under way.
    pub active_run: Option<String>,
    /// How many connections are in the session.
    pub clients: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{self, Request};

    fn parsed<M: Method>(params: M::Params) -> Call {
        let request = Request::parse(&request::text::<M>("1", &params)).unwrap();
        assert_eq!(request.method, M::NAME);
        let mut params = request.params;
        params.insert("somethingNew".to_owned(), json!({ "a": [1] }));
        Call::parse(&request.method, params).unwrap()
    }

    #[test]
    fn only_what_would_be_done_twice_is_not_sent_again() {
        fn repeatable<M: Method>(params: Value) -> bool {
            M::is_repeatable(&serde_json::from_value(params).unwrap())
        }
        let mut message = json!({ "message": "x", "sessionId": "s" });
        assert!(!repeatable::<Agent>(message.clone()));
        message["idempotencyKey"] = json!("k");
        assert!(repeatable::<Agent>(message));
        assert!(!repeatable::<SessionsNew>(json!({})));
        assert!(!repeatable::<SessionsFork>(json!({ "sessionId": "s" })));
        assert!(repeatable::<Status>(json!({})));
    }

    #[test]
    fn every_call_is_read_as_it_was_written_whatever_else_its_params_have() {
        macro_rules! check {
            ($($method:ident: $params:expr),+ $(,)?) => {{
                let mut names = Vec::new();
                $(
                    let (read, written) = (parsed::<$method>($params), Call::$method($params));
                    assert_eq!(read, written);
                    names.push(read.name());
                )+
                names
            }};
        }
        let id = || "6e0a5f9e-0d2b-4f43-9a53-5c9f6c0f6d0a".to_owned();
        let names = check! {
            Connect: ConnectParams {
                version: "1".into(),
                client_type: "test".into(),
                token: Some("t".into()),
                client_id: None,
            },
            Agent: AgentParams {
                session_id: Some(id()),
                message: Content::Parts(vec![json!({ "type": "text", "text": "x" })]),
                priority: Some(Priority::Later),
                metadata: json!({ "k": null }).as_object().cloned(),
                idempotency_key: Some("k".into()),
            },
            AgentCancel: CancelParams { run_id: "r".into(), session_id: None },
            SessionsList: ListParams { limit: Some(3), offset: None },
            SessionsNew: NewParams { title: Some("t".into()) },
            SessionsSwitch: SwitchParams { session_id: id(), after: Some(3) },
            SessionsFork: ForkParams { session_id: id(), before: Some("m".into()), title: None },
            SessionsHistory: HistoryParams { before: Some(MessageRef::Seq(3)), ..HistoryParams::default() },
            SessionsSteps: StepsParams { after: Some(3), ..StepsParams::default() },
            SessionsRename: RenameParams { session_id: id(), title: "t".into() },
            SessionsSearch: SearchParams { date_filter: Some(DateFilter::LastWeek), ..SearchParams::default() },
            SessionsDelete: DeleteParams { session_id: id() },
            PermissionAnswer: PermissionAnswerParams {
                session_id: id(),
                request_id: "r".into(),
                choice: "c".into(),
            },
            Status: StatusParams::default(),
        };
        assert_eq!(names, METHODS);
    }

    /// Payloads as docs/PROTOCOL.md has them.
    #[test]
    fn every_payload_is_written_as_it_was_read_without_what_is_not_known() {
        fn check<M: Method>(payload: Value) -> &'static str {
            let mut more = payload.clone();
            more["somethingNew"] = json!([{}]);
            let read: M::Payload = serde_json::from_str(&more.to_string()).unwrap();
            assert_eq!(serde_json::to_value(read).unwrap(), payload);
            M::NAME
        }
        let (id, time) = ("6e0a5f9e-0d2b-4f43-9a53-5c9f6c0f6d0a", "2026-01-02T03:04:05.678Z");
        let session = json!({
            "id": id, "title": "t", "lastMessage": null, "lastActivity": time, "messageCount": 2,
            "state": "running", "since": time, "forkedFrom": { "sessionId": id, "title": "t", "before": null, "seq": 1 },
            "match": "m", "matchSeq": 3,
        });
        let made = json!({ "sessionId": id, "title": "", "createdAt": time });
        let entry = json!({
            "id": "m", "seq": 3, "role": "cancelled", "content": [{ "type": "text", "text": "a" }], "timestamp": time,
            "source": "self", "runId": "r", "replyTo": 1, "metadata": { "k": 1 }, "large": { "bytes": 1, "url": "/u" },
        });
        let plain = json!({
            "id": "m", "seq": 4, "role": "user", "content": "a", "timestamp": time, "source": "external:x",
            "runId": null, "replyTo": null, "metadata": null,
        });
        let step =
            json!({ "type": "event", "event": "plan", "payload": { "entries": [] }, "seq": 5, "time": time });
        let names = [
            check::<Connect>(
                json!({ "gatewayVersion": "1", "supportedMethods": ["agent"], "clientId": "c" }),
            ),
            check::<Agent>(json!({ "runId": null, "sessionId": id, "status": "queued" })),
            check::<AgentCancel>(json!({ "message": "Cancellation requested" })),
            check::<SessionsList>(json!({ "sessions": [], "total": 0 })),
            check::<SessionsNew>(made.clone()),
            check::<SessionsSwitch>(json!({
                "sessionId": id, "title": "t", "recentMessages": [entry, plain], "lastSeq": 4, "activeRun": "r",
                "forkedFrom": { "sessionId": id, "title": "t", "before": 3, "seq": 3 },
            })),
            check::<SessionsFork>(made),
            check::<SessionsHistory>(json!({ "messages": [plain], "hasMore": true })),
            check::<SessionsSteps>(json!({ "events": [step], "hasMore": false })),
            check::<SessionsRename>(json!({ "sessionId": id, "title": "t" })),
            check::<SessionsSearch>(json!({ "sessions": [session], "total": 1, "truncated": true })),
            check::<SessionsDelete>(json!({ "sessionId": id })),
            check::<PermissionAnswer>(json!({})),
            check::<Status>(json!({
                "gateway": { "version": "1", "uptime": 2, "activeConnections": 3, "activeSessions": 4 },
                "session": { "id": id, "messageCount": 5, "queuedRequests": 6, "activeRun": null, "clients": 7 },
            })),
        ];
        assert_eq!(names, METHODS);
        let requested = serde_json::to_value(CancelRequested::default()).unwrap();
        assert_eq!(requested, json!({ "message": "Cancellation requested" }));
    }

    #[test]
    fn a_call_that_cannot_be_read_says_why() {
        let error = |method: &str, params: Value| {
            Call::parse(method, params.as_object().unwrap().clone()).unwrap_err().to_string()
        };
        assert_eq!(error("nonsense", json!({})), "unknown method 'nonsense'");
        assert_eq!(error(&"x".repeat(200), json!({})), format!("unknown method '{}'", "x".repeat(100)));
        for (method, params, why) in [
            ("agent", json!({}), "missing field `message`"),
            ("agent", json!({ "message": [] }), "the content has no parts, or a part without a 'type'"),
            ("agent", json!({ "message": 1 }), "the content is neither a text nor an array of parts"),
            ("agent", json!({ "message": "x", "metadata": 1 }), "invalid type: integer `1`, expected a map"),
            (
                "sessions.switch",
                json!({ "sessionId": "s", "after": -1 }),
                "invalid value: integer `-1`, expected u64",
            ),
            (
                "sessions.history",
                json!({ "before": i64::MIN }),
                "'before' is neither the seq nor the id of a message",
            ),
            ("sessions.list", json!({ "limit": "x" }), "invalid type: string \"x\", expected u64"),
        ] {
            assert_eq!(error(method, params), format!("bad params: {why}"));
        }
    }

    /// Older gateways tell less about a message.
    #[test]
    fn a_history_without_its_newer_keys_is_read() {
        let entry = json!({ "id": "m", "seq": 1, "role": "user", "content": "x", "timestamp": "t" });
        let entry: HistoryEntry = serde_json::from_value(entry).unwrap();
        assert_eq!((entry.source.as_str(), entry.run_id, entry.reply_to), ("", None, None));
    }
}
