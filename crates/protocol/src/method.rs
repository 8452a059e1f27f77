//! The methods: their names, params and payloads.

mod connect;
mod history;
mod runs;
mod sessions;
mod status;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use self::connect::*;
pub use self::history::*;
pub use self::runs::*;
pub use self::sessions::*;
pub use self::status::*;
use crate::code;

/// A method of the protocol.
pub trait Method {
    const NAME: &'static str;
    /// What a request carries.
    type Params: Serialize + DeserializeOwned;
    /// What the response to it carries, if it succeeds.
    type Payload: Serialize + DeserializeOwned;

    /// Whether a request that got no response may be sent again: doing it twice is the same as once.
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

/// Hands the table of all methods to a macro. The schemas follow from it, and the gateway's dispatch.
#[macro_export]
macro_rules! all_methods {
    ($macro:ident) => {
        $macro! {
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
            /// Hears several sessions at once.
            SessionsWatch = "sessions.watch": WatchParams => Watching;
            /// Ends that.
            SessionsUnwatch = "sessions.unwatch": UnwatchParams => Nothing;
            /// Creates a session with the beginning of another, and enters it.
            SessionsFork = "sessions.fork": ForkParams => NewSession, repeatable if |_| false;
            /// Reads messages.
            SessionsHistory = "sessions.history": HistoryParams => HistoryPage;
            /// Reads what happened between messages.
            SessionsSteps = "sessions.steps": StepsParams => StepsPage;
            /// Gives a session a title.
            SessionsRename = "sessions.rename": RenameParams => Renamed;
            /// Gives a session another agent, or other settings.
            SessionsUpdate = "sessions.update": UpdateParams => Updated;
            /// Searches titles, messages, tool calls and errors.
            SessionsSearch = "sessions.search": SearchParams => SessionList;
            /// Stops the runs of a session and removes it.
            SessionsDelete = "sessions.delete": DeleteParams => Deleted;
            /// Answers a permission request.
            PermissionAnswer = "permission.answer": PermissionAnswerParams => Nothing;
            /// The state of the gateway and of a session.
            Status = "status": StatusParams => StatusPayload;
        }
    };
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
                let call = match method {
                    $($name => serde_json::from_value(params.into()).map(Call::$method),)+
                    _ => return Err(CallError::Unknown(method.chars().take(100).collect())),
                };
                call.map_err(|e| CallError::BadParams(e.to_string()))
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
            vec![
                $(($name, crate::schema::of::<$params>(params), crate::schema::of::<$payload>(payloads))),+
            ]
        }
    };
}

all_methods!(methods);

#[cfg(test)]
mod tests;
