//! Pushing an event and waking its consumers, in one call.

use super::due::attend_to_scheduled;
use super::launcher::Launcher;
use super::wake::{Waking, wake};
use crate::error::{Error, Result};
use crate::files::log::log;
use crate::model::event::NewEvent;
use crate::queue::{PushedEvent, Queue};

/// Stores one event, brings the JSONL log up to date and wakes the consumers. Once this returns `Ok`, the
/// event survives a power cut. A failure to wake them is logged in the thread: the event is stored, and the
/// next push or dispatch wakes them.
///
/// # Errors
///
/// As [`Queue::push`].
pub fn push(queue: &mut Queue, launcher: &Launcher, event: &NewEvent<'_>) -> Result<PushedEvent> {
    let stored = queue.append_one(event, || {})?;
    if stored.scheduled.is_some() {
        if let Err(e) = attend_to_scheduled(queue, launcher) {
            log!(queue, Warn, "push: nobody attends to what is scheduled: {e}");
        }
        return Ok(stored);
    }
    let finished = finish(queue, launcher, &event.source, &mut |_| {});
    Ok(PushedEvent { log_behind: finished.log_behind, ..stored })
}

/// Result of the steps of a push after its commit.
pub struct Finished {
    /// Why the JSONL log is behind, if it is.
    pub log_behind: Option<Error>,
    pub waking: Result<Waking>,
}

/// The steps of a push after its commit, of events whose last one has this `source`: the JSONL log, then waking
/// consumers. Failures are logged. `progress` is called with the number of events written since its last call.
pub fn finish(
    queue: &mut Queue,
    launcher: &Launcher,
    source: &str,
    progress: &mut dyn FnMut(u64),
) -> Finished {
    let log_behind = queue.publish(progress);
    let waking = wake(queue, launcher, source);
    if let Err(e) = &waking {
        log!(queue, Warn, "push: consumers were not woken: {e}");
    }
    Finished { log_behind, waking }
}
