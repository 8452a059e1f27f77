//! Searching sessions by text, or by the day of their last activity.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use chrono::{DateTime, Datelike, Days, Local, NaiveDate};
use serde_json::Value;
use thread::model::event::CappedRow;
use thread::model::filter::Scope;
use thread::queue::{Remaining, Selection};
use thread::{Filter, Queue};
use thread_conversation::Entry;
use thread_protocol::Content;
use thread_protocol::method::{DateFilter, SessionList};

use crate::catalogue::{self, Catalogue};
use crate::error::Result;
use crate::events::LARGE;
use crate::excerpt::around;
use crate::root::Root;
use crate::terms::Terms;

/// How long a search may take.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// How much text is shown behind a match, in characters.
const CONTEXT: usize = 60;

/// What is searched: messages, arguments and results of tools, and errors.
const SEARCHED: &str =
    "type = 'message' OR type = 'record' AND subtype IN ('toolcall', 'toolresult', 'error')";

/// The first of the days that a filter covers, and the day after the last.
fn days(filter: DateFilter, today: NaiveDate) -> (NaiveDate, NaiveDate) {
    let back = |from: NaiveDate, days| from.checked_sub_days(Days::new(days)).unwrap_or(from);
    let tomorrow = today.succ_opt().unwrap_or(today);
    let monday = back(today, u64::from(today.weekday().num_days_from_monday()));
    match filter {
        DateFilter::Today => (today, tomorrow),
        DateFilter::Yesterday => (back(today, 1), today),
        DateFilter::ThisWeek => (monday, tomorrow),
        DateFilter::LastWeek => (back(monday, 7), monday),
    }
}

fn covers(filter: DateFilter, time: DateTime<Local>, today: NaiveDate) -> bool {
    let (from, to) = days(filter, today);
    (from..to).contains(&time.date_naive())
}

/// Sessions whose title, messages, tool calls or errors contain all [terms](Terms) of `query`, ignoring case, most recently
/// active first.
///
/// # Errors
///
/// The root cannot be read. A session that cannot be read is left out.
pub fn search(
    root: &Root,
    catalogue: &Catalogue,
    query: Option<&str>,
    filter: Option<DateFilter>,
    limit: usize,
) -> Result<SessionList> {
    let until = Instant::now() + TIME_LIMIT;
    let terms = query.map(Terms::of).filter(|terms| !terms.is_empty());
    let today = Local::now().date_naive();
    let (mut sessions, mut total, mut truncated) = (Vec::new(), 0, false);
    for listed in catalogue::entries(root)? {
        if Instant::now() >= until {
            truncated = true;
            break;
        }
        if filter.is_some_and(|filter| !covers(filter, listed.active.into(), today)) {
            continue;
        }
        let found = match &terms {
            None => Some(None),
            Some(terms) => {
                let Ok(summary) = catalogue.summary(root, &listed) else { continue };
                let named = summary.title();
                let lower = named.to_lowercase();
                let title = terms.are_all_in(&lower).then(|| shown(&named, &lower, terms)).flatten();
                let title = title.map(|text| (text, None));
                match root.queue(listed.id).and_then(|mut queue| find(&mut queue, terms, &lower, until)) {
                    Ok(Found::Text(text, seq)) => Some(Some((text, Some(seq)))),
                    Ok(Found::Nothing) | Err(_) => title.map(Some),
                    Ok(Found::TimeIsUp) if title.is_some() => Some(title),
                    Ok(Found::TimeIsUp) => {
                        truncated = true;
                        break;
                    }
                }
            }
        };
        let Some(found) = found else { continue };
        total += 1;
        if sessions.len() < limit {
            let Ok(summary) = catalogue.summary(root, &listed) else { continue };
            let mut shown = catalogue::list_entry(&listed, &summary);
            (shown.matched, shown.match_seq) = found.map_or((None, None), |(text, seq)| (Some(text), seq));
            sessions.push(shown);
        } else if terms.is_some() {
            // Further matches would only be counted, at the cost of reading all sessions.
            break;
        }
    }
    Ok(SessionList { sessions, total, truncated })
}

enum Found {
    /// A piece of text, and the event that has it.
    Text(String, u64),
    Nothing,
    TimeIsUp,
}

/// The text around the first term that is in it. `lower` is the text in lower case.
fn shown(text: &str, lower: &str, terms: &Terms) -> Option<String> {
    terms.iter().find_map(|term| around(text, lower, term, CONTEXT))
}

/// The first event that has all terms; or else, if each is in some event or in the title, which is in lower case, the first
/// that has one.
fn find(queue: &mut Queue, terms: &Terms, title: &str, until: Instant) -> Result<Found> {
    let mut missing = terms.clone();
    missing.remove_those_in(title);
    let is_in_title = missing.is_empty();
    let mut first = None;
    let filter = Filter::new(SEARCHED, Scope::Reading)?;
    let mut selection = Selection { after: 0, limit: None, filter };
    let mut found = Found::Nothing;
    loop {
        let remaining = queue.read_page_capped(&mut selection, LARGE, &mut |capped| {
            let text = text_of(&capped);
            let lower = text.to_lowercase();
            let has_one = missing.remove_those_in(&lower);
            let place =
                || shown(&text, &lower, terms).map(|shown| Found::Text(shown, capped.row.id.unsigned_abs()));
            if terms.are_all_in(&lower)
                && let Some(place) = place()
            {
                found = place;
            } else if Instant::now() >= until {
                found = Found::TimeIsUp;
            }
            if has_one && first.is_none() {
                first = place();
            }
            if matches!(found, Found::Nothing) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if !matches!(found, Found::Nothing) {
            return Ok(found);
        }
        if remaining == Remaining::None {
            return Ok(first.filter(|_| missing.is_empty() && !is_in_title).unwrap_or(Found::Nothing));
        }
    }
}

/// What can be read of an event.
fn text_of(capped: &CappedRow<'_>) -> String {
    if capped.row.kind == b"message" {
        return Content::stored(&String::from_utf8_lossy(capped.row.content)).text();
    }
    let mut texts = Vec::new();
    match Entry::of(&capped.row.to_event()) {
        Entry::ToolCall(call) => {
            texts.push(call.name);
            strings(call.arguments, &mut texts);
        }
        Entry::ToolResult(result) => {
            texts.push(result.name);
            match result.outcome {
                Ok(value) => strings(value, &mut texts),
                Err(error) => texts.push(error),
            }
        }
        Entry::Error { error, .. } => texts.push(error),
        _ => {}
    }
    texts.join("\n")
}

/// All texts and numbers in a value.
fn strings(value: Value, into: &mut Vec<String>) {
    match value {
        Value::String(text) => into.push(text),
        Value::Number(number) => into.push(number.to_string()),
        Value::Array(values) => values.into_iter().for_each(|value| strings(value, into)),
        Value::Object(fields) => fields.into_iter().for_each(|(_, value)| strings(value, into)),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weeks_begin_on_monday() {
        let day = |day| NaiveDate::from_ymd_opt(2026, 3, day).unwrap();
        // A Wednesday.
        assert_eq!(days(DateFilter::ThisWeek, day(18)), (day(16), day(19)));
        assert_eq!(days(DateFilter::LastWeek, day(18)), (day(9), day(16)));
        assert_eq!(days(DateFilter::Yesterday, day(18)), (day(17), day(18)));
        assert_eq!(days(DateFilter::ThisWeek, day(16)), (day(16), day(17)));
    }
}
