//! A run as a timeline: where its time went, according to the thread's events.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde_json::Value;
use thread::model::time::{self, Time};
use thread::queue::{Remaining, Selection};
use thread::{After, Event, Queue};
use thread_conversation::{Choice, Entry, PermissionAnswer, Record};
use thread_sessions::Result;

use super::dto::{Event as Shown, Span, SpanKind, ToolEnd};
use super::event;

/// How many events are read, how many spans there are, and how many events are shown.
const READ: usize = 5000;
const SPANS: usize = 1000;
const SHOWN: usize = 200;

/// Longer contents are not read, in bytes: results of tools have 1 MiB and their names at most.
const LONG: u64 = 1024 * 1024 + 4096;

/// For how long events are read.
const READ_FOR: Duration = Duration::from_secs(2);

/// The longest label, in characters.
const LABEL: usize = 120;

pub struct Timeline {
    pub spans: Vec<Span>,
    pub is_truncated: bool,
    /// The events stored during the run.
    pub events: Vec<Shown>,
}

/// The timeline of a run from its beginning to its end, or to now. `handled` are the events that it has handled,
/// newest first; to those of a run that pops, the messages are added that it has begun to answer.
///
/// # Errors
///
/// Errors of the thread.
pub fn of(
    queue: &mut Queue,
    began: Time,
    end: Option<Time>,
    handled: &mut Vec<Shown>,
    pops: bool,
) -> Result<Timeline> {
    let after = queue.about_last_before(began)?;
    let (end, until) = (end.map(time::format), Instant::now() + READ_FOR);
    let mut spans = Spans { began, ..Spans::default() };
    let mut selection = Selection::from(After(after));
    let (mut read, mut shown, mut is_over, mut is_truncated) = (0, Vec::new(), false, false);
    while !is_over
        && queue.read_page_capped(&mut selection, LONG, &mut |capped| {
            let event = capped.row.to_event();
            is_truncated = read == READ || Instant::now() >= until;
            is_over = is_truncated || end.as_ref().is_some_and(|end| event.created_at > *end);
            if is_over {
                return ControlFlow::Break(());
            }
            read += 1;
            if shown.len() < SHOWN {
                shown.push(event.id);
            }
            // One at a time: they may be large.
            spans.take(Record::of(event));
            ControlFlow::Continue(())
        })? == Remaining::Some
    {}
    let mut events = Vec::with_capacity(shown.len());
    for id in shown {
        events.extend(event::shown(queue, id)?);
    }
    // Anything still open when a run is over was open until its end.
    if let Some(end) = &end {
        spans.end_open(end);
    }
    // For a handler that is not an agent, messages stored during the run are not addressed to it.
    if spans.answered.is_empty() {
        spans.spans.retain(|span| span.kind != SpanKind::Message);
    }
    if pops {
        spans.answered.retain(|id| handled.iter().all(|event| event.id != *id));
        for id in std::mem::take(&mut spans.answered) {
            handled.extend(event::shown(queue, id)?);
        }
        handled.sort_unstable_by_key(|event| std::cmp::Reverse(event.id));
    }
    spans.waited_since(handled.last().map(|event| event.created_at.as_str()));
    let is_truncated = is_truncated || spans.spans.len() > SPANS;
    spans.spans.truncate(SPANS);
    Ok(Timeline { spans: spans.spans, is_truncated, events })
}

#[derive(Default)]
struct Spans {
    began: Time,
    spans: Vec<Span>,
    /// Calls that have no result, by their ids, with their index.
    calls: HashMap<String, usize>,
    /// Requests for permission that are not answered, by their ids.
    asked: HashMap<String, Asked>,
    /// Calls that were not permitted, by their index.
    rejected: HashSet<usize>,
    /// The span of the current text or thinking.
    text: Option<usize>,
    /// The messages that an agent has begun to answer.
    answered: Vec<i64>,
}

/// A request for permission.
struct Asked {
    span: usize,
    /// The call that needs it.
    call: Option<usize>,
    choices: Vec<Choice>,
}

impl Spans {
    fn at(&self, created_at: &str) -> i64 {
        time::parse(created_at).map_or(0, |at| (at - self.began).num_milliseconds())
    }

    /// Returns its index.
    fn add(&mut self, kind: SpanKind, created_at: &str, label: &str, event: Option<i64>) -> usize {
        let at_ms = self.at(created_at);
        let label = short(label);
        let (given, ended, call) = (None, None, None);
        self.spans.push(Span { kind, at_ms, duration_ms: None, label, given, ended, event, call });
        self.spans.len() - 1
    }

    /// Begins with how long its oldest event had waited.
    fn waited_since(&mut self, oldest: Option<&str>) {
        let Some(at_ms) = oldest.map(|oldest| self.at(oldest)).filter(|at_ms| *at_ms < 0) else { return };
        self.add(SpanKind::Waiting, &time::format(self.began), "waiting", None);
        if let Some(span) = self.spans.last_mut() {
            (span.at_ms, span.duration_ms) = (at_ms, Some(at_ms.unsigned_abs()));
        }
        self.spans.rotate_right(1);
    }

