//! The server over HTTP, for the gateway, which asks for the token and looks at `Host` and `Origin` itself.

use std::sync::Arc;
use std::time::Duration;

use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use crate::scope::Scope;
use crate::server::Server;

/// The longest request, in bytes: enough to be told that a content is too long.
const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// How often something is written to a client that waits: proxies end what is silent for long.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// After how long without a request a session of the older generation is over.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// The service, which ends with `scope.ending`.
pub fn service(scope: Arc<Scope>) -> StreamableHttpService<Server, LocalSessionManager> {
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_sse_keep_alive(Some(KEEP_ALIVE))
        .with_max_request_body_bytes(MAX_REQUEST)
        .with_cancellation_token(scope.ending.clone());
    // A host may be silent for longer than the default of five minutes; one that is told that its session is over
    // begins another.
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.keep_alive = Some(FORGOTTEN);
    let make = move || Ok(Server::new(Arc::clone(&scope)));
    StreamableHttpService::new(make, Arc::new(sessions), config)
}
