//! What must hold when things go wrong: see tests/FAULTS.md. The short form runs with all the other
//! tests; `THREAD_FAULTS=long` asks for the long one.

#[path = "../cli/harness.rs"]
#[allow(dead_code, reason = "the other test binary uses the rest")]
mod harness;

mod crowd;
mod power;
mod rights;
