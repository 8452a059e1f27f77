//! Stable words for errors, so that a program need not search their text.

use std::io;

macro_rules! codes {
    ($(#[$about:meta])* pub enum $Code:ident { $($(#[$meaning:meta])* $name:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $Code {
            $($(#[$meaning])* $name,)*
        }

        impl $Code {
            /// All of them.
            pub const ALL: &[$Code] = &[$($Code::$name),*];

            /// The word that is printed.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($Code::$name => $word,)*
                }
            }
        }
    };
}

codes! {
    /// Which error it is, as the key `code` of every error in JSON. `Errors and exit codes` in SPEC.md lists them for
    /// users. A word is never given another meaning.
    pub enum Code {
        /// The command line or the environment is wrong, and no other code says how.
        Usage = "usage",
        NotAThread = "not_a_thread",
        AlreadyAThread = "already_a_thread",
        Leftovers = "leftovers",
        ForeignDatabase = "foreign_database",
        NewerSchema = "newer_schema",
        WalUnsupported = "wal_unsupported",
        PathTooLong = "path_too_long",
        ThreadMoved = "thread_moved",
        MovedTo = "moved_to",
        ImportUnfinished = "import_unfinished",
        ExportInvalid = "export_invalid",
        Unstorable = "unstorable",
        NotOwner = "not_owner",
        UnknownScheme = "unknown_scheme",
        LocationInvalid = "location_invalid",
        OnlyInDirectory = "only_in_directory",
        UnknownConsumer = "unknown_consumer",
        AlreadySubscribed = "already_subscribed",
        NoResponse = "no_response",
        LeaseLost = "lease_lost",
        EventInvalid = "event_invalid",
        FilterInvalid = "filter_invalid",
        FilterSlow = "filter_slow",
        FilterBroken = "filter_broken",
        SubscriptionBroken = "subscription_broken",
        IdempotencyConflict = "idempotency_conflict",
        KeyReserved = "key_reserved",
        UnknownEvent = "unknown_event",
        ClaimOver = "claim_over",
        UnknownSchedule = "unknown_schedule",
        UnknownStep = "unknown_step",
        NotADeadLetter = "not_a_dead_letter",
        NotRunning = "not_running",
        NotSet = "not_set",
        TimedOut = "timed_out",
        NotAnswered = "not_answered",
        DeadLetter = "dead_letter",
        Interrupted = "interrupted",
        Unhealthy = "unhealthy",
        Locked = "locked",
        DiskFull = "disk_full",
        DiskFailed = "disk_failed",
        PermissionDenied = "permission_denied",
        FileNotFound = "file_not_found",
        TooManyFiles = "too_many_files",
        Io = "io",
        DatabaseDamaged = "database_damaged",
        DatabaseMissing = "database_missing",
        DatabaseFailed = "database_failed",
        TooLarge = "too_large",
        OutOfMemory = "out_of_memory",
        OutcomeUnknown = "outcome_unknown",
        Unreachable = "unreachable",
        TlsFailed = "tls_failed",
        LogAhead = "log_ahead",
        DestinationInvalid = "destination_invalid",
        SpawnFailed = "spawn_failed",
        /// None of the others.
        Failed = "failed",
    }
}

impl Code {
    /// The code of a failed system call.
    pub fn of_io(error: &io::Error) -> Code {
        use io::ErrorKind::{NotFound, OutOfMemory, PermissionDenied, QuotaExceeded, StorageFull};
        match error.kind() {
            _ if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => Code::TooManyFiles,
            StorageFull | QuotaExceeded => Code::DiskFull,
            PermissionDenied => Code::PermissionDenied,
            NotFound => Code::FileNotFound,
            OutOfMemory => Code::OutOfMemory,
            _ => Code::Io,
        }
    }
}
