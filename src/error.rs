//! Errors of the library, as values that a program can match on.
//!
//! The command line turns these into "what - how to fix it" and an exit code: see [`failure`](crate::failure).

mod code;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use self::code::Code;
use crate::model::closed::Closed;
use crate::model::due::ScheduledId;
use crate::model::event::InvalidEvent;
use crate::model::filter::FilterError;
use crate::model::key::InvalidKey;
use crate::model::location::Location;
use crate::model::subscription::ConsumerId;

/// Maximum length of a thread's path, in bytes. SQLite allows 511, including the suffixes of its own files.
pub const MAX_PATH: usize = 480;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a thread failed. Unless the variant says otherwise, nothing was changed. Any operation may
/// fail because of the database or the system; the documentation of each names only what else can happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory, or the location.
    #[error("{} is not a thread{}", .0.display(), lacks(.0))]
    NotAThread(PathBuf),
    #[error("{} is a thread already", .0.display())]
    AlreadyAThread(PathBuf),
    /// Parts of a thread exist without its database; a new database would be mixed up with them.
    #[error("{} exists but events.db does not", .0.display())]
    Leftovers(PathBuf),
    #[error("{} is not a thread's database", .0.display())]
    ForeignDatabase(PathBuf),
    #[error("{} has schema version {found}, newer than the {known} known here", path.display())]
    NewerSchema { path: PathBuf, found: i64, known: i64 },
    #[error("{} cannot use write-ahead logging (it stays in mode '{mode}')", path.display())]
    NoWal { path: PathBuf, mode: String },
    /// The absolute path of a thread, or the path its links resolve to, is longer than SQLite can open.
    #[error("the path {} is {length} bytes long, and SQLite takes no more than {MAX_PATH}", path.display())]
    PathTooLong { path: PathBuf, length: usize },
    /// The thread that was opened is no longer there.
    #[error("{0} was moved or removed")]
    Moved(Location),
    /// The thread was moved to this location. It can only be read.
    #[error("this thread was moved to {0}, and can only be read")]
    MovedTo(String),
    /// An import into the thread is not complete. It can only be read.
    #[error("an import into this thread is not complete, and it can only be read")]
    ImportUnfinished,
    /// A line of an export, counted from 1. Nothing was stored.
    #[error("line {line} of the export {problem}")]
    InvalidExport { line: u64, problem: String },
    /// Rows that the thread to which they are moved cannot store; the first ones, each with the reason.
    #[error("{count} of the rows cannot be stored there: {}", .examples.join("; "))]
    Unstorable { count: u64, examples: Vec<String> },
    /// Rows are imported only into an empty thread.
    #[error("{0} is not empty; nothing was changed")]
    NotEmpty(Location),
    /// Only the owner of a thread may start or stop its handlers.
    #[error("{0} belongs to another user")]
    NotOwner(Location),
    /// Threads in such locations need another program: `thread-<scheme>`.
    #[error("this program does not know locations that begin with {0}://")]
    UnknownScheme(String),
    /// The operation exists only for a thread in a directory.
    #[error("{0} is for threads in directories")]
    OnlyInDirectory(&'static str),
    #[error("no consumer '{0}' is subscribed")]
    UnknownConsumer(ConsumerId),
    /// The processes of a consumer are on another machine or in another PID namespace, and no supervisor there
    /// responded to a request.
    #[error("'{0}' runs elsewhere (on another machine or in a container), which did not respond")]
    NotHeard(ConsumerId),
    /// The supervisor of a consumer is alive but did not respond to a request, and its run cannot be ended without it.
    #[error("the supervisor of '{consumer}' (process {supervisor}) is alive but did not respond")]
    Unresponsive { consumer: ConsumerId, supervisor: u32 },
    /// A process of a run was killed, and is still there.
    #[error("process {process} of '{consumer}' was killed and has not ended")]
    NotEnded { consumer: ConsumerId, process: u32 },
    /// Another machine now has the lease of the consumer's runs.
    #[error("another machine has taken over the runs of '{0}'; nothing was changed")]
    Fenced(ConsumerId),
    #[error("the consumer '{0}' is subscribed already; nothing was changed")]
    AlreadySubscribed(ConsumerId),
    /// It is finished, is not stored, or does not match the consumer's filter.
    #[error("event {id} is not pending for '{consumer}'")]
    NotPending { consumer: ConsumerId, id: i64 },
    /// It is not stored, or does not match the consumer's filter.
    #[error("event {id} is not one of the events of '{consumer}'")]
    NotItsEvent { consumer: ConsumerId, id: i64 },
    #[error("event {id} is still pending for '{consumer}', which gets it in any case")]
    StillPending { consumer: ConsumerId, id: i64 },
    /// It takes its events by itself, from the first one that is unfinished.
    #[error("the consumer '{0}' pops for itself, so nothing can be delivered to it again")]
    PopsForItself(ConsumerId),
    /// Nobody has taken it, or the claim that was shown is over.
    #[error("that claim of event {id} is over; nothing was changed")]
    ClaimOver { id: i64 },
    /// A step of that name, which is done or waits, consists of other words.
    #[error("the step '{name}' of event {id} is another one: {kind} {words}")]
    OtherStep { name: String, id: i64, kind: &'static str, words: String },
    /// Another run has begun the step since, or it was removed; what this one did is not kept.
    #[error(
        "the step '{name}' of event {id} was begun by another run since, or forgotten; its output was not stored"
    )]
    StepOver { name: String, id: i64 },
    #[error("there is no step '{name}' of event {id}")]
    UnknownStep { name: String, id: i64 },
    /// Its events are not taken one by one, each for a time.
    #[error("no events are taken from '{0}' by claims")]
    NoClaims(ConsumerId),
    #[error("the event {0}")]
    InvalidEvent(#[from] InvalidEvent),
    /// A line of a batch, counted from 1. Nothing of the batch was stored.
    #[error("line {line} of the batch {problem}")]
    InvalidLine { line: u64, problem: InvalidEvent },
    #[error("the filter {0}")]
    InvalidFilter(String),
    /// Time ran out while the filter was evaluated on the first event after this one.
    #[error("the filter takes too long on the event after {after}")]
    SlowFilter { after: i64 },
    /// The filter stored with a subscription is not valid.
    #[error("the filter of '{consumer}' {problem}")]
    BrokenFilter { consumer: ConsumerId, problem: String },
    /// The handler of a subscription cannot be started: its command is empty or its directory gone.
    #[error("{0}")]
    BrokenSubscription(String),
    #[error("the idempotency key '{key}' belongs to event {id}, which is different")]
    KeyConflict { key: String, id: i64 },
    #[error("the idempotency key '{key}' belongs to the scheduled event {id}, which is different")]
    ScheduledKeyConflict { key: String, id: ScheduledId },
    /// Only the programs make keys that begin with `thread:`.
    #[error("the idempotency key '{0}' is reserved")]
    ReservedKey(String),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error("cannot {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// The sealed JSONL files end with an event that the table lacks, or for which it has a different one.
    #[error(
        "the sealed JSONL files end with event {0}, which the table lacks or has differently: an older events.db was restored"
    )]
    LogAhead(i64),
    /// The target of a backup exists and is not an empty directory.
    #[error("{} exists and is not an empty directory", .0.display())]
    Occupied(PathBuf),
    /// The target of a backup is inside the thread itself.
    #[error("{} is inside the thread", .0.display())]
    InsideThread(PathBuf),
    /// Another process has held a lock for too long.
    #[error("another process has been holding {} for too long", .0.display())]
    LockTimeout(PathBuf),
    /// This process, or the whole system, has as many files open as it may. Says what could not be done.
    #[error("too many open files ({0})")]
    TooManyFiles(String),
    #[error("cannot start {what}: {source}")]
    Spawn { what: &'static str, source: io::Error },
    /// A failure of another location than a directory, which knows best how to fix it.
    #[error("{what}")]
    Advised { code: Code, what: String, advice: String },
    /// Any other failure, as a complete sentence.
    #[error("{0}")]
    Other(String),
}

