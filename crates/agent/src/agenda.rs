//! Decides what to do next in a conversation, from its events alone.
//!
//! An [`Agenda`] is fed every event past the consumer's cursor, in order, including those of its own adapter,
//! and holds the messages that have no ending yet. Adapters that read the same events make the same
//! decisions: one that replaces a killed adapter continues where that one stopped. Pure: no clock and no I/O.

use std::collections::{BTreeMap, BTreeSet};

use crate::conversation::{Entry, Message, Priority, Run};

/// A message that has no ending yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub run: Run,
    pub source: String,
    pub message: Message,
    /// How many attempts have begun.
    pub begun: u64,
    /// How many of these count: all but those that another message interrupted.
    pub attempts: u64,
    /// The id of the event that began the last attempt; 0 before the first.
    pub last_begun: i64,
    /// According to the thread, the last attempt has neither ended nor failed.
    pub open: bool,
    /// Calls of the last attempt that have no result yet: id and name of each.
    pub open_calls: Vec<(String, String)>,
    /// Set once it was cancelled: the whole reason, with who asked for it.
    pub cancel: Option<String>,
}

impl Turn {
    pub fn id(&self) -> i64 {
        self.run.reply_to
    }
}

/// Why a turn must end without an answer.
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
    /// End this turn without another attempt.
    End(i64, Verdict),
    /// End this turn: it has used up its attempts.
    GiveUp(i64),
    Run(i64),
    Nothing,
}

/// An event, with what the agenda needs to know about it.
#[derive(Debug, Clone)]
pub struct Noted<'e> {
    pub id: i64,
    pub source: &'e str,
    pub run_id: Option<String>,
    pub entry: Entry,
    /// Whether it matches the consumer's filter.
    pub is_pending: bool,
    /// Whether it is the event stored under its [`end_key`](crate::conversation::end_key).
    pub is_ending: bool,
}

#[derive(Debug, Default)]
pub struct Agenda {
    turns: BTreeMap<i64, Turn>,
    /// The turn of the attempt that began last, until the turn has an ending.
    under_way: Option<i64>,
    /// Events that match the filter, are finished and are not acknowledged yet.
    finished: BTreeSet<i64>,
}

impl Agenda {
    /// Processes the next event.
    pub fn note(&mut self, noted: Noted<'_>) {
        let Noted { id, source, run_id, entry, is_pending, is_ending } = noted;
        let mut begins_turn = false;
        match entry {
            Entry::Message(message) if is_pending => {
                begins_turn = true;
                let run = Run { run_id: run_id.unwrap_or_default(), reply_to: id };
                let turn = Turn {
                    run,
                    source: source.to_owned(),
                    message,
                    begun: 0,
                    attempts: 0,
                    last_begun: 0,
                    open: false,
                    open_calls: Vec::new(),
                    cancel: None,
                };
                self.turns.insert(id, turn);
            }
            Entry::Cancel { why } => {
                let by = match why.trim() {
                    "" => format!("cancelled by {source}"),
                    why => format!("cancelled by {source}: {why}"),
                };
                let wanted = |turn: &&mut Turn| Some(&turn.run.run_id) == run_id.as_ref();
                for turn in self.turns.values_mut().filter(wanted) {
                    turn.cancel.get_or_insert(by.clone());
                }
            }
            Entry::RunStarted { reply_to, .. } => {
                if let Some(turn) = self.turns.get_mut(&reply_to) {
                    turn.begun += 1;
                    turn.attempts += 1;
                    turn.last_begun = id;
                    turn.open = true;
                    self.under_way = Some(reply_to);
                }
            }
            Entry::ToolCall(call) => {
                if let Some(turn) = self.turn_of_record(run_id.as_deref()) {
                    turn.open_calls.push((call.call_id, call.name));
                }
            }
            Entry::ToolResult(result) => {
                if let Some(turn) = self.turn_of_record(run_id.as_deref()) {
                    turn.open_calls.retain(|(call_id, _)| *call_id != result.call_id);
                }
            }
            Entry::Error { retryable: true, reply_to: Some(reply_to), interrupted_by, .. } => {
                if let Some(turn) = self.turns.get_mut(&reply_to).filter(|turn| turn.open) {
                    turn.open = false;
                    turn.open_calls.clear();
                    turn.attempts -= u64::from(interrupted_by.is_some());
                }
            }
            entry => {
                if let Some(reply_to) = entry.ends().filter(|_| is_ending)
                    && self.turns.remove(&reply_to).is_some()
                {
                    self.finished.insert(reply_to);
                    self.under_way = self.under_way.filter(|&turn| turn != reply_to);
                }
            }
        }
        if is_pending && !begins_turn {
            self.finished.insert(id);
        }
    }

