//! Dead letters: reading them, marking them for another delivery, and discarding them.

use std::ops::ControlFlow;

use super::Queue;
use crate::error::Result;
use crate::files::log::log;
use crate::model::subscription::{ConsumerId, DeadLetter};

/// Dead letters of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    All,
    /// Those of these events. An event that is none is passed over.
    Of(&'a [i64]),
}

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

    /// Marks dead letters for another delivery, all or none. Returns how many. [`wake_consumer`] has to follow.
    ///
    /// [`wake_consumer`]: crate::run::wake::wake_consumer
    pub fn retry_dead_letters(&mut self, consumer: &ConsumerId, which: Which<'_>) -> Result<usize> {
        let count = match which {
            Which::All => self.store.retry_dead_letters(consumer, None)?,
            Which::Of(events) => self.store.retry_dead_letters_of(consumer, events)?,
        };
        self.log_dead(consumer, "retry", which, count);
        Ok(count)
    }

    /// Forgets dead letters, all or none; the events stay. Returns how many.
    pub fn discard_dead_letters(&mut self, consumer: &ConsumerId, which: Which<'_>) -> Result<usize> {
        let count = match which {
            Which::All => self.store.discard_dead_letters(consumer, None)?,
            Which::Of(events) => self.store.discard_dead_letters_of(consumer, events)?,
        };
        self.log_dead(consumer, "discard", which, count);
        Ok(count)
    }

    fn log_dead(&self, consumer: &ConsumerId, what: &str, which: Which<'_>, count: usize) {
        if which == Which::All || count > 0 {
            log!(self, Info, "dead: consumer={consumer} {what} count={count}");
        }
    }
}