/// What a directory that is not a thread lacks.
fn lacks(path: &Path) -> &'static str {
    if Location::from(path).backend().has_database_file { " (it has no events.db)" } else { "" }
}

impl Error {
    /// Whether another program kept the database locked for too long. Nothing was changed; the caller may try
    /// again at once.
    pub fn is_locked(&self) -> bool {
        matches!(self, Error::Database(e) if e.kind == DatabaseErrorKind::Locked)
    }

    /// Which error it is, for programs.
    pub fn code(&self) -> Code {
        match self {
            Error::NotAThread(_) => Code::NotAThread,
            Error::AlreadyAThread(_) => Code::AlreadyAThread,
            Error::Leftovers(_) => Code::Leftovers,
            Error::ForeignDatabase(_) => Code::ForeignDatabase,
            Error::NewerSchema { .. } => Code::NewerSchema,
            Error::NoWal { .. } => Code::WalUnsupported,
            Error::PathTooLong { .. } => Code::PathTooLong,
            Error::Moved(_) => Code::ThreadMoved,
            Error::MovedTo(_) => Code::MovedTo,
            Error::ImportUnfinished => Code::ImportUnfinished,
            Error::InvalidExport { .. } => Code::ExportInvalid,
            Error::Unstorable { .. } => Code::Unstorable,
            Error::NotEmpty(_) => Code::DestinationInvalid,
            Error::NotOwner(_) => Code::NotOwner,
            Error::UnknownScheme(_) => Code::UnknownScheme,
            Error::OnlyInDirectory(_) => Code::OnlyInDirectory,
            Error::UnknownConsumer(_) => Code::UnknownConsumer,
            Error::NotHeard(_) | Error::Unresponsive { .. } | Error::NotEnded { .. } => Code::NoResponse,
            Error::Fenced(_) => Code::LeaseLost,
            Error::AlreadySubscribed(_) => Code::AlreadySubscribed,
            Error::InvalidEvent(_) | Error::InvalidLine { .. } => Code::EventInvalid,
            Error::NotPending { .. } | Error::NotItsEvent { .. } | Error::StillPending { .. } => {
                Code::UnknownEvent
            }
            Error::PopsForItself(_) => Code::Failed,
            Error::ClaimOver { .. } | Error::StepOver { .. } => Code::ClaimOver,
            Error::OtherStep { .. } => Code::Usage,
            Error::UnknownStep { .. } => Code::UnknownStep,
            Error::NoClaims(_) => Code::Failed,
            Error::InvalidFilter(_) => Code::FilterInvalid,
            Error::SlowFilter { .. } => Code::FilterSlow,
            Error::BrokenFilter { .. } => Code::FilterBroken,
            Error::BrokenSubscription(_) => Code::SubscriptionBroken,
            Error::KeyConflict { .. } | Error::ScheduledKeyConflict { .. } => Code::IdempotencyConflict,
            Error::ReservedKey(_) => Code::KeyReserved,
            Error::TooManyFiles(_) => Code::TooManyFiles,
            Error::Database(e) => e.kind.code(),
            Error::Io { source, .. } => Code::of_io(source),
            Error::LogAhead(_) => Code::LogAhead,
            Error::Occupied(_) | Error::InsideThread(_) => Code::DestinationInvalid,
            Error::LockTimeout(_) => Code::Locked,
            Error::Spawn { .. } => Code::SpawnFailed,
            Error::Advised { code, .. } => *code,
            Error::Other(_) => Code::Failed,
        }
    }

