//! What fails, as errors of the protocol: what is wrong, and what to do about it.

use agent_client_protocol_schema::v1::Error;
use serde_json::json;
use thread_protocol::client::{Address, Error as Failure, NotFound};
use thread_protocol::code;

const INVALID_PARAMS: i32 = -32602;
const INTERNAL: i32 = -32603;
const NOT_FOUND: i32 = -32002;

/// Explains failures of the gateway at this address.
#[derive(Debug, Clone)]
pub struct Problems(pub Address);

impl Problems {
    pub fn of(&self, failure: &Failure) -> Error {
        let told = failure.explain(&self.0, "thread acp", "begin another session");
        let message = format!("{} - {}", told.what, told.fix);
        let code = match failure {
            Failure::Refused(why) if why.code == code::UNKNOWN_SESSION => NOT_FOUND,
            Failure::Refused(why) if why.code == code::BAD_PARAMS => {
                // The gateway says what is wrong with them.
                return Error::new(INVALID_PARAMS, why.error.clone());
            }
            Failure::TooLarge(_) => INVALID_PARAMS,
            _ => INTERNAL,
        };
        Error::new(code, message)
    }

    pub fn unknown_session(&self, id: &str) -> Error {
        Error::new(NOT_FOUND, format!("the session '{id}' is gone - begin another one"))
    }

    pub fn closed(&self) -> Error {
        Error::new(INTERNAL, "the session was closed - load it to go on")
    }
}

pub fn not_found(error: &NotFound) -> Error {
    Error::new(INTERNAL, format!("{error} - {}", error.fix()))
}

/// The editor names a session that it has not opened.
pub fn not_open(id: &str) -> Error {
    let message = "the session is not open - make it by session/new, or open it by session/load";
    Error::new(NOT_FOUND, message).data(json!({ "sessionId": id }))
}

/// For the editor's log: no request waits for it.
pub fn note(problem: &Error) {
    eprintln!("thread acp: {}", problem.message);
}
