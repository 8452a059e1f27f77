use clap::Args;
use serde_json::json;

use crate::cmd::pop::bad_filter;
use crate::cmd::{ConsumerArg, ThreadArg};
use crate::error::{Failure, OrFix, Result};
use crate::filter::Scope;
use crate::log::{Level, Quoted};
use crate::output;
use crate::store::Subscribed;
use crate::subscription::ConsumerId;
use crate::wake;

/// Register a consumer: which command to start, and for which events
///
/// The handler is started when there are events past the consumer's cursor that match the filter,
/// one run at a time. It is run by `sh -c`, in the directory where you subscribe, with THREAD_DIR,
/// THREAD_CONSUMER and THREAD_LAST_ACKED_ID set and no output of its own to be seen. It takes
/// events with `thread pop` and acknowledges them with `thread ack`. Events that are there already
/// wake it at once; a consumer that was subscribed before goes on from its cursor.
#[derive(Args)]
#[command(after_help = "\
Example:
  thread subscribe --thread inbox --consumer bot --filter \"type = 'message'\" \\
    --handler './agent.sh'

agent.sh, as short as it can be:
  #!/bin/sh
  thread pop --resume --limit 1 >event.json && [ -s event.json ] || exit 0
  # ... do the work ...
  thread ack --event-id \"$(sed 's/^{\"id\":\\([0-9]*\\).*/\\1/' event.json)\"")]
pub struct Subscribe {
    #[command(flatten)]
    thread: ThreadArg,
    #[command(flatten)]
    consumer: ConsumerArg,
    /// The command to start, in the language of sh
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true)]
    handler: String,
    /// An SQL condition over id, created_at, source, type, subtype and content [default: every event]
    #[arg(long, value_name = "SQL", allow_hyphen_values = true)]
    filter: Option<String>,
    /// Print the subscription as JSON
    #[arg(long)]
    json: bool,
}

impl Subscribe {
    pub fn run(self) -> Result<()> {
        let name = self.consumer.name()?;
        let consumer = ConsumerId::new(&name).map_err(|why| {
            Failure::asked_wrongly(
                format_args!("the consumer name '{}' {why}", output::plain(&name)),
                "use 1 to 128 of A-Z a-z 0-9 . _ - : @, beginning with a letter or digit",
            )
        })?;
        if self.handler.trim().is_empty() {
            return Err(Failure::asked_wrongly("the handler is empty", "name the command to start"));
        }
        let mut thread = self.thread.open()?;
        let text = self.filter.filter(|text| !text.trim().is_empty());
        thread
            .store
            .check_filter(text.as_deref().unwrap_or_default(), Scope::Subscription)
            .map_err(|refusal| bad_filter(&refusal))?;
        let cwd = std::env::current_dir()
            .or_fix("the current directory cannot be found", "change to one that exists")?;
        if thread.store.subscribe(&consumer, &self.handler, text.as_deref(), &cwd)? == Subscribed::Exists {
            return Err(Failure::could_not(
                format_args!("the consumer '{consumer}' is subscribed already; nothing was changed"),
                format_args!("run `thread unsubscribe --consumer {consumer}` first; its cursor stays"),
            ));
        }
        thread.log(
            Level::Info,
            format_args!(
                "subscribe: consumer={consumer} handler_cmd={} filter={}",
                Quoted(&self.handler),
                Quoted(text.as_deref().unwrap_or_default())
            ),
        );
        wake_backlog(&mut thread, &consumer);
        if self.json {
            return output::json(&json!({
                "consumer_id": consumer.as_str(),
                "handler_cmd": self.handler,
                "filter": text,
                "cwd": cwd.to_string_lossy(),
            }));
        }
        output::line(&consumer)
    }
}

/// A backlog wakes a new consumer as a push would; without one, nobody needs to be asked.
fn wake_backlog(thread: &mut crate::thread::Thread, consumer: &ConsumerId) {
    let woken = thread.store.subscription(consumer).and_then(|subscription| match subscription {
        Some(subscription) if thread.store.look(&subscription)?.first_pending.is_some() => {
            wake::wake(thread, "self").map(drop)
        }
        _ => Ok(()),
    });
    if let Err(e) = woken {
        thread.log(Level::Warn, format_args!("subscribe: consumer={consumer} not woken: {e}"));
        output::warn(format_args!("the backlog did not wake '{consumer}': {e}; it is subscribed"));
    }
}
