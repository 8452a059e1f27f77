//! Storing the agent's events, with retries.
//!
//! Storing is retried with backoff until it succeeds, the thread is gone or the adapter is stopped. If it is
//! unknown whether a commit succeeded, the thread is searched for the events first, so that nothing is stored
//! twice.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thread::error::DatabaseErrorKind;
use thread::files::log::Level;
use thread::model::exponential_backoff::ExponentialBackoff;
use thread::model::subscription::ConsumerId;
use thread::queue::{Remaining, Selection};
use thread::run::wake::wake_others;
use thread::run::{Launcher, push};
use thread::{After, Error, NewEvent, Queue, Result};

use thread_conversation::keys::{instead, stands_for, stored_before};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Stores these events in one transaction and wakes the thread's other consumers.
///
/// An event whose idempotency key belongs to one that [stands for](stands_for) it is dropped: there can be only one,
/// and another process stored it first. If the key belongs to something else, the event is stored as [`instead`] says.
///
/// # Errors
///
/// [`Error::Moved`]: the thread is gone. [`Error::MovedTo`]: it is elsewhere. [`Error::KeyConflict`]: there is no key
/// under which an event can be stored. Any other error means that `stop` was set while the events could not be stored.
pub fn store(
    queue: &mut Queue,
    (launcher, own): (&Launcher, &ConsumerId),
    mut events: Vec<NewEvent<'static>>,
    stop: &AtomicBool,
) -> Result<()> {
    let mut backoff = ExponentialBackoff::new(FIRST_WAIT, LONGEST_WAIT);
    // The newest id before the first try, and whether a try since then may have succeeded unnoticed.
    let (mut before, mut in_doubt) = (None, false);
    while !events.is_empty() {
        let error = match store_once(queue, &events, &mut before, in_doubt) {
            Ok(()) => break,
            Err(Error::KeyConflict { key, id }) => match resolve(queue, &mut events, &key, id) {
                Ok(()) => continue,
                Err(error @ Error::KeyConflict { .. }) => return Err(error),
                Err(error) => error,
            },
            // The thread was moved: that does not pass.
            Err(error @ (Error::MovedTo(_) | Error::ImportUnfinished)) => return Err(error),
            Err(error) => error,
        };
        queue.files().must_be_there()?;
        in_doubt |= matches!(&error, Error::Database(e) if e.kind == DatabaseErrorKind::OutcomeUnknown);
        if backoff.is_first() {
            queue.log(Level::Warn, format_args!("agent: cannot store events, still trying: {error}"));
        }
        if stop.load(Ordering::Relaxed) {
            return Err(error);
        }
        std::thread::sleep(backoff.pause());
    }
    if let Err(e) = wake_others(queue, launcher, own) {
        queue.log(Level::Warn, format_args!("wake: {e}"));
    }
    Ok(())
}

/// Drops or changes the event whose key belongs to event `id`.
fn resolve(queue: &mut Queue, events: &mut Vec<NewEvent<'static>>, key: &str, id: i64) -> Result<()> {
    let has_key = |event: &NewEvent<'_>| event.idempotency_key.as_deref() == Some(key);
    let Some(at) = events.iter().rposition(has_key) else { return Ok(()) };
    // If two events share the key, the first one is stored.
    if events[..at].iter().any(has_key) {
        events.remove(at);
        return Ok(());
    }
    // Without one, the key is free again.
    let Some(holder) = queue.event(id)? else { return Ok(()) };
    match instead(events[at].clone(), &holder)? {
        None => drop(events.remove(at)),
        Some(event) => {
            warn_of_taken(queue, key, id);
            events[at] = event;
        }
    }
    Ok(())
}

/// Stores an event of the programs that has a key, wherever that is done several times, and wakes the consumers. Its
/// key may belong to another event, as in [`store`].
///
/// # Errors
///
/// [`Error::KeyConflict`]: there is no key under which it can be stored; those of the database.
pub fn push_once(queue: &mut Queue, launcher: &Launcher, event: NewEvent<'static>) -> Result<()> {
    if let Some(key) = &event.idempotency_key
        && stored_before(queue, key)?.is_some_and(|stored| stands_for(&stored, &event))
    {
        return Ok(());
    }
    let (key, id) = match push(queue, launcher, &event) {
        Err(Error::KeyConflict { key, id }) => (key, id),
        pushed => return pushed.map(drop),
    };
    let Some(holder) = queue.event(id)? else { return push(queue, launcher, &event).map(drop) };
    let Some(event) = instead(event, &holder)? else { return Ok(()) };
    warn_of_taken(queue, &key, id);
    match push(queue, launcher, &event) {
        Err(Error::KeyConflict { key, id }) => match queue.event(id)? {
            Some(holder) if stands_for(&holder, &event) => Ok(()),
            _ => Err(Error::KeyConflict { key, id }),
        },
        pushed => pushed.map(drop),
    }
}

/// Keeps retention from deleting this event and all after it, because they are an agent's memory. What is held already is
/// never more: if less is to be kept, somebody said so. A failure is only logged.
pub fn keep_from(queue: &mut Queue, holder: &str, first: i64) {
    let kept = match queue.hold(holder) {
        Ok(Some(now)) if now >= first => return,
        Ok(_) => queue.set_hold(holder, Some(first)),
        Err(e) => Err(e),
    };
    if let Err(e) = kept {
        queue.log(Level::Warn, format_args!("agent: retention may delete what '{holder}' needs: {e}"));
    }
}

fn warn_of_taken(queue: &Queue, key: &str, id: i64) {
    let what =
        format_args!("agent: the idempotency key '{key}' belongs to event {id}, which is something else");
    queue.log(Level::Warn, what);
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
    queue.append(&mut |put| put(events).map(drop))?;
    // Whether or not the JSONL log is up to date, they are stored.
    queue.publish(&mut |_| {});
    Ok(())
}

/// Whether these events are stored, consecutively, after that id.
fn are_stored(queue: &mut Queue, after: After, events: &[NewEvent<'_>]) -> Result<bool> {
    // What others stored in the meantime may be much: no more of it is kept than can be these events.
    let (mut newest, mut found, mut selection) = (VecDeque::new(), false, Selection::from(after));
    loop {
        let remaining = queue.read_page(&mut selection, &mut |row| {
            if newest.len() == events.len() {
                newest.pop_front();
            }
            newest.push_back(row.to_event());
            let is_same = || events.iter().zip(&newest).all(|(event, stored)| event.is_same(stored));
            found = newest.len() == events.len() && is_same();
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if found || remaining == Remaining::None {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_after_whatever_others_have_stored() {
        let dir = tempfile::tempdir().unwrap();
        Queue::init(dir.path()).unwrap();
        let mut queue = Queue::open(dir.path()).unwrap();
        let event = |content: &str| NewEvent::message("self", content.to_owned()).unwrap();
        let own = [event("a"), event("b")];
        let others = [vec![event("x"); 1500], vec![event("a"), event("x"), event("b"), event("a")]].concat();
        queue.push_all(&mut |put| put(&others).map(drop)).unwrap();
        assert!(!are_stored(&mut queue, After(0), &own).unwrap());
        queue.push_all(&mut |put| put(&[event("b"), event("x")]).map(drop)).unwrap();
        assert!(are_stored(&mut queue, After(0), &own).unwrap());
        assert!(!are_stored(&mut queue, After(1504), &own).unwrap());
    }
}
