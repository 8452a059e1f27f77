//! `thread redo`: giving a handler events again that it has finished.

use clap::Args;
use serde_json::json;

use super::consumer::missing;
use super::{ConsumerArg, Globals, event_id, output, wake_consumer};
use crate::failure::{Result, usage};
use crate::files::log::log;
use crate::run::control;

/// Give a handler events again that it has finished
///
/// Each event is delivered once more, alone and before new events. The cursor is not moved, so other events are not
/// affected. If the handler fails, the event is a dead letter. What its steps have printed is kept: `thread step --forget`
/// makes it do them again.
///
/// `thread seek` delivers everything from an event on again, and `thread dead retry` a dead letter.
#[derive(Args)]
#[command(after_help = "Examples:\n  thread redo -t inbox mailer 42\n  thread redo -t inbox mailer 42 45 46")]
pub struct Redo {
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The events
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// The same, as an option
    #[arg(long, value_name = "ID", value_parser = event_id, allow_negative_numbers = true, hide = true)]
    event_id: Option<i64>,
}

impl Redo {
    pub fn run(mut self, globals: &Globals) -> Result<()> {
        let ids = match self.event_id {
            Some(id) if self.ids.is_empty() => vec![id],
            Some(_) => {
                return usage("the event id is given twice", "give it as an argument or with --event-id");
            }
            None => self.consumer.event_ids(self.ids)?,
        };
        if ids.is_empty() {
            return missing("event id", "--event-id");
        }
        let consumer = self.consumer.existing()?;
        let mut queue = globals.open()?;
        control::redo(&mut queue, &consumer, &ids)?;
        log!(queue, Info, "redo: consumer={consumer} count={}", ids.len());
        wake_consumer(&mut queue, &consumer);
        match globals.json {
            true => output::line(json!({ "consumer_id": consumer.as_str(), "event_ids": ids })),
            false => output::line(output::plain(consumer.as_str())),
        }
    }
}
