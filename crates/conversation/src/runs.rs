//! The open runs of a conversation, the order in which they run, and what must be done about them.
//!
//! A [`Runs`] is fed every event past the consumer's cursor, in order, and holds the runs that have no ending yet.
//! The adapter asks it what to do next, and learns of its own events by reading them back; other readers, such as a
//! gateway, ask it which run is active and what waits. Every reader of the same events gets the same answers, so an
//! adapter that replaces a killed one continues where that one stopped. Pure: no clock and no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{Entry, Priority, Record, Run};

/// A run that has no ending yet: of a message, or one that the agent began itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OpenRun {
    /// With the number of the last attempt; 0 before the first.
    pub run: Run,
    /// Who sent the message.
    pub source: String,
    pub priority: Priority,
    /// If a message with priority `now` interrupts the run, it is tried again later instead of cancelled.
    pub resume: bool,
    /// When the message was stored.
    pub created_at: String,
    /// When the run began, or began again after an interruption; `None` while it is queued.
    pub since: Option<String>,
    /// How many of its attempts count: all but those that another message interrupted. If a model answers it, those
    /// since the last result of a call.
    pub attempts: u64,
    /// The id of the event that began the last attempt; 0 before the first.
    pub last_begun: i64,
    /// A model has finished a turn of it.
    pub is_models: bool,
    /// According to the thread, the last attempt has neither ended nor failed.
    pub in_attempt: bool,
    /// Calls that have no result yet: their names, by their ids.
    pub open_calls: BTreeMap<String, String>,
    /// Requests for permission of the last attempt that have no answer yet.
    pub open_permissions: Vec<OpenPermission>,
    /// Set once it was cancelled: the whole reason, with its author.
    pub cancel: Option<String>,
}

/// A request for permission that has no answer yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenPermission {
    /// The event that asks.
    pub event_id: i64,
    pub request_id: String,
    /// The ids of its choices. Any other answer is ignored.
    pub choices: Vec<String>,
    /// How long it waits for an answer, from when it was stored; `None`: for as long as its attempt lasts.
    pub wait: Option<Duration>,
}

impl OpenRun {
    /// A run that has not begun.
    fn new(run: Run, source: &str, created_at: &str) -> OpenRun {
        OpenRun { run, source: source.to_owned(), created_at: created_at.to_owned(), ..OpenRun::default() }
    }

    /// The id of the message that it answers, or of the event with which the agent began it itself.
    pub fn id(&self) -> i64 {
        self.run.reply_to
    }

    /// Whether it has begun, was interrupted, and waits to begin again.
    fn is_interrupted(&self) -> bool {
        self.last_begun > 0 && self.since.is_none()
    }

    /// Runs with a lower rank run earlier; among equals, the older message.
    fn rank(&self) -> (u8, i64) {
        let rank = match self.priority {
            _ if self.in_attempt => 0,
            Priority::Now if !self.is_interrupted() => 1,
            Priority::Now => 2,
            _ if self.last_begun > 0 => 3,
            Priority::Steer => 4,
            Priority::Next => 5,
            Priority::Later => 6,
        };
        (rank, self.id())
    }
}

/// Why a run must end without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was cancelled; the whole reason.
    Cancelled(String),
    /// A message with priority `now` interrupts it.
    Interrupted { by: i64, source: String, resume: bool },
}

/// What to do while no attempt is running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// End this run without another attempt.
    End(i64, Verdict),
    /// End this run: it has used up its attempts, or the agent began it itself and is gone.
    GiveUp(i64),
    Run(i64),
    Nothing,
}

/// An event, with what [`Runs`] needs to know about it.
#[derive(Debug, Clone, Copy)]
pub struct Noted<'e> {
    pub record: &'e Record,
    /// Whether it matches the consumer's filter. A message that does not begins no run.
    pub is_pending: bool,
    /// Whether it is the ending it looks like: see [`is_ending`](crate::is_ending).
    pub is_ending: bool,
}

/// The open runs of a conversation, by the ids of their messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    open: BTreeMap<i64, OpenRun>,
    /// Events that match the filter and are not acknowledged yet.
    pending: BTreeSet<i64>,
    /// Messages up to this id are acknowledged and have no run.
    cursor: i64,
}

impl Runs {
    /// The runs of a thread whose consumer has this cursor, to be fed the events after it.
    pub fn after(cursor: i64) -> Runs {
        Runs { cursor, ..Runs::default() }
    }