    /// The turn that a record with this run id belongs to: the one under way.
    fn turn_of_record(&mut self, run_id: Option<&str>) -> Option<&mut Turn> {
        let turn = self.turns.get_mut(&self.under_way?)?;
        (Some(turn.run.run_id.as_str()) == run_id).then_some(turn)
    }

    /// Returns the turn of a message; `None` if it has an ending.
    pub fn turn(&self, id: i64) -> Option<&Turn> {
        self.turns.get(&id)
    }

    pub fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.turns.values()
    }

    /// Returns why a turn must end, `None` if it need not. A cancel ends any turn, an interruption only one
    /// that has begun, whether it is running or waiting for its next attempt.
    pub fn verdict(&self, id: i64) -> Option<Verdict> {
        let turn = self.turns.get(&id)?;
        if let Some(why) = &turn.cancel {
            return Some(Verdict::Cancelled(why.clone()));
        }
        if turn.last_begun == 0 {
            return None;
        }
        // No other turn begins while a `now` message is known to be pending, so one that is pending must have
        // come later, or just before the beginning of this attempt was stored. Only between two `now`
        // messages do ids decide: the second waits if it was there when the first began.
        let interrupts = |now: &&Turn| {
            now.id() != id
                && now.message.priority == Priority::Now
                && (turn.message.priority != Priority::Now || now.id() > turn.last_begun)
        };
        let now = self.turns.values().find(interrupts)?;
        let (by, source) = (now.id(), now.source.clone());
        Some(Verdict::Interrupted { by, source, resume: turn.message.resume })
    }

    /// Returns a cancelled turn other than this one.
    pub fn cancelled(&self, other_than: i64) -> Option<(i64, Verdict)> {
        let cancelled = self.turns.values().find(|turn| turn.id() != other_than && turn.cancel.is_some())?;
        Some((cancelled.id(), self.verdict(cancelled.id())?))
    }

    /// Returns what to do while no attempt is running. A turn has at most `most` attempts.
    pub fn next(&self, most: u64) -> Next {
        for turn in self.turns.values() {
            match self.verdict(turn.id()) {
                // It waits and is tried again: there is nothing to record unless an attempt is open.
                Some(Verdict::Interrupted { resume: true, .. }) if !turn.open => {}
                Some(verdict) => return Next::End(turn.id(), verdict),
                None => {}
            }
        }
        let rank = |turn: &&Turn| match turn.message.priority {
            Priority::Now => 0,
            _ if turn.last_begun > 0 => 1,
            Priority::Next => 2,
            Priority::Later => 3,
        };
        match self.turns.values().min_by_key(|turn| (rank(turn), turn.id())) {
            Some(turn) if turn.attempts >= most => Next::GiveUp(turn.id()),
            Some(turn) => Next::Run(turn.id()),
            None => Next::Nothing,
        }
    }

    /// Returns where the cursor may move to: the last finished event before the oldest unfinished message.
    /// `None` if it cannot move.
    pub fn acknowledge(&self) -> Option<i64> {
        match self.turns.keys().next() {
            Some(&oldest) => self.finished.range(..oldest).next_back().copied(),
            None => self.finished.last().copied(),
        }
    }

    /// Records that the cursor has moved to `upto`.
    pub fn acknowledged(&mut self, upto: i64) {
        self.finished = self.finished.split_off(&(upto + 1));
    }
}

#[cfg(test)]
mod tests;
