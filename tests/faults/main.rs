//! What is done to a thread that nobody should do to it.

#[allow(dead_code)]
#[path = "../cli/harness.rs"]
mod harness;

mod fuzz;