    /// Ends a span at that time.
    fn end(&mut self, span: usize, created_at: &str) {
        let now = self.at(created_at);
        let span = &mut self.spans[span];
        span.duration_ms = Some(u64::try_from(now - span.at_ms).unwrap_or(0));
    }

    fn end_open(&mut self, created_at: &str) {
        for span in std::mem::take(&mut self.calls).into_values() {
            self.spans[span].ended = Some(ToolEnd::NoResult);
            self.end(span, created_at);
        }
        for Asked { span, .. } in std::mem::take(&mut self.asked).into_values() {
            self.relabel(span, "not answered");
            self.end(span, created_at);
        }
    }

    /// Adds to a label.
    fn relabel(&mut self, span: usize, more: &str) {
        let label = &mut self.spans[span].label;
        *label = short(&format!("{label}, {more}"));
    }

    fn take(&mut self, record: Record) {
        let Record { event, unreported, entry, .. } = record;
        let at = event.created_at.as_str();
        let streamed = match &entry {
            Entry::Token { text, .. } => Some((SpanKind::Text, text)),
            Entry::Thinking { text, .. } => Some((SpanKind::Thinking, text)),
            _ => None,
        };
        if let Some((kind, text)) = streamed {
            let span = match self.text.filter(|span| self.spans[*span].kind == kind) {
                Some(span) => span,
                None => self.add(kind, at, "", Some(event.id)),
            };
            let label = &mut self.spans[span].label;
            label.extend(text.chars().take(LABEL - label.chars().count()));
            self.text = Some(span);
            return self.end(span, at);
        }
        self.text = None;
        let id = Some(event.id);
        match entry {
            Entry::ToolCall(call) => {
                // A call that is corrected is the same call.
                let span = match self.calls.get(&call.call_id) {
                    Some(span) => *span,
                    None => self.add(SpanKind::Tool, at, "", id),
                };
                self.spans[span].label = short(&call.name);
                self.spans[span].given = gist(&call.arguments, &call.name);
                self.calls.insert(call.call_id, span);
            }
            Entry::ToolResult(result) => {
                let span = match self.calls.remove(&result.call_id) {
                    Some(span) => span,
                    None => self.add(SpanKind::Tool, at, &result.name, id),
                };
                self.spans[span].ended = match result.outcome {
                    Ok(_) => None,
                    Err(_) if self.rejected.contains(&span) => Some(ToolEnd::Rejected),
                    Err(_) if unreported => Some(ToolEnd::NoResult),
                    Err(_) => Some(ToolEnd::Failed),
                };
                self.end(span, at);
            }
            Entry::Permission(asked) => {
                let span = self.add(SpanKind::Permission, at, &asked.title, id);
                let call = asked.call_id.and_then(|call| self.calls.get(&call).copied());
                self.spans[span].call = call.and_then(|call| self.spans[call].event);
                self.asked.insert(asked.request_id, Asked { span, call, choices: asked.choices });
            }
            Entry::PermissionAnswer(PermissionAnswer { request_id, choice }) => {
                match self.asked.remove(&request_id) {
                    Some(Asked { span, call, choices }) => {
                        let is_no = choices.iter().any(|one| one.id == choice && one.is_rejection());
                        match call {
                            Some(call) if is_no => _ = self.rejected.insert(call),
                            Some(call) => _ = self.rejected.remove(&call),
                            None => {}
                        }
                        self.relabel(span, &format!("answered: {choice}"));
                        self.end(span, at);
                    }
                    None => {
                        let span = self.add(SpanKind::Permission, at, &choice, id);
                        self.end(span, at);
                    }
                }
            }
            Entry::Message(_) => _ = self.add(SpanKind::Message, at, &label_of(&event), id),
            Entry::Answer { .. } => {
                self.end_open(at);
                self.add(SpanKind::Answer, at, &label_of(&event), id);
            }
            Entry::Error { error, .. } => {
                self.end_open(at);
                self.add(SpanKind::Error, at, &error, id);
            }
            Entry::Cancelled { why, .. } => {
                self.end_open(at);
                self.add(SpanKind::Cancelled, at, &why, id);
            }
            Entry::SubAgent(sub) => {
                self.add(SpanKind::SubAgent, at, &format!("{}: {}", sub.sub_agent, sub.event), id);
            }
            Entry::Status(status) => _ = self.add(SpanKind::Status, at, status.as_str(), id),
            Entry::RunStarted { attempt, reply_to } => {
                if let Some(reply_to) = reply_to.filter(|id| !self.answered.contains(id)) {
                    self.answered.push(reply_to);
                }
                self.add(SpanKind::Status, at, &format!("attempt {attempt}"), id);
            }
            // Events stored by others are not part of the run.
            _ if event.source != "self" => {}
            _ => _ = self.add(SpanKind::Event, at, event.subtype.as_deref().unwrap_or(&event.kind), id),
        }
    }
}

