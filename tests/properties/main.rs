//! Property tests: random inputs, compared with a simple model.
//!
//! The random seed is fixed, so failures are reproducible, and proptest prints the smallest failing case it
//! found. `THREAD_FAULTS=long` runs ten times as many cases.

mod batches;
mod catalogue;
mod filters;
mod lines;
mod looks;
mod marks;
mod model;
mod names;
mod projection;
mod rule;
mod scans;
mod singly;
mod world;
