//! Copying a run up to one of its steps, so that a model continues from there in another session.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::ControlFlow;

use serde_json::{Map, Value};
use thread::model::filter::Scope;
use thread::queue::{Remaining, Selection};
use thread::{Error, Event, Filter, NewEvent, Queue};
use thread_conversation::{Entry, Record, SELF, run_id_of};
use thread_sessions::{RequestError, Result};

use super::copied::{PAGE_BYTES, copy};

/// What a run has done, and what was answered to its requests.
const DONE: &str = "source = 'self' AND subtype IN ('run', 'model', 'turn_cut', 'thinking', 'token', 'toolcall', \
                    'toolresult', 'permission') OR subtype = 'permission_answer'";

/// A step of a run.
#[derive(Debug, Clone)]
pub struct Step {
    /// The message that the run answers.
    pub message: i64,
    /// The event with which the step ends.
    end: i64,
    run_id: String,
}

impl Step {
    /// The step that ends with this event: a call with its result, or a turn of a model after which calls follow.
    ///
    /// # Errors
    ///
    /// [`RequestError::BadParams`]: there is no such event, or it is no such step; errors of the thread.
    pub fn of(queue: &mut Queue, end: i64) -> Result<Step> {
        let none =
            || RequestError::BadParams(format!("event {end} is no result of a call, and no turn with calls"));
        let record = Record::of(queue.event(end)?.ok_or_else(none)?);
        let is_step = match &record.entry {
            // Of a call that a turn of the model has made: a session may have had another agent before.
            Entry::ToolResult(result) => match turn_of(&result.call_id) {
                Some((turn, _)) => queue.event(turn)?.map(Record::of).is_some_and(|turn| {
                    matches!(turn.entry, Entry::Model { .. }) && turn.run_id == record.run_id
                }),
                None => false,
            },
            Entry::Model { turn, .. } => turn.has_calls(),
            _ => false,
        };
        let run_id = record.run_id.filter(|_| is_step && record.event.source == SELF).ok_or_else(none)?;
        let condition = format!(
            "subtype = 'run' AND source = 'self' AND id < {end} AND metadata ->> 'run_id' = '{}'",
            run_id.replace('\'', "''")
        );
        let filter = Filter::new(&condition, Scope::Reading).map_err(|_| none())?;
        let began = queue.newest_matching(filter.as_ref(), end, 1)?;
        let began = began.first().map(|id| queue.event(*id)).transpose()?.flatten().map(Record::of);
        match began.map(|record| record.entry) {
            Some(Entry::RunStarted { reply_to: Some(message), .. }) => Ok(Step { message, end, run_id }),
            _ => Err(none()),
        }
    }

    /// Whether an event belongs to the run and was stored up to the end of the step. Of what came later, only the results
    /// of calls that were under way then: nobody makes these again.
    fn has(&self, record: &Record, open: &BTreeSet<String>, asked: &BTreeSet<String>) -> bool {
        let is_own = record.run_id.as_ref() == Some(&self.run_id);
        match &record.entry {
            Entry::PermissionAnswer(answer) => record.id() <= self.end && asked.contains(&answer.request_id),
            Entry::ToolResult(result) if record.id() > self.end => is_own && open.contains(&result.call_id),
            _ => is_own && record.id() <= self.end,
        }
    }

