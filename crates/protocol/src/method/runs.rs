//! Messages, cancelling their runs, and permissions.

use serde_json::{Map, Value};

use crate::content::Content;
use crate::event::Priority;

payloads! {
    #[cfg_attr(test, schemars(extend("dependentRequired" = {"idempotencyKey": ["sessionId"]})))]
    pub struct AgentParams {
        /// By default the session that the client is in, or a new one.
        pub session_id: Option<String>,
        pub message: Content,
        /// A word that is not known counts as `next`.
        pub priority: Option<Priority>,
        /// Stored with the message.
        pub metadata: Option<Map<String, Value>>,
        /// Needs a `sessionId`. A message that is sent again with the same key is stored once.
        #[cfg_attr(test, schemars(length(min = 1, max = 512)))]
        pub idempotency_key: Option<String>,
    }

    pub struct Accepted {
        /// Null for a command.
        #[serialize_always]
        pub run_id: Option<String>,
        /// Null for a command of a client that is in no session.
        #[serialize_always]
        pub session_id: Option<String>,
        pub status: Acceptance,
    }

    pub struct CancelParams {
        pub run_id: String,
        pub session_id: Option<String>,
    }

    pub struct CancelRequested {
        pub message: String,
    }

    pub struct PermissionAnswerParams {
        pub session_id: String,
        pub request_id: String,
        /// The id of a choice of the request.
        pub choice: String,
    }

    /// A payload without keys.
    #[derive(Copy, Default)]
    pub struct Nothing {}
}

words! {
    /// Whether a message has to wait.
    Acceptance {
        Accepted = "accepted",
        /// Other runs are ahead of it.
        Queued = "queued",
    }
}

impl Default for CancelRequested {
    fn default() -> CancelRequested {
        CancelRequested { message: "Cancellation requested".to_owned() }
    }
}