    /// Whether the failure may be temporary, so that a retry is worthwhile.
    pub fn may_pass(&self) -> bool {
        match self {
            Error::Database(e) => e.kind.may_pass(),
            Error::Io { source, .. } => {
                use io::ErrorKind::{OutOfMemory, QuotaExceeded, StorageFull, WouldBlock};
                matches!(source.kind(), StorageFull | QuotaExceeded | OutOfMemory | WouldBlock)
            }
            Error::TooManyFiles(_) => true,
            // Everything else means too many processes or too little memory.
            Error::Spawn { source, .. } => {
                !matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
            }
            _ => false,
        }
    }
}

impl From<Closed> for Error {
    fn from(closed: Closed) -> Error {
        match closed {
            Closed::Moved { to } => Error::MovedTo(to),
            Closed::Importing { .. } => Error::ImportUnfinished,
        }
    }
}

impl From<InvalidKey> for Error {
    fn from(problem: InvalidKey) -> Error {
        match problem {
            InvalidKey::Reserved(key) => Error::ReservedKey(key),
            problem => Error::InvalidEvent(problem.into()),
        }
    }
}

impl From<FilterError> for Error {
    fn from(problem: FilterError) -> Error {
        match problem {
            FilterError::Invalid(problem) => Error::InvalidFilter(problem),
            FilterError::OutOfMemory => database(DatabaseErrorKind::OutOfMemory, "checking a filter", ""),
        }
    }
}

