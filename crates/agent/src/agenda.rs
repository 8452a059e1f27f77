//! What is to be done next in a conversation, from nothing but its events.
//!
//! An [`Agenda`] is told every event past the consumer's cursor, in order, its own adapter's too, and
//! holds what has no ending yet. So any adapter that reads the same events decides the same: one that
//! replaces a killed adapter continues where that stopped. Pure: no clock, no file, no process.

use std::collections::{BTreeMap, BTreeSet};

use crate::conversation::{Entry, Message, Priority, Run};

/// A message that has no ending yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub run: Run,
    pub source: String,
    pub message: Message,
    /// How many attempts have begun,
    pub begun: u64,
    /// and how many of them count: not those that another message interrupted.
    pub attempts: u64,
    /// The event with which the last attempt began; 0 before the first.
    pub last_begun: i64,
    /// The last attempt has neither ended nor failed, as far as the thread tells.
    pub open: bool,
    /// Calls of the last attempt that have no result yet: id and name.
    pub open_calls: Vec<(String, String)>,
    /// Who asked for its end, and why.
    pub cancel: Option<String>,
}

impl Turn {
    pub fn id(&self) -> i64 {
        self.run.reply_to
    }
}

/// Why a turn is to end without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Somebody asked for it; the whole reason.
    Cancelled(String),
    /// A message with priority `now` has come since it began.
    Interrupted { by: i64, source: String, resume: bool },
}

/// What to do while no program is at work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// End this turn without an attempt.
    End(i64, Verdict),
    /// It has had all its attempts.
    GiveUp(i64),
    Run(i64),
    Nothing,
}

/// An event as the agenda is told it.
#[derive(Debug, Clone)]
pub struct Noted<'e> {
    pub id: i64,
    pub source: &'e str,
    pub run_id: Option<String>,
    pub entry: Entry,
    /// Whether the consumer's filter lets it through.
    pub is_pending: bool,
    /// Whether it is the event stored under its [`end_key`](crate::conversation::end_key).
    pub is_ending: bool,
}

#[derive(Debug, Default)]
pub struct Agenda {
    turns: BTreeMap<i64, Turn>,
    /// The turn of the last attempt that began, for as long as it has no ending.
    under_way: Option<i64>,
    /// Pending events that are finished with and not acknowledged.
    finished: BTreeSet<i64>,
}

impl Agenda {
    /// Takes the next event.
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

    /// The message, unless it has its ending.
    pub fn turn(&self, id: i64) -> Option<&Turn> {
        self.turns.get(&id)
    }

    pub fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.turns.values()
    }

    /// Why a turn that has begun is to end, if it is: it may be at work, or wait for its next attempt.
    pub fn verdict(&self, id: i64) -> Option<Verdict> {
        let turn = self.turns.get(&id)?;
        if let Some(why) = &turn.cancel {
            return Some(Verdict::Cancelled(why.clone()));
        }
        if turn.last_begun == 0 {
            return None;
        }
        // Nothing else begins while one with priority `now` is known, so one that is pending has come since:
        // perhaps just before the attempt was stored. Of two with that priority, the second waits for its
        // turn if both were there.
        let interrupts = |now: &&Turn| {
            now.id() != id
                && now.message.priority == Priority::Now
                && (turn.message.priority != Priority::Now || now.id() > turn.last_begun)
        };
        let now = self.turns.values().find(interrupts)?;
        let (by, source) = (now.id(), now.source.clone());
        Some(Verdict::Interrupted { by, source, resume: turn.message.resume })
    }

    /// A turn that somebody has cancelled, other than this one.
    pub fn cancelled(&self, other_than: i64) -> Option<(i64, Verdict)> {
        let cancelled = self.turns.values().find(|turn| turn.id() != other_than && turn.cancel.is_some())?;
        Some((cancelled.id(), self.verdict(cancelled.id())?))
    }

    /// What to do, while no program is at work. A turn has `most` attempts.
    pub fn next(&self, most: u64) -> Next {
        for turn in self.turns.values() {
            match self.verdict(turn.id()) {
                // It has to stand back, and needs no word about it unless an attempt is open.
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

    /// How far the cursor may be moved: the end of the longest stretch of finished events.
    pub fn acknowledge(&self) -> Option<i64> {
        match self.turns.keys().next() {
            Some(&oldest) => self.finished.range(..oldest).next_back().copied(),
            None => self.finished.last().copied(),
        }
    }

    /// The cursor was moved so far.
    pub fn acknowledged(&mut self, upto: i64) {
        self.finished = self.finished.split_off(&(upto + 1));
    }
}

#[cfg(test)]
mod tests;
