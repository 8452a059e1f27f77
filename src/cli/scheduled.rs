//! `thread scheduled`: events that were pushed with `--in` or `--at` and are not due yet.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::output::{self, Reader};
use super::{Globals, push, signals};
use crate::error::Code;
use crate::failure::{Result, failed};
use crate::model::scheduled::{ScheduledEvent, ScheduledId};
use crate::model::time;

/// Scheduled events that are printed at a time.
const PAGE: usize = 100;

/// List events that are due later; cancel one, or make it an event now
///
/// What `thread push --in` or `--at` has stored, in the order in which it is due. With --json it prints one JSON object
/// per line. Cancelling frees the idempotency key.
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  thread scheduled -t inbox
  thread scheduled cancel -t inbox s17
  thread scheduled now -t inbox s17"
)]
pub struct Scheduled {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Subcommand)]
enum What {
    /// List them, as without a subcommand
    #[command(after_help = "Example:\n  thread scheduled list -t inbox --json")]
    List,
    /// Forget one: it will be no event
    #[command(after_help = "Example:\n  thread scheduled cancel -t inbox s17")]
    Cancel(Which),
    /// Make one an event now, and print its id
    #[command(after_help = "Example:\n  thread scheduled now -t inbox s17")]
    Now(Which),
}

#[derive(Args)]
struct Which {
    /// Its number, as `thread push` printed it
    #[arg(value_name = "NUMBER", value_parser = ScheduledId::parse)]
    id: ScheduledId,
}

impl Scheduled {
    pub fn run(self, globals: &Globals) -> Result<()> {
        match self.what {
            None | Some(What::List) => list(globals),
            Some(What::Cancel(Which { id })) => cancel(id, globals),
            Some(What::Now(Which { id })) => now(id, globals),
        }
    }
}

fn list(globals: &Globals) -> Result<()> {
    let mut queue = globals.open()?;
    let mut after = None;
    loop {
        let page = queue.scheduled(after, PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some((last.due, last.id));
        let text: String = page
            .iter()
            .map(|one| match globals.json {
                true => object(one).to_string() + "\n",
                false => text_line(one),
            })
            .collect();
        if output::bytes(text.as_bytes())? == Reader::Gone {
            return Ok(());
        }
    }
}

fn object(ScheduledEvent { id, due, event, key, .. }: &ScheduledEvent) -> Value {
    let metadata = event.metadata.as_deref();
    let metadata = metadata.map(|text| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)));
    let mut object = json!({
        "scheduled_id": id.to_string(),
        "due_at": time::format(*due),
        "source": event.source,
        "type": event.kind.as_str(),
        "subtype": event.subtype,
        "content": event.content,
        "metadata": metadata,
    });
    if let Some(key) = key {
        object["idempotency_key"] = key.as_str().into();
    }
    object
}

/// The longest content of a line, in characters.
const SHOWN: usize = 100;

fn text_line(ScheduledEvent { id, due, event, .. }: &ScheduledEvent) -> String {
    let shown: String = event.content.chars().take(SHOWN).collect();
    let more = if shown.len() < event.content.len() { "…" } else { "" };
    let (due, source) = (time::format(*due), output::plain(&event.source));
    format!("{id}  {due}  {source} {}  {}{more}\n", event.kind.as_str(), output::plain(&shown))
}

fn cancel(id: ScheduledId, globals: &Globals) -> Result<()> {
    let mut queue = globals.open()?;
    if !queue.cancel_scheduled(id)? {
        return unknown(id);
    }
    push::attend(&mut queue);
    globals.print(id, json!({ "scheduled_id": id.to_string() }))
}

fn now(id: ScheduledId, globals: &Globals) -> Result<()> {
    let mut queue = globals.open()?;
    signals::defer();
    let made = queue.make_scheduled_now(id)?;
    let Some(event) = made.last_id else { return unknown(id) };
    signals::set_stored(0);
    let source = queue.event(event)?.map(|event| event.source).unwrap_or_default();
    push::finish(&mut queue, &source, &mut |_| {});
    push::attend(&mut queue);
    let printed = globals.print(event, json!({ "scheduled_id": id.to_string(), "id": event }));
    output::confirm(printed, "it is an event now");
    Ok(())
}

fn unknown<T>(id: ScheduledId) -> Result<T> {
    failed(
        Code::UnknownEvent,
        format_args!("there is no scheduled event {id}; it may have become an event"),
        "see `thread scheduled` for what is to come, and `thread peek --tail 10` for what has come",
    )
}
