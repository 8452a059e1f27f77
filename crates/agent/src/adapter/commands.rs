//! The commands that an agent program takes. They are stored for clients when they have changed.

use serde_json::{Value, json};
use thread::Result;

use super::{Adapter, newest_matching};
use thread_conversation::{Entry, commands};

impl Adapter {
    /// The program takes these commands now.
    pub(super) fn takes_commands(&mut self, now: Value) {
        let before = match self.commands.take() {
            Some(before) => before,
            None => self.recorded_commands().unwrap_or_else(|e| {
                self.warn(format_args!("cannot look for the commands of the agent: {e}"));
                json!([])
            }),
        };
        if before != now {
            self.outbox.event(commands(&now));
        }
        self.commands = Some(now);
    }

    /// Those that this agent has last said that it takes; none if it has not said any yet.
    fn recorded_commands(&mut self) -> Result<Value> {
        let id = newest_matching(&mut self.queue, "source = 'self' AND subtype = 'commands'")?;
        let id = id.filter(|id| *id > self.joined);
        let recorded = id.map(|id| self.queue.event(id)).transpose()?.flatten();
        Ok(match recorded.as_ref().map(Entry::of) {
            Some(Entry::Commands(recorded)) => recorded,
            _ => json!([]),
        })
    }
}
