//! The thread that a command works on. In a session it stays open from one command to the next.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::failure::Result;
use crate::model::location::Location;
use crate::queue::Queue;

/// An open thread. In a session, the next command gets it.
pub struct Opened(Option<Queue>);

/// What a session keeps open.
#[derive(Default)]
struct Kept {
    is_on: bool,
    queue: Option<Queue>,
}

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { is_on: false, queue: None }) };
}

/// Keeps the thread open until the returned value is dropped.
pub fn keep() -> Keeping {
    KEPT.with_borrow_mut(|kept| kept.is_on = true);
    Keeping
}

pub struct Keeping;

impl Drop for Keeping {
    fn drop(&mut self) {
        KEPT.take();
    }
}

/// Closes the thread that is kept open; the next command opens it again.
pub fn close() {
    KEPT.with_borrow_mut(|kept| kept.queue = None);
}

impl Opened {
    /// Opens a thread, or takes the one that is open already.
    pub fn open(location: Location) -> Result<Opened> {
        let kept = KEPT.with_borrow_mut(|kept| kept.queue.take());
        let fits = |queue: &Queue| *queue.location() == location && queue.files().must_be_there().is_ok();
        Ok(Opened(Some(match kept.filter(fits) {
            Some(queue) => queue,
            None => Queue::open(location)?,
        })))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // With a server, the store keeps the connection, and what it knows of the schema has to be read again.
        let queue = self.0.take().filter(|queue| queue.location().backend().has_database_file);
        KEPT.with_borrow_mut(|kept| {
            if kept.is_on {
                kept.queue = queue;
            }
        });
    }
}

impl Deref for Opened {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        self.0.as_ref().expect("it is open")
    }
}

impl DerefMut for Opened {
    fn deref_mut(&mut self) -> &mut Queue {
        self.0.as_mut().expect("it is open")
    }
}
