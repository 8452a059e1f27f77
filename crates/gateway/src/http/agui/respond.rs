//! What clients answer to a run that waits for them: requests for permission, and calls of their own tools.

use thread::{Error, Event, Queue};
use thread_agent::store::push_once;
use thread_conversation::runs::{OpenRun, Runs};
use thread_conversation::{
    ClientInput, Entry, Permission, Record, ToolCall, ToolResult, keys, result_key, result_of,
};
use thread_protocol::method::MessageRef;
use thread_sessions::cancel::continue_key;
use thread_sessions::{RequestError, Result, open_runs};

use super::input::{Input, Resume, ResumeStatus, ToolMessage, unsupported};
use super::translate::{PendingInput, Start, camel};
use crate::session::history;
use crate::session::message_ref::seq_of;
use crate::session::write::SessionWriter;

/// How many calls and requests are searched for one that a client names.
const SEARCHED: usize = 1000;

/// Stores a client's answers. Returns what its stream shows if it continues a run; `None` if it sends a new
/// message.
///
/// # Errors
///
/// The request that the client answers is unknown, or the answer was not offered; errors of the thread.
pub fn respond(to: &mut SessionWriter<'_>, input: &Input) -> Result<Option<Start>> {
    let (_, runs, _) = open_runs(to.queue)?;
    let asked = answer_requests(to, &runs, &input.resume)?;
    let (called, hands_over) = answer_calls(to, &runs, input)?;
    let shown = asked.max(called);
    if !input.goes_on() {
        return Ok(None);
    }
    let message = input.message.as_ref();
    let source = to.source();
    let SessionWriter { queue, launcher, .. } = to;
    let said = message.and_then(|message| seq_of(queue, &MessageRef::Id(message.id.clone())).ok());
    if message.is_some() && said.is_none() {
        return Ok(None);
    }
    if shown == 0 {
        let id = input.results.last().map_or("", |message| &message.tool_call_id);
        return Err(RequestError::BadParams(format!("there is no call '{id}' in this thread")));
    }
    let of = run_of(queue, shown)?.ok_or_else(|| RequestError::UnknownRun(input.run_id.clone()))?;
    let rest = if hands_over { ClientInput::default() } else { rest(queue, of, input)? };
    let key = continue_key(&input.run_id)?;
    let is_one = |event: &Event| matches!(Entry::of(event), Entry::Continued { .. });
    let before = keys::stored_before(queue, &key)?.filter(is_one);
    let event =
        thread_conversation::continued(&source, &input.run_id, of, shown, rest, key).map_err(Error::from)?;
    let stored = match before {
        Some(event) => Ok(event.id),
        None => thread::run::push(queue, launcher, &event).map(|pushed| pushed.id),
    };
    let id = match stored {
        Ok(id) => id,
        // It is asked for again.
        Err(Error::KeyConflict { id, .. }) => id,
        Err(e) => return Err(e.into()),
    };
    match queue.event(id)?.map(|event| Entry::of(&event)) {
        Some(Entry::Continued { reply_to, after }) if reply_to == of => {
            Ok(Some(Start { event: id, message: reply_to, shown: after }))
        }
        _ => Err(RequestError::KeyConflict(input.run_id.clone())),
    }
}

