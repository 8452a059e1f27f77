//! The real binary, from the outside. One file per subcommand, then what cuts across them.

mod harness;

mod ack;
mod batch;
mod concurrency;
mod dispatch;
mod dropin;
mod errors;
mod filters;
mod info;
mod init;
mod journal;
mod notifier;
mod peek;
mod pop;
mod push;
mod subscribe;
mod unsubscribe;
mod usage;
