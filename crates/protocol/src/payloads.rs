//! What the payloads of requests, responses and events have in common.

/// Defines structs that are JSON objects with keys in camel case. An option that is `None` is left out, unless it is
/// `serialize_always`: then it is null.
macro_rules! payloads {
    ($($(#[$meta:meta])* pub struct $name:ident { $($fields:tt)* })+) => {
        $(
            #[serde_with::skip_serializing_none]
            #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
            #[cfg_attr(test, derive(schemars::JsonSchema))]
            #[serde(rename_all = "camelCase")]
            $(#[$meta])*
            pub struct $name { $($fields)* }
        )+
    };
}
