//! Storing what the agent's side says, come what may.
//!
//! What cannot be stored is kept and tried again, with growing waits, for as long as the thread is there.
//! What may have been stored is looked for first, so that nothing is stored twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thread::error::DatabaseErrorKind;
use thread::files::log::Level;
use thread::model::subscription::ConsumerId;
use thread::run::Launcher;
use thread::{After, Error, NewEvent, Queue, Result};

use crate::launcher::wake_others;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Stores these events in one transaction and wakes the thread's other consumers.
///
/// An event whose idempotency key belongs to another event already is left out: it has been said, by
/// whomever.
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
    // Set where they may have been stored after that event, though nobody said so.
    let (mut before, mut in_doubt) = (None, false);
    while !events.is_empty() {
        let error = match store_once(queue, &events, &mut before, in_doubt) {
            Ok(()) => break,
            Err(Error::KeyConflict { key, .. }) => {
                events.retain(|event| event.idempotency_key.as_deref() != Some(key.as_str()));
                continue;
            }
            Err(error) => error,
        };
        if !queue.files().still_there() {
            return Err(Error::Moved(queue.path().to_owned()));
        }
        in_doubt |= matches!(&error, Error::Database(e) if e.kind == DatabaseErrorKind::OutcomeUnknown);
        if wait == FIRST_WAIT {
            queue.log(Level::Warn, format_args!("agent: cannot store what it says, still trying: {error}"));
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

/// One try. In doubt, what is there is looked at first.
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
    if in_doubt && is_there(queue, after, events)? {
        return Ok(());
    }
    queue.push_all(&mut |put| put(events).map(drop)).map(drop)
}

/// Whether these events were stored, one after another, after that id.
fn is_there(queue: &mut Queue, after: After, events: &[NewEvent<'_>]) -> Result<bool> {
    let stored = queue.read(after, None)?;
    Ok(stored
        .windows(events.len())
        .any(|window| events.iter().zip(window).all(|(event, stored)| event.is_same(stored))))
}
