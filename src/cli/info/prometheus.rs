//! `thread info` as metrics, in Prometheus' text format.
//!
//! Each sample names its thread, so that the files of several threads can lie in one directory.
//! No two samples are the same, whatever names are in the table: one such pair would make a
//! collector refuse everything.

use std::collections::HashSet;
use std::fmt::Write;

use super::{Consumer, Report};
use crate::cli::output::plain;
use crate::model::run::Exit;
use crate::model::time::Time;

const STATES: [&str; 5] = ["idle", "running", "waiting", "stalled", "paused"];

/// The metrics of one thread.
pub fn render(report: &Report) -> String {
    let mut page = Page { text: String::new(), thread: label("thread", &report.thread) };
    let newest = report.last_event_id as f64;
    let figures = [
        ("events", "gauge", "Events stored.", report.events as f64),
        ("events_pushed_total", "counter", "Events ever stored, counted by id.", newest),
        ("last_event_id", "gauge", "The newest event id ever given.", newest),
        ("subscriptions", "gauge", "Subscribed consumers.", report.consumers.len() as f64),
        ("database_bytes", "gauge", "Size of events.db.", report.database_bytes as f64),
        ("wal_bytes", "gauge", "Size of its write-ahead log.", report.wal_bytes as f64),
        ("log_bytes", "gauge", "Size of the JSONL log, including its sealed files.", report.log_bytes as f64),
        ("logs_bytes", "gauge", "Size of the files in logs/.", report.logs_bytes as f64),
    ];
    for (name, kind, help, value) in figures {
        page.family(name, kind, help, [(String::new(), value)]);
    }
    page.consumers(report);
    page.text
}

struct Page {
    text: String,
    thread: String,
}

impl Page {
    /// A metric with its samples: further labels, and the value. Left out if it has none.
    fn family(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, f64)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let mut text = format!("# HELP thread_{name} {help}\n# TYPE thread_{name} {kind}\n");
        for (labels, value) in samples {
            // Writing to a String cannot fail.
            _ = writeln!(text, "thread_{name}{{{}{labels}}} {value}", self.thread);
        }
        self.text.push_str(&text);
    }

    fn consumers(&mut self, report: &Report) {
        // Names that differ only in what cannot be printed look alike here: the first is shown.
        let mut seen = HashSet::new();
        let named =
            report.consumers.iter().map(|c| (label(",consumer", c.subscription.consumer.as_str()), c));
        let consumers: Vec<(String, &Consumer)> =
            named.filter(|(label, _)| seen.insert(label.clone())).collect();

        let states = consumers.iter().flat_map(|(name, consumer)| {
            STATES.map(|state| {
                (format!("{name}{}", label(",state", state)), f64::from(consumer.state == state))
            })
        });
        self.family("consumer_state", "gauge", "1 for the state a consumer is in, 0 for the others.", states);

        let runs = consumers.iter().flat_map(|(name, consumer)| {
            let run = &consumer.subscription.state;
            [("succeeded", run.succeeded), ("failed", run.failed)]
                .map(|(result, count)| (format!("{name}{}", label(",result", result)), count as f64))
        });
        self.family(
            "consumer_runs_total",
            "counter",
            "Runs that have ended, except those that were stopped or interrupted.",
            runs,
        );

        type Value = fn(&Consumer, Time) -> Option<f64>;
        let metrics: [(&str, &str, &str, Value); 11] = [
            ("last_acked_id", "gauge", "The cursor: the last event acknowledged.", |c, _| {
                Some(c.subscription.last_acked_id as f64)
            }),
            ("pending", "gauge", "Matching events past the cursor.", |c, _| Some(c.pending as f64)),
            (
                "oldest_pending_seconds",
                "gauge",
                "Age of the oldest pending event; 0 if there is none.",
                |c, now| Some(c.oldest_age(now).unwrap_or_default().as_secs_f64()),
            ),
            ("attempts", "gauge", "Failed attempts in a row, including a run under way.", |c, _| {
                Some(c.subscription.state.attempts.into())
            }),
            ("dead_letters", "gauge", "Dead letters at present.", |c, _| Some(c.subscription.dead as f64)),
            ("dead_letters_made_total", "counter", "Dead letters that were ever made.", |c, _| {
                Some(c.subscription.state.dead_lettered as f64)
            }),
            ("filter_errors_total", "counter", "Events the filter failed on.", |c, _| {
                Some(c.subscription.filter_errors as f64)
            }),
            ("paused", "gauge", "1 while the consumer is paused, even during a run.", |c, _| {
                Some(f64::from(c.subscription.state.paused))
            }),
            ("last_run_timestamp_seconds", "gauge", "When the last run ended.", |c, _| {
                c.subscription.state.ended.map(|ended| ended.timestamp_millis() as f64 / 1000.0)
            }),
            ("last_run_duration_seconds", "gauge", "How long the last run took.", |c, _| {
                let (began, ended) = (c.subscription.state.began?, c.subscription.state.ended?);
                Some((ended - began).to_std().unwrap_or_default().as_secs_f64())
            }),
            (
                "last_run_exit_code",
                "gauge",
                "Exit code of the last run: 128 plus the number of a signal, 124 for a timeout.",
                |c, _| c.subscription.state.last_exit.and_then(Exit::code).map(f64::from),
            ),
        ];
        for (name, kind, help, value) in metrics {
            let samples = consumers.iter().filter_map(|(label, consumer)| {
                value(consumer, report.now).map(|value| (label.clone(), value))
            });
            self.family(&format!("consumer_{name}"), kind, help, samples);
        }
    }
}

/// A label. The format knows three escapes; other control characters, which it would let through to
/// a terminal, stand there as the text of their escape.
fn label(name: &str, value: &str) -> String {
    let mut escaped = String::new();
    for part in value.split_inclusive('\n') {
        let line = part.strip_suffix('\n');
        escaped.push_str(&plain(line.unwrap_or(part)).to_string().replace('\\', r"\\").replace('"', "\\\""));
        if line.is_some() {
            escaped.push_str("\\n");
        }
    }
    format!("{name}=\"{escaped}\"")
}
