//! Accepting connections, and the routes for HTTP requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream};
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures_util::StreamExt;
use hyper::body::Body as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio::time::timeout_at;
use tower::ServiceExt;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::error::{self, HttpError};
use super::{
    agui, attachments, content, hooks, login, mcp, metrics, openai, openapi, page, read_only, threads,
};
use crate::access::connection_limits::{ConnectionLimits, Permit};
use crate::access::origin::RequestOrigin;
use crate::access::proxy::Client;
use crate::access::token::{Offered, Proof, TokenCheck, cookie_name, offered};
use crate::gateway::Gateway;
use crate::log::refused;
use crate::ws;

/// Where a load balancer asks, under any name.
const HEALTH: &str = "/healthz";

/// The type of responses that last.
const EVENT_STREAM: &str = "text/event-stream";

/// How long a browser may take a preflight's answer for granted.
const PREFLIGHT_AGE: Duration = Duration::from_secs(3600);

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client may take to send the body of a request, and that of an upload.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// How much of the body of a refused request is read and dropped, in bytes, and for how long.
const MOST_DROPPED: usize = 64 * 1024 * 1024;
const DROP_TIMEOUT: Duration = Duration::from_secs(10);

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
pub async fn serve(gateway: Arc<Gateway>, listener: TcpListener, limits: ConnectionLimits) {
    let routes = routes(&gateway);
    let limits = Arc::new(limits);
    let mut logged: Option<Instant> = None;
    loop {
        let next = async {
            let arrival = limits.arrival().await;
            (arrival, listener.accept().await)
        };
        let (arrival, accepted) = tokio::select! {
            next = next => next,
            () = gateway.shutting_down() => break,
        };
        match accepted {
            Ok((stream, address)) => {
                let permit = Arc::new(limits.arrive(gateway.proxies.peer(address.ip()), arrival));
                tokio::spawn(serve_connection(gateway.clone(), routes.clone(), stream, permit));
            }
            Err(e) => {
                // Usually out of descriptors, which closing connections will free.
                if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
                    logged = Some(Instant::now());
                    tracing::error!("cannot accept a connection: {e}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    tokio::time::timeout(GRACE, limits.all_left()).await.ok();
}

fn routes(gateway: &Arc<Gateway>) -> Router {
    let with_token = Router::new()
        .route("/metrics", get(metrics::metrics))
        .route(login::LOGIN, post(login::login))
        .route(login::LOGOUT, post(login::logout))
        .route("/api/v1/sessions/{session}/events/{id}/content", get(content::content))
        .route("/api/v1/agent/run", post(agui::run).layer(DefaultBodyLimit::max(MAX_INPUT)))
        .route("/api/v1/agent/events", get(agui::events))
        .route("/api/v1/agent/cancel", post(agui::cancel))
        .route("/api/v1/agent/permission", post(agui::permission))
        .route("/api/v1/agent/history", get(agui::message_history))
        .merge(mcp::routes(gateway))
        .route(
            "/api/v1/agent/attachments",
            post(attachments::upload).layer(DefaultBodyLimit::max(attachments::MAX + 64 * 1024)),
        )
        .merge(threads::routes().split_for_parts().0)
        .merge(openai::routes().split_for_parts().0)
        .route("/api/v1/openapi.json", get(openapi::openapi))
        .fallback(|| async { HttpError::new(StatusCode::NOT_FOUND, "there is nothing here".into()) })
        .layer(middleware::from_fn_with_state(gateway.clone(), read_only::only_looking))
        .layer(middleware::from_fn_with_state(gateway.clone(), require_token));
    // The page gets the token from its link, a WebSocket may show it in its first frame, and a signed URL
    // needs none.
    let open = Router::new()
        .route("/", get(page::page))
        .route("/page/{*file}", get(page::file))
        .route("/ws", get(ws::upgrade))
        .route(HEALTH, get(metrics::health))
        .route("/hooks/{name}", post(hooks::receive))
        .route("/storage/v1/object/sign/{bucket}/{*path}", get(attachments::download));
    open.merge(with_token)
        .layer(middleware::from_fn_with_state(gateway.clone(), admit))
        .layer(middleware::map_response(error::as_json))
        .layer(middleware::from_fn(openai::translated))
        .layer(cors(gateway.origins.named()))
        .with_state(gateway.clone())
}

/// Lets pages of other origins read responses. They show the token in `Authorization`: cookies are not for them.
fn cors(origins: &[String]) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse().ok())))
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // Authorization, Content-Type, Last-Event-ID, those of MCP, and those that an AG-UI client may add.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("mcp-session-id"), openai::SESSION])
        .max_age(PREFLIGHT_AGE)
}

/// Serves one connection.
async fn serve_connection(gateway: Arc<Gateway>, routes: Router, stream: TcpStream, permit: Arc<Permit>) {
    // Streamed tokens are small, and Nagle's algorithm would delay them.
    stream.set_nodelay(true).ok();
    let own = permit.clone();
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
        () = permit.dismissed() => return,
        () = gateway.shutting_down() => connection.as_mut().graceful_shutdown(),
    }
    // An error means that the client has disconnected.
    connection.await.ok();
}

