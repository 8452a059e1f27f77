//! What differs between the places that a thread can be stored in. Code that depends on one of these differences asks
//! for it by its name, never for the kind of place.

use std::time::Duration;

/// What to do differently in a thread, because of where it is stored.
#[derive(Debug, PartialEq, Eq)]
pub struct Backend {
    /// The thread's folder here has the database and its WAL. In a directory, they identify the thread, and a commit by
    /// any program changes them. Of a server, nothing here changes with a commit, so at each look one may have
    /// happened; the [base](crate::queue::locations) itself identifies the thread.
    pub has_database_file: bool,
    /// Events are also written to `events.jsonl`. A server has other means for people to read its tables, and each
    /// machine that pushes would have to fetch what the others have pushed.
    pub has_jsonl: bool,
    /// A push wakes consumers. In a directory it must: nothing else runs. On a server, handlers run on the machines where
    /// somebody dispatches, not wherever somebody pushes, who need not even be allowed to read.
    pub wakes_on_push: bool,
    /// Several machines may run a consumer's handlers. In a directory, the locks of this machine are enough, and what a
    /// handler lacks here is an error. On a server, supervisors need a lease besides, and a consumer whose program or
    /// folder is missing here is left to other machines for a while.
    pub is_shared_by_machines: bool,
    /// At a second request to end, a supervisor gives up what it could not record. A full disk or a locked database is
    /// waited for: nobody else would record the end of a run. A server may be away for good, and another machine takes
    /// over once the lease is over.
    pub may_be_given_up: bool,
    /// Those who push are processes of this machine, which a worker lets finish before it looks. Pushes to a server mostly
    /// come from elsewhere, and a look waits for the server anyway.
    pub is_pushed_to_here: bool,
    /// How often to look for a change that gives no notice. A look at a directory costs microseconds, one at a server a
    /// round trip.
    pub poll_interval: Duration,
    /// The longest pause before a thread that cannot be used is tried again. A directory that stays unusable has to be
    /// repaired by somebody; a server that was away comes back by itself, and is to be found soon.
    pub longest_pause: Duration,
}

/// A directory of this machine.
pub static DIRECTORY: Backend = Backend {
    has_database_file: true,
    has_jsonl: true,
    wakes_on_push: true,
    is_shared_by_machines: false,
    may_be_given_up: false,
    is_pushed_to_here: true,
    poll_interval: Duration::from_millis(10),
    longest_pause: Duration::from_secs(60),
};

/// A server, of whatever kind.
pub static SERVER: Backend = Backend {
    has_database_file: false,
    has_jsonl: false,
    wakes_on_push: false,
    is_shared_by_machines: true,
    may_be_given_up: true,
    is_pushed_to_here: false,
    poll_interval: Duration::from_millis(200),
    longest_pause: Duration::from_secs(10),
};
