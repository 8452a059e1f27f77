//! What differs between the places that a thread can be stored in. Code that depends on one of these differences asks
//! the method that names it, never which kind of place it is.

use std::time::Duration;

/// Where a thread is stored: see [`Location::backend`](super::location::Location::backend).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// In a directory of this machine, which has everything.
    Directory,
    /// On a server. This machine has only the thread's [base](crate::queue::locations).
    Server,
}

use Backend::{Directory, Server};

impl Backend {
    /// Whether the thread's folder here has the database and its WAL. In a directory, they identify the thread, and a
    /// commit by any program changes them. Of a server, nothing here changes with a commit, so at each look one may
    /// have happened; the base itself identifies the thread.
    pub fn has_database_file(self) -> bool {
        self == Directory
    }

    /// Whether events are also written to `events.jsonl`. A server has other means for people to read its tables, and
    /// each machine that pushes would have to fetch what the others have pushed.
    pub fn has_jsonl(self) -> bool {
        self == Directory
    }

    /// Whether a push wakes consumers. In a directory it must: nothing else runs. On a server, handlers run on the
    /// machines where somebody dispatches, not wherever somebody pushes, who need not even be allowed to read.
    pub fn wakes_on_push(self) -> bool {
        self == Directory
    }

    /// Whether several machines may run a consumer's handlers. In a directory, the locks of this machine are enough, and
    /// what a handler lacks here is an error. On a server, supervisors need a lease besides, and a consumer whose program
    /// or folder is missing here is left to other machines for a while.
    pub fn is_shared_by_machines(self) -> bool {
        self == Server
    }

    /// Whether what is to be recorded may be given up at a second request to end. A full disk or a locked database is
    /// waited for until it is usable again: nobody else would record the end of a run. A server may be away for good, and
    /// another machine takes over once the lease is over.
    pub fn may_be_given_up(self) -> bool {
        self == Server
    }

    /// Whether those who push are processes of this machine, which a worker lets finish before it looks. Pushes to a
    /// server mostly come from elsewhere, and a look waits for the server anyway.
    pub fn is_pushed_to_here(self) -> bool {
        self == Directory
    }

    /// How often to look for a change that gives no notice. A look at a directory costs microseconds, a look at a server
    /// a round trip.
    pub fn poll_interval(self) -> Duration {
        match self {
            Directory => Duration::from_millis(10),
            Server => Duration::from_millis(200),
        }
    }

    /// The longest pause before a thread that cannot be used is tried again. A directory that stays unusable has to be
    /// repaired by somebody; a server that was away comes back by itself, and is to be found soon.
    pub fn longest_pause(self) -> Duration {
        match self {
            Directory => Duration::from_secs(60),
            Server => Duration::from_secs(10),
        }
    }
}
