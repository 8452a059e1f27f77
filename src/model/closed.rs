//! Why nothing can be written to a thread.

use serde::{Deserialize, Serialize};

use super::rows::Tally;

/// The private setting under which it is stored, as JSON.
pub const CLOSED: &str = "_closed";

/// Why nothing can be written to a thread. Reading stays possible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Closed {
    /// It was moved to this location, or is about to be.
    Moved { to: String },
    /// An import into it is not complete. With what distinguishes that from others, and the events stored so far.
    Importing { origin: String, events: Tally },
}

impl Closed {
    /// As it is stored.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What a newer program has stored counts as an import that this one cannot complete.
    pub fn of_json(json: &str) -> Closed {
        let unknown = || Closed::Importing { origin: String::new(), events: Tally::default() };
        serde_json::from_str(json).unwrap_or_else(|_| unknown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_thread_is_closed_is_read_as_it_was_stored() {
        let moved = Closed::Moved { to: "postgres://h/d".into() };
        let importing = Closed::Importing { origin: "o".into(), events: Tally::default() };
        for closed in [moved, importing] {
            assert_eq!(Closed::of_json(&closed.to_json()), closed);
        }
        let unknown = Closed::Importing { origin: String::new(), events: Tally::default() };
        assert_eq!(Closed::of_json("{\"newer\":1}"), unknown);
    }
}
