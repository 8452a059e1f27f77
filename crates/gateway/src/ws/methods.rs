//! The methods of the protocol: how each is carried out, and its response.
//!
//! [`all_methods`] has the table of them. Each has a [`Handler`], in a module next to this one.

use thread_protocol::method::{self, Method};
use thread_protocol::{Call, CallError, all_methods, code, response};
use thread_sessions::Result;
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::caller::{Caller, Done, Reply};
use crate::gateway::READ_ONLY;

/// What carrying out a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It only looks: events are written in the meantime.
    Looks,
    /// It changes where the client is, or tells it something: events wait, so that they follow the response.
    Moves,
    /// It also changes something on the disk.
    Writes,
}

/// How a method is carried out.
pub trait Handler: Method {
    const EFFECT: Effect = Effect::Writes;

    /// What this request does, if that depends on it.
    fn effect(_: &Self::Params) -> Effect {
        Self::EFFECT
    }

    /// # Errors
    ///
    /// Why the request is refused.
    fn handle(
        caller: &Caller,
        params: Self::Params,
    ) -> impl Future<Output = Result<Reply<Self::Payload>>> + Send;
}

macro_rules! dispatch {
    (
        $(#[$connects:meta])*
        Connect = $connect:literal: $greeting:ty => $connected:ty;
        $(
            $(#[$about:meta])*
            $method:ident = $name:literal: $params:ty => $payload:ty $(, repeatable if $repeatable:expr)?;
        )+
    ) => {
        /// What carrying out a request does.
        pub fn effect(call: &Call) -> Effect {
            match call {
                Call::Connect(_) => Effect::Moves,
                $(Call::$method(params) => <method::$method as Handler>::effect(params),)+
            }
        }

        async fn answer(caller: &Caller, id: String, call: Call) -> Done {
            match call {
                Call::Connect(_) => refused(id, "the client is connected already", code::ALREADY_CONNECTED),
                $(Call::$method(params) => {
                    answered::<method::$method>(id, <method::$method as Handler>::handle(caller, params).await)
                })+
            }
        }
    };
}

all_methods!(dispatch);

/// Carries out a request.
pub async fn call(caller: Caller, id: String, call: Result<Call, CallError>) -> Done {
    match call {
        Err(e) => refused(id, &e.to_string(), e.code()),
        Ok(call) if caller.gateway.read_only && effect(&call) == Effect::Writes => {
            refused(id, READ_ONLY, code::READ_ONLY)
        }
        Ok(call) => answer(&caller, id, call).await,
    }
}

fn answered<M: Method>(id: String, reply: Result<Reply<M::Payload>>) -> Done {
    match reply {
        Ok(Reply { payload, subscribe, then }) => {
            let payload = response::payload::<M>(&id, &payload).into();
            Done { id, reply: Reply { payload, subscribe, then } }
        }
        Err(e) => {
            e.log(M::NAME);
            refused(id, &e.to_string(), e.code())
        }
    }
}

fn refused(id: String, error: &str, code: &str) -> Done {
    let payload = Utf8Bytes::from(response::error(&id, error, code));
    Done { id, reply: payload.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_go_on_while_a_client_only_looks() {
        let params = serde_json::json!({
            "version": "1", "clientType": "t", "message": "x", "sessionId": "s", "runId": "r", "requestId": "p",
            "choice": "c", "title": "t", "query": "q",
        });
        let looks: Vec<&str> = thread_protocol::METHODS
            .iter()
            .copied()
            .filter(|name| {
                effect(&Call::parse(name, params.as_object().unwrap().clone()).expect(name)) == Effect::Looks
            })
            .collect();
        assert_eq!(
            looks,
            ["sessions.list", "sessions.history", "sessions.steps", "sessions.search", "status"]
        );
    }
}
