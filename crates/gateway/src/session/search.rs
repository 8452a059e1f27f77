//! Searching sessions by text, or by the day of their last activity.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use chrono::{DateTime, Datelike, Days, Local, NaiveDate};
use serde_json::{Value, json};
use thread::model::filter::Scope;
use thread::queue::{Remaining, Selection};
use thread::{Filter, Queue};

use super::catalogue::{self, Catalogue};
use super::root::Root;
use crate::error::Result;
use crate::protocol::content;

/// How long a search may take.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// How much text is shown on either side of a match, in characters.
const CONTEXT: usize = 40;

/// Days of last activity, in local time; weeks begin on Monday.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    Today,
    Yesterday,
    ThisWeek,
    LastWeek,
}

impl Period {
    /// The first day, and the day after the last.
    fn range(self, today: NaiveDate) -> (NaiveDate, NaiveDate) {
        let back = |from: NaiveDate, days| from.checked_sub_days(Days::new(days)).unwrap_or(from);
        let tomorrow = today.succ_opt().unwrap_or(today);
        let monday = back(today, u64::from(today.weekday().num_days_from_monday()));
        match self {
            Period::Today => (today, tomorrow),
            Period::Yesterday => (back(today, 1), today),
            Period::ThisWeek => (monday, tomorrow),
            Period::LastWeek => (back(monday, 7), monday),
        }
    }

    fn covers(self, time: DateTime<Local>, today: NaiveDate) -> bool {
        let (from, to) = self.range(today);
        (from..to).contains(&time.date_naive())
    }
}

/// Sessions whose title or messages contain `query`, ignoring case, most recently active first.
///
/// # Errors
///
/// The root cannot be read. A session that cannot be read is left out.
pub fn search(
    root: &Root,
    catalogue: &Catalogue,
    query: Option<&str>,
    days: Option<Period>,
    limit: usize,
) -> Result<Value> {
    let until = Instant::now() + TIME_LIMIT;
    let query = query.map(str::trim).filter(|query| !query.is_empty()).map(str::to_lowercase);
    let today = Local::now().date_naive();
    let (mut sessions, mut total, mut truncated) = (Vec::new(), 0, false);
    for listed in catalogue::entries(root)? {
        if Instant::now() >= until {
            truncated = true;
            break;
        }
        if days.is_some_and(|days| !days.covers(listed.active.into(), today)) {
            continue;
        }
        let found = match &query {
            None => Some(None),
            Some(query) => {
                let Ok(summary) = catalogue.summary(root, &listed) else { continue };
                let outcome = excerpt(&summary.title(), query).map_or_else(
                    || root.queue(listed.id).and_then(|mut queue| find(&mut queue, query, until)),
                    |title| Ok(Found::Text(title)),
                );
                match outcome {
                    Ok(Found::Text(text)) => Some(Some(text)),
                    Ok(Found::Nothing) | Err(_) => None,
                    Ok(Found::TimeIsUp) => {
                        truncated = true;
                        break;
                    }
                }
            }
        };
        let Some(text) = found else { continue };
        total += 1;
        if sessions.len() < limit {
            let Ok(summary) = catalogue.summary(root, &listed) else { continue };
            let mut shown = catalogue::list_entry(&listed, &summary);
            if let Some(text) = text {
                shown["match"] = text.into();
            }
            sessions.push(shown);
        } else if query.is_some() {
            // Further matches would only be counted, at the cost of reading all sessions.
            break;
        }
    }
    let mut page = json!({ "sessions": sessions, "total": total });
    if truncated {
        page["truncated"] = true.into();
    }
    Ok(page)
}

enum Found {
    Text(String),
    Nothing,
    TimeIsUp,
}

fn find(queue: &mut Queue, query: &str, until: Instant) -> Result<Found> {
    let filter = Filter::new("type = 'message'", Scope::Reading)?;
    let mut selection = Selection { after: 0, limit: None, filter };
    let mut found = Found::Nothing;
    loop {
        let remaining = queue.read_page(&mut selection, &mut |row| {
            let text = content::text(&String::from_utf8_lossy(row.content));
            if let Some(text) = excerpt(&text, query) {
                found = Found::Text(text);
            } else if Instant::now() >= until {
                found = Found::TimeIsUp;
            }
            if matches!(found, Found::Nothing) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if remaining == Remaining::None || !matches!(found, Found::Nothing) {
            return Ok(found);
        }
    }
}

/// The part of a text around the first match of `query`, which is in lower case.
fn excerpt(text: &str, query: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let at = lower.find(query)?;
    // Lower case may be longer or shorter, so the position is only approximate.
    let before = lower[..at].chars().count().saturating_sub(CONTEXT);
    let piece: String = text.chars().skip(before).take(2 * CONTEXT + query.chars().count()).collect();
    Some(content::beginning(&piece, 2 * CONTEXT + query.chars().count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matched_is_shown_with_what_stands_around_it() {
        let text = format!("{} The Needle {}", "a ".repeat(100), "b ".repeat(100));
        let piece = excerpt(&text, "needle").unwrap();
        assert!(piece.contains("The Needle b") && piece.chars().count() <= 86, "{piece}");
        assert_eq!(excerpt(&text, "pin"), None);
        assert_eq!(excerpt("ÄÖÜ", "öü").as_deref(), Some("ÄÖÜ"));
    }

    #[test]
    fn weeks_begin_on_monday() {
        let day = |day| NaiveDate::from_ymd_opt(2026, 3, day).unwrap();
        // A Wednesday.
        assert_eq!(Period::ThisWeek.range(day(18)), (day(16), day(19)));
        assert_eq!(Period::LastWeek.range(day(18)), (day(9), day(16)));
        assert_eq!(Period::Yesterday.range(day(18)), (day(17), day(18)));
        assert_eq!(Period::ThisWeek.range(day(16)), (day(16), day(17)));
    }
}
