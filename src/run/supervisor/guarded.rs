//! That no handler, or child of one, works on beside its successor.

use std::time::Duration;

use rustix::process::Signal;

use super::Supervisor;
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::model::run::Exit;
use crate::model::subscription::Subscription;
use crate::run::guard::{Deadline, Guard};
use crate::run::handler::{REST_GRACE, Running, Terms};
use crate::run::{leftovers, process};

/// How long processes that were killed may take to disappear.
const MARGIN: Duration = Duration::from_secs(5);

impl Supervisor<'_> {
    /// What a handler is started with. With a lease, or if it is kept, it is guarded from its beginning: one that is
    /// kept ends with its supervisor, as nobody else hears it.
    pub(super) fn terms<'t>(&'t self, lock: &'t Lock, guard: &'t Guard, is_kept: bool) -> Terms<'t> {
        let epoch = self.lease.as_ref().map(|lease| lease.epoch());
        let is_guarded = is_kept || epoch.is_some();
        Terms { lock, place: None, epoch, guard: is_guarded.then(|| (guard, self.guarded_until())) }
    }

    /// When a handler is killed, so that it is gone before another machine may start one.
    fn guarded_until(&self) -> Deadline {
        self.lease.as_ref().map_or(Deadline::NEVER, |lease| {
            Deadline::after(|| lease.left().saturating_sub(lease.length() / 8))
        })
    }

    /// Tells the guard for how long the lease is renewed now. Returns false if the handler must be ended, as there is
    /// no guard and none can be started. `is_kept`: the handler is guarded without a lease, too.
    pub(super) fn keep_guarded(&self, running: &Running, guard: &Guard, is_kept: bool) -> bool {
        let epoch = self.lease.as_ref().map(|lease| lease.epoch());
        if epoch.is_none() && !is_kept {
            return true;
        }
        let kept = guard.keep(running.group(), epoch, self.guarded_until());
        let consumer = self.consumer;
        kept.inspect_err(|e| log!(self.files, Error, "dispatch: consumer={consumer} is ended: {e}")).is_ok()
    }

    /// Whether this is how a handler ends that was killed because its lease is about to end.
    pub(super) fn was_cut(&self, exit: Exit) -> bool {
        let is_over = self.lease.as_ref().is_some_and(|lease| lease.left() <= lease.length() / 8);
        is_over && exit == Exit::Signal(libc::SIGKILL)
    }

    /// Ends what is left of a run whose supervisor was killed. Its handler is no longer at work, or no longer has the
    /// lock, which this process has.
    pub(super) fn end_rest(&self, subscription: &Subscription) {
        let find = || leftovers::of_handler(self.files, subscription, |_| false);
        let left = process::end(find, Signal::TERM, REST_GRACE, REST_GRACE + MARGIN);
        for process in left {
            let (consumer, pid) = (self.consumer, process.pid);
            log!(self.files, Error, "dispatch: consumer={consumer} process {pid} cannot be ended");
        }
    }
}
