//! Accepting connections, and the routes for HTTP requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout_at;
use tower::ServiceExt;

use super::error::HttpError;
use super::{agui, attachments, content, metrics, page};
use crate::access::places::{Places, Seat};
use crate::access::token::{Offered, TokenCheck, cookie_name, offered};
use crate::gateway::Gateway;
use crate::log::log;
use crate::storage::sign;
use crate::ws;

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may take to send the body of a request, and that of an upload.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(10 * 60);

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
pub async fn serve(gateway: Arc<Gateway>, listener: TcpListener, places: Places) {
    let routes = Router::new()
        .route("/", get(page::page))
        .route("/page/{*file}", get(page::file))
        .route("/ws", get(ws::upgrade))
        .route("/healthz", get(metrics::health))
        .route("/metrics", get(metrics::metrics))
        .route("/api/v1/sessions/{session}/events/{id}/content", get(content::content))
        .route("/api/v1/agent/run", post(agui::run).layer(DefaultBodyLimit::max(MAX_INPUT)))
        .route("/api/v1/agent/events", get(agui::events))
        .route("/api/v1/agent/history", get(agui::message_history))
        .route(
            "/api/v1/agent/attachments",
            post(attachments::upload).layer(DefaultBodyLimit::max(attachments::MAX + 64 * 1024)),
        )
        .route("/storage/v1/object/sign/{bucket}/{*path}", get(attachments::download))
        .fallback(|| async { HttpError(StatusCode::NOT_FOUND, "there is nothing here".into()) })
        .layer(middleware::from_fn_with_state(gateway.clone(), admit))
        .with_state(gateway.clone());
    let places = Arc::new(places);
    let mut logged: Option<Instant> = None;
    loop {
        let next = async {
            let door = places.door().await;
            (door, listener.accept().await)
        };
        let (door, accepted) = tokio::select! {
            next = next => next,
            () = gateway.shutting_down() => break,
        };
        match accepted {
            Ok((stream, address)) => {
                let seat = Arc::new(places.arrive(address.ip(), door));
                tokio::spawn(serve_connection(gateway.clone(), routes.clone(), stream, seat));
            }
            Err(e) => {
                // Usually out of descriptors, which closing connections will free.
                if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
                    logged = Some(Instant::now());
                    log(format_args!("cannot accept a connection: {e}"));
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    tokio::time::timeout(GRACE, places.all_left()).await.ok();
}

/// Serves one connection.
async fn serve_connection(gateway: Arc<Gateway>, routes: Router, stream: TcpStream, seat: Arc<Seat>) {
    // Streamed tokens are small, and Nagle's algorithm would delay them.
    stream.set_nodelay(true).ok();
    let own = seat.clone();
    let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(own.clone());
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
        () = seat.dismissed() => return,
        () = gateway.shutting_down() => connection.as_mut().graceful_shutdown(),
    }
    // An error means that the client has disconnected.
    connection.await.ok();
}

/// Checks a request's `Host`, `Origin` and token, and limits the time for its body.
async fn admit(State(gateway): State<Arc<Gateway>>, mut request: Request, next: Next) -> Response {
    // A load balancer asks for the health under any name.
    let is_health = request.uri().path() == "/healthz";
    if let Err(refused) = gateway.origins.check(request.headers())
        && !is_health
    {
        return HttpError(StatusCode::FORBIDDEN, refused.message().to_owned()).into_response();
    }
    let cookie = cookie_name(gateway.port);
    let check = match offered(request.headers(), &cookie) {
        Offered::Nothing if gateway.token.is_none() => TokenCheck::Valid,
        Offered::Nothing => TokenCheck::Missing,
        Offered::Bearer(token) | Offered::Cookie(token) if gateway.admits(token) => TokenCheck::Valid,
        Offered::Bearer(_) | Offered::Cookie(_) => TokenCheck::Invalid,
    };
    request.extensions_mut().insert(check);
    // A WebSocket may present its token in its first frame, and the page has nothing of the
    // sessions. A signed URL needs no token.
    let path = request.uri().path();
    let open = ["/", "/ws", "/healthz"].contains(&path)
        || path.starts_with(sign::PREFIX)
        || path.starts_with(page::PREFIX);
    if check != TokenCheck::Valid && !open {
        gateway.counters.wrong_token();
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        let error = HttpError(StatusCode::UNAUTHORIZED, "wrong or missing token".into());
        return (challenge, error).into_response();
    }
    let seat: Option<&Arc<Seat>> = request.extensions().get();
    if check == TokenCheck::Valid && !seat.is_some_and(|seat| seat.admit()) {
        gateway.counters.refused();
        let close = [(header::CONNECTION, "close")];
        let error = "too many connections; try again later".to_owned();
        return (close, HttpError(StatusCode::SERVICE_UNAVAILABLE, error)).into_response();
    }
    let limit = if path.ends_with("/attachments") { UPLOAD_TIMEOUT } else { BODY_TIMEOUT };
    next.run(request.map(|body| within(body, limit))).await
}

/// A body that fails if it takes longer than a limit.
fn within(body: Body, limit: Duration) -> Body {
    let end = tokio::time::Instant::now() + limit;
    let chunks = futures_util::stream::unfold(Some(body.into_data_stream()), move |stream| async move {
        let mut stream = stream?;
        match timeout_at(end, stream.next()).await {
            Ok(chunk) => Some((chunk?.map_err(std::io::Error::other), Some(stream))),
            Err(_) => Some((Err(std::io::ErrorKind::TimedOut.into()), None)),
        }
    });
    Body::from_stream(chunks)
}
