//! `GET /metrics`, for Prometheus, and `GET /healthz`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::gateway::Gateway;
use crate::session::blocking_pool::blocking;
use crate::session::tallies::Sum;
use thread_conversation::Spent;

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
    let active = gateway.hub.everything().iter().map(|live| live.session).collect();
    match blocking(&gateway.common.figures, move || own.tallies.sum(&own.root, &active)).await {
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
    let answered = (Cow::from("{outcome=\"answered\"}"), tally.answered as f64);
    let failed = (Cow::from("{outcome=\"failed\"}"), tally.failed as f64);
    let cancelled = (Cow::from("{outcome=\"cancelled\"}"), tally.cancelled as f64);
    let one = |value| vec![(Cow::from(""), value)];
    let by_agent = tally.spent.iter().map(|((agent, currency), spent)| {
        let known = gateway.agents.names().find(|name| Some(*name) == agent.as_deref()).unwrap_or(OTHER);
        (format!("agent=\"{known}\""), currency.as_str(), spent)
    });
    let (tokens, cost) = spending(by_agent);
    let by_session = sum.spent.iter().flat_map(|(id, spent)| {
        spent
            .iter()
            .map(move |((_, currency), spent)| (format!("session=\"{id}\""), currency.as_str(), spent))
    });
    let (session_tokens, session_cost) = spending(by_session);
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
        ("tokens_total", "counter", "Tokens that agents say they have taken, by agent and kind; cached ones are also input, reasoning is also output.", tokens),
        ("cost_total", "counter", "What agents say they cost, by agent and currency.", cost),
        ("session_tokens_total", "counter", "The same by session, of the sessions with clients or streams in them.", session_tokens),
        ("session_cost_total", "counter", "The same by session, of the sessions with clients or streams in them.", session_cost),
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

/// The name of all agents that this gateway does not have, so that nobody can make figures without end.
const OTHER: &str = "other";

/// A figure with its labels.
type Figures = Vec<(Cow<'static, str>, f64)>;

/// Tokens and cost, each with its label, its currency and what was taken.
fn spending<'s>(all: impl Iterator<Item = (String, &'s str, &'s Spent)>) -> (Figures, Figures) {
    let (mut tokens, mut cost) = (BTreeMap::new(), BTreeMap::new());
    for (label, currency, spent) in all {
        let usage = &spent.usage;
        let kinds = [
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cached", usage.cached_tokens),
            ("reasoning", usage.reasoning_tokens),
        ];
        for (kind, number) in kinds {
            *tokens.entry(format!("{{{label},kind=\"{kind}\"}}")).or_default() += number as f64;
        }
        if spent.cost.amount > 0.0 {
            let is_currency = currency.len() == 3 && currency.bytes().all(|b| b.is_ascii_uppercase());
            let currency = if is_currency { currency } else { OTHER };
            *cost.entry(format!("{{{label},currency=\"{currency}\"}}")).or_default() += spent.cost.amount;
        }
    }
    let figures =
        |all: BTreeMap<String, f64>| all.into_iter().map(|(labels, value)| (labels.into(), value)).collect();
    (figures(tokens), figures(cost))
}
