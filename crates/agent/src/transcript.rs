//! The conversation so far, for a newly started agent process.

use std::ops::ControlFlow;

use serde::Serialize;
use thread::model::filter::Scope;
use thread::queue::{Remaining, Selection};
use thread::{Filter, Queue, Result};

use thread_conversation::{Entry, text_of};

/// The maximum number of messages in a transcript, unless another is given.
pub const MESSAGES: usize = 50;
/// The maximum size of their text, in bytes; the newest messages take precedence.
const BYTES: usize = 32 * 1024;

/// How many ids are scanned at a time: messages are few among tokens.
const STEP: i64 = 4096;

/// A message in a transcript.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spoken {
    /// `user` or `assistant`.
    pub role: &'static str,
    pub content: String,
}

/// Returns the last messages of a thread, at most `most`, oldest first, without those whose id is `unanswered` and
/// those up to `cleared`, which must be forgotten.
pub fn transcript(
    queue: &mut Queue,
    cleared: i64,
    most: usize,
    unanswered: impl Fn(i64) -> bool,
) -> Result<Vec<Spoken>> {
    let filter = Filter::new("type = 'message'", Scope::Reading)?;
    let (mut upto, mut bytes) = (queue.newest()?.0, 0);
    let mut said: Vec<Spoken> = Vec::new();
    while upto > cleared && said.len() < most && bytes < BYTES {
        let after = (upto - STEP).max(cleared);
        let mut page = Vec::new();
        let mut selection = Selection { after, limit: None, filter: filter.clone() };
        let mut take = |row: thread::model::event::Row<'_>| {
            if row.id <= upto {
                page.push(row.to_event());
            }
            if row.id < upto { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        while queue.read_page(&mut selection, &mut take)? == Remaining::Some && selection.after < upto {}
        for event in page.into_iter().rev().filter(|event| !unanswered(event.id)) {
            if said.len() == most || bytes >= BYTES {
                break;
            }
            let role = match Entry::of(&event) {
                Entry::Message(_) => "user",
                _ => "assistant",
            };
            let text = text_of(&event.content);
            let start = text.ceil_char_boundary(text.len().saturating_sub(BYTES - bytes));
            let content = text[start..].to_owned();
            // A message that had to be cut uses up the limit.
            bytes = if content.len() < text.len() { BYTES } else { bytes + content.len() };
            said.push(Spoken { role, content });
        }
        upto = after;
    }
    said.reverse();
    Ok(said)
}

/// Returns the transcript as text, for programs whose prompts have no field for it.
pub fn as_text(said: &[Spoken]) -> String {
    let mut text = String::from("The conversation so far, from an earlier session:\n");
    for one in said {
        text.push_str(&format!("\n[{}]\n{}\n", one.role, one.content.trim_end()));
    }
    text.push_str("\nThe next message follows.");
    text
}

#[cfg(test)]
mod tests {
    use thread::NewEvent;

    use super::*;

    fn talk(events: &[NewEvent<'_>]) -> (tempfile::TempDir, Queue) {
        let root = tempfile::tempdir().unwrap();
        let path = Queue::init(root.path().join("talk")).unwrap();
        let mut queue = Queue::open(path).unwrap();
        queue.push_all(&mut |put| put(events).map(drop)).unwrap();
        (root, queue)
    }

    #[test]
    fn the_transcript_has_the_last_fifty_messages_and_nothing_else() {
        let mut events = Vec::new();
        for n in 0..60 {
            let source = if n % 2 == 0 { "external:a" } else { "self" };
            events.push(NewEvent::message(source, n.to_string()).unwrap());
            let token = NewEvent::new("self", "record", Some("token".into()), "x").unwrap();
            events.extend(std::iter::repeat_n(token, 200));
        }
        let (_root, mut queue) = talk(&events);
        let said = transcript(&mut queue, 0, MESSAGES, |_| false).unwrap();
        let contents: Vec<String> = said.iter().map(|one| one.content.clone()).collect();
        assert_eq!(contents, (10..60).map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!((said[0].role, said[1].role), ("user", "assistant"));
        let last = 59 * 201 + 1;
        assert_eq!(
            transcript(&mut queue, 0, MESSAGES, |id| id == last).unwrap().last().unwrap().content,
            "58"
        );
    }

    #[test]
    fn the_transcript_has_at_most_32_kib_and_no_character_is_split() {
        let long = "é".repeat(40_000);
        let events = ["old", &long, "new"].map(|text| NewEvent::message("x", text).unwrap());
        let (_root, mut queue) = talk(&events);
        let said = transcript(&mut queue, 0, MESSAGES, |_| false).unwrap();
        assert_eq!(said.len(), 2);
        let bytes: usize = said.iter().map(|one| one.content.len()).sum();
        assert!(bytes > BYTES - 4 && bytes <= BYTES, "{bytes}");
        assert_eq!(said[1].content, "new");
    }
}
