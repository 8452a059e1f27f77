//! What the agent takes, and what it may take in this conversation.

use std::ops::ControlFlow;

use thread::model::filter::{Filter, Scope};
use thread::queue::{Remaining, Selection};
use thread::{Queue, Result};

use super::Adapter;
use crate::settings::Budget;
use thread_conversation::{Entry, Record, Run, Spent, Usage};

/// The events that may say what was taken.
const SPENDING: &str =
    "source = 'self' AND (type = 'message' OR subtype IN ('error', 'cancelled', 'sub_agent'))";

/// What was taken in a thread up to an event.
///
/// # Errors
///
/// Those of the database.
pub fn spent_upto(queue: &mut Queue, upto: i64) -> Result<Spent> {
    let mut sum = Spent::default();
    let filter = Filter::new(SPENDING, Scope::Reading)?;
    let mut selection = Selection { after: 0, limit: None, filter };
    while queue.read_page(&mut selection, &mut |row| {
        if row.id > upto {
            return ControlFlow::Break(());
        }
        sum += &Record::of(row.to_event()).spent;
        ControlFlow::Continue(())
    })? == Remaining::Some
        && selection.after < upto
    {}
    Ok(sum)
}

impl Adapter {
    /// What was taken by the attempt of a run that began with the event `begun`, as far as is known; `said` is what the
    /// program has said of it. Turns of a model say it themselves, so nothing is lost with a killed adapter.
    pub(super) fn spent(&mut self, run: &Run, begun: i64, said: Option<&Spent>) -> Result<Spent> {
        let mut spent = said.cloned().unwrap_or_default();
        spent.agent.clone_from(&self.options.seat.name);
        if !self.options.protocol.remembers_by_thread() || begun == 0 {
            return Ok(spent);
        }
        let filter = Filter::new("source = 'self' AND subtype = 'model'", Scope::Reading)?;
        let mut selection = Selection { after: begun, limit: None, filter };
        while self.queue.read_page(&mut selection, &mut |row| {
            let record = Record::of(row.to_event());
            if let Entry::Model { turn, .. } = &record.entry
                && run.has(&record)
            {
                spent.usage += Usage::reported(&turn.usage);
            }
            ControlFlow::Continue(())
        })? == Remaining::Some
        {}
        Ok(spent)
    }

    /// Why no other attempt begins: the conversation has taken as much as it may.
    pub(super) fn over_budget(&self) -> Option<String> {
        let Spent { usage, cost, .. } = &self.spent_so_far;
        let (taken, budget) = match self.options.settings.budget? {
            Budget::Cost(budget) if cost.amount >= budget => (cost.to_string(), budget.to_string()),
            Budget::Tokens(budget) if usage.total() >= budget => {
                (usage.total().to_string(), format!("{budget} tokens"))
            }
            _ => return None,
        };
        Some(format!(
            "the budget of this conversation is used up: {taken} of {budget}; continue in a new conversation, or raise \
             the agent's --budget"
        ))
    }
}