/// Kinds of database failure, classified by what can be done about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatabaseErrorKind {
    /// Another program kept the database locked for longer than the limit: a minute, or what
    /// [`Queue::open_waiting`](crate::Queue::open_waiting) was given. Nothing was changed.
    Locked,
    Full,
    /// There is no room for `events.db-shm`.
    NoRoom,
    /// A write to the disk failed.
    Write,
    ReadOnly,
    Permission,
    /// The server has no database of that name.
    Missing,
    Damaged,
    TooLarge,
    OutOfMemory,
    /// A sync or a commit failed; whether the change is durable is unknown.
    OutcomeUnknown,
    /// There is no connection to the server of the database. Nothing was changed.
    Unreachable,
    Other,
}

impl DatabaseErrorKind {
    fn code(self) -> Code {
        match self {
            DatabaseErrorKind::Locked => Code::Locked,
            DatabaseErrorKind::Full | DatabaseErrorKind::NoRoom => Code::DiskFull,
            DatabaseErrorKind::Write => Code::DiskFailed,
            DatabaseErrorKind::ReadOnly | DatabaseErrorKind::Permission => Code::PermissionDenied,
            DatabaseErrorKind::Missing => Code::DatabaseMissing,
            DatabaseErrorKind::Damaged => Code::DatabaseDamaged,
            DatabaseErrorKind::TooLarge => Code::TooLarge,
            DatabaseErrorKind::OutOfMemory => Code::OutOfMemory,
            DatabaseErrorKind::OutcomeUnknown => Code::OutcomeUnknown,
            DatabaseErrorKind::Unreachable => Code::Unreachable,
            DatabaseErrorKind::Other => Code::DatabaseFailed,
        }
    }

    fn may_pass(self) -> bool {
        use DatabaseErrorKind::{Full, Locked, NoRoom, OutOfMemory, OutcomeUnknown, Unreachable, Write};
        matches!(self, Full | Locked | NoRoom | OutOfMemory | OutcomeUnknown | Unreachable | Write)
    }
}

/// A failure of the database.
#[derive(Debug, Clone)]
pub struct DatabaseError {
    pub kind: DatabaseErrorKind,
    /// Completes "while …".
    pub doing: &'static str,
    /// The database's own message.
    pub message: String,
    /// How to fix it, if that depends on the database.
    pub advice: Option<&'static str>,
}

/// A failure of the database that its kind says how to fix.
pub(crate) fn database(kind: DatabaseErrorKind, doing: &'static str, message: impl fmt::Display) -> Error {
    DatabaseError { kind, doing, message: message.to_string(), advice: None }.into()
}

impl std::error::Error for DatabaseError {}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use DatabaseErrorKind::*;
        let DatabaseError { kind, doing, message, .. } = self;
        f.write_str(&match kind {
            Locked => format!("the database stayed locked too long while {doing}; nothing was changed"),
            Full => format!("the disk is full while {doing}; nothing was changed"),
            NoRoom => format!("there is no room for events.db-shm while {doing} ({message})"),
            Write => format!("the disk failed to write while {doing}; nothing was changed ({message})"),
            ReadOnly => format!("no permission for the database while {doing}; nothing was changed"),
            Permission => format!("no permission for the database while {doing}: {message}"),
            Missing => format!("the database is missing, seen while {doing}: {message}"),
            Damaged => format!("the database is damaged or not a database ({message}), seen while {doing}"),
            TooLarge => {
                format!("the event is larger than the database can store while {doing}; nothing was changed")
            }
            OutOfMemory => format!("memory ran out while {doing}"),
            OutcomeUnknown => {
                format!("the database failed while {doing}, so whether it was stored is unknown ({message})")
            }
            Unreachable => format!("the database cannot be reached while {doing}: {message}"),
            Other => format!("the database failed while {doing}: {message}"),
        })
    }
}

/// Whether a system call failed because too many files are open.
pub fn is_too_many_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// What a system call on a path returned.
pub trait IoContext<T> {
    /// Adds the operation and the path to an error. `doing` completes "cannot …".
    fn at(self, doing: &'static str, path: &Path) -> Result<T>;

    /// `None` if there is nothing at that path.
    fn if_there(self) -> io::Result<Option<T>>;
}

impl<T, E: Into<io::Error>> IoContext<T> for std::result::Result<T, E> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| match source.into() {
            source if is_too_many_files(&source) => {
                Error::TooManyFiles(format!("cannot {doing} {}", path.display()))
            }
            source => Error::Io { doing, path: path.to_owned(), source },
        })
    }

    fn if_there(self) -> io::Result<Option<T>> {
        match self.map_err(Into::into) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            done => done.map(Some),
        }
    }
}