    /// Processes the next event. Tokens, thinking and status may be left out: they change nothing.
    pub fn note(&mut self, noted: Noted<'_>) {
        let Noted { record: Record { event, run_id, entry, .. }, is_pending, is_ending } = noted;
        let (id, created_at, source, run_id) =
            (event.id, &*event.created_at, &*event.source, run_id.as_deref());
        if id <= self.cursor {
            return;
        }
        if is_pending {
            self.pending.insert(id);
        }
        match entry {
            Entry::Message(message) if is_pending => {
                let run_id = run_id.unwrap_or_default().to_owned();
                let run = Run { run_id, reply_to: id, attempt: 0, is_own: false };
                let run = OpenRun { resume: message.resume, ..OpenRun::new(run, source, created_at) };
                self.open.insert(id, OpenRun { priority: message.priority, ..run });
            }
            Entry::RunStarted { reply_to: None, .. } => {
                let run_id = run_id.unwrap_or_default().to_owned();
                let run = Run { run_id, reply_to: id, attempt: 1, is_own: true };
                let run = OpenRun { priority: Priority::Later, ..OpenRun::new(run, source, created_at) };
                let since = Some(created_at.to_owned());
                let begun = OpenRun { since, attempts: 1, last_begun: id, in_attempt: true, ..run };
                self.open.insert(id, begun);
            }
            Entry::Cancel { why } => {
                let by = match why.trim() {
                    "" => format!("cancelled by {source}"),
                    why => format!("cancelled by {source}: {why}"),
                };
                let wanted = |run: &&mut OpenRun| Some(run.run.run_id.as_str()) == run_id;
                for run in self.open.values_mut().filter(wanted) {
                    run.cancel.get_or_insert(by.clone());
                }
            }
            Entry::RunStarted { reply_to: Some(reply_to), .. } => {
                if let Some(run) = self.open.get_mut(reply_to) {
                    run.run.attempt += 1;
                    run.attempts += 1;
                    run.last_begun = id;
                    run.in_attempt = true;
                    run.since.get_or_insert(created_at.to_owned());
                }
            }
            Entry::ToolCall(call) => {
                if let Some(run) = self.run_of_record(run_id) {
                    run.open_calls.insert(call.call_id.clone(), call.name.clone());
                }
            }
            Entry::Model { .. } => {
                if let Some(run) = self.run_of_record(run_id) {
                    run.is_models = true;
                }
            }
            Entry::ToolResult(result) => {
                if let Some(run) = self.run_of_record(run_id) {
                    run.open_calls.remove(&result.call_id);
                    // The next attempt of a model continues from there, so this is no failure in a row.
                    if run.is_models && run.in_attempt && !noted.record.unreported {
                        run.attempts = 1;
                    }
                }
            }
            Entry::Permission(asked) => {
                if let Some(run) = self.run_of_record(run_id).filter(|run| run.in_attempt) {
                    run.open_permissions.push(OpenPermission {
                        event_id: id,
                        request_id: asked.request_id.clone(),
                        choices: asked.choices.iter().map(|choice| choice.id.clone()).collect(),
                        wait: asked.wait(),
                    });
                }
            }
            Entry::PermissionAnswer(answer) => {
                for run in self.open.values_mut() {
                    run.open_permissions.retain(|asked| {
                        !answer.closes(&asked.request_id, asked.choices.iter().map(String::as_str))
                    });
                }
            }
            Entry::Error { retryable: true, reply_to: Some(reply_to), interrupted_by, .. } => {
                if let Some(run) = self.open.get_mut(reply_to).filter(|run| run.in_attempt) {
                    run.in_attempt = false;
                    run.open_calls.clear();
                    run.open_permissions.clear();
                    if interrupted_by.is_some() {
                        run.attempts -= 1;
                        run.since = None;
                    }
                }
            }
            entry => {
                if let Some(reply_to) = entry.ends().filter(|_| is_ending) {
                    self.open.remove(&reply_to);
                }
            }
        }
    }

    /// The run that a record with this run id belongs to: the one whose attempt began last.
    fn run_of_record(&mut self, run_id: Option<&str>) -> Option<&mut OpenRun> {
        let begun = self.open.values_mut().filter(|run| run.last_begun > 0);
        begun.max_by_key(|run| run.last_begun).filter(|run| Some(run.run.run_id.as_str()) == run_id)
    }

    /// Returns the run of a message; `None` if it is over.
    pub fn get(&self, id: i64) -> Option<&OpenRun> {
        self.open.get(&id)
    }

    /// All open runs, by the ids of their messages.
    pub fn iter(&self) -> impl Iterator<Item = &OpenRun> {
        self.open.values()
    }

