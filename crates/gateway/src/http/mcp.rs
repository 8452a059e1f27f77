//! `/mcp`: the tools of `thread mcp` for all sessions, by the Model Context Protocol over HTTP.
//!
//! Older clients of the protocol have a session there, whose id they send in `Mcp-Session-Id`. The id names its
//! owner, so that it is useless from another address, even with the token.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use thread_mcp::http::{Sessions, service};
use thread_mcp::scope::Scope;

use super::error::HttpError;
use crate::access::connection_limits::Permit;
use crate::gateway::Gateway;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

pub fn routes(gateway: &Arc<Gateway>) -> Router<Arc<Gateway>> {
    let mut scope = Scope::new(gateway.hub.context.watcher.clone(), gateway.launcher.clone());
    scope.root = Some(gateway.root.clone());
    scope.has_processes = true;
    scope.catalogue = gateway.catalogue.clone();
    let (own, ending) = (gateway.clone(), scope.ending.clone());
    let (service, sessions) = service(Arc::new(scope));
    tokio::spawn(async move {
        own.shutting_down().await;
        ending.cancel();
    });
    let owners = Arc::new((Owners(RandomState::new()), sessions));
    Router::new().route_service("/mcp", service).layer(middleware::from_fn_with_state(owners, only_its_owner))
}

/// Signs the ids of sessions with the address of the client that has it, by a secret of this process: sessions end
/// with it, too.
struct Owners(RandomState);

impl Owners {
    fn mark(&self, id: &str, owner: IpAddr) -> String {
        format!("{id}.{:016x}", self.0.hash_one((id, owner)))
    }

    /// The id in what [`Owners::mark`] has made for this owner.
    fn id<'m>(&self, marked: &'m str, owner: IpAddr) -> Option<&'m str> {
        let (id, _) = marked.rsplit_once('.')?;
        (self.mark(id, owner) == marked).then_some(id)
    }
}

async fn only_its_owner(
    State(state): State<Arc<(Owners, Sessions)>>,
    Extension(permit): Extension<Arc<Permit>>,
    mut request: Request,
    next: Next,
) -> Response {
    let (owners, sessions) = &*state;
    let owner = permit.client().address;
    let mut shown = None;
    if let Some(marked) = request.headers().get(&SESSION).cloned() {
        let id = marked.to_str().ok().and_then(|marked| owners.id(marked, owner));
        let Some((id, header)) = id.and_then(|id| Some((id, HeaderValue::from_str(id).ok()?))) else {
            let why = "there is no such session; send initialize to begin one";
            return HttpError::new(StatusCode::NOT_FOUND, why.into()).into_response();
        };
        shown = Some(id.to_owned());
        request.headers_mut().insert(SESSION, header);
    }
    let ends = request.method() == Method::DELETE;
    let mut response = next.run(request).await;
    let begun = response.headers().get(&SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
    if let Some(Ok(marked)) = begun.as_ref().map(|id| HeaderValue::from_str(&owners.mark(id, owner))) {
        response.headers_mut().insert(SESSION, marked);
    }
    // Clients take 202 for a failure.
    if ends && response.status() == StatusCode::ACCEPTED {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    match shown.or(begun) {
        Some(id) if ends || response.status() == StatusCode::NOT_FOUND => sessions.ended(&id),
        Some(id) => sessions.used(&id),
        None => {}
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_its_owners_alone() {
        let owners = Owners(RandomState::new());
        let [ada, bob]: [IpAddr; 2] = ["203.0.113.1", "203.0.113.2"].map(|text| text.parse().unwrap());
        let marked = owners.mark("a-b", ada);
        assert_eq!(owners.id(&marked, ada), Some("a-b"));
        assert_eq!(owners.id(&marked, bob), None);
        assert_eq!(Owners(RandomState::new()).id(&marked, ada), None);
        for other in ["", ".", "a-b", "a-b.0000000000000000", &marked[1..], &format!("{marked}0")] {
            assert_eq!(owners.id(other, ada), None, "{other}");
        }
    }
}
