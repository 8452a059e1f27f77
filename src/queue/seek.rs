//! Moving a consumer's cursor to any position.

use super::Queue;
use crate::error::Result;
use crate::files::log::log;
use crate::model::position::Position;
use crate::model::subscription::ConsumerId;
use crate::store::{Move, Moved};

impl Queue {
    /// Moves a cursor, backwards too. [`wake_consumer`] has to follow. Also returns the id that was asked for.
    ///
    /// [`wake_consumer`]: crate::run::wake::wake_consumer
    ///
    /// # Errors
    ///
    /// [`Error::UnknownConsumer`](crate::Error::UnknownConsumer).
    pub fn seek(&mut self, consumer: &ConsumerId, to: Position) -> Result<(Moved, i64)> {
        let id = self.id_at(to)?;
        let moved = self.store.move_cursor(consumer, id, Move::Seek)?;
        log!(self, Info, "seek: consumer={consumer} last_acked_id={}", moved.position());
        Ok((moved, id))
    }

    /// The id after which a position is.
    pub(crate) fn id_at(&mut self, position: Position) -> Result<i64> {
        match position {
            Position::Latest => self.store.newest(),
            Position::Event(id) => Ok(id),
            Position::Time(time) => self.last_before(time),
        }
    }
}
