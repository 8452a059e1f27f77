//! What depends on where a thread is stored. Code asks for the difference that it needs, never for the kind of place.

use std::time::Duration;

/// How to treat a thread, given where it is stored: see [`Location::backend`](super::location::Location::backend).
#[derive(Debug)]
pub struct Backend {
    /// Whether the thread's folder on this machine has the database and its WAL. In a directory, they identify the
    /// thread, and each commit changes them, whichever program makes it. With a server, no file here shows a commit, so
    /// there may always have been one; the [base](crate::queue::locations) identifies the thread.
    pub has_database_file: bool,
    /// Whether events are also written to `events.jsonl`. Not with a server: its tables can be read with its own tools,
    /// and each machine that pushes would have to fetch the events of all others.
    pub has_jsonl: bool,
    /// Whether a push wakes consumers. In a directory it has to, because no daemon does. With a server, handlers run on
    /// the machines where someone runs a dispatch, not where events happen to be pushed; and a pusher may lack the
    /// right to read.
    pub wakes_on_push: bool,
    /// Whether several machines may run a consumer's handlers. In a directory, the locks of this machine are enough, and
    /// a missing program or working directory is an error. With a server, a supervisor also needs a lease, and a consumer
    /// that cannot be run here is left to other machines for a while.
    pub is_shared_by_machines: bool,
    /// Whether a supervisor that is told twice to end gives up recording the end of a run. In a directory it waits until
    /// the disk has space or the database is unlocked: no other process would record it. A server may be away for good,
    /// and another machine takes over when the lease is over.
    pub may_be_given_up: bool,
    /// Whether pushers usually run on this machine: a worker then lets them exit before it looks. With a server they
    /// mostly run elsewhere, and each look has to wait for the server anyway.
    pub is_pushed_to_here: bool,
    /// How often to look for a change that gives no notice. In a directory a look takes microseconds, with a server a
    /// round trip.
    pub poll_interval: Duration,
    /// The longest pause before a thread that cannot be used is tried again. A directory usually has to be repaired
    /// first; a server comes back by itself and should be noticed soon.
    pub longest_pause: Duration,
}

/// A directory on this machine.
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

/// A server.
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
