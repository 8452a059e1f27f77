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
    let counters = gateway.counters.all();
    let age = sum
        .tally
        .oldest
        .as_deref()
        .and_then(thread::model::time::parse)
        .map_or(0.0, |since| (chrono::Utc::now() - since).to_std().unwrap_or_default().as_secs_f64());
    let live = gateway.hub.everything();
    let clients: usize = live.iter().map(|live| live.clients()).sum();
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, values: &[(&str, f64)]| {
        // Writing to a `String` does not fail.
        let _ = writeln!(text, "# HELP thread_gateway_{name} {help}\n# TYPE thread_gateway_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "thread_gateway_{name}{labels} {value}");
        }
    };
    let (tally, number) = (&sum.tally, |n: usize| n as f64);
    add(
        "uptime_seconds",
        "gauge",
        "Since the gateway was started.",
        &[("", gateway.started.elapsed().as_secs_f64())],
    );
    add("connections", "gauge", "Open WebSockets.", &[("", number(gateway.counters.connections()))]);
    add("connections_total", "counter", "WebSockets opened.", &[("", counters.accepted as f64)]);
    add(
        "connections_refused_total",
        "counter",
        "Connections refused because there were too many.",
        &[("", counters.refused as f64)],
    );
    add("wrong_tokens_total", "counter", "Wrong or missing tokens.", &[("", counters.wrong_tokens as f64)]);
    add(
        "looks_total",
        "counter",
        "Threads that were opened to look at them for whoever watches.",
        &[("", gateway.inspector.opened() as f64)],
    );
    add("sessions", "gauge", "Sessions below the root.", &[("", number(sum.sessions))]);
    add("sessions_active", "gauge", "Sessions with clients or streams in them.", &[("", number(live.len()))]);
    add("session_readers", "gauge", "Clients in sessions.", &[("", number(clients))]);
    add(
        "sessions_unread",
        "gauge",
        "Sessions whose latest events are not in these figures.",
        &[("", number(sum.unread))],
    );
    let runs = [
        ("{outcome=\"answered\"}", tally.answered as f64),
        ("{outcome=\"failed\"}", tally.failed as f64),
        ("{outcome=\"cancelled\"}", tally.cancelled as f64),
    ];
    add("runs_total", "counter", "Runs that are over, by outcome.", &runs);
    add("runs_active", "gauge", "Runs under way.", &[("", number(tally.running))]);
    add("queue_length", "gauge", "Messages whose run has not started.", &[("", number(tally.queued))]);
    add("oldest_pending_seconds", "gauge", "How long the oldest of them has been queued.", &[("", age)]);
    text
}
