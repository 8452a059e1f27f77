//! The open runs of a session, as the agent's adapter sees them: from the agent's cursor on, with its filter.

use thread::model::filter::Scope;
use thread::model::subscription::ConsumerId;
use thread::{Filter, Queue};
use thread_agent::seat::Seated;
use thread_conversation::runs::{Noted, Runs};
use thread_conversation::{CONSUMER, Record, is_ending};

use crate::error::Result;
use crate::events::for_each;

/// The events that change the state of runs.
const STATE_EVENTS: &str = "type = 'message' OR subtype IN ('run', 'toolcall', 'toolresult', 'permission', \
                            'permission_answer', 'cancel', 'error', 'cancelled')";

/// The cursor of an agent that is not there: messages begin no runs.
pub const NO_AGENT: i64 = i64::MAX;

/// What is known of the session's agent.
#[derive(Debug, Clone, Default)]
pub struct AgentView {
    /// The text of its filter, and the filter; `None` if there is no agent.
    filter: Option<(Option<String>, Option<Filter>)>,
    cursor: i64,
    /// Its command line; empty if there is no agent.
    handler: String,
}

impl AgentView {
    /// Reads the subscription of the session's agent. Returns whether the open runs have to be read again:
    /// there is another agent, or its cursor was moved back.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn update(&mut self, queue: &mut Queue) -> Result<bool> {
        let Some(subscription) = queue.find_subscription(&ConsumerId::stored(CONSUMER))? else {
            *self = AgentView { filter: None, cursor: NO_AGENT, handler: String::new() };
            return Ok(false);
        };
        let before = std::mem::replace(&mut self.cursor, subscription.last_acked_id);
        self.handler.clone_from(&subscription.handler_cmd);
        let text = subscription.filter_text().map(str::to_owned);
        if self.filter.as_ref().is_some_and(|(known, _)| *known == text) {
            return Ok(self.cursor < before);
        }
        // A filter that is broken selects nothing, and the adapter does not run.
        let nothing = || Filter::new("0", Scope::Reading);
        let filter = thread::pending::checked_filter(&subscription).or_else(|_| nothing())?;
        self.filter = Some((text, filter));
        Ok(true)
    }

    /// The filter that an event has to match to be for the agent; `None` matches every event.
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()?.1.as_ref()
    }

    /// The agent's name; `None` if it has none, or there is no agent.
    pub fn name(&self) -> Option<String> {
        Seated::of(&self.handler).seat.name
    }

    /// The agent's cursor; past all events if there is no agent.
    pub fn cursor(&self) -> i64 {
        self.cursor
    }
}

/// Reads the open runs of a session. Also returns the id up to which it was read.
///
/// # Errors
///
/// Errors of the thread.
pub fn open_runs(queue: &mut Queue) -> Result<(AgentView, Runs, i64)> {
    let mut view = AgentView::default();
    view.update(queue)?;
    let newest = queue.newest()?.0;
    let mut runs = Runs::after(view.cursor.min(newest));
    if view.cursor >= newest {
        return Ok((view, runs, newest));
    }
    let upto = for_each(queue, view.cursor, STATE_EVENTS, view.filter(), &mut |queue, event, is_pending| {
        let record = Record::of(event);
        let is_ending = is_ending(queue, record.id(), &record.entry)?;
        runs.note(Noted { record: &record, is_pending, is_ending });
        Ok(())
    })?;
    Ok((view, runs, upto))
}
