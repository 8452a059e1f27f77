//! Drives the program `thread-mcp` over its stdin and stdout, line by line, on real threads with real agents.

mod clients;
mod harness;
mod hostile;
mod processes;
mod queue;
mod schedules;
mod sessions;
mod usage;
