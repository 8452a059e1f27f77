//! The list of sessions: title, last message, number of messages.
//!
//! A list is sorted by file times alone; only the sessions on the requested page are opened. A summary is
//! cached with the state of the session's log. When that has changed, reading continues where it stopped.
//! The cache can be lost at any time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use thread::Queue;
use thread_conversation::{AgentOptions, Entry, Fork, Record, Spent, is_ending};
use thread_protocol::Content;
use thread_protocol::method::{ForkedFrom, SessionList, SessionState, SessionSummary};

use crate::error::Result;
use crate::events::for_each;
use crate::excerpt::{self, beginning};
use crate::root::{Listed, Root};
use crate::runs::open_runs;
use crate::session_id::SessionId;

/// Longest title made from a message, and longest excerpt of a last message, in characters.
const TITLE: usize = 60;
const LAST: usize = 200;

/// How many choices are remembered that the agent has not taken yet.
const CHOICES: usize = 200;

/// How many summaries are cached before the cache is cleared.
const MAX_CACHED: usize = 20_000;

#[derive(Default)]
pub struct Catalogue(Mutex<HashMap<SessionId, (Stamp, Summary)>>);

/// Time and size of a log when its session was read.
type Stamp = (SystemTime, u64);

/// A session's entry in a list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// The id up to which the thread has been read.
    upto: i64,
    given: Option<String>,
    first: Option<String>,
    pub last: Option<String>,
    pub messages: u64,
    /// If it is a copy, of what.
    pub forked_from: Option<ForkedFrom>,
    /// The name of its agent.
    pub agent: Option<String>,
    /// What its runs have taken.
    pub spent: Spent,
    /// What its newest run needs or does, and since when.
    pub state: Option<SessionState>,
    pub since: Option<String>,
    /// The newest event with the options of its agent, and those of choices after it.
    options_at: Option<i64>,
    chosen_at: Vec<i64>,
    /// The last run that ended has failed, and there is no message since.
    failed: bool,
}

impl Summary {
    /// The title that was set, or the beginning of the first message.
    pub fn title(&self) -> String {
        self.given.clone().or_else(|| self.first.clone()).unwrap_or_default()
    }

    /// Updates the summary with the thread's new events.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn update(&mut self, queue: &mut Queue) -> Result<()> {
        let condition = "type = 'message' OR subtype IN ('title', 'forked', 'error', 'cancelled', 'sub_agent', \
                         'agent', 'options', 'option')";
        let mut failure = None;
        self.upto = for_each(queue, self.upto, condition, None, &mut |_, event, _| {
            let record = Record::of(event);
            self.spent += &record.spent;
            let event = record.event;
            match record.entry {
                Entry::Title(title) => {
                    self.given = Some(beginning(&title, excerpt::TITLE)).filter(|title| !title.is_empty())
                }
                // What a client has brought is a copy of no session.
                Entry::Forked(Fork { session_id, .. }) if session_id.is_empty() => {}
                Entry::Forked(Fork { session_id, title, before }) => {
                    self.forked_from = Some(ForkedFrom { session_id, title, before, seq: event.id });
                }
                Entry::Options(_) => (self.options_at, self.chosen_at) = (Some(event.id), Vec::new()),
                Entry::OptionChosen(_) => {
                    self.chosen_at.push(event.id);
                    let surplus = self.chosen_at.len().saturating_sub(CHOICES);
                    self.chosen_at.drain(..surplus);
                }
                // Another agent has none until it says so.
                Entry::Moved(_) => (self.options_at, self.chosen_at) = (None, Vec::new()),
                entry @ Entry::Error { .. } => failure = Some((event.id, entry)),
                Entry::Message(_) | Entry::Answer { .. } => {
                    (self.failed, failure) = (false, None);
                    self.messages += 1;
                    let text = Content::stored(&event.content).text();
                    self.first.get_or_insert_with(|| beginning(&text, TITLE));
                    self.last = Some(beginning(&text, LAST));
                }
                _ => {}
            }
            Ok(())
        })?;
        if let Some((id, entry)) = failure {
            self.failed = is_ending(queue, id, &entry)?;
        }
        let (agent, runs, _) = open_runs(queue)?;
        self.agent = agent.name();
        let asks = runs.iter().any(|run| !run.open_permissions.is_empty());
        let waits = || runs.iter().next().map(|run| run.created_at.clone());
        (self.state, self.since) = match runs.active() {
            Some(run) if asks => (Some(SessionState::Asks), run.since.clone()),
            Some(run) => (Some(SessionState::Running), run.since.clone()),
            None if waits().is_some() => (Some(SessionState::Waiting), waits()),
            None => (self.failed.then_some(SessionState::Failed), None),
        };
        Ok(())
    }
}

