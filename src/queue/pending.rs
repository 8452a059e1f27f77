//! What is pending for a consumer, what nobody needs any more, and the events on which a filter fails.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Queue;
use crate::error::{Error, Result};
use crate::files::log::{self, log};
use crate::model::config::oldest_hold;
use crate::model::subscription::{ConsumerId, Subscription};
use crate::pending::{self, PendingScan};
use crate::store::FilterFailure;

/// Only the first few failures are logged, so that a filter that fails on everything does not fill the log.
const SHOWN: usize = 10;

/// The oldest event that is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub at: i64,
    pub by: HeldBy,
}

/// Why an event is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldBy {
    /// It is pending for this consumer.
    Pending(ConsumerId),
    /// It is at, or after, the [hold](Queue::hold) of this name.
    Hold(String),
}

/// Events that are pending for no consumer, and not held.
pub(crate) struct Unneeded {
    /// All up to this one, except that their dead letters may be needed.
    pub upto: i64,
    /// What limits it, if anything.
    pub held: Option<Held>,
    /// Time ran out before all filters were evaluated. The next look begins where this one ended.
    pub cut_short: bool,
    /// The subscriptions, as they were read before.
    pub seen: Vec<Subscription>,
}

impl Queue {
    /// Which of the events up to `upto` are pending for no consumer and, with `heeds_holds`, not held. Filters are
    /// evaluated until `until`.
    pub(crate) fn unneeded(
        &mut self,
        upto: i64,
        heeds_holds: bool,
        until: Option<Instant>,
    ) -> Result<Unneeded> {
        let seen = self.store.subscriptions()?;
        let mut unneeded = Unneeded { upto, held: None, cut_short: false, seen: Vec::new() };
        let config = if heeds_holds { self.store.config()? } else { BTreeMap::new() };
        // What follows is looked at only up to there.
        if let Some((at, holder)) = oldest_hold(&config).filter(|(at, _)| *at <= upto) {
            unneeded.upto = at - 1;
            unneeded.held = Some(Held { at, by: HeldBy::Hold(holder.to_owned()) });
        }
        for subscription in &seen {
            let cursor = subscription.last_acked_id;
            // Where time is short, what was evaluated earlier may be enough.
            if until.is_some() && cursor.max(subscription.scanned_upto(cursor)) >= unneeded.upto {
                continue;
            }
            let first = match self.scan_pending(subscription, until) {
                // It is unknown which events a broken filter would match.
                Err(Error::BrokenFilter { .. }) => self.store.first_after(cursor)?,
                scan => {
                    let scan = scan?;
                    if scan.first.is_none() && scan.cut_short {
                        unneeded.cut_short = true;
                        unneeded.upto = unneeded.upto.min(subscription.scanned_upto(cursor));
                    }
                    scan.first
                }
            };
            if let Some(at) = first.filter(|&at| at <= unneeded.upto) {
                unneeded.upto = at - 1;
                unneeded.held = Some(Held { at, by: HeldBy::Pending(subscription.consumer.clone()) });
            }
        }
        Ok(Unneeded { seen, ..unneeded })
    }

    /// Looks for the oldest pending event of a consumer, and logs the events its filter failed on.
    ///
    /// # Errors
    ///
    /// [`Error::BrokenFilter`].
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
