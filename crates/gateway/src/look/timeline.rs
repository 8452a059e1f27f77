//! A run as a timeline: where its time went, as far as the thread's events tell.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use thread::model::time::{self, Time};
use thread::queue::{Remaining, Selection};
use thread::{After, Event, Queue};
use thread_agent::conversation::Entry;

use super::event;
use super::form::{Event as Shown, Span, SpanKind};
use crate::error::Result;

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
    /// What was stored meanwhile.
    pub events: Vec<Shown>,
}

/// The timeline of a run from its beginning to its end, or to now. `oldest` is when the oldest event was stored that
/// it has handled.
///
/// # Errors
///
/// Errors of the thread.
pub fn of(queue: &mut Queue, began: Time, end: Option<Time>, oldest: Option<&str>) -> Result<Timeline> {
    let after = queue.about_last_before(began)?;
    let (end, until) = (end.map(time::format), Instant::now() + READ_FOR);
    let mut spans = Spans::new(began);
    if let Some(oldest) = oldest.and_then(time::parse).filter(|oldest| *oldest < began) {
        let waited = u64::try_from((began - oldest).num_milliseconds()).unwrap_or(0);
        spans.add(SpanKind::Waiting, &time::format(oldest), "waiting", None);
        spans.end_last(waited);
    }
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
            // One at a time: they may be large.
            spans.take(&event);
            if shown.len() < SHOWN {
                shown.push(event.id);
            }
            ControlFlow::Continue(())
        })? == Remaining::Some
    {}
    let mut events = Vec::with_capacity(shown.len());
    for id in shown {
        events.extend(event::shown(queue, id)?);
    }
    // What is still open when a run is over was open to its end.
    if let Some(end) = &end {
        spans.end_open(end);
    }
    // Whoever spoke to others meanwhile did not speak to a handler that is no agent.
    if !spans.is_conversation {
        spans.spans.retain(|span| span.kind != SpanKind::Message);
    }
    let is_truncated = is_truncated || spans.spans.len() > SPANS;
    spans.spans.truncate(SPANS);
    Ok(Timeline { spans: spans.spans, is_truncated, events })
}

struct Spans {
    began: Time,
    spans: Vec<Span>,
    /// Calls and requests for permission that are not answered, by their ids, with their index.
    open: HashMap<(SpanKindOf, String), usize>,
    /// The span of the text or thinking that goes on.
    text: Option<usize>,
    /// An agent has begun to answer.
    is_conversation: bool,
}

#[derive(PartialEq, Eq, Hash)]
enum SpanKindOf {
    Call,
    Permission,
}

impl Spans {
    fn new(began: Time) -> Spans {
        Spans { began, spans: Vec::new(), open: HashMap::new(), text: None, is_conversation: false }
    }

    fn at(&self, created_at: &str) -> i64 {
        time::parse(created_at).map_or(0, |at| (at - self.began).num_milliseconds())
    }

    fn add(&mut self, kind: SpanKind, created_at: &str, label: &str, event: Option<i64>) -> usize {
        let at_ms = self.at(created_at);
        let label = short(label);
        self.spans.push(Span { kind, at_ms, duration_ms: None, label, event });
        self.spans.len() - 1
    }

    fn note(&mut self, kind: SpanKind, created_at: &str, label: &str, event: Option<i64>) {
        self.add(kind, created_at, label, event);
    }

    fn end_last(&mut self, duration_ms: u64) {
        if let Some(last) = self.spans.last_mut() {
            last.duration_ms = Some(duration_ms);
        }
    }

    /// Ends a span at that time.
    fn end(&mut self, span: usize, created_at: &str) {
        let now = self.at(created_at);
        let span = &mut self.spans[span];
        span.duration_ms = Some(u64::try_from(now - span.at_ms).unwrap_or(0));
    }

    fn end_open(&mut self, created_at: &str) {
        for span in std::mem::take(&mut self.open).into_values() {
            self.end(span, created_at);
        }
    }

