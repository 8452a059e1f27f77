//! Requests for permission, and their answers: one event with two forms.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::any;

/// A permission request, or the answer to one, or that it needs none any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(transform = crate::schema::one_of))]
#[serde(untagged, try_from = "PermissionKeys")]
pub enum Permission {
    Request(PermissionRequest),
    Answer(PermissionAnswer),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PermissionRequest {
    pub request_id: String,
    /// What the agent wants to do. Show all of it.
    pub title: String,
    /// The tool call that it is for.
    pub call_id: Option<String>,
    /// The arguments of that call; null if there are none.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub arguments: Value,
    /// Further details, such as the change to a file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
    pub choices: Vec<Choice>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PermissionAnswer {
    pub request_id: String,
    /// The id of the choice; empty if the agent has withdrawn the request.
    pub choice: String,
}

payloads! {
    pub struct Choice {
        pub id: String,
        pub name: String,
        /// Such as `allow_once` or `reject_once`.
        pub kind: String,
    }
}

/// The keys of both forms, as they are read.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct PermissionKeys {
    request_id: String,
    title: Option<String>,
    call_id: Option<String>,
    #[serde(default, deserialize_with = "any::deserialize")]
    arguments: Value,
    #[serde(default)]
    details: String,
    choices: Option<Vec<Choice>>,
    choice: Option<String>,
}

impl TryFrom<PermissionKeys> for Permission {
    type Error = &'static str;

    fn try_from(keys: PermissionKeys) -> Result<Permission, &'static str> {
        let PermissionKeys { request_id, title, call_id, arguments, details, choices, choice } = keys;
        match (title, choices, choice) {
            (_, None, Some(choice)) => Ok(Permission::Answer(PermissionAnswer { request_id, choice })),
            (Some(title), Some(choices), None) => Ok(Permission::Request(PermissionRequest {
                request_id,
                title,
                call_id,
                arguments,
                details,
                choices,
            })),
            _ => Err("neither a permission request nor the answer to one"),
        }
    }
}
