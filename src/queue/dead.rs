//! Dead letters: reading them, marking them for another delivery, and discarding them.

use std::ops::ControlFlow;

use super::Queue;
use crate::error::Result;
use crate::files::log::log;
use crate::model::subscription::{ConsumerId, DeadLetter};

impl Queue {
    /// Passes the dead letters of a consumer, or of all consumers, to `take`, until it breaks; in the order of
    /// consumers and events.
    pub fn dead_letters(
        &mut self,
        consumer: Option<&ConsumerId>,
        take: &mut dyn FnMut(DeadLetter) -> ControlFlow<()>,
    ) -> Result<()> {
        self.store.read_dead_letters(consumer, take)
    }

    /// Marks the dead letters of these events, or all of a consumer, for another delivery, in one step. Returns how
    /// many. Call [`wake_consumer`] afterwards.
    ///
    /// [`wake_consumer`]: crate::run::wake::wake_consumer
    pub fn retry_dead_letters(&mut self, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize> {
        let count = self.store.retry_dead_letters(consumer, events)?;
        self.log_dead(consumer, "retry", events, count);
        Ok(count)
    }

    /// Forgets the dead letters of these events, or all of a consumer, in one step; the events stay. Returns how many.
    pub fn discard_dead_letters(&mut self, consumer: &ConsumerId, events: Option<&[i64]>) -> Result<usize> {
        let count = self.store.discard_dead_letters(consumer, events)?;
        self.log_dead(consumer, "discard", events, count);
        Ok(count)
    }

    fn log_dead(&self, consumer: &ConsumerId, what: &str, events: Option<&[i64]>, count: usize) {
        if events.is_none() || count > 0 {
            log!(self, Info, "dead: consumer={consumer} {what} count={count}");
        }
    }
}
