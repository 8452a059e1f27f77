//! The state of the gateway and of a session.

use crate::event::{Cost, Usage};

payloads! {
    #[derive(Default)]
    pub struct StatusParams {
        pub session_id: Option<String>,
    }

    pub struct StatusPayload {
        pub gateway: GatewayStatus,
        /// The session named, or the one that the client is in.
        #[serialize_always]
        pub session: Option<SessionStatus>,
    }

    pub struct GatewayStatus {
        pub version: String,
        /// In seconds.
        pub uptime: u64,
        pub active_connections: u64,
        /// How many sessions have clients in them.
        pub active_sessions: u64,
    }

    pub struct SessionStatus {
        #[cfg_attr(test, schemars(regex(pattern = crate::schema::UUID)))]
        pub id: String,
        pub message_count: u64,
        /// How many runs wait for another one to end.
        pub queued_requests: u64,
        /// The `runId` of the run under way.
        #[serialize_always]
        pub active_run: Option<String>,
        /// How many connections are in the session.
        pub clients: u64,
        /// The name of its agent, if it has one.
        pub agent: Option<String>,
        /// What all its runs have taken, as far as their agents say.
        pub usage: Option<Usage>,
        pub cost: Option<Cost>,
    }
}
