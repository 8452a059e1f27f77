//! Starting, supervising and stopping handlers.
//!
//! A push ends by waking consumers (`wake`): through a notifier, by dispatching itself, or not at
//! all. `dispatch` finds out who has something pending, takes the consumer's lock and hands it to a
//! `supervisor`, a process of its own, which starts the `handler`, waits for its end, records it,
//! unlocks, and looks again.
//!
//! Nothing here decides which program becomes a supervisor: its user says so with a [`Launcher`].

pub mod control;
pub mod dispatch;
mod handler;
pub mod launcher;
pub mod notifier;
mod outcome;
pub mod process;
pub mod shutdown;
pub mod spawn;
pub mod stop;
pub mod supervisor;
pub mod wake;
pub mod worker;

pub use dispatch::dispatch;
pub use launcher::{Launcher, WakeBy};
pub use wake::{Waking, wake};
