//! The methods of the protocol: which function carries out which request, and its response.

use thread_protocol::method::{self, Method};
use thread_protocol::{Call, CallError, response};

use super::caller::{Caller, Done, Reply};
use super::{agent, runs, sessions};
use crate::error::{RequestError, Result};

/// Whether events wait until the request is answered: those that it causes follow its response.
pub fn changes_something(call: &Call) -> bool {
    !matches!(
        call,
        Call::SessionsList(_)
            | Call::SessionsHistory(_)
            | Call::SessionsSteps(_)
            | Call::SessionsSearch(_)
            | Call::Status(_)
    )
}

/// Whether a request would change something on the disk.
fn writes(call: &Call) -> bool {
    match call {
        Call::Agent(params) => !agent::is_looking(params),
        Call::SessionsSwitch(_) | Call::Connect(_) => false,
        call => changes_something(call),
    }
}

/// Carries out a request.
pub async fn call(caller: Caller, id: String, call: Result<Call, CallError>) -> Done {
    let call = match call {
        Ok(call) => call,
        Err(e) => return refused(id, &e.to_string(), e.code()),
    };
    if caller.gateway.read_only && writes(&call) {
        return refused_by(id, &RequestError::ReadOnly);
    }
    match call {
        Call::Connect(_) => refused_by(id, &RequestError::Connected),
        Call::Agent(params) => done::<method::Agent>(id, agent::agent(&caller, params).await),
        Call::AgentCancel(params) => done::<method::AgentCancel>(id, runs::cancel(&caller, params).await),
        Call::PermissionAnswer(params) => {
            done::<method::PermissionAnswer>(id, runs::permission(&caller, params).await)
        }
        Call::SessionsList(params) => done::<method::SessionsList>(id, sessions::list(&caller, params).await),
        Call::SessionsNew(params) => done::<method::SessionsNew>(id, sessions::new(&caller, params).await),
        Call::SessionsSwitch(params) => {
            done::<method::SessionsSwitch>(id, sessions::switch(&caller, params).await)
        }
        Call::SessionsFork(params) => done::<method::SessionsFork>(id, sessions::fork(&caller, params).await),
        Call::SessionsHistory(params) => {
            done::<method::SessionsHistory>(id, sessions::history(&caller, params).await)
        }
        Call::SessionsSteps(params) => {
            done::<method::SessionsSteps>(id, sessions::steps(&caller, params).await)
        }
        Call::SessionsRename(params) => {
            done::<method::SessionsRename>(id, sessions::rename(&caller, params).await)
        }
        Call::SessionsSearch(params) => {
            done::<method::SessionsSearch>(id, sessions::search(&caller, params).await)
        }
        Call::SessionsDelete(params) => {
            done::<method::SessionsDelete>(id, sessions::delete(&caller, params).await)
        }
        Call::Status(params) => done::<method::Status>(id, sessions::status(&caller, params).await),
    }
}

fn done<M: Method>(id: String, reply: Result<Reply<M::Payload>>) -> Done {
    match reply {
        Ok(reply) => {
            let reply = reply.map(|payload| response::payload::<M>(&id, &payload).into());
            Done { id, reply }
        }
        Err(e) => {
            e.log(M::NAME);
            refused_by(id, &e)
        }
    }
}

fn refused_by(id: String, error: &RequestError) -> Done {
    refused(id, &error.to_string(), error.code())
}

fn refused(id: String, error: &str, code: &str) -> Done {
    let reply = Reply::from(response::error(&id, error, code)).map(Into::into);
    Done { id, reply }
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
                !changes_something(&Call::parse(name, params.as_object().unwrap().clone()).expect(name))
            })
            .collect();
        assert_eq!(
            looks,
            ["sessions.list", "sessions.history", "sessions.steps", "sessions.search", "status"]
        );
    }
}
