use clap::Args;
use serde_json::json;

use crate::cmd::ThreadArg;
use crate::error::Result;
use crate::output::{self, plain};

/// Show what a thread holds and how far its consumers are
///
/// Prints the thread's path, how many events it holds, and for each consumer its handler, its
/// filter, the last event it acknowledged and when that was. Changes nothing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread info --thread inbox
  thread info --thread inbox --json | jq '.subscriptions[].last_acked_id'")]
pub struct Info {
    #[command(flatten)]
    thread: ThreadArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Info {
    pub fn run(self) -> Result<()> {
        let thread = self.thread.open()?;
        let count = thread.store.count()?;
        let subscriptions = thread.store.subscriptions()?;
        if self.json {
            let subscriptions: Vec<_> = subscriptions
                .iter()
                .map(|s| {
                    json!({
                        "consumer_id": s.consumer.as_str(),
                        "handler_cmd": s.handler_cmd,
                        "filter": s.filter,
                        "last_acked_id": s.last_acked_id,
                        "updated_at": s.updated_at,
                    })
                })
                .collect();
            return output::json(&json!({ "event_count": count, "subscriptions": subscriptions }));
        }
        let mut text = format!(
            "Thread: {}\nEvents: {count}\nSubscriptions: {}\n",
            plain(&thread.dir().to_string_lossy()),
            subscriptions.len()
        );
        for s in &subscriptions {
            text.push_str(&format!("  - {}\n", plain(s.consumer.as_str())));
            text.push_str(&format!("    handler: {}\n", plain(&s.handler_cmd)));
            text.push_str(&format!("    filter:  {}\n", plain(s.filter_text().unwrap_or("(none)"))));
            text.push_str(&format!("    last_acked_id: {}\n", s.last_acked_id));
            text.push_str(&format!(
                "    updated_at: {}\n",
                plain(s.updated_at.as_deref().unwrap_or("(never)"))
            ));
        }
        output::bytes(text.as_bytes()).map(drop)
    }
}
