//! `thread seek`: moving a consumer's cursor.

use clap::Args;

use super::consumer::missing;
use super::error::Result;
use super::{ConsumerArg, Globals, event_id, print_cursor, wake_consumer, warn_if_clamped};
use crate::files::log::log;
use crate::model::time::{self, Time};
use crate::store::Move;

/// Move a consumer's cursor
///
/// Moves it to the beginning, to the end, to an event (the next one read is the one after it), or to a time
/// (the next one read is the first stored then or later). Prints the cursor's new position. If that leaves
/// something pending, the consumer is woken.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread seek -t inbox bot earliest
  thread seek -t inbox bot 2026-03-18T10:30:00Z")]
pub struct Seek {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// Where to: earliest, latest, an event id, or a time
    #[arg(value_name = "TO")]
    place: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "TO", value_parser = position, allow_negative_numbers = true)]
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
        _ => event_id(text)
            .ok()
            .map(Position::Event)
            .or_else(|| time::parse(text).map(Position::Time))
            .ok_or_else(|| {
                "it must be earliest, latest, an event id or a time like 2026-03-18T10:30:00Z".to_owned()
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
            Position::Latest => queue.store().newest()?,
            Position::Event(id) => id,
            Position::Time(time) => queue.last_before(time)?,
        };
        let moved = queue.store().move_cursor(&consumer, id, Move::Seek)?;
        warn_if_clamped(moved, id);
        let at = moved.position();
        log!(queue, Info, "seek: consumer={consumer} last_acked_id={at}");
        wake_consumer(&mut queue, &consumer);
        print_cursor(&consumer, at, globals)
    }
}
