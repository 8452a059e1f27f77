//! Properties: what holds for every input, checked with random ones against a simple model.
//!
//! The random numbers are the same in every run, so what fails once fails again, and proptest prints
//! the smallest case it found. `THREAD_FAULTS=long` asks for ten times as many.

mod batches;
mod catalogue;
mod filters;
mod lines;
mod looks;
mod marks;
#[path = "../store/memory.rs"]
mod memory;
mod model;
mod names;
mod projection;
mod rule;
mod scans;
mod world;
