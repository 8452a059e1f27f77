//! Dead letters: their reasons, pages of them, and selections of them.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use thread::Queue;
use thread::model::subscription::{ConsumerId, DeadLetter as Stored};
use thread_sessions::{RequestError, Result};

use super::dto::{DeadLetter, DeadPage, Event, ReasonCount};
use super::event;

/// How many reasons are listed, and how many are distinguished.
const REASONS: usize = 100;
const MOST_REASONS: usize = 10_000;

/// The longest line in a reason, in characters.
const LINE: usize = 200;

/// Why an event is a dead letter: the exit code, and the last line that the handler printed.
pub fn reason(letter: &Stored) -> String {
    let exit = letter.last_exit.map_or_else(|| "exit unknown".to_owned(), |code| format!("exit {code}"));
    match letter.last_error.lines().rev().map(str::trim).find(|line| !line.is_empty()) {
        Some(line) => format!("{exit}: {}", line.chars().take(LINE).collect::<String>()),
        None => exit,
    }
}

/// In place of a number or an id in a kind of reasons.
const SOME: &str = "…";

/// Words after which a number tells kinds of reasons apart.
const CODES: [&str; 6] = ["exit", "http", "status", "code", "errno", "signal"];

/// What reasons have in common that differ in numbers and ids only: those are left out. A kind is of the kind that it is
/// itself.
pub fn kind(reason: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || "-_…".contains(c);
    let (mut kind, mut rest, mut before) = (String::with_capacity(reason.len()), reason, "");
    while let Some(start) = rest.find(is_part) {
        let end = rest[start..].find(|c| !is_part(c)).map_or(rest.len(), |end| start + end);
        let (between, word) = (&rest[..start], &rest[start..end]);
        kind.push_str(between);
        let is_code = CODES.iter().any(|code| before.eq_ignore_ascii_case(code));
        let has_digit = word.contains(|c: char| c.is_numeric() || c == '…');
        kind.push_str(if has_digit && !is_code { SOME } else { word });
        (before, rest) = (word, &rest[end..]);
    }
    kind.push_str(rest);
    kind
}

pub fn form_of(letter: Stored, event: Option<Event>) -> DeadLetter {
    DeadLetter {
        id: letter.event_id,
        reason: reason(&letter),
        consumer: letter.consumer.as_str().to_owned(),
        error: letter.last_error,
        exit: letter.last_exit,
        attempts: letter.attempts,
        at: letter.parked_at,
        retrying: letter.retry,
        event,
    }
}

/// Where a page ends: the event and the consumer of its last dead letter, written `42:bot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(i64, String);

impl Mark {
    /// # Errors
    ///
    /// It is none that a page has had.
    pub fn parse(text: &str) -> Result<Mark> {
        let (id, consumer) = text.split_once(':').unwrap_or((text, ""));
        let bad = |_| RequestError::BadParams("'before' is not a value from an earlier page".to_owned());
        Ok(Mark(id.parse().map_err(bad)?, consumer.to_owned()))
    }

    /// Whether a dead letter comes after the mark: events from the newest, and consumers by name.
    fn is_before(&self, letter: &Stored) -> bool {
        key(letter) > (std::cmp::Reverse(self.0), self.1.as_str())
    }
}

fn key(letter: &Stored) -> (std::cmp::Reverse<i64>, &str) {
    (std::cmp::Reverse(letter.event_id), letter.consumer.as_str())
}

/// The dead letters of one event, of all consumers.
///
/// # Errors
///
/// Errors of the thread.
pub fn of_event(queue: &mut Queue, id: i64) -> Result<Vec<Stored>> {
    let mut letters = Vec::new();
    queue.dead_letters(None, &mut |letter| {
        if letter.event_id == id {
            letters.push(letter);
        }
        ControlFlow::Continue(())
    })?;
    Ok(letters)
}

