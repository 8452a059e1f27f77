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

/// A page of dead letters, of one consumer and one reason if they are given.
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
    let mut reasons: HashMap<(String, String), u64> = HashMap::new();
    let mut total = 0;
    queue.dead_letters(consumer, &mut |letter| {
        let reason = reason(&letter);
        let is_meant = only.is_none_or(|only| only == reason);
        let of = (letter.consumer.as_str().to_owned(), reason);
        if reasons.len() < MOST_REASONS || reasons.contains_key(&of) {
            *reasons.entry(of).or_default() += 1;
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
        .map(|((consumer, reason), count)| ReasonCount { consumer, reason, count })
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
        queue.dead_letters(Some(consumer), &mut |letter| {
            let is_meant = match self {
                Meant::All => false,
                Meant::Events(events) => events.contains(&letter.event_id),
                Meant::Reason(text) => reason(&letter) == *text,
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