    fn take(&mut self, event: &Event) {
        let at = event.created_at.as_str();
        let (_, entry) = Entry::of(event);
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
                let key = (SpanKindOf::Call, call.call_id);
                if !self.open.contains_key(&key) {
                    let span = self.add(SpanKind::Tool, at, &call.name, id);
                    self.open.insert(key, span);
                }
            }
            Entry::ToolResult(result) => match self.open.remove(&(SpanKindOf::Call, result.call_id)) {
                Some(span) => self.end(span, at),
                None => {
                    let span = self.add(SpanKind::Tool, at, &result.name, id);
                    self.end(span, at);
                }
            },
            Entry::Permission(asked) => {
                let span = self.add(SpanKind::Permission, at, &asked.title, id);
                self.open.insert((SpanKindOf::Permission, asked.request_id), span);
            }
            Entry::PermissionAnswer { request_id, choice } => {
                match self.open.remove(&(SpanKindOf::Permission, request_id)) {
                    Some(span) => {
                        let label = format!("{}, answered: {choice}", self.spans[span].label);
                        self.spans[span].label = short(&label);
                        self.end(span, at);
                    }
                    None => {
                        let span = self.add(SpanKind::Permission, at, &choice, id);
                        self.end(span, at);
                    }
                }
            }
            Entry::Message(_) => self.note(SpanKind::Message, at, &label_of(event), id),
            Entry::Answer { .. } => {
                self.end_open(at);
                self.note(SpanKind::Answer, at, &label_of(event), id);
            }
            Entry::Error { error, .. } => {
                self.end_open(at);
                self.note(SpanKind::Error, at, &error, id);
            }
            Entry::Cancelled { why, .. } => {
                self.end_open(at);
                self.note(SpanKind::Cancelled, at, &why, id);
            }
            Entry::SubAgent(sub) => {
                self.note(SpanKind::SubAgent, at, &format!("{}: {}", sub.sub_agent, sub.event), id)
            }
            Entry::Status(status) => self.note(SpanKind::Status, at, status.as_str(), id),
            Entry::RunStarted { attempt, .. } => {
                self.is_conversation = true;
                self.note(SpanKind::Status, at, &format!("attempt {attempt}"), id)
            }
            // What others store meanwhile is not its doing.
            _ if event.source != "self" => {}
            _ => self.note(SpanKind::Event, at, event.subtype.as_deref().unwrap_or(&event.kind), id),
        }
    }
}

/// The beginning of an event's text, in one line.
fn label_of(event: &Event) -> String {
    short(&event.content.split_whitespace().collect::<Vec<_>>().join(" "))
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
        let mut spans = Spans::new(began);
        for event in [
            event(1, 10, "thinking", "a"),
            event(2, 30, "thinking", "b"),
            event(3, 40, "toolcall", r#"{"call_id":"c","name":"ls"}"#),
            event(4, 45, "toolcall", r#"{"call_id":"c","name":"ls -l"}"#),
            event(5, 50, "permission", r#"{"request_id":"p","title":"rm","choices":[]}"#),
            Event {
                source: "me".into(),
                ..event(6, 80, "permission_answer", r#"{"request_id":"p","choice":"no"}"#)
            },
            event(7, 90, "toolresult", r#"{"call_id":"c","result":1}"#),
            event(8, 100, "token", "x"),
            event(9, 101, "mine", "y"),
            event(10, 102, "toolresult", r#"{"call_id":"other","name":"cat"}"#),
            event(11, 110, "toolcall", r#"{"call_id":"d","name":"rm"}"#),
            event(12, 111, "permission", r#"{"request_id":"q","title":"rm x","choices":[]}"#),
            Event { source: "me".into(), ..event(13, 112, "theirs", "z") },
            event(14, 120, "cancelled", "enough"),
        ] {
            spans.take(&event);
        }
        let span = |kind, at_ms, duration_ms, label: &str, event| Span {
            kind,
            at_ms,
            duration_ms,
            label: label.into(),
            event: Some(event),
        };
        assert_eq!(
            spans.spans,
            [
                span(SpanKind::Thinking, 10, Some(20), "ab", 1),
                span(SpanKind::Tool, 40, Some(50), "ls", 3),
                span(SpanKind::Permission, 50, Some(30), "rm, answered: no", 5),
                span(SpanKind::Text, 100, Some(0), "x", 8),
                span(SpanKind::Event, 101, None, "mine", 9),
                span(SpanKind::Tool, 102, Some(0), "cat", 10),
                span(SpanKind::Tool, 110, Some(10), "rm", 11),
                span(SpanKind::Permission, 111, Some(9), "rm x", 12),
                span(SpanKind::Cancelled, 120, None, "enough", 14),
            ]
        );
    }
}
