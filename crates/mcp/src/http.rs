//! The server over HTTP, for the gateway, which asks for the token and looks at `Host` and `Origin` itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use crate::scope::Scope;
use crate::server::Server;

/// The longest request, in bytes: enough to report that a content is too long.
const MAX_REQUEST: usize = 16 * 1024 * 1024;

/// How often something is written to a waiting client: proxies close connections that are silent for long.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// After how long without a request a session of the older generation is over.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// How many sessions of the older generation there are at most. Each takes 70 kB, and many clients leave theirs without
/// a word.
const MAX_SESSIONS: usize = 500;

/// The sessions of the older generation, and when they were last used.
pub struct Sessions {
    manager: Arc<LocalSessionManager>,
    used: Mutex<HashMap<Arc<str>, Instant>>,
}

impl Sessions {
    /// Notes that a session is used. If there are too many, the one that was used longest ago ends.
    pub fn used(&self, id: &str) {
        let mut used = self.lock();
        used.insert(id.into(), Instant::now());
        let oldest = used.iter().min_by_key(|(_, at)| **at).map(|(id, _)| id.clone());
        if let Some(oldest) = oldest.filter(|_| used.len() > MAX_SESSIONS) {
            used.remove(&oldest);
            let manager = Arc::clone(&self.manager);
            tokio::spawn(async move { drop(manager.close_session(&oldest).await) });
        }
    }

    /// Notes that a client has ended its session.
    pub fn ended(&self, id: &str) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Instant>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The service, which ends with `scope.ending`.
pub fn service(scope: Arc<Scope>) -> (StreamableHttpService<Server, LocalSessionManager>, Sessions) {
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_sse_keep_alive(Some(KEEP_ALIVE))
        .with_max_request_body_bytes(MAX_REQUEST)
        .with_cancellation_token(scope.ending.clone());
    // A host may be silent for longer than the default of five minutes; one whose session has ended begins another.
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.keep_alive = Some(FORGOTTEN);
    let manager = Arc::new(sessions);
    let make = move || Ok(Server::new(Arc::clone(&scope)));
    let sessions = Sessions { manager: Arc::clone(&manager), used: Mutex::default() };
    (StreamableHttpService::new(make, manager, config), sessions)
}
