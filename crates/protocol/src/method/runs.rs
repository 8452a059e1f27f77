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
        /// When it is to be sent, in the form of RFC 3339; now, if it is missing or past.
        #[cfg_attr(test, schemars(extend("format" = "date-time")))]
        pub at: Option<String>,
    }

    pub struct Accepted {
        /// Null for a command.
        #[serialize_always]
        pub run_id: Option<String>,
        /// Null for a command of a client that is in no session.
        #[serialize_always]
        pub session_id: Option<String>,
        pub status: Acceptance,
        /// Its number, such as `s17`, if it is scheduled.
        pub scheduled: Option<String>,
        /// When it is sent, if it is scheduled.
        pub scheduled_at: Option<String>,
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
        /// It is sent later.
        Scheduled = "scheduled",
    }
}

impl Default for CancelRequested {
    fn default() -> CancelRequested {
        CancelRequested { message: "Cancellation requested".to_owned() }
    }
}
