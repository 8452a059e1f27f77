//! Starting, supervising and stopping handlers.
//!
//! A push ends by waking consumers (`wake`): through a notifier, by dispatching itself, or not at
//! all. `dispatch` finds the consumers that have something pending, takes each one's lock and passes it
//! to a `supervisor`, a separate process, which starts the `handler`, waits for it to end, records the
//! outcome, unlocks, and looks again.
//!
//! The caller decides which program becomes a supervisor, with a [`Launcher`].

#![expect(clippy::disallowed_types, reason = "it runs handlers")]

pub mod attend;
mod awaits;
pub mod claims;
pub mod control;
pub mod dispatch;
pub mod due;
#[cfg_attr(not(target_os = "linux"), path = "run/guard/none.rs")]
pub mod guard;
mod handler;
pub mod launcher;
mod leftovers;
pub mod notifier;
mod outcome;
mod pipes;
pub mod process;
mod push;
pub mod scope;
pub mod settle;
pub mod shutdown;
pub mod spawn;
pub mod starter;
pub mod steps;
pub mod stop;
pub mod supervisor;
pub mod timer;
mod waits;
pub mod wake;
pub mod worker;
pub mod workers;

pub use dispatch::dispatch;
#[cfg(feature = "cli")]
pub(crate) use handler::reap;
pub use launcher::{Launcher, WakeBy};
pub use push::{Finished, finish, push};
pub use wake::{Waking, wake};

#[cfg(all(test, target_os = "linux"))]
mod simulation;
