//! The program `thread-agent`, driven as its users do: real threads, real handlers, real programs.

mod acp;
mod exec;
mod harness;
mod install;
mod ndjson;
mod priorities;