/// A page of dead letters, of one consumer and one kind of reason if they are given.
///
/// # Errors
///
/// Errors of the thread.
pub fn page(
    queue: &mut Queue,
    consumer: Option<&ConsumerId>,
    only: Option<&str>,
    before: Option<&Mark>,
    limit: usize,
) -> Result<DeadPage> {
    let mut found: Vec<Stored> = Vec::new();
    // Of each kind, how many there are, and their reason, if all have the same.
    let mut reasons: HashMap<(String, String), (u64, Option<String>)> = HashMap::new();
    let (mut total, only) = (0, only.map(kind));
    queue.dead_letters(consumer, &mut |letter| {
        let reason = reason(&letter);
        let of = (letter.consumer.as_str().to_owned(), kind(&reason));
        let is_meant = only.as_ref().is_none_or(|only| *only == of.1);
        if reasons.len() < MOST_REASONS || reasons.contains_key(&of) {
            let (count, same) = reasons.entry(of).or_insert_with(|| (0, Some(reason.clone())));
            *count += 1;
            *same = same.take().filter(|same| *same == reason);
        }
        if is_meant {
            total += 1;
            if before.is_none_or(|before| before.is_before(&letter)) {
                found.push(letter);
            }
        }
        // Only the first of the order are kept.
        if found.len() > 2 * (limit + 1) + 1000 {
            sort(&mut found, limit + 1);
        }
        ControlFlow::Continue(())
    })?;
    sort(&mut found, limit + 1);
    let more = found.len() > limit;
    found.truncate(limit);
    let next_before =
        found.last().filter(|_| more).map(|letter| format!("{}:{}", letter.event_id, letter.consumer));
    let mut dead = Vec::with_capacity(found.len());
    for letter in found {
        let event = event::shown(queue, letter.event_id)?;
        dead.push(form_of(letter, event));
    }
    let mut reasons: Vec<ReasonCount> = reasons
        .into_iter()
        .map(|((consumer, kind), (count, same))| ReasonCount {
            consumer,
            reason: same.unwrap_or(kind),
            count,
        })
        .collect();
    reasons.sort_unstable_by(|a, b| {
        b.count.cmp(&a.count).then_with(|| (&a.consumer, &a.reason).cmp(&(&b.consumer, &b.reason)))
    });
    reasons.truncate(REASONS);
    Ok(DeadPage { dead, total, next_before, reasons })
}

fn sort(letters: &mut Vec<Stored>, most: usize) {
    letters.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
    letters.truncate(most);
}

/// Which dead letters of a consumer a request means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meant {
    All,
    Events(BTreeSet<i64>),
    Reason(String),
}

impl Meant {
    /// The events of those; `None` for all.
    ///
    /// # Errors
    ///
    /// One of the events is no dead letter of the consumer; errors of the thread.
    pub fn events(&self, queue: &mut Queue, consumer: &ConsumerId) -> Result<Option<Vec<i64>>> {
        let mut found = BTreeSet::new();
        let wanted = if let Meant::Reason(text) = self { kind(text) } else { String::new() };
        queue.dead_letters(Some(consumer), &mut |letter| {
            let is_meant = match self {
                Meant::All => false,
                Meant::Events(events) => events.contains(&letter.event_id),
                Meant::Reason(_) => kind(&reason(&letter)) == wanted,
            };
            found.extend(is_meant.then_some(letter.event_id));
            ControlFlow::Continue(())
        })?;
        match self {
            Meant::All => Ok(None),
            Meant::Reason(_) => Ok(Some(found.into_iter().collect())),
            Meant::Events(events) => match events.iter().find(|id| !found.contains(id)) {
                Some(id) => {
                    let what =
                        format!("event {id} is not a dead letter of '{consumer}'; nothing was changed");
                    Err(RequestError::Unknown(what))
                }
                None => Ok(Some(found.into_iter().collect())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ids_do_not_split_a_kind_of_reasons() {
        for (reason, expected) in [
            ("exit 1: qty 8", "exit 1: qty …"),
            ("exit 1: no order 6ba7b810-9dad-41d1-80b4-00c04fd430c8.", "exit 1: no order …."),
            ("exit 22: HTTP 404 for /a/7?x=1", "exit 22: HTTP 404 for /a/…?x=…"),
            ("exit 1: no price for anvil", "exit 1: no price for anvil"),
            ("exit 1: ٣ ä8ü <b>9</b>", "exit 1: … … <b>…</b>"),
            ("exit unknown", "exit unknown"),
            ("", ""),
        ] {
            assert_eq!(kind(reason), expected);
            assert_eq!(kind(&kind(reason)), expected);
        }
    }
}
