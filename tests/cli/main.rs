//! The real binary, from the outside. One file per subcommand, then what cuts across them.

mod harness;

mod dead;
mod exclusion;
mod handlers_hostile;
mod handlers_logs;
mod handlers_rule;
mod handlers_stdin;
mod handlers_stop;
mod init;
mod subscribe_options;
mod wakeups;
