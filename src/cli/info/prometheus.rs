//! `thread info` in Prometheus' text format.
//!
//! Each sample has a label with its thread, so that the files of several threads can be in one directory.
//! No two samples have the same labels, whatever names are in the table: a collector rejects a page with
//! duplicates.

use std::collections::HashSet;
use std::fmt::Write;

use crate::cli::output::plain;
use crate::maintenance::report::{ConsumerState, ConsumerStatus, Report};
use crate::model::run::Exit;
use crate::model::subscription::Subscription;

/// The metrics of threads.
pub fn render(reports: &[Report]) -> String {
    let mut page = Page::default();
    for report in reports {
        page.thread = label("thread", &report.thread);
        add(&mut page, report);
    }
    page.families.into_iter().map(|(_, family)| family).collect()
}

/// Adds the metrics of one thread.
fn add(page: &mut Page, report: &Report) {
    let mut one = |name, help, value| page.metric(name, help, [(String::new(), value)]);
    one("events", "Events stored.", report.event_count as f64);
    one("events_pushed_total", "Events ever stored, counted by id.", report.last_event_id as f64);
    one("last_event_id", "The newest event id ever given.", report.last_event_id as f64);
    one("subscriptions", "Subscribed consumers.", report.subscriptions.len() as f64);
    for (name, help, size) in [
        ("database_bytes", "Size of events.db.", report.disk.database_bytes),
        ("wal_bytes", "Size of its write-ahead log.", report.disk.wal_bytes),
        ("log_bytes", "Size of the JSONL log, including its sealed files.", report.disk.log_bytes),
    ] {
        size.into_iter().for_each(|size| one(name, help, size as f64));
    }
    one("logs_bytes", "Size of the files in logs/.", report.disk.logs_bytes as f64);

    // A name with a control character has the same label as one with its escape as text: the first is kept.
    let mut seen = HashSet::new();
    let named =
        report.subscriptions.iter().map(|c| (label(",consumer", c.subscription.consumer.as_str()), c));
    let consumers: Vec<_> = named.filter(|(label, _)| seen.insert(label.clone())).collect();
    let states = consumers.iter().flat_map(|(name, c)| {
        ConsumerState::WORDS
            .map(|word| (format!("{name}{}", label(",state", word)), f64::from(c.state.word() == word)))
    });
    page.metric("consumer_state", "1 for the state a consumer is in, 0 for the others.", states);
    let runs = consumers.iter().flat_map(|(name, c)| {
        let run = &c.subscription.state;
        [("succeeded", run.succeeded), ("failed", run.failed)]
            .map(|(result, count)| (format!("{name}{}", label(",result", result)), count as f64))
    });
    let help = "Runs that have ended, except those that were stopped or interrupted.";
    page.metric("consumer_runs_total", help, runs);

    let mut each = |name: &str, help, value: &dyn Fn(&ConsumerStatus, &Subscription) -> Option<f64>| {
        let value = |c: &ConsumerStatus| value(c, &c.subscription);
        let samples = consumers.iter().filter_map(|(label, c)| Some((label.clone(), value(c)?)));
        page.metric(&format!("consumer_{name}"), help, samples);
    };
    each("last_acked_id", "The cursor: the last event acknowledged.", &|_, s| Some(s.last_acked_id as f64));
    let help = "Matching events past the cursor; at least so many if counting took long.";
    each("pending", help, &|c, _| Some(c.pending.events as f64));
    each("oldest_pending_seconds", "Age of the oldest pending event; 0 if there is none.", &|c, _| {
        Some(c.oldest_age(report.now).unwrap_or_default().as_secs_f64())
    });
    let help = "1 if the thread keeps events for it much longer than it is to keep any.";
    each("holds_retention", help, &|c, _| Some(if c.holds_retention { 1.0 } else { 0.0 }));
    let help = "Events that handlers have, where events finish singly, as far as that is stored.";
    each("in_flight", help, &|c, _| Some(c.in_hand.as_ref()?.in_flight as f64));
    let help = "Events that wait before they are tried again, where events finish singly.";
    each("waiting", help, &|c, _| Some(c.in_hand.as_ref()?.waiting as f64));
    each("attempts", "Failed attempts in a row, including a run under way.", &|_, s| {
        Some(s.state.attempts.into())
    });
    each("dead_letters", "Dead letters at present.", &|_, s| Some(s.dead as f64));
    each("dead_letters_made_total", "Dead letters that were ever made.", &|_, s| {
        Some(s.state.dead_lettered as f64)
    });
    each("expired_total", "Events that had expired, which were passed over.", &|_, s| {
        Some(s.state.expired as f64)
    });
    each("filter_errors_total", "Events the filter failed on.", &|_, s| Some(s.filter_errors as f64));
    each("paused", "1 while the consumer is paused, even during a run.", &|_, s| Some(s.state.paused.into()));
    each("last_run_timestamp_seconds", "When the last run ended.", &|_, s| {
        s.state.ended.map(|ended| ended.timestamp_millis() as f64 / 1000.0)
    });
    each("last_run_duration_seconds", "How long the last run took.", &|_, s| {
        Some((s.state.ended? - s.state.began?).to_std().unwrap_or_default().as_secs_f64())
    });
    let help = "Exit code of the last run: 128 plus the number of a signal, 124 for a timeout.";
    each("last_run_exit_code", help, &|_, s| s.state.last_exit.and_then(Exit::code).map(f64::from));
}

#[derive(Default)]
struct Page {
    /// Each metric with its samples, which must be together.
    families: Vec<(String, String)>,
    /// The label of the thread whose samples are added.
    thread: String,
}

impl Page {
    /// Adds samples of a metric, each the labels after `thread` and a value. Nothing if there are
    /// no samples.
    fn metric(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (String, f64)>) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let at = self.families.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            let head = format!("# HELP thread_{name} {help}\n# TYPE thread_{name} {kind}\n");
            self.families.push((name.to_owned(), head));
            self.families.len() - 1
        });
        for (labels, value) in samples {
            // Writing to a String cannot fail.
            _ = writeln!(self.families[at].1, "thread_{name}{{{}{labels}}} {value}", self.thread);
        }
    }
}

/// A label. The format has escapes for backslash, quote and newline; other control characters, which it
/// allows and a terminal would obey, are written as the text of an escape.
fn label(name: &str, value: &str) -> String {
    let lines =
        value.split('\n').map(|line| plain(line).to_string().replace('\\', r"\\").replace('"', "\\\""));
    format!("{name}=\"{}\"", lines.collect::<Vec<_>>().join("\\n"))
}
