//! The real binary, from the outside. One file per subcommand, then what cuts across them.

mod harness;

mod ack;
mod batch;
mod concurrency;
mod dead;
mod dispatch;
mod doctor;
mod doctor_copy;
mod dropin;
mod errors;
mod exclusion;
mod filters;
mod handlers_hostile;
mod handlers_logs;
mod handlers_rule;
mod handlers_stdin;
mod handlers_stop;
mod info;
mod init;
mod journal;
mod live;
mod messages;
mod metadata;
mod notifier;
mod peek;
mod pop;
mod push;
mod repeats;
mod seek;
mod subscribe;
mod subscribe_options;
mod unsubscribe;
mod usage;
mod wakeups;
