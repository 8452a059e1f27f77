//! Reading messages, and what happened between them.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::content::{Content, any};
use crate::event::{LargeContent, Role};

payloads! {
    #[derive(Default)]
    pub struct HistoryParams {
        pub session_id: Option<String>,
        /// 20 by default.
        #[cfg_attr(test, schemars(range(min = 1, max = 200)))]
        pub limit: Option<u64>,
        pub before: Option<MessageRef>,
    }

    pub struct HistoryPage {
        /// Oldest first.
        pub messages: Vec<HistoryEntry>,
        pub has_more: bool,
    }

    #[derive(Default)]
    pub struct StepsParams {
        pub session_id: Option<String>,
        /// Only events with a larger `seq`.
        pub after: Option<u64>,
        /// Only events with a smaller `seq`.
        pub before: Option<u64>,
        /// 200 by default.
        #[cfg_attr(test, schemars(range(min = 1, max = 1000)))]
        pub limit: Option<u64>,
    }

    /// A message, an answer, or the end of a run that failed or was cancelled.
    pub struct HistoryEntry {
        pub id: String,
        #[cfg_attr(test, schemars(range(min = 1)))]
        pub seq: i64,
        #[cfg_attr(test, schemars(extend("enum" = ["user", "assistant", "system", "error", "cancelled"])))]
        pub role: Role,
        /// For a run that failed or was cancelled, the answer so far.
        pub content: Content,
        pub timestamp: String,
        /// Its source, as in the thread.
        #[serde(default)]
        pub source: String,
        #[serialize_always]
        pub run_id: Option<String>,
        /// The `seq` of the message that it answers.
        #[serialize_always]
        pub reply_to: Option<i64>,
        /// The keys that programs have added.
        #[serde(default, deserialize_with = "any::object")]
        #[serialize_always]
        pub metadata: Option<Map<String, Value>>,
        /// Set if the content is too large to be shown.
        pub large: Option<LargeContent>,
    }
}

/// A message, by its `seq` or its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "'before' is neither the seq nor the id of a message")]
pub enum MessageRef {
    Seq(#[cfg_attr(test, schemars(range(min = 1)))] u64),
    Id(String),
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
