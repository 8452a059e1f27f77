//! What an agent did to answer a message: its attempts, and in them the turns of a model, tools, sub-agents and
//! requests for permission.

use std::collections::{HashMap, HashSet};

use thread_conversation::{
    CONSUMER, Change, Choice, Entry, Record, RunView, SELF, SubAgent, SubChange, ToolCall, ToolResult, Usage,
};

use super::super::dto::{BarEnd, BarKind};
use super::tree::{LABEL, Tree, gist, short};

/// The run of one message.
pub struct Agent<'t> {
    tree: &'t mut Tree,
    /// The bar of its consumer, inside of which all others are.
    outer: usize,
    view: RunView,
    /// The message, or the event by which the agent began the run itself.
    subject: i64,
    /// The event that ends the run.
    ending: Option<i64>,
    /// The session's thread, if it has sub-agents that can be looked at.
    session: Option<&'t str>,
    /// The wait or the attempt at present.
    now: Option<usize>,
    attempt: Option<usize>,
    /// The text or thinking that continues.
    text: Option<usize>,
    /// What was said since the model was asked, and when that was.
    turn: (Vec<usize>, i64),
    /// By the ids that clients see, those of sub-agents as the view has them.
    calls: HashMap<String, usize>,
    subs: HashMap<String, usize>,
    asked: HashMap<String, Asked>,
    /// Calls that were not permitted.
    rejected: HashSet<usize>,
}

/// A request for permission.
struct Asked {
    bar: usize,
    call: Option<usize>,
    choices: Vec<Choice>,
}