/// Checks a request's `Host` and `Origin`, and its token if it has one; limits the time for its body.
async fn admit(
    State(gateway): State<Arc<Gateway>>,
    Extension(permit): Extension<Arc<Permit>>,
    mut request: Request,
    next: Next,
) -> Response {
    let client = gateway.proxies.client(permit.peer(), request.headers());
    permit.is_for(client);
    let is_health = request.uri().path() == HEALTH;
    let origin = match gateway.origins.check(request.headers()) {
        Err(refused) if !is_health => {
            let is_read = request.body().is_end_stream();
            let response = refuse(client, &request, StatusCode::FORBIDDEN, &refused.to_string());
            return if is_read { response } else { closing(response) };
        }
        origin => origin.unwrap_or(RequestOrigin::Other),
    };
    let cookie = cookie_name(gateway.port);
    let check = match offered(request.headers(), &cookie) {
        _ if gateway.token.is_none() => TokenCheck::Valid(Proof::NotNeeded),
        Offered::Cookie(_) if origin == RequestOrigin::Other => TokenCheck::Missing,
        Offered::Nothing => TokenCheck::Missing,
        Offered::Bearer(token) if gateway.admits(token) => TokenCheck::Valid(Proof::Token(token.to_owned())),
        Offered::Cookie(value) if gateway.admits_login(value) => {
            TokenCheck::Valid(Proof::Login(value.to_owned()))
        }
        Offered::Bearer(_) | Offered::Cookie(_) => TokenCheck::Invalid,
    };
    let is_valid = matches!(check, TokenCheck::Valid(_));
    request.extensions_mut().insert(check);
    if is_valid && !permit.admit() {
        gateway.counters.refused.count();
        let why = "too many connections; try again later";
        return closing(refuse(client, &request, StatusCode::SERVICE_UNAVAILABLE, why));
    }
    let limit = if request.uri().path().ends_with("/attachments") { UPLOAD_TIMEOUT } else { BODY_TIMEOUT };
    let (parts, body) = request.into_parts();
    let is_read = body.is_end_stream();
    let (body, rest) = within(body, limit);
    let response = next.run(Request::from_parts(parts, body)).await;
    if !response.status().is_client_error() || is_read {
        return response;
    }
    // A client reads why it was refused only once it has sent its body. Strangers need not learn it.
    if is_valid {
        tokio::spawn(drain(rest));
        return response;
    }
    closing(response)
}

/// A response after which the connection is closed, as the request's body may not have been read. A client that is not
/// told would send its next request there.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Refuses requests without the token.
async fn require_token(
    State(gateway): State<Arc<Gateway>>,
    Extension(permit): Extension<Arc<Permit>>,
    Extension(check): Extension<TokenCheck>,
    request: Request,
    next: Next,
) -> Response {
    let why = match check {
        TokenCheck::Valid(proof) => {
            let response = next.run(request).await;
            let kind = response.headers().get(header::CONTENT_TYPE);
            if kind.is_none_or(|kind| kind != EVENT_STREAM) {
                return response;
            }
            // A stream lasts no longer than the credentials it was opened with.
            return response.map(|body| {
                let expelled = async move { gateway.expels(&proof).await };
                Body::from_stream(body.into_data_stream().take_until(Box::pin(expelled)))
            });
        }
        TokenCheck::Invalid => "wrong token",
        TokenCheck::Missing => "the token is missing; the gateway has it in the file `token` in its root",
    };
    gateway.counters.wrong_tokens.count();
    let mut response = refuse(permit.client(), &request, StatusCode::UNAUTHORIZED, why);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn refuse(client: Client, request: &Request, status: StatusCode, why: &str) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    refused(client.address, route, why);
    HttpError::new(status, why.to_owned()).into_response()
}

/// The unread rest of a body.
type Rest = Arc<Mutex<Option<BodyDataStream>>>;

/// A body that fails if it takes longer than a limit, and what is left of it when it is dropped.
fn within(body: Body, limit: Duration) -> (Body, Rest) {
    let end = tokio::time::Instant::now() + limit;
    let rest: Rest = Arc::new(Mutex::new(Some(body.into_data_stream())));
    let chunks = futures_util::stream::unfold(rest.clone(), move |rest| async move {
        let mut stream = rest.lock().await;
        let next = match timeout_at(end, stream.as_mut()?.next()).await {
            Ok(chunk) => chunk?.map_err(std::io::Error::other),
            Err(_) => {
                *stream = None;
                Err(std::io::ErrorKind::TimedOut.into())
            }
        };
        drop(stream);
        Some((next, rest))
    });
    (Body::from_stream(chunks), rest)
}

/// Reads the rest of a body and drops it, in bounded time.
async fn drain(rest: Rest) {
    let Some(mut stream) = rest.lock().await.take() else { return };
    let mut dropped = 0;
    let reading = async {
        while let Some(Ok(chunk)) = stream.next().await
            && dropped < MOST_DROPPED
        {
            dropped += chunk.len();
        }
    };
    tokio::time::timeout(DROP_TIMEOUT, reading).await.ok();
}
