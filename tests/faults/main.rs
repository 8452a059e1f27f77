//! What must hold when things go wrong: see tests/FAULTS.md. The short form runs with all the other
//! tests; `THREAD_FAULTS=long` asks for the long one.

#[allow(dead_code, reason = "the other test binary uses the rest")]
#[path = "../cli/harness.rs"]
mod harness;
#[allow(dead_code, reason = "as above")]
#[path = "../cli/users.rs"]
mod users;

mod after_commit;
mod asks;
mod chaos;
mod crowd;
mod damage;
mod disk;
mod filters;
mod fuzz;
mod hostile;
mod inject;
mod kill;
mod namespaces;
mod notifier;
mod power;
mod preload;
mod rights;
mod shared;
mod supervise;

/// Whether the long form was asked for.
fn long() -> bool {
    std::env::var_os("THREAD_FAULTS").is_some_and(|form| form == "long")
}

/// Says aloud that something could not be tested here, although the test passes.
fn skipped(why: &str) {
    use std::io::Write;
    // Past the test runner, which keeps what a test that passes prints to itself.
    drop(std::io::stderr().write_all(format!("\n*** SKIPPED: {why} ***\n\n").as_bytes()));
}
