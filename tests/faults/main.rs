//! What must hold when things go wrong: see tests/FAULTS.md. The short form runs with all the other
//! tests; `THREAD_FAULTS=long` asks for the long one.

#[allow(dead_code, reason = "the other test binary uses the rest")]
#[path = "../cli/harness.rs"]
mod harness;

mod crowd;
mod disk;
mod fuzz;
mod inject;
mod kill;
mod power;
mod rights;