/// Answers requests for permission: all of them, or none if an answer is not valid. Returns the last of their
/// events; 0 if there are none.
fn answer_requests(to: &mut SessionWriter<'_>, runs: &Runs, answers: &[Resume]) -> Result<i64> {
    let requests = match answers.is_empty() {
        true => Vec::new(),
        false => newest(to.queue, "permission", i64::MAX, SEARCHED)?,
    };
    let (mut shown, mut decisions) = (0, Vec::new());
    for answer in answers {
        let found = requests.iter().find_map(|record| match &record.entry {
            Entry::Permission(asked) if asked.request_id == answer.interrupt_id => Some((record.id(), asked)),
            _ => None,
        });
        let unknown = || RequestError::UnknownPermission(answer.interrupt_id.clone());
        let (event_id, asked) = found.ok_or_else(unknown)?;
        shown = shown.max(event_id);
        decisions.extend(decide(runs, asked, answer)?.map(|decision| (asked, decision)));
    }
    for (asked, (message, choice)) in decisions {
        let Some(choice) = choice else {
            // The agent must stop.
            to.cancel_run_of(message)?;
            continue;
        };
        match to.permission(&asked.request_id, choice) {
            // Another client has just answered.
            Ok(()) | Err(RequestError::UnknownPermission(_)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(shown)
}

/// Stores the results of open calls of the client's tools. Returns the last call that the input ends with the
/// result of, 0 if there is none, and whether any result was stored.
fn answer_calls(to: &mut SessionWriter<'_>, runs: &Runs, input: &Input) -> Result<(i64, bool)> {
    // Most inputs repeat results that were given long ago.
    let waits = input.last_results > 0 || runs.iter().any(|run| !run.open_calls.is_empty());
    let calls = match waits && !input.results.is_empty() {
        true => newest(to.queue, "toolcall", i64::MAX, SEARCHED)?,
        false => Vec::new(),
    };
    let (mut shown, mut open) = (0, Vec::new());
    for (at, message) in input.results.iter().enumerate() {
        let is_it = |record: &&Record| record.shown_call_id().as_ref() == Some(&message.tool_call_id);
        let Some(record) = calls.iter().find(is_it) else { continue };
        let Entry::ToolCall(call) = &record.entry else { continue };
        if at + input.last_results >= input.results.len() {
            shown = shown.max(record.id());
        }
        let run = runs.iter().find(|run| {
            record.id() > run.last_begun
                && run.in_attempt
                && record.run_id.as_ref() == Some(&run.run.run_id)
                && run.open_calls.contains_key(&call.call_id)
        });
        open.extend(run.filter(|_| record.for_client).map(|run| (run, call, message)));
    }
    let count = open.len();
    for (at, (run, call, message)) in open.into_iter().enumerate() {
        // Handed over once, and without the tools, which are those of the message.
        let mut handed = if at + 1 == count { input.handed.clone() } else { ClientInput::default() };
        handed.0.shift_remove(ClientInput::TOOLS);
        answer_call(to, (run, call), message, handed)?;
    }
    Ok((shown, count > 0))
}

/// What the run of a message is waiting for.
///
/// # Errors
///
/// Errors of the thread.
pub fn pending_input(queue: &mut Queue, message: i64) -> Result<PendingInput> {
    let (_, runs, upto) = open_runs(queue)?;
    let Some(run) = runs.get(message) else { return Ok(PendingInput { upto, ..PendingInput::default() }) };
    let mut permissions = std::collections::HashSet::new();
    for asked in &run.open_permissions {
        let asked_at =
            queue.event(asked.event_id)?.and_then(|event| thread::model::time::parse(&event.created_at));
        let overdue = asked_at.zip(asked.wait).is_some_and(|(at, wait)| at + wait < chrono::Utc::now());
        if !overdue {
            permissions.insert(asked.request_id.clone());
        }
    }
    Ok(PendingInput { upto, permissions, calls: run.open_calls.keys().cloned().collect() })
}

/// The message whose run an event belongs to: runs follow one another.
fn run_of(queue: &mut Queue, event_id: i64) -> Result<Option<i64>> {
    let found = newest(queue, "run", event_id, 1)?;
    Ok(found.first().and_then(|record| match record.entry {
        Entry::RunStarted { reply_to, .. } => Some(reply_to.unwrap_or(record.id())),
        _ => None,
    }))
}

/// What the agent does not get with an answer to a request for permission: only what has changed since the
/// message is worth a note. The state is also what the client's changes begin with.
fn rest(queue: &mut Queue, message: i64, input: &Input) -> Result<ClientInput> {
    let given = queue.event(message)?.map(|event| Record::of(event).input()).unwrap_or_default();
    let mut rest = ClientInput::default();
    let changed = input.handed.fields().filter(|(field, value)| given.get(field) != Some(value));
    let reason = "it cannot be handed to a run that has begun";
    // The client's tools are unchanged, and its state follows the agent's.
    let noted = [ClientInput::CONTEXT, ClientInput::FORWARDED_PROPS];
    for (field, _) in changed.filter(|(field, _)| noted.contains(field)) {
        unsupported(&mut rest, camel(field), reason);
    }
    if let Some(state) = input.handed.get(ClientInput::STATE) {
        rest.0.insert(ClientInput::STATE.to_owned(), state.clone());
    }
    Ok(rest)
}

/// The newest records of a kind that the agent's side has written up to an event, the newest first. A client never
/// refers to a large event.
fn newest(queue: &mut Queue, subtype: &str, upto: i64, most: usize) -> Result<Vec<Record>> {
    let found = history::newest(queue, &format!("source = 'self' AND subtype = '{subtype}'"), upto, most)?;
    Ok(found.into_iter().map(|stored| stored.record).collect())
}

/// The message of the run that an answer is for, and what it chooses: nothing, if it refuses and the agent offers no
/// way to. `None` if another client has answered.
fn decide<'a>(
    runs: &Runs,
    asked: &'a Permission,
    answer: &'a Resume,
) -> Result<Option<(i64, Option<&'a str>)>> {
    let waits = |run: &&OpenRun| run.open_permissions.iter().any(|open| open.request_id == asked.request_id);
    let Some(run) = runs.iter().find(waits) else { return Ok(None) };
    let choice = match answer.status {
        ResumeStatus::Resolved => {
            let given = answer.payload.as_str().or_else(|| answer.payload["choice"].as_str());
            let choice = given.filter(|given| asked.choices.iter().any(|choice| choice.id == *given));
            Some(choice.ok_or_else(|| {
                let ids: Vec<&str> = asked.choices.iter().map(|choice| &*choice.id).collect();
                let what = "the payload of a resolved interrupt is {\"choice\":…}, one of";
                RequestError::BadParams(format!("{what} {}", ids.join(", ")))
            })?)
        }
        ResumeStatus::Cancelled => {
            let reject = asked.choices.iter().find(|choice| choice.is_rejection());
            reject.map(|choice| &*choice.id)
        }
    };
    Ok(Some((run.id(), choice)))
}

/// Stores the result of a call of one of the client's tools. The first one counts.
fn answer_call(
    to: &mut SessionWriter<'_>,
    (run, call): (&OpenRun, &ToolCall),
    message: &ToolMessage,
    handed: ClientInput,
) -> Result<()> {
    let outcome = match &message.error {
        Some(error) => Err(error.clone()),
        None => Ok(message.content.clone()),
    };
    let (call_id, name) = (call.call_id.clone(), call.name.clone());
    let key = result_key(&call_id).map_err(Error::from)?;
    let before = result_of(to.queue, &key, &call_id)?;
    let result =
        run.run.client_tool_result(&to.author.client, &ToolResult::new(call_id, name, outcome), handed);
    match before {
        // The key may be that of the same call in an earlier attempt, or for an earlier message.
        Some(id) if id < run.last_begun => to.push(&result),
        Some(_) => Ok(()),
        None => Ok(push_once(to.queue, to.launcher, result.keyed(key))?),
    }
}
