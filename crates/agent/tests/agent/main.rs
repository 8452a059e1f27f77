//! The program `thread-agent`, driven as its users do: real threads, real handlers, real programs.

mod exec;
mod harness;
mod install;
mod priorities;
