//! Storing the agent's events, with retries.
//!
//! Storing is retried with backoff until it succeeds, the thread is gone or the adapter is stopped. If it is
//! unknown whether a commit succeeded, the thread is searched for the events first, so that nothing is stored
//! twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thread::error::DatabaseErrorKind;
use thread::files::log::Level;
use thread::model::subscription::ConsumerId;
use thread::run::Launcher;
use thread::run::wake::wake_others;
use thread::{After, Error, NewEvent, Queue, Result};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Stores these events in one transaction and wakes the thread's other consumers.
///
/// An event whose idempotency key already belongs to a different event is dropped: there can be only one,
/// and another process stored it first.
///
/// # Errors
///
/// [`Error::Moved`]: the thread is gone. Any other error means that `stop` was set while the events could
/// not be stored.
pub fn store(
    queue: &mut Queue,
    (launcher, own): (&Launcher, &ConsumerId),
    mut events: Vec<NewEvent<'static>>,
    stop: &AtomicBool,
) -> Result<()> {
    let mut wait = FIRST_WAIT;
    // The newest id before the first try, and whether a try since then may have succeeded unnoticed.
    let (mut before, mut in_doubt) = (None, false);
    while !events.is_empty() {
        let error = match store_once(queue, &events, &mut before, in_doubt) {
            Ok(()) => break,
            Err(Error::KeyConflict { key, .. }) => {
                // The last of them: if two events in this batch share the key, the first one is stored.
                let has_key = |event: &NewEvent<'_>| event.idempotency_key.as_deref() == Some(key.as_str());
                if let Some(at) = events.iter().rposition(has_key) {
                    events.remove(at);
                }
                continue;
            }
            Err(error) => error,
        };
        queue.files().must_be_there()?;
        in_doubt |= matches!(&error, Error::Database(e) if e.kind == DatabaseErrorKind::OutcomeUnknown);
        if wait == FIRST_WAIT {
            queue.log(Level::Warn, format_args!("agent: cannot store events, still trying: {error}"));
        }
        if stop.load(Ordering::Relaxed) {
            return Err(error);
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
    if let Err(e) = wake_others(queue, launcher, own) {
        queue.log(Level::Warn, format_args!("wake: {e}"));
    }
    Ok(())
}

/// Tries once. `in_doubt` makes it check first whether an earlier try succeeded.
fn store_once(
    queue: &mut Queue,
    events: &[NewEvent<'static>],
    before: &mut Option<After>,
    in_doubt: bool,
) -> Result<()> {
    let after = match *before {
        Some(after) => after,
        None => *before.insert(queue.newest()?),
    };
    if in_doubt && are_stored(queue, after, events)? {
        return Ok(());
    }
    queue.push_all_unlogged(&mut |put| put(events).map(drop)).map(drop)
}

/// Whether these events are stored, consecutively, after that id.
fn are_stored(queue: &mut Queue, after: After, events: &[NewEvent<'_>]) -> Result<bool> {
    let stored = queue.read(after, None)?;
    Ok(stored
        .windows(events.len())
        .any(|window| events.iter().zip(window).all(|(event, stored)| event.is_same(stored))))
}
