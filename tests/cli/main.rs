//! The real binary, from the outside. One file per subcommand, then what cuts across them.

mod harness;

mod init;
mod messages;
mod usage;
