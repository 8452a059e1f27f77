//! `thread seek`: moving a consumer's cursor.

use clap::Args;

use super::consumer::missing;
use super::when::when;
use super::{ConsumerArg, Globals, event_id, print_cursor, wake_consumer, warn_if_clamped};
use crate::failure::Result;
use crate::files::log::log;
use crate::model::time::Time;
use crate::store::Move;

/// Move a consumer's cursor
///
/// Moves it to the beginning, to the end, to an event (the next one read is the one after it), or to a time,
/// also given as how long ago that is (the next one read is the first stored then or later). Prints the cursor's new position. If that leaves
/// something pending, the consumer is woken.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread seek -t inbox bot earliest
  thread seek -t inbox bot 10m
  thread seek -t inbox bot 2026-03-18T10:30:00Z")]
pub struct Seek {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// Where to: earliest, latest, an event id, a time, or how long ago
    #[arg(value_name = "TO")]
    place: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "TO", value_parser = position, allow_negative_numbers = true, hide = true)]
    to: Option<Position>,
}

#[derive(Debug, Clone, Copy)]
enum Position {
    Latest,
    Event(i64),
    Time(Time),
}

fn position(text: &str) -> std::result::Result<Position, String> {
    match text {
        "earliest" => Ok(Position::Event(0)),
        "latest" => Ok(Position::Latest),
        _ => event_id(text).map(Position::Event).or_else(|_| when(text).map(Position::Time)).map_err(|_| {
            "it must be earliest, latest, an event id, a time like 2026-03-18T10:30:00Z or 2026-03-18, or a \
             duration like 90s, 1h or 2d"
                .to_owned()
        }),
    }
}

impl Seek {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        let to = self.consumer.value("position", self.place, position, "--to", self.to)?;
        let to = to.map_or_else(|| missing("position", "--to"), Ok)?;
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        let id = match to {
            Position::Latest => queue.store.newest()?,
            Position::Event(id) => id,
            Position::Time(time) => queue.last_before(time)?,
        };
        let moved = queue.store.move_cursor(&consumer, id, Move::Seek)?;
        warn_if_clamped(moved, id);
        let at = moved.position();
        log!(queue, Info, "seek: consumer={consumer} last_acked_id={at}");
        wake_consumer(&mut queue, &consumer);
        print_cursor(&consumer, at, globals)
    }
}
