//! The open runs of a session, and the order in which they are executed.
//!
//! A run is open until the event that ends it. The agent's cursor is before the first message whose run is
//! open, so reading starts there.

use std::collections::BTreeMap;

use std::ops::ControlFlow;

use thread::model::filter::Scope;
use thread::queue::{Remaining, Selection};
use thread::{Event, Filter, Queue};
use thread_agent::conversation::{Entry, Priority};

use crate::agent;
use crate::error::Result;

/// The events that change the state of runs.
const STATE_EVENTS: &str = "type = 'message' OR subtype IN ('run', 'error', 'cancelled')";

/// A message whose run is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRun {
    pub run_id: String,
    pub priority: Priority,
    /// When its message was stored.
    pub stored_at: String,
    /// Whether the run has started.
    pub started: bool,
}

/// How an event changed the state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Queued,
    Started,
    Answered,
    Failed,
    Cancelled,
}

/// The open runs, by the ids of their messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs(BTreeMap<i64, OpenRun>);

impl Runs {
    /// Reads the open runs of a thread. Also returns the id up to which it was read.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn of(queue: &mut Queue) -> Result<(Runs, i64)> {
        let mut runs = Runs::default();
        // Without an agent, messages start no runs.
        let Some(cursor) = cursor(queue)? else { return Ok((runs, queue.newest()?.0)) };
        let filter = Filter::new(STATE_EVENTS, Scope::Reading)?;
        let mut selection = Selection { after: cursor, limit: None, filter };
        while queue.read_page(&mut selection, &mut |row| {
            runs.apply(&row.to_event());
            ControlFlow::Continue(())
        })? == Remaining::Some
        {}
        Ok((runs, selection.after))
    }

    /// Applies an event. Returns what it changed.
    pub fn apply(&mut self, event: &Event) -> Option<Change> {
        let (run_id, entry) = Entry::of(event);
        self.apply_entry(event, run_id.as_deref(), &entry)
    }

    /// As [`Runs::apply`], for an event that has been parsed already.
    pub fn apply_entry(&mut self, event: &Event, run_id: Option<&str>, entry: &Entry) -> Option<Change> {
        match entry {
            Entry::Message(message) => {
                let open = OpenRun {
                    run_id: run_id.unwrap_or_default().to_owned(),
                    priority: message.priority,
                    stored_at: event.created_at.clone(),
                    started: false,
                };
                self.0.insert(event.id, open);
                return Some(Change::Queued);
            }
            Entry::RunStarted { reply_to, .. } => {
                let run = self.0.get_mut(reply_to)?;
                let changed = !run.started;
                run.started = true;
                return changed.then_some(Change::Started);
            }
            // The run was interrupted, and is queued again.
            Entry::Error { retryable: true, interrupted_by: Some(_), reply_to: Some(id), .. } => {
                self.0.get_mut(id)?.started = false;
                return Some(Change::Queued);
            }
            _ => {}
        }
        self.0.remove(&entry.ends()?)?;
        Some(match entry {
            Entry::Answer { .. } => Change::Answered,
            Entry::Cancelled { .. } => Change::Cancelled,
            _ => Change::Failed,
        })
    }

    /// Removes runs that the agent has acknowledged. They end this way if its cursor is set forward by hand.
    pub fn acknowledged(&mut self, cursor: i64) {
        self.0 = self.0.split_off(&(cursor + 1));
    }

    /// The active run, with the id of its message.
    pub fn active(&self) -> Option<(i64, &OpenRun)> {
        self.0.iter().find(|(_, run)| run.started).map(|(id, run)| (*id, run))
    }

    /// The ids of messages in the order of their runs, the active one first.
    pub fn in_order(&self) -> Vec<i64> {
        let mut order: Vec<_> = self.0.iter().map(|(id, run)| (!run.started, run.priority, *id)).collect();
        order.sort_unstable();
        order.into_iter().map(|(.., id)| id).collect()
    }

    /// How many runs are ahead of a message's; `None` if that is over.
    pub fn position(&self, id: i64) -> Option<usize> {
        self.in_order().iter().position(|other| *other == id)
    }

    /// The ids of the messages whose runs have this id.
    pub fn with_id<'r>(&'r self, run_id: &'r str) -> impl Iterator<Item = i64> + 'r {
        self.0.iter().filter(move |(_, run)| run.run_id == run_id).map(|(id, _)| *id)
    }

    /// How many runs are queued.
    pub fn queued(&self) -> usize {
        self.0.values().filter(|run| !run.started).count()
    }

    /// When the oldest queued message was stored.
    pub fn oldest_queued(&self) -> Option<&str> {
        self.0.values().find(|run| !run.started).map(|run| &*run.stored_at)
    }
}

/// The cursor of the session's agent; `None` if there is no agent.
pub fn cursor(queue: &mut Queue) -> Result<Option<i64>> {
    Ok(queue.store().subscription(&agent::consumer())?.map(|subscription| subscription.last_acked_id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thread_agent::conversation::{Answer, Message, Run};

    fn stored(id: i64, event: &thread::NewEvent<'_>) -> Event {
        event.row(id, "2026-03-18T10:30:00.123Z").to_event()
    }

    fn spoken(id: i64, priority: Priority) -> Event {
        let message = Message { priority, ..Message::text("x") };
        stored(id, &message.event("external:web:main:dm:default:ada").unwrap())
    }

    fn run(reply_to: i64) -> Run {
        Run { run_id: format!("run_{reply_to}"), reply_to }
    }

    #[test]
    fn the_run_under_way_is_first_then_priorities_then_ids() {
        let mut runs = Runs::default();
        for (id, priority) in
            [(1, Priority::Next), (2, Priority::Later), (3, Priority::Next), (4, Priority::Now)]
        {
            assert_eq!(runs.apply(&spoken(id, priority)), Some(Change::Queued));
        }
        assert_eq!(runs.apply(&stored(5, &run(1).started(1))), Some(Change::Started));
        assert_eq!(runs.apply(&stored(6, &run(1).started(2))), None);
        assert_eq!(runs.in_order(), [1, 4, 3, 2]);
        assert_eq!(runs.position(3), Some(2));
        assert_eq!(runs.active().map(|(id, _)| id), Some(1));
        assert_eq!(runs.queued(), 3);
        assert_eq!(runs.with_id("run_3").collect::<Vec<_>>(), [3]);

        assert_eq!(runs.apply(&stored(7, &run(1).attempt_failed("no", None))), None);
        assert_eq!(runs.apply(&stored(8, &run(1).answer(&Answer::default()))), Some(Change::Answered));
        assert_eq!(runs.apply(&stored(9, &run(4).failed("no"))), Some(Change::Failed));
        assert_eq!(runs.apply(&stored(10, &run(3).cancelled("no"))), Some(Change::Cancelled));
        assert_eq!(runs.apply(&stored(11, &run(3).cancelled("no"))), None);
        assert_eq!((runs.in_order(), runs.active()), (vec![2], None));
        runs.acknowledged(2);
        assert_eq!(runs, Runs::default());
    }

    #[test]
    fn one_that_was_interrupted_waits_again() {
        let mut runs = Runs::default();
        runs.apply(&spoken(1, Priority::Next));
        runs.apply(&stored(2, &run(1).started(1)));
        runs.apply(&spoken(3, Priority::Now));
        assert_eq!(runs.in_order(), [1, 3]);
        runs.apply(&stored(4, &run(1).attempt_failed("interrupted", Some(3))));
        assert_eq!(runs.in_order(), [3, 1]);
    }
}
