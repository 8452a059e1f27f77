//! `GET /metrics`, for Prometheus, and `GET /healthz`.
//!
//! What it says about runs is read from the sessions, so it is right whichever process runs them. Each
//! session's tally is kept with the state of its log, and read on when that has changed. A scrape reads for
//! a second at most; the rest is left to the next ones, and counted.

use std::collections::HashMap;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use thread::model::filter::Scope;
use thread::queue::{Remaining, Selection};
use thread::{Filter, Queue};
use thread_agent::conversation::Entry;

use crate::error::Result;
use crate::gateway::Gateway;
use crate::session::id::SessionId;
use crate::session::runs::Runs;
use crate::session::{blocking, catalogue};

/// How long a scrape reads.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a log looked like when its session was read.
type Stamp = (SystemTime, u64);

/// The stamp of a session that has not been read.
const NEVER: Stamp = (SystemTime::UNIX_EPOCH, 0);

#[derive(Default)]
pub struct Tallies(Mutex<HashMap<SessionId, (Stamp, Tally)>>);

/// What is known of a session's runs.
#[derive(Debug, Clone, Default)]
struct Tally {
    upto: i64,
    answered: u64,
    failed: u64,
    cancelled: u64,
    queued: usize,
    running: usize,
    /// When the oldest that waits was stored.
    oldest: Option<String>,
}

impl Tally {
    fn read_on(&mut self, queue: &mut Queue) -> Result<()> {
        let condition = "source = 'self' AND (type = 'message' OR subtype IN ('error', 'cancelled'))";
        let filter = Filter::new(condition, Scope::Reading).map_err(thread::Error::from)?;
        let mut selection = Selection { after: self.upto, limit: None, filter };
        while queue.read_page(&mut selection, &mut |row| {
            let entry = Entry::of(&row.to_event()).1;
            match entry {
                _ if entry.ends().is_none() => {}
                Entry::Answer { .. } => self.answered += 1,
                Entry::Cancelled { .. } => self.cancelled += 1,
                _ => self.failed += 1,
            }
            ControlFlow::Continue(())
        })? == Remaining::Some
        {}
        self.upto = selection.after;
        let (runs, _) = Runs::of(queue)?;
        (self.queued, self.oldest) = (runs.queued(), runs.oldest_queued().map(str::to_owned));
        self.running = usize::from(runs.active().is_some());
        Ok(())
    }
}

/// All sessions together.
#[derive(Default)]
struct Sum {
    sessions: usize,
    unread: usize,
    tally: Tally,
}

impl Tallies {
    fn sum(&self, gateway: &Gateway) -> Result<Sum> {
        let until = Instant::now() + PATIENCE;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut old = std::mem::take(&mut *all);
        let mut sum = Sum::default();
        for listed in catalogue::entries(&gateway.root)? {
            sum.sessions += 1;
            let stamp = (listed.active, listed.size);
            let (seen, mut tally) = old.remove(&listed.id).unwrap_or((NEVER, Tally::default()));
            let mut now = seen;
            if seen != stamp && Instant::now() < until {
                let read = gateway.root.queue(listed.id).and_then(|mut queue| tally.read_on(&mut queue));
                now = if read.is_ok() { stamp } else { NEVER };
            }
            sum.unread += usize::from(now != stamp);
            all.insert(listed.id, (now, tally.clone()));
            let total = &mut sum.tally;
            total.answered += tally.answered;
            total.failed += tally.failed;
            total.cancelled += tally.cancelled;
            total.queued += tally.queued;
            total.running += tally.running;
            let oldest = [total.oldest.take(), tally.oldest].into_iter().flatten().min();
            total.oldest = oldest;
        }
        Ok(sum)
    }
}

/// `GET /healthz`: whether the root can be read.
pub async fn health(State(gateway): State<Arc<Gateway>>) -> Response {
    match blocking(move || catalogue::readable(&gateway.root)).await {
        Ok(()) => "ok\n".into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the sessions cannot be read\n").into_response(),
    }
}

/// `GET /metrics`.
pub async fn metrics(State(gateway): State<Arc<Gateway>>) -> Response {
    let own = gateway.clone();
    match blocking(move || own.tallies.sum(&own)).await {
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
    let clients: usize = gateway.hub.everybody().iter().map(|follower| follower.clients()).sum();
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, values: &[(&str, f64)]| {
        // Writing to a text does not fail.
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
    add("connections", "gauge", "WebSockets that are open.", &[("", number(gateway.counters.connections()))]);
    add("connections_total", "counter", "WebSockets that were opened.", &[("", counters.accepted as f64)]);
    add(
        "connections_refused_total",
        "counter",
        "Connections refused because there were too many.",
        &[("", counters.refused as f64)],
    );
    add("wrong_tokens_total", "counter", "Wrong or missing tokens.", &[("", counters.wrong_tokens as f64)]);
    add("sessions", "gauge", "Sessions below the root.", &[("", number(sum.sessions))]);
    add(
        "sessions_active",
        "gauge",
        "Sessions that somebody is in.",
        &[("", number(gateway.hub.everybody().len()))],
    );
    add("session_readers", "gauge", "Clients and streams that are in a session.", &[("", number(clients))]);
    add(
        "sessions_unread",
        "gauge",
        "Sessions that there was no time to look at.",
        &[("", number(sum.unread))],
    );
    let runs = [
        ("{outcome=\"answered\"}", tally.answered as f64),
        ("{outcome=\"failed\"}", tally.failed as f64),
        ("{outcome=\"cancelled\"}", tally.cancelled as f64),
    ];
    add("runs_total", "counter", "Runs that are over, by outcome.", &runs);
    add("runs_active", "gauge", "Runs under way.", &[("", number(tally.running))]);
    add("queue_length", "gauge", "Messages whose run has not begun.", &[("", number(tally.queued))]);
    add("oldest_pending_seconds", "gauge", "How long the oldest of them has waited.", &[("", age)]);
    text
}