    /// Copies the message and what its run has done to a thread that has `said` events.
    ///
    /// # Errors
    ///
    /// Errors of the threads; an attachment cannot be kept.
    pub fn copy(
        &self,
        from: &mut Queue,
        said: i64,
        to: &mut Queue,
        keep: &mut dyn FnMut(&Map<String, Value>) -> io::Result<()>,
    ) -> Result<()> {
        let unknown = || RequestError::BadParams("the message of this step is no longer stored".into());
        let message = from.event(self.message)?.ok_or_else(unknown)?;
        // A message that does not name its run gives it the name of its own id, which is another one here.
        let names_run = metadata_of(&message).contains_key("run_id");
        let run_id = if names_run { self.run_id.clone() } else { run_id_of(said + 1) };
        let mut ids = HashMap::from([(message.id, said + 1)]);
        let mut copies = vec![copy(message, &HashMap::new(), false, keep)?];
        let (mut open, mut asked) = (BTreeSet::new(), BTreeSet::new());
        let mut selection =
            Selection { after: self.message, limit: None, filter: Filter::new(DONE, Scope::Reading)? };
        loop {
            let (mut page, mut size) = (Vec::new(), 0);
            let remaining = from.read_page(&mut selection, &mut |row| {
                size += row.content.len();
                page.push(row.to_event());
                if size < PAGE_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            for event in page {
                let record = Record::of(event);
                if !self.has(&record, &open, &asked) {
                    continue;
                }
                match &record.entry {
                    Entry::ToolCall(call) => drop(open.insert(call.call_id.clone())),
                    Entry::ToolResult(result) => drop(open.remove(&result.call_id)),
                    Entry::Permission(request) => drop(asked.insert(request.request_id.clone())),
                    _ => {}
                }
                ids.insert(record.id(), said + ids.len() as i64 + 1);
                copies.push(copy_of_step(record.event, &ids, &run_id)?);
            }
            to.push_all(&mut |put| put(&copies).map(drop))?;
            copies.clear();
            let is_past = selection.after >= self.end && open.is_empty();
            if remaining == Remaining::None || is_past {
                return Ok(());
            }
        }
    }
}

fn metadata_of(event: &Event) -> Map<String, Value> {
    event.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// A copy of what a run has done, for the run `run_id`. `ids` are the new ids of the events, by which its calls and their
/// requests for permission are named.
fn copy_of_step(event: Event, ids: &HashMap<i64, i64>, run_id: &str) -> Result<NewEvent<'static>> {
    let mut metadata = metadata_of(&event);
    if metadata.contains_key("run_id") {
        metadata.insert("run_id".into(), run_id.into());
    }
    if let Some(id) = metadata.get("reply_to").and_then(Value::as_i64).and_then(|id| ids.get(&id)) {
        metadata.insert("reply_to".into(), (*id).into());
    }
    let mut content = event.content;
    if let Ok(Value::Object(mut object)) = serde_json::from_str(&content) {
        let named = object.get("call_id").and_then(Value::as_str).and_then(|id| renamed(id, ids));
        let is_renamed = named.map(|id| object.insert("call_id".into(), id.into())).is_some();
        let asked = object.get("request_id").and_then(Value::as_str).and_then(|id| id.strip_prefix("perm_"));
        let asked = asked.and_then(|call| renamed(call, ids));
        let is_asked =
            asked.map(|call| object.insert("request_id".into(), format!("perm_{call}").into())).is_some();
        // It was taken there.
        let is_counted = event.subtype.as_deref() == Some("model") && object.shift_remove("usage").is_some();
        if is_renamed || is_asked || is_counted {
            content = Value::Object(object).to_string();
        }
    }
    let mut copy =
        NewEvent::new(event.source, "record", event.subtype.map(Into::into), content).map_err(Error::from)?;
    copy.metadata = (!metadata.is_empty()).then(|| Value::Object(metadata).to_string().into());
    copy.created_at = Some(event.created_at.into());
    Ok(copy)
}

/// The turn of a model that has made a call, and which of its calls it is: `call_<event id>_<number>`.
fn turn_of(call_id: &str) -> Option<(i64, &str)> {
    let (turn, number) = call_id.strip_prefix("call_")?.split_once('_')?;
    Some((turn.parse().ok()?, number))
}

/// The id of a call after its turn has got another id.
fn renamed(call_id: &str, ids: &HashMap<i64, i64>) -> Option<String> {
    let (turn, number) = turn_of(call_id)?;
    Some(format!("call_{}_{number}", ids.get(&turn)?))
}
