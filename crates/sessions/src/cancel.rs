//! Ending runs.

use thread::model::key::IdempotencyKey;
use thread::run::Launcher;
use thread::{Error, Queue};
use thread_conversation::{Entry, keys};

use crate::error::{RequestError, Result};
use crate::runs::open_runs;

/// Requests the cancellation of a run, by default of the active one. A run id under which a client continued
/// another run means that run. Returns the run's id; `None` if there is none.
///
/// # Errors
///
/// [`RequestError::UnknownRun`]; errors of the thread.
pub fn cancel(
    queue: &mut Queue,
    launcher: &Launcher,
    source: &str,
    run_id: Option<&str>,
) -> Result<Option<String>> {
    let (_, runs, _) = open_runs(queue)?;
    let run = match run_id {
        None => runs.active(),
        Some(run_id) => match runs.with_run_id(run_id).next() {
            Some(run) => Some(run),
            None => continued_by(queue, run_id)?.and_then(|message| runs.get(message)),
        },
    };
    match (run, run_id) {
        (Some(run), _) => {
            let run_id = run.run.run_id.clone();
            request_end(queue, launcher, source, &run_id)?;
            Ok(Some(run_id))
        }
        (None, Some(run_id)) => Err(RequestError::UnknownRun(run_id.to_owned())),
        (None, None) => Ok(None),
    }
}

/// Requests the end of the run of a message, if it is open.
///
/// # Errors
///
/// Errors of the thread.
pub fn cancel_run_of(queue: &mut Queue, launcher: &Launcher, source: &str, message: i64) -> Result<()> {
    let (_, runs, _) = open_runs(queue)?;
    match runs.get(message).map(|run| run.run.run_id.clone()) {
        Some(run_id) => request_end(queue, launcher, source, &run_id),
        None => Ok(()),
    }
}

fn request_end(queue: &mut Queue, launcher: &Launcher, source: &str, run_id: &str) -> Result<()> {
    let event = thread_conversation::cancel(source, run_id, "requested by a client").map_err(Error::from)?;
    thread::run::push(queue, launcher, &event)?;
    Ok(())
}

/// The idempotency key of the event with which a client continues a run under this name.
///
/// # Errors
///
/// It is too long.
pub fn continue_key(run_id: &str) -> Result<IdempotencyKey<'static>> {
    Ok(IdempotencyKey::reserved("continue", run_id).map_err(Error::from)?)
}

/// The message whose run a client continues under this name.
fn continued_by(queue: &mut Queue, run_id: &str) -> Result<Option<i64>> {
    let key = continue_key(run_id)?;
    let event = queue.id_of_key(&key)?.map(|id| queue.event(id)).transpose()?.flatten();
    let events = [event, keys::stored_before(queue, &key)?];
    Ok(events.into_iter().flatten().find_map(|event| match Entry::of(&event) {
        Entry::Continued { reply_to, .. } => Some(reply_to),
        _ => None,
    }))
}
