//! The real binary, from the outside. One file per subcommand, then what cuts across them.

mod harness;

mod concurrency;
mod dispatch;
mod init;
mod notifier;
mod usage;
