//! `thread seek`: moving a consumer's cursor.

use chrono::DateTime;
use clap::Args;
use serde_json::json;

use crate::cmd::{ConsumerArg, ThreadArg, cursor_after, event_id};
use crate::error::Result;
use crate::log::Level;
use crate::rule::{Time, format_time};
use crate::{output, wake};

/// Move a consumer's cursor
///
/// To the beginning, to the end, to an event (the next one read is the one after it), or to a time
/// (the next one read is the first stored then or later). Prints where the cursor stands. If
/// something is pending then, the consumer is woken.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread seek --thread inbox --consumer bot --to earliest
  thread seek --thread inbox --consumer bot --to 2026-03-18T10:30:00Z")]
pub struct Seek {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// Where to
    #[arg(long, value_name = "earliest|latest|ID|TIME", value_parser = place, allow_negative_numbers = true)]
    to: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Earliest,
    Latest,
    Event(i64),
    Time(Time),
}

fn place(text: &str) -> std::result::Result<Place, String> {
    match text {
        "earliest" => Ok(Place::Earliest),
        "latest" => Ok(Place::Latest),
        _ => event_id(text)
            .map(Place::Event)
            .or_else(|_| DateTime::parse_from_rfc3339(text).map(|time| Place::Time(time.to_utc())))
            .map_err(|_| {
                "it is 'earliest', 'latest', an event id or a time as 2026-03-18T10:30:00Z".to_owned()
            }),
    }
}

impl Seek {
    pub fn run(self) -> Result<()> {
        let consumer = self.consumer.existing()?;
        let mut thread = self.thread.open()?;
        let id = match self.to {
            Place::Earliest => 0,
            Place::Latest => thread.store.newest_ever()?,
            Place::Event(id) => id,
            Place::Time(time) => thread.store.last_before(&format_time(time))?,
        };
        let at = cursor_after(thread.store.set_cursor(&consumer, id)?, &consumer, id)?;
        thread.log(Level::Info, format_args!("seek: consumer={consumer} last_acked_id={at}"));
        wake::wake_consumer(&mut thread, &consumer);
        if self.json {
            return output::json(&json!({ "consumer_id": consumer.as_str(), "last_acked_id": at }));
        }
        output::line(at)
    }
}
