//! `thread seek`: moving a consumer's cursor.

use clap::Args;

use super::consumer::missing;
use super::{ConsumerArg, Globals, print_cursor, wake_consumer, warn_if_clamped};
use crate::failure::Result;
use crate::model::position::Position;

/// Move a consumer's cursor
///
/// Moves it to the beginning, past the newest event (now), to an event (the next one read is the one after it), or to a time,
/// also given as how long ago that is (the next one read is the first stored then or later). Prints the cursor's
/// new position. If that leaves something pending, the consumer is woken.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread seek -t inbox bot beginning
  thread seek -t inbox bot 10m
  thread seek -t inbox bot 2026-03-18T10:30:00Z")]
pub struct Seek {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// Where to: beginning, now, an event id, a time, or how long ago
    #[arg(value_name = "TO")]
    position: Option<String>,
    /// The same, as an option
    #[arg(long, value_name = "TO", value_parser = Position::parse, allow_negative_numbers = true, hide = true)]
    to: Option<Position>,
}

impl Seek {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        let to = self.consumer.value("position", self.position, Position::parse, "--to", self.to)?;
        let to = to.map_or_else(|| missing("position", "--to"), Ok)?;
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        let (moved, asked) = queue.seek(&consumer, to)?;
        warn_if_clamped(moved, asked);
        let at = moved.position();
        wake_consumer(&mut queue, &consumer);
        print_cursor(&consumer, at, globals)
    }
}
