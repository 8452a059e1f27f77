//! Listing, searching, making, entering, naming and deleting sessions.

use serde::{Deserialize, Serialize};

use super::HistoryEntry;

payloads! {
    #[derive(Default)]
    pub struct ListParams {
        /// 10 by default.
        #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
        pub limit: Option<u64>,
        /// 0 by default.
        pub offset: Option<u64>,
    }

    #[derive(Default)]
    pub struct SessionList {
        pub sessions: Vec<SessionSummary>,
        /// How many there are in all.
        pub total: u64,
        /// Whether a search ended before it had seen everything.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub truncated: bool,
    }

    pub struct SessionSummary {
        #[cfg_attr(test, schemars(regex(pattern = crate::schema::UUID)))]
        pub id: String,
        pub title: String,
        #[serialize_always]
        pub last_message: Option<String>,
        pub last_activity: String,
        pub message_count: u64,
        /// What its newest run needs or does; nothing if it was answered or cancelled.
        pub state: Option<SessionState>,
        /// When that run began, or was asked for if it waits. Absent if it has failed.
        pub since: Option<String>,
        /// If it is a copy, of what.
        pub forked_from: Option<ForkedFrom>,
        /// The text that a search has found.
        #[serde(rename = "match")]
        pub matched: Option<String>,
        /// The event that has it, unless it is the title.
        pub match_seq: Option<u64>,
    }

    #[derive(Default)]
    pub struct NewParams {
        #[cfg_attr(test, schemars(length(min = 1)))]
        pub title: Option<String>,
    }

    pub struct NewSession {
        pub session_id: String,
        pub title: String,
        pub created_at: String,
    }

    pub struct SwitchParams {
        pub session_id: String,
        /// Every event with a larger `seq` is sent before the response.
        pub after: Option<u64>,
    }

    pub struct Switched {
        pub session_id: String,
        pub title: String,
        /// Oldest first.
        pub recent_messages: Vec<HistoryEntry>,
        /// Events that come after the response have a larger `seq`.
        #[cfg_attr(test, schemars(range(min = 0)))]
        pub last_seq: i64,
        /// The `runId` of the run under way.
        #[serialize_always]
        pub active_run: Option<String>,
        /// If it is a copy, of what.
        pub forked_from: Option<ForkedFrom>,
    }

    pub struct ForkParams {
        pub session_id: String,
        /// The id of the first message that is left out.
        pub before: Option<String>,
        /// By default that of the other, unless nothing was copied.
        #[cfg_attr(test, schemars(length(min = 1)))]
        pub title: Option<String>,
    }

    /// Where a session that is a copy comes from.
    pub struct ForkedFrom {
        #[cfg_attr(test, schemars(regex(pattern = crate::schema::UUID)))]
        pub session_id: String,
        /// The title that it had then.
        pub title: String,
        /// The `seq` there of the first message that was not copied; null if all were.
        #[serialize_always]
        pub before: Option<i64>,
        /// Events here with a smaller `seq` are copies.
        #[cfg_attr(test, schemars(range(min = 1)))]
        pub seq: i64,
    }

    pub struct RenameParams {
        pub session_id: String,
        #[cfg_attr(test, schemars(length(min = 1)))]
        pub title: String,
    }

    pub struct Renamed {
        pub session_id: String,
        pub title: String,
    }

    pub struct DeleteParams {
        pub session_id: String,
    }

    pub struct Deleted {
        pub session_id: String,
    }
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

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SearchParams {
    /// What a title or a message contains, ignoring case.
    pub query: Option<String>,
    pub date_filter: Option<DateFilter>,
    /// 10 by default.
    #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
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
