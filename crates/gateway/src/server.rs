//! Accepting connections, and the routes for HTTP requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::access::origin;
use crate::access::peer::{Peer, TokenCheck};
use crate::access::token::{Offered, cookie_name, offered};
use crate::agui;
use crate::attachments;
use crate::connection;
use crate::counters::Counted;
use crate::gateway::Gateway;
use crate::log::log;
use crate::metrics;
use crate::page;
use crate::protocol::MAX_FRAME;
use crate::storage::sign;

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a shutdown waits for connections to end.
const GRACE: Duration = Duration::from_millis(1000);

/// Length of the listen backlog. If it overflows, the kernel drops connection attempts, some of them without
/// telling the client.
const LISTEN_BACKLOG: u32 = 4096;

/// Least time between two log lines about connections that cannot be accepted.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The largest `RunAgentInput`, in bytes: it has the whole conversation, of which only the last message is
/// used.
const MAX_INPUT: usize = 8 * 1024 * 1024;

/// # Errors
///
/// The address is not one of this machine's, or is in use.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of an earlier gateway in TIME_WAIT must not keep this one from listening.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Serves until the shutdown.
pub async fn serve(gateway: Arc<Gateway>, listener: TcpListener, max_connections: u32) {
    let routes = Router::new()
        .route("/", get(page::page))
        .route("/ws", get(websocket))
        .route("/healthz", get(metrics::health))
        .route("/metrics", get(metrics::metrics))
        .route("/api/v1/agent/run", post(agui::run).layer(DefaultBodyLimit::max(MAX_INPUT)))
        .route("/api/v1/agent/events", get(agui::events))
        .route("/api/v1/agent/history", get(agui::message_history))
        .route(
            "/api/v1/agent/attachments",
            post(attachments::upload).layer(DefaultBodyLimit::max(attachments::MAX + 64 * 1024)),
        )
        .route("/storage/v1/object/sign/{bucket}/{*path}", get(attachments::download))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is nothing here\n") })
        .layer(middleware::from_fn_with_state(gateway.clone(), admit))
        .with_state(gateway.clone());
    let permits = Arc::new(Semaphore::new(max_connections as usize));
    let mut logged: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = gateway.shutting_down() => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                // Usually out of descriptors, which closing connections will free.
                if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
                    logged = Some(Instant::now());
                    log(format_args!("cannot accept a connection: {e}"));
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match permits.clone().try_acquire_owned() {
            Ok(permit) => {
                let peer = Peer { address, _permit: Arc::new(permit) };
                tokio::spawn(serve_connection(gateway.clone(), routes.clone(), stream, peer));
            }
            Err(_) => {
                gateway.counters.refused();
                refuse(&stream);
            }
        }
    }
    drop(listener);
    // All permits can be acquired once all connections have ended.
    tokio::time::timeout(GRACE, permits.acquire_many(max_connections)).await.ok();
}

/// Answers 503 to a connection beyond the limit, without spawning a task.
fn refuse(stream: &TcpStream) {
    const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    // Fits into the empty send buffer; fails only if the client is gone.
    stream.try_write(FULL).ok();
}

/// Serves one connection.
async fn serve_connection(gateway: Arc<Gateway>, routes: Router, stream: TcpStream, peer: Peer) {
    // Streamed tokens are small, and Nagle's algorithm would delay them.
    stream.set_nodelay(true).ok();
    let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        let routes = routes.clone();
        async move { Ok::<_, Infallible>(routes.oneshot(request).await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = gateway.shutting_down() => connection.as_mut().graceful_shutdown(),
    }
    // An error means that the client has disconnected.
    connection.await.ok();
}

/// Checks a request's `Host`, `Origin` and token.
async fn admit(State(gateway): State<Arc<Gateway>>, mut request: Request, next: Next) -> Response {
    if let Err(refused) = gateway.origins.check(request.headers()) {
        return (StatusCode::FORBIDDEN, format!("{}\n", refused.message())).into_response();
    }
    let cookie = cookie_name(gateway.port);
    let check = match offered(request.headers(), &cookie) {
        Offered::Nothing if gateway.token.is_none() => TokenCheck::Valid,
        Offered::Nothing => TokenCheck::Missing,
        Offered::Bearer(token) | Offered::Cookie(token) if gateway.admits(token) => TokenCheck::Valid,
        Offered::Bearer(_) | Offered::Cookie(_) => TokenCheck::Invalid,
    };
    request.extensions_mut().insert(check);
    // A WebSocket may present its token in its first frame, and the page checks the token itself. A signed
    // URL needs no token.
    let path = request.uri().path();
    let open = ["/", "/ws", "/healthz"].contains(&path) || path.starts_with(sign::PREFIX);
    if check != TokenCheck::Valid && !open {
        if let Some(address) = request.extensions().get().map(|peer: &Peer| peer.address) {
            gateway.wrong_token(address.ip()).await;
        }
        return unauthorized();
    }
    next.run(request).await
}

fn unauthorized() -> Response {
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, challenge, "wrong or missing token\n").into_response()
}

/// `GET /ws`.
async fn websocket(
    State(gateway): State<Arc<Gateway>>,
    axum::Extension(peer): axum::Extension<Peer>,
    axum::Extension(check): axum::Extension<TokenCheck>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let origin = origin::own(&headers);
    let counted = Counted::new(&gateway.counters);
    upgrade
        .max_message_size(MAX_FRAME)
        .max_frame_size(MAX_FRAME)
        // Allocated for the lifetime of each connection, and most connections are idle.
        .read_buffer_size(4 * 1024)
        .write_buffer_size(8 * 1024)
        .on_upgrade(move |socket| async move {
            connection::serve(gateway, socket, peer.address.ip(), origin, check == TokenCheck::Valid).await;
            drop((counted, peer));
        })
}