/// The beginning of an event's text, in one line.
fn label_of(event: &Event) -> String {
    short(&event.content.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The arguments of a tool in a few words, without repeating its name.
fn gist(arguments: &Value, name: &str) -> Option<String> {
    let word = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let text = match arguments {
        Value::Null => return None,
        Value::Object(fields) => {
            let words: Vec<String> = fields.values().filter_map(word).collect();
            match words.is_empty() && !fields.is_empty() {
                true => arguments.to_string(),
                false => words.into_iter().filter(|word| word != name).collect::<Vec<_>>().join(" "),
            }
        }
        other => word(other).unwrap_or_else(|| other.to_string()),
    };
    let text: String = text.chars().take(4 * LABEL).collect();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!line.is_empty() && line != name).then(|| short(&line))
}

/// A label that is not too long.
fn short(text: &str) -> String {
    match text.char_indices().nth(LABEL) {
        Some(_) => text.chars().take(LABEL - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_design_shows_the_span_of_a_call() {
        let run = thread_conversation::Run { run_id: "r".into(), reply_to: 1, attempt: 2, is_own: false };
        let call = thread_conversation::ToolCall::new("c", "grep", serde_json::json!({ "for": "x" }));
        let began = time::parse("2026-03-18T10:30:00.000Z").unwrap();
        let mut spans = Spans { began, ..Spans::default() };
        spans.take(Record::of(run.tool_call(&call).row(3, "2026-03-18T10:30:00.123Z").to_event()));
        let span = serde_json::to_string(&spans.spans[0]).unwrap();
        assert!(include_str!("../../../../docs/DESIGN.md").contains(&format!("\n{span}\n")), "{span}");
    }

    #[test]
    fn where_the_time_of_a_run_went() {
        let at = |ms: i64| {
            let began = time::parse("2026-03-18T10:30:00.000Z").unwrap();
            time::format(began + chrono::TimeDelta::milliseconds(ms))
        };
        let event = |id: i64, ms: i64, subtype: &str, content: &str| Event {
            id,
            created_at: at(ms),
            source: "self".into(),
            kind: "record".into(),
            subtype: Some(subtype.into()),
            content: content.into(),
            metadata: None,
        };
        let began = time::parse(&at(0)).unwrap();
        let mut spans = Spans { began, ..Spans::default() };
        for event in [
            event(1, 10, "thinking", "a"),
            event(2, 30, "thinking", "b"),
            event(3, 40, "toolcall", r#"{"call_id":"c","name":"ls"}"#),
            event(
                4,
                45,
                "toolcall",
                r#"{"call_id":"c","name":"list","arguments":{"of":"ls\n-l","n":2,"all":true}}"#,
            ),
            event(
                5,
                50,
                "permission",
                r#"{"request_id":"p","title":"rm","call_id":"c","choices":[{"id":"no","name":"No","kind":"reject_once"}]}"#,
            ),
            Event {
                source: "me".into(),
                ..event(6, 80, "permission_answer", r#"{"request_id":"p","choice":"no"}"#)
            },
            event(7, 90, "toolresult", r#"{"call_id":"c","error":"it was not permitted"}"#),
            event(8, 100, "token", "x"),
            event(9, 101, "mine", "y"),
            event(10, 102, "toolresult", r#"{"call_id":"other","name":"cat"}"#),
            event(15, 103, "toolcall", r#"{"call_id":"e","name":"cat x","arguments":{"command":"cat x"}}"#),
            event(16, 104, "toolresult", r#"{"call_id":"e","error":"no x"}"#),
            event(11, 110, "toolcall", r#"{"call_id":"d","name":"rm"}"#),
            event(12, 111, "permission", r#"{"request_id":"q","title":"rm x","choices":[]}"#),
            Event { source: "me".into(), ..event(13, 112, "theirs", "z") },
            event(14, 120, "cancelled", "enough"),
        ] {
            spans.take(Record::of(event));
        }
        let span = |kind, at_ms, duration_ms, label: &str, event| Span {
            kind,
            at_ms,
            duration_ms,
            label: label.into(),
            given: None,
            ended: None,
            event: Some(event),
            call: None,
        };
        let ended = |ended, span: Span| Span { ended: Some(ended), ..span };
        assert_eq!(
            spans.spans,
            [
                span(SpanKind::Thinking, 10, Some(20), "ab", 1),
                Span {
                    given: Some("ls -l 2".into()),
                    ..ended(ToolEnd::Rejected, span(SpanKind::Tool, 40, Some(50), "list", 3))
                },
                Span { call: Some(3), ..span(SpanKind::Permission, 50, Some(30), "rm, answered: no", 5) },
                span(SpanKind::Text, 100, Some(0), "x", 8),
                span(SpanKind::Event, 101, None, "mine", 9),
                span(SpanKind::Tool, 102, Some(0), "cat", 10),
                ended(ToolEnd::Failed, span(SpanKind::Tool, 103, Some(1), "cat x", 15)),
                ended(ToolEnd::NoResult, span(SpanKind::Tool, 110, Some(10), "rm", 11)),
                span(SpanKind::Permission, 111, Some(9), "rm x, not answered", 12),
                span(SpanKind::Cancelled, 120, None, "enough", 14),
            ]
        );
    }
}
