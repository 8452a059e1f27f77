//! Listing, searching, making, entering, naming and deleting sessions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::HistoryEntry;
use crate::event::AgentOption;

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
        /// The name of its agent, if it has one.
        pub agent: Option<String>,
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
        /// The name of its agent; by default the first that `connect` lists.
        #[cfg_attr(test, schemars(length(min = 1)))]
        pub agent: Option<String>,
        /// Another model for this session, if the agent allows it.
        #[cfg_attr(test, schemars(length(min = 1)))]
        pub model: Option<String>,
        /// Another directory for this session, if the agent allows it.
        #[cfg_attr(test, schemars(length(min = 1)))]
        pub cwd: Option<String>,
    }

    pub struct NewSession {
        pub session_id: String,
        pub title: String,
        pub created_at: String,
        /// The name of its agent, if it has one.
        pub agent: Option<String>,
    }

    #[derive(Default)]
    pub struct UpdateParams {
        pub session_id: String,
        /// The name of the agent that it is moved to; by default it keeps its own, with what was chosen for it before.
        #[cfg_attr(test, schemars(length(min = 1)))]
        pub agent: Option<String>,
        /// Another model for this session, if the agent allows it.
        #[cfg_attr(test, schemars(length(min = 1)))]
        pub model: Option<String>,
        /// Another directory for this session, if the agent allows it.
        #[cfg_attr(test, schemars(length(min = 1)))]
        pub cwd: Option<String>,
        /// Values of the options of the agent that it has, by their ids.
        pub options: Option<BTreeMap<String, String>>,
    }

    /// The agent of a session, and what was chosen for this session alone.
    pub struct Updated {
        pub session_id: String,
        pub agent: String,
        pub model: Option<String>,
        pub cwd: Option<String>,
        /// What can be chosen at the agent, if it has said so.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub options: Vec<AgentOption>,
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
        /// The name of its agent, if it has one.
        pub agent: Option<String>,
        /// What can be chosen at the agent, if it has said so. It is as after the newest event.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub options: Vec<AgentOption>,
    }

    #[derive(Default)]
    pub struct WatchParams {
        /// The sessions whose events are sent from now on, besides those of the session that the client is in.
        #[cfg_attr(test, schemars(length(max = 1000)))]
        pub session_ids: Option<Vec<String>>,
        /// In place of their ids: all sessions, also those that are made later.
        pub all: Option<bool>,
        /// The last `seq` that the client has of a session, by the session's id: every later event is sent. With `all`, a
        /// session that is not named here is sent from its beginning.
        pub after: Option<BTreeMap<String, u64>>,
    }

    pub struct Watching {
        pub sessions: Vec<WatchedSession>,
        /// Those of the ids that are no session.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub unknown: Vec<String>,
    }

    pub struct WatchedSession {
        pub session_id: String,
        /// Every event with a larger `seq` follows.
        #[cfg_attr(test, schemars(range(min = 0)))]
        pub last_seq: i64,
    }

    #[derive(Default)]
    pub struct UnwatchParams {
        /// All of them by default.
        pub session_ids: Option<Vec<String>>,
    }

    pub struct ForkParams {
        pub session_id: String,
        /// The id of the first message that is left out.
        pub before: Option<String>,
        /// The `seq` of the event with which a step of a model's run ends: the run up to there is copied, and continues.
        pub step: Option<u64>,
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
    /// Words, and phrases in quotes, all of which the session has in its title, its messages, its tools or its errors.
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
