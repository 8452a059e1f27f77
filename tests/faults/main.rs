//! Faults, made on purpose: what survives when processes are killed and disks fail.
//!
//! `cargo test --test faults` is the short form; `THREAD_FAULTS=long` does all of it. What is
//! promised, how it is tested and with which figures stands in `tests/FAULTS.md`.

#[allow(dead_code)] // Shared with the other tests; these need only a part of it.
#[path = "../cli/harness.rs"]
mod harness;

mod disk;
mod inject;
mod kill;
