//! Fault tests: what must hold when things go wrong; see tests/FAULTS.md. The short form runs with
//! every `cargo test`; `THREAD_FAULTS=long` selects the long form.

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
mod kept;
mod kill;
mod namespaces;
mod notifier;
mod pools;
mod power;
mod retention;
mod rights;
mod shared;
mod steps;
mod supervise;
mod weight;