impl Summary {
    /// What can be chosen at the agent of its session, as it was said and chosen up to then.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn options(&self, queue: &mut Queue) -> Result<AgentOptions> {
        let mut options = AgentOptions::default();
        for id in self.options_at.iter().chain(&self.chosen_at) {
            match queue.event(*id)?.as_ref().map(Entry::of) {
                Some(Entry::Options(said)) => options = said,
                Some(Entry::OptionChosen(chosen)) => options.choose(&chosen),
                // It was pruned.
                _ => {}
            }
        }
        Ok(options)
    }
}

impl Catalogue {
    /// The summary of a session; from the cache if its log has not changed.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn summary(&self, root: &Root, listed: &Listed) -> Result<Summary> {
        self.summary_by(listed, |summary| summary.update(&mut root.queue(listed.id)?))
    }

    /// Like [`Catalogue::summary`], of a session that is open already.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub fn summary_of(&self, queue: &mut Queue, listed: &Listed) -> Result<Summary> {
        self.summary_by(listed, |summary| summary.update(queue))
    }

    fn summary_by(
        &self,
        listed: &Listed,
        update: impl FnOnce(&mut Summary) -> Result<()>,
    ) -> Result<Summary> {
        let stamp = (listed.active, listed.size);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&listed.id).cloned();
        let mut summary = match known {
            Some((then, summary)) if then == stamp => return Ok(summary),
            Some((_, summary)) => summary,
            None => Summary::default(),
        };
        update(&mut summary)?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_CACHED {
            all.clear();
        }
        all.insert(listed.id, (stamp, summary.clone()));
        Ok(summary)
    }

    pub fn forget(&self, id: SessionId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// A page of the list, as `sessions.list` returns it.
    ///
    /// # Errors
    ///
    /// The root cannot be read. A session that cannot be read is listed without its contents.
    pub fn page(&self, root: &Root, offset: usize, limit: usize) -> Result<SessionList> {
        let entries = entries(root)?;
        let page = entries.iter().skip(offset).take(limit);
        let sessions =
            page.map(|listed| list_entry(listed, &self.summary(root, listed).unwrap_or_default())).collect();
        Ok(SessionList { sessions, total: entries.len() as u64, truncated: false })
    }
}

/// Checks that the root can be read.
///
/// # Errors
///
/// The root cannot be read.
pub fn readable(root: &Root) -> Result<()> {
    std::fs::read_dir(root.dir()).map(drop).map_err(|e| root.failed(e))
}

/// All sessions, most recently active first.
pub fn entries(root: &Root) -> Result<Vec<Listed>> {
    root.entries().map_err(|e| root.failed(e))
}

pub fn list_entry(listed: &Listed, summary: &Summary) -> SessionSummary {
    SessionSummary {
        id: listed.id.to_string(),
        title: summary.title(),
        last_message: summary.last.clone(),
        last_activity: thread::model::time::format(listed.active.into()),
        message_count: summary.messages,
        state: summary.state.clone(),
        since: summary.since.clone(),
        forked_from: summary.forked_from.clone(),
        agent: summary.agent.clone(),
        matched: None,
        match_seq: None,
    }
}
