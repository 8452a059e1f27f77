//! Connecting: the first request of a connection.

payloads! {
    #[derive(Default)]
    pub struct ConnectParams {
        /// The version of the protocol.
        #[cfg_attr(test, schemars(extend("const" = crate::VERSION)))]
        pub version: String,
        /// What kind of client it is.
        #[cfg_attr(test, schemars(length(min = 1, max = 64)))]
        pub client_type: String,
        /// Unless the HTTP request had it.
        pub token: Option<String>,
        /// With the same one after a reconnect, a client's messages are still `fromSelf`.
        #[cfg_attr(test, schemars(length(min = 1, max = 64)))]
        pub client_id: Option<String>,
    }

    pub struct Connected {
        pub gateway_version: String,
        pub supported_methods: Vec<String>,
        /// The one of the params, or a new one.
        pub client_id: String,
        /// The agents that a session can have; a new one gets the first unless it names another.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub agents: Vec<AgentSummary>,
    }

    /// An agent that a session can have.
    pub struct AgentSummary {
        pub name: String,
        /// What it is for.
        pub about: Option<String>,
        /// What one could ask it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub prompts: Vec<String>,
        /// What may be chosen for a session: `model`, `cwd`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub allow: Vec<String>,
        /// Whether a copy of a session can continue from a step of its run.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub steps: bool,
    }
}
