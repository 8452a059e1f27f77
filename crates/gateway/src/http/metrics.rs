//! `GET /metrics`, for Prometheus, and `GET /healthz`.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::gateway::Gateway;
use crate::session::blocking_pool::blocking;
use crate::session::tallies::Sum;

/// `GET /healthz`: whether the root can be read.
pub async fn health(State(gateway): State<Arc<Gateway>>) -> Response {
    match gateway.health.is_readable().await {
        true => "ok\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the sessions cannot be read\n").into_response(),
    }
}

/// `GET /metrics`.
pub async fn metrics(State(gateway): State<Arc<Gateway>>) -> Response {
    let own = gateway.clone();
    match blocking(&gateway.common.figures, move || own.tallies.sum(&own.root)).await {
        Ok(sum) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], written(&gateway, &sum)).into_response()
        }
        Err(e) => (StatusCode::SERVICE_UNAVAILABLE, format!("{e}\n")).into_response(),
    }
}

fn written(gateway: &Gateway, sum: &Sum) -> String {
    let age = sum
        .tally
        .oldest
        .as_deref()
        .and_then(thread::model::time::parse)
        .map_or(0.0, |since| (chrono::Utc::now() - since).to_std().unwrap_or_default().as_secs_f64());
    let live = gateway.hub.everything();
    let clients: usize = live.iter().map(|live| live.clients()).sum();
    let (tally, counters, number) = (&sum.tally, &gateway.counters, |n: usize| n as f64);
    let uptime = gateway.started.elapsed().as_secs_f64();
    let answered = ("{outcome=\"answered\"}", tally.answered as f64);
    let failed = ("{outcome=\"failed\"}", tally.failed as f64);
    let cancelled = ("{outcome=\"cancelled\"}", tally.cancelled as f64);
    let one = |value| vec![("", value)];
    #[rustfmt::skip]
    let figures = [
        ("uptime_seconds", "gauge", "Since the gateway was started.", one(uptime)),
        ("connections", "gauge", "Open WebSockets.", one(counters.connections.value() as f64)),
        ("connections_total", "counter", "WebSockets opened.", one(counters.accepted.value() as f64)),
        ("connections_refused_total", "counter", "Connections refused because there were too many.", one(counters.refused.value() as f64)),
        ("wrong_tokens_total", "counter", "Wrong or missing tokens.", one(counters.wrong_tokens.value() as f64)),
        ("looks_total", "counter", "Threads opened for watchers.", one(gateway.inspector.opened() as f64)),
        ("sessions", "gauge", "Sessions below the root.", one(number(sum.sessions))),
        ("sessions_active", "gauge", "Sessions with clients or streams in them.", one(number(live.len()))),
        ("session_readers", "gauge", "Clients in sessions.", one(number(clients))),
        ("sessions_unread", "gauge", "Sessions whose latest events are not in these figures.", one(number(sum.unread))),
        ("runs_total", "counter", "Runs that are over, by outcome.", vec![answered, failed, cancelled]),
        ("runs_active", "gauge", "Runs under way.", one(number(tally.running))),
        ("queue_length", "gauge", "Messages whose run has not started.", one(number(tally.queued))),
        ("oldest_pending_seconds", "gauge", "How long the oldest of them has been queued.", one(age)),
    ];
    let mut text = String::new();
    for (name, kind, help, values) in figures {
        // Writing to a `String` does not fail.
        let _ = writeln!(text, "# HELP thread_gateway_{name} {help}\n# TYPE thread_gateway_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "thread_gateway_{name}{labels} {value}");
        }
    }
    text
}