    /// The open runs with this run id.
    pub fn with_run_id<'r>(&'r self, run_id: &'r str) -> impl Iterator<Item = &'r OpenRun> {
        self.iter().filter(move |run| run.run.run_id == run_id)
    }

    /// The run under way: an attempt of it is running, or it waits for its next one.
    pub fn active(&self) -> Option<&OpenRun> {
        self.iter().max_by_key(|run| run.last_begun).filter(|run| run.since.is_some())
    }

    /// The ids of the messages in the order in which their runs will run, the active one first.
    pub fn in_order(&self) -> Vec<i64> {
        let mut order: Vec<_> = self.iter().map(OpenRun::rank).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| id).collect()
    }

    /// How many runs come before that of a message; `None` if it is over.
    pub fn position(&self, id: i64) -> Option<usize> {
        let rank = self.get(id)?.rank();
        Some(self.iter().filter(|run| run.rank() < rank).count())
    }

    fn queued_runs(&self) -> impl Iterator<Item = &OpenRun> {
        let active = self.active().map(OpenRun::id);
        self.iter().filter(move |run| Some(run.id()) != active)
    }

    /// How many runs are queued: all open ones but the active one.
    pub fn queued(&self) -> usize {
        self.queued_runs().count()
    }

    /// When the oldest queued message was stored.
    pub fn oldest_queued(&self) -> Option<&str> {
        self.queued_runs().next().map(|run| run.created_at.as_str())
    }

    /// Returns why a run must end, `None` if it need not. A cancel ends any run, an interruption only one
    /// that has begun, whether it is running or waiting for its next attempt.
    pub fn verdict(&self, id: i64) -> Option<Verdict> {
        let run = self.get(id)?;
        if let Some(why) = &run.cancel {
            return Some(Verdict::Cancelled(why.clone()));
        }
        if run.last_begun == 0 {
            return None;
        }
        // No other run begins while a `now` message is known to be pending, so one that is pending must have
        // come later, or just before the beginning of this attempt was stored. Only between two `now`
        // messages do ids decide: the second waits if it was there when the first began.
        let interrupts = |now: &&OpenRun| {
            now.id() != id
                && now.priority == Priority::Now
                && (run.priority != Priority::Now || now.id() > run.last_begun)
        };
        let now = self.iter().find(interrupts)?;
        let (by, source) = (now.id(), now.source.clone());
        Some(Verdict::Interrupted { by, source, resume: run.resume })
    }

    /// The message that is to be given to the agent in the middle of the run under way.
    pub fn steers(&self) -> Option<&OpenRun> {
        self.iter().find(|run| run.priority == Priority::Steer && run.last_begun == 0 && run.cancel.is_none())
    }

    /// Returns a cancelled run other than this one.
    pub fn cancelled(&self, other_than: i64) -> Option<(i64, Verdict)> {
        let cancelled = self.iter().find(|run| run.id() != other_than && run.cancel.is_some())?;
        Some((cancelled.id(), self.verdict(cancelled.id())?))
    }

    /// Returns what to do while no attempt is running. A run has at most `most` attempts.
    pub fn next(&self, most: u64) -> Next {
        for run in self.iter() {
            match self.verdict(run.id()) {
                // It waits and is tried again: there is nothing to record unless an attempt is open.
                Some(Verdict::Interrupted { resume: true, .. }) if !run.in_attempt => {}
                Some(verdict) => return Next::End(run.id(), verdict),
                None => {}
            }
        }
        match self.iter().min_by_key(|run| run.rank()) {
            // A run that the agent began itself cannot be retried.
            Some(run) if run.run.is_own || run.attempts >= most => Next::GiveUp(run.id()),
            Some(run) => Next::Run(run.id()),
            None => Next::Nothing,
        }
    }

    /// Returns where the cursor may move to: the last pending event before the oldest message whose run is open.
    /// `None` if it cannot move.
    pub fn acknowledge(&self) -> Option<i64> {
        match self.open.keys().next() {
            Some(&oldest) => self.pending.range(..oldest).next_back().copied(),
            None => self.pending.last().copied(),
        }
    }

    /// Records that the cursor has moved to `upto`. If it was set forward by hand, that ends runs; one that was
    /// moved back takes a new [`Runs`], fed from there. Returns whether it has ended runs.
    pub fn acknowledged(&mut self, upto: i64) -> bool {
        if upto <= self.cursor {
            return false;
        }
        let open = self.open.len();
        self.cursor = upto;
        self.pending = self.pending.split_off(&(upto + 1));
        self.open = self.open.split_off(&(upto + 1));
        self.open.len() < open
    }
}

#[cfg(test)]
mod tests;
