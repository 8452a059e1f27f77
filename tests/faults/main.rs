//! Fault tests: what must hold when things go wrong; see tests/FAULTS.md. The short form runs with
//! every `cargo test`; `THREAD_FAULTS=long` selects the long form.

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
mod weight;

use thread_testkit::skipped;

/// Whether the long form is selected.
fn long() -> bool {
    std::env::var_os("THREAD_FAULTS").is_some_and(|form| form == "long")
}
