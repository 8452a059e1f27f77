//! Waits until the matching consumers have acknowledged events.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::model::subscription::ConsumerId;
use crate::pending::checked_filter;
use crate::queue::Queue;
use crate::store::ScanRange;

/// Interval of polling for commits: moving a cursor sends no notification.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A consumer whose filter matches some of the pushed events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipient {
    pub consumer: ConsumerId,
    /// First and last of the matching events.
    pub first: i64,
    pub last: i64,
}

/// Result of waiting for acknowledgements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    Acknowledged,
    /// These consumers had not acknowledged their events at the timeout.
    Pending(Vec<ConsumerId>),
    /// One of the events is a dead letter, which is not retried by itself.
    Dead {
        consumer: ConsumerId,
        event_id: i64,
    },
}

impl Queue {
    /// The consumers to be woken for events from `first` to `last`: those whose filter matches some of them,
    /// except paused ones and those without a handler.
    pub fn recipients(&mut self, first: i64, last: i64) -> Result<Vec<Recipient>> {
        let mut recipients = Vec::new();
        for subscription in self.store.subscriptions()? {
            if subscription.state.paused || !subscription.has_handler() {
                continue;
            }
            let range = ScanRange { after: first - 1, upto: last, most: usize::MAX, until: None };
            let ids = match checked_filter(&subscription) {
                Ok(Some(filter)) => self.store.scan(&filter, range)?.ids,
                Ok(None) => vec![first, last],
                // Such a consumer is not started; dispatch logs why.
                Err(Error::BrokenFilter { .. }) => continue,
                Err(e) => return Err(e),
            };
            if let (Some(&first), Some(&last)) = (ids.first(), ids.last()) {
                recipients.push(Recipient { consumer: subscription.consumer, first, last });
            }
        }
        Ok(recipients)
    }

    /// Waits until all recipients have acknowledged their events or one of these is a dead letter, for at
    /// most `timeout`. Consumers that are no longer subscribed are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Moved`]; those of the database.
    pub fn wait_for_delivery(&mut self, mut late: Vec<Recipient>, timeout: Duration) -> Result<Delivery> {
        let end = Instant::now() + timeout;
        loop {
            let changes = self.store.changes()?;
            for recipient in std::mem::take(&mut late) {
                let Some(subscription) = self.store.subscription(&recipient.consumer)? else { continue };
                let mut is_finished = subscription.last_acked_id >= recipient.last;
                let mut may_be_dead = subscription.dead > 0;
                if !is_finished && subscription.options.finishes_singly() {
                    let ledger = self.store.ledger(&recipient.consumer)?;
                    is_finished = ledger.finished_upto(recipient.first) >= Some(recipient.last);
                    // That may have happened since the subscription was read.
                    may_be_dead |= is_finished;
                }
                // A dead letter is finished, too.
                if may_be_dead && let Some(event_id) = self.dead_letter_among(&recipient)? {
                    return Ok(Delivery::Dead { consumer: recipient.consumer, event_id });
                }
                if !is_finished {
                    late.push(recipient);
                }
            }
            if late.is_empty() {
                return Ok(Delivery::Acknowledged);
            }
            while self.store.changes()? == changes {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(Delivery::Pending(late.into_iter().map(|late| late.consumer).collect()));
                }
                self.files.must_be_there()?;
                std::thread::sleep(POLL_INTERVAL.min(left));
            }
        }
    }

    fn dead_letter_among(&mut self, events: &Recipient) -> Result<Option<i64>> {
        let dead = self.store.dead_letters(Some(&events.consumer))?;
        let mut ids = dead.iter().map(|letter| letter.event_id);
        Ok(ids.find(|id| (events.first..=events.last).contains(id)))
    }
}