impl<'t> Agent<'t> {
    /// The run of an event, with the event that ends it.
    pub fn new(
        tree: &'t mut Tree,
        (subject, ending): (i64, Option<i64>),
        session: Option<&'t str>,
    ) -> Agent<'t> {
        let outer = tree.open(None, BarKind::Consumer, 0, CONSUMER);
        let now = Some(tree.open(Some(outer), BarKind::Waiting, 0, ""));
        Agent {
            tree,
            outer,
            view: RunView::of(subject),
            subject,
            ending,
            session,
            now,
            attempt: None,
            text: None,
            turn: Default::default(),
            calls: HashMap::new(),
            subs: HashMap::new(),
            asked: HashMap::new(),
            rejected: HashSet::new(),
        }
    }

    pub fn bars(&self) -> usize {
        self.tree.len()
    }

    /// Whether there was an attempt.
    pub fn has_begun(&self) -> bool {
        self.attempt.is_some()
    }

    /// Takes the next event, from the message on. Returns whether it was the last one of the run.
    pub fn take(&mut self, record: &Record) -> bool {
        let (id, at) = (record.id(), self.tree.at(&record.event.created_at));
        if id == self.subject {
            self.view.begin(record);
        }
        if let Entry::RunStarted { attempt, reply_to } = &record.entry
            && reply_to.unwrap_or(id) == self.subject
        {
            self.view.apply(record);
            self.begins(*attempt, at, id);
            return false;
        }
        if Some(id) == self.ending {
            self.ends(record, at);
            return true;
        }
        if !matches!(record.entry, Entry::Token { .. } | Entry::Thinking { .. }) && self.view.has(record) {
            self.text = None;
        }
        match &record.entry {
            Entry::Model { turn, .. } if self.view.has(record) => {
                let Usage { input_tokens: read, output_tokens: wrote, .. } = Usage::reported(&turn.usage);
                let model = self.turn(&turn.model, at, id);
                self.tree.bar(model).given =
                    (read.saturating_add(wrote) > 0).then(|| format!("{read} tokens read, {wrote} written"));
            }
            Entry::TurnCut { .. } if self.view.has(record) => {
                let model = self.turn("", at, id);
                self.tree.bar(model).ended = Some(BarEnd::Cut);
            }
            Entry::ToolResult(result) if self.view.has(record) => {
                let shown = record.shown_call_id().unwrap_or_default();
                self.returned(&shown, result, record.unreported, (at, id));
            }
            Entry::Other | Entry::Answer { .. } if record.event.source == SELF && self.view.has(record) => {
                let label = record.event.subtype.as_deref().filter(|_| record.entry == Entry::Other);
                let bar =
                    self.tree.add(self.attempt, BarKind::Event, at, label.unwrap_or(&record.event.content));
                self.tree.bar(bar).event = Some(id);
            }
            _ => {}
        }
        if let Some(change) = self.view.apply(record) {
            self.change(change, at, id);
        }
        false
    }

    /// An attempt begins.
    fn begins(&mut self, attempt: u64, at: i64, id: i64) {
        if let Some(before) = self.now.take() {
            let was_cut = Some(before) == self.attempt;
            self.close(before, at, was_cut.then_some(BarEnd::Cut));
        }
        let bar = self.tree.open(Some(self.outer), BarKind::Attempt, at, &format!("attempt {attempt}"));
        self.tree.bar(bar).event = Some(id);
        (self.now, self.attempt) = (Some(bar), Some(bar));
        self.turn = (Vec::new(), at);
        self.text = None;
    }

    fn change(&mut self, change: Change<'_>, at: i64, id: i64) {
        match change {
            Change::Text { text, .. } => self.said(BarKind::Text, text, at, id),
            Change::Thinking(text) => self.said(BarKind::Thinking, text, at, id),
            Change::Called { id: shown, call, .. } => self.called(self.attempt, shown, call, at, id),
            Change::Plan(_) => {
                let bar = self.tree.add(self.attempt, BarKind::Plan, at, "");
                self.tree.bar(bar).event = Some(id);
            }
            Change::AttemptFailed { error, .. } => {
                if let Some(attempt) = self.now.take() {
                    self.close(attempt, at, Some(BarEnd::Failed));
                    let bar = self.tree.bar(attempt);
                    (bar.end_event, bar.given) = (Some(id), Some(short(error)));
                }
                self.now = Some(self.tree.open(Some(self.outer), BarKind::Waiting, at, ""));
            }
            Change::Asked(asked) => {
                let call =
                    self.view.asked().find(|open| open.event_id == id).and_then(|open| open.call_id.clone());
                let call = call.and_then(|call| self.calls.get(&call).copied());
                let bar = self.tree.open(call.or(self.attempt), BarKind::Permission, at, &asked.title);
                let event = call.and_then(|call| self.tree.bar(call).event);
                let shown = self.tree.bar(bar);
                (shown.event, shown.call) = (Some(id), event);
                self.asked
                    .insert(asked.request_id.clone(), Asked { bar, call, choices: asked.choices.clone() });
            }
            Change::Permitted(answer) => {
                let Some(Asked { bar, call, choices }) = self.asked.remove(&answer.request_id) else {
                    return;
                };
                let is_no = choices.iter().any(|one| one.id == answer.choice && one.is_rejection());
                match call {
                    Some(call) if is_no => _ = self.rejected.insert(call),
                    Some(call) => _ = self.rejected.remove(&call),
                    None => {}
                }
                self.tree.end(bar, at);
                let name = choices.iter().find(|one| one.id == answer.choice).map(|one| one.name.clone());
                let shown = self.tree.bar(bar);
                shown.ended = is_no.then_some(BarEnd::Rejected);
                (shown.end_event, shown.given) = (Some(id), name);
            }
            Change::SubAgent { told, parent, did } => self.sub_agent(told, &parent, did, at, id),
            // Everything else is shown as what it belongs to, or tells nothing about time.
            _ => {}
        }
    }

    /// A turn of a model ends, with what was said in it.
    fn turn(&mut self, name: &str, at: i64, id: i64) -> usize {
        let (said, since) = std::mem::replace(&mut self.turn, (Vec::new(), at));
        let name = if name.is_empty() { "model" } else { name };
        let model = self.tree.add(self.attempt, BarKind::Model, since, name);
        self.tree.end(model, at);
        self.tree.move_into(model, &said);
        self.tree.bar(model).event = Some(id);
        model
    }

    /// A piece of text, or of thinking: several in a row are one bar.
    fn said(&mut self, kind: BarKind, text: &str, at: i64, id: i64) {
        let bar = match self.text.filter(|bar| self.tree.bar(*bar).kind == kind) {
            Some(bar) => bar,
            None => {
                let bar = self.tree.add(self.attempt, kind, at, "");
                self.tree.bar(bar).event = Some(id);
                self.turn.0.push(bar);
                bar
            }
        };
        self.text = Some(bar);
        self.tree.end(bar, at);
        let label = &mut self.tree.bar(bar).label;
        label.extend(text.chars().take(LABEL.saturating_sub(label.chars().count())));
    }

    fn called(&mut self, inside: Option<usize>, shown: String, call: &ToolCall, at: i64, id: i64) {
        // A call that is corrected is the same call.
        let bar = match self.calls.get(&shown) {
            Some(bar) => *bar,
            None => {
                let bar = self.tree.open(inside, BarKind::Tool, at, "");
                self.tree.bar(bar).event = Some(id);
                self.calls.insert(shown, bar);
                bar
            }
        };
        let bar = self.tree.bar(bar);
        bar.label = short(&call.name);
        bar.given = gist(&call.arguments, &call.name);
    }

    fn returned(&mut self, shown: &str, result: &ToolResult, unreported: bool, (at, id): (i64, i64)) {
        let Some(bar) = self.calls.get(shown).copied() else {
            let bar = self.tree.add(self.attempt, BarKind::Tool, at, &result.name);
            self.tree.bar(bar).event = Some(id);
            return;
        };
        if !self.tree.bar(bar).is_open {
            return;
        }
        // A sub-agent may go on in the background.
        let goes_on =
            matches!(&result.outcome, Ok(it) if it["sub_agent"].is_string() && it["status"] == "started");
        for inner in self.tree.open_inside(bar).into_iter().filter(|_| !goes_on) {
            self.tree.end(inner, at);
        }
        self.tree.end(bar, at);
        let ended = match &result.outcome {
            Ok(_) => None,
            Err(_) if self.rejected.contains(&bar) => Some(BarEnd::Rejected),
            Err(_) if unreported => Some(BarEnd::NoResult),
            Err(_) => Some(BarEnd::Failed),
        };
        let bar = self.tree.bar(bar);
        (bar.ended, bar.end_event) = (ended, Some(id));
        self.turn.1 = at;
    }

    fn sub_agent(&mut self, told: &SubAgent, parent: &str, did: Vec<SubChange>, at: i64, id: i64) {
        let bar = match self.subs.get(&told.sub_agent) {
            Some(bar) => *bar,
            None => {
                let name = told.sub_agent.rsplit_once('-').map_or(&*told.sub_agent, |(name, _)| name);
                let bar = self.tree.open(self.calls.get(parent).copied(), BarKind::SubAgent, at, name);
                let thread = self.session.map(|session| format!("{session}~{}", told.sub_agent));
                let shown = self.tree.bar(bar);
                (shown.event, shown.thread) = (Some(id), thread);
                self.subs.insert(told.sub_agent.clone(), bar);
                bar
            }
        };
        for change in did {
            let ended = match change {
                SubChange::Called { id: shown, call, .. } => {
                    self.called(Some(bar), shown, &call, at, id);
                    continue;
                }
                SubChange::Returned { id: shown, result } => {
                    // The model of the one who waits was not asked by that.
                    let since = self.turn.1;
                    self.returned(&shown, &result, false, (at, id));
                    self.turn.1 = since;
                    continue;
                }
                SubChange::AttemptFailed(why) => {
                    let error = self.tree.add(Some(bar), BarKind::Error, at, &why);
                    self.tree.bar(error).event = Some(id);
                    continue;
                }
                SubChange::Began | SubChange::Status(_) => continue,
                SubChange::Answered(_) => None,
                SubChange::Failed(_) => Some(BarEnd::Failed),
                SubChange::Cancelled(_) => Some(BarEnd::Cancelled),
            };
            self.close(bar, at, ended);
            self.tree.bar(bar).end_event = Some(id);
        }
    }

    /// The run ends.
    fn ends(&mut self, record: &Record, at: i64) {
        let (kind, label) = match &record.entry {
            Entry::Cancelled { why, .. } => (BarKind::Cancelled, why),
            Entry::Error { error, .. } => (BarKind::Error, error),
            _ => (BarKind::Answer, &record.event.content),
        };
        if let Some(now) = self.now.take() {
            let ended = match kind {
                BarKind::Cancelled => Some(BarEnd::Cancelled),
                BarKind::Error => Some(BarEnd::Failed),
                _ => None,
            };
            self.close(now, at, ended.filter(|_| Some(now) == self.attempt));
        }
        let bar = self.tree.add(Some(self.outer), kind, at, label);
        self.tree.bar(bar).event = Some(record.id());
        self.tree.end(self.outer, at);
    }

    /// Ends a bar, with what is open inside of it.
    fn close(&mut self, bar: usize, at: i64, ended: Option<BarEnd>) {
        for inner in self.tree.open_inside(bar) {
            self.tree.end(inner, at);
            let inner = self.tree.bar(inner);
            inner.ended = inner.ended.or((inner.kind != BarKind::Waiting).then_some(BarEnd::NoResult));
        }
        self.tree.end(bar, at);
        self.tree.bar(bar).ended = ended;
    }
}

#[cfg(test)]
mod tests;
