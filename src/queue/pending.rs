//! What is pending for a consumer, and the events on which its filter fails.

use std::time::Instant;

use super::Queue;
use crate::error::Result;
use crate::files::log::{self, log};
use crate::model::subscription::Subscription;
use crate::pending::{self, PendingScan};
use crate::store::FilterFailure;

/// Only the first few failures are logged, so that a filter that fails on everything does not fill the log.
const SHOWN: usize = 10;

impl Queue {
    /// Looks for the oldest pending event of a consumer, and logs the events its filter failed on.
    ///
    /// # Errors
    ///
    /// [`Error::BrokenFilter`](crate::error::Error::BrokenFilter).
    pub fn scan_pending(
        &mut self,
        subscription: &Subscription,
        until: Option<Instant>,
    ) -> Result<PendingScan> {
        let scan = pending::scan(&mut *self.store, subscription, until, true)?;
        self.log_failures(subscription, &scan.failures);
        Ok(scan)
    }

    /// Records and logs the events of the page that was read last on which the filter of a consumer failed.
    pub(crate) fn note_failures(&mut self, subscription: &mut Subscription) -> Result<()> {
        let mut failures = std::mem::take(&mut self.failures);
        failures.retain(|failure| failure.id > subscription.filter_error_id);
        let Some(newest) = failures.last().map(|failure| failure.id) else { return Ok(()) };
        pending::remember_failures(&mut *self.store, subscription, &mut failures)?;
        self.log_failures(subscription, &failures);
        subscription.filter_error_id = newest;
        Ok(())
    }

    /// Records and logs events for which the key of a consumer could not be evaluated.
    pub(crate) fn note_without_key(
        &mut self,
        subscription: &mut Subscription,
        failures: &[FilterFailure],
    ) -> Result<()> {
        let mut failures = failures.to_vec();
        failures.retain(|failure| failure.id > subscription.filter_error_id);
        let Some(newest) = failures.last().map(|failure| failure.id) else { return Ok(()) };
        pending::remember_failures(&mut *self.store, subscription, &mut failures)?;
        for failure in failures.iter().take(SHOWN) {
            let (consumer, id, error) = (&subscription.consumer, failure.id, log::Quoted(&failure.message));
            log!(self, Warn, "key: consumer={consumer} id={id} has none: error={error}");
        }
        subscription.filter_error_id = newest;
        Ok(())
    }

    fn log_failures(&self, subscription: &Subscription, failures: &[FilterFailure]) {
        let consumer = &subscription.consumer;
        for failure in failures.iter().take(SHOWN) {
            let (id, error) = (failure.id, log::Quoted(&failure.message));
            log!(self, Warn, "filter: consumer={consumer} id={id} does not match: error={error}");
        }
        if let Some(last) = failures.get(SHOWN..).and_then(<[_]>::last) {
            let (more, id) = (failures.len() - SHOWN, last.id);
            log!(self, Warn, "filter: consumer={consumer} failed on {more} more events up to id={id}");
        }
    }
}
