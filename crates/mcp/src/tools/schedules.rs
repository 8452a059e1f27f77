//! Tools for messages that come later, once or again and again: reminders.

use std::path::Path;
use std::time::Duration;

use chrono::Utc;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use thread::model::due::{Due, ScheduledId, point_in_time};
use thread::model::duration;
use thread::model::event::NewEvent;
use thread::model::schedule::{CatchUp, Schedule, Timing};
use thread::model::time;
use thread::queue::scheduled::local_zone;
use thread::run::due::attend_to_scheduled;
use thread_conversation::Message;

use super::queue::MAX_CONTENT;
use crate::problem::{Problem, Result};
use crate::scope::{Scope, open};
use crate::text;

/// So many messages may be to come, and so many schedules may there be, before more are refused: a model may go in
/// circles.
const MOST_SCHEDULED: u64 = 1000;
const MOST_SCHEDULES: usize = 100;

/// The shortest time between two messages of a schedule.
const SHORTEST: Duration = Duration::from_secs(60);

/// How many scheduled messages are listed.
const LISTED: usize = 50;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateArgs {
    pub session: Option<String>,
    content: String,
    /// Once, after e.g. 30m or 1d
    #[serde(rename = "in")]
    after: Option<String>,
    /// Once, at a time with or without offset
    at: Option<String>,
    /// Again and again, e.g. 1h
    every: Option<String>,
    /// Again and again: 0 9 * * 1-5
    cron: Option<String>,
    /// Of cron, e.g. Europe/Berlin
    tz: Option<String>,
    /// For every and cron
    name: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct Created {
    /// For schedule_cancel.
    id: String,
    /// When it comes, or comes first.
    next: String,
}

pub fn create(scope: &Scope, path: &Path, args: CreateArgs) -> Result<Created> {
    let CreateArgs { content, after, at, every, cron, tz, name, .. } = args;
    if content.len() > MAX_CONTENT {
        let what = format!("the content has {} bytes, more than {MAX_CONTENT}", content.len());
        return Err(Problem::new(what, "store it in a file, and name its path"));
    }
    let message = Message { content, ..Message::default() };
    let event = message.event(&scope.source).map_err(thread::Error::from)?;
    let wrong = |what: String| Problem::new(what, "see the tool's inputSchema; nothing was stored");
    let lone = |given: bool| match given {
        true => Err(wrong("tz is for cron, and name for cron and every".to_owned())),
        false => Ok(()),
    };
    match (after, at, every, cron) {
        (Some(after), None, None, None) => {
            lone(tz.is_some() || name.is_some())?;
            create_once(scope, path, event, Due::After(duration::parse(&after).map_err(wrong)?))
        }
        (None, Some(at), None, None) => {
            lone(tz.is_some() || name.is_some())?;
            create_once(scope, path, event, Due::At(point_in_time(&at, &local_zone()).map_err(wrong)?))
        }
        (None, None, Some(every), None) => {
            lone(tz.is_some())?;
            let every = duration::parse(&every).map_err(wrong)?;
            if every < SHORTEST {
                return Err(wrong("every is shorter than a minute".to_owned()));
            }
            create_schedule(scope, path, &event, Timing::Every(every), name)
        }
        (None, None, None, Some(cron)) => {
            let zone = tz.unwrap_or_else(|| local_zone().iana_name().unwrap_or("UTC").to_owned());
            create_schedule(scope, path, &event, Timing::Cron { cron, zone }, name)
        }
        _ => Err(wrong("not exactly one of in, at, every and cron is given".to_owned())),
    }
}

fn create_once(scope: &Scope, path: &Path, event: NewEvent<'_>, due: Due) -> Result<Created> {
    let event = event.with_due(due).map_err(thread::Error::from)?;
    let mut queue = open(path)?;
    if queue.count_scheduled()? >= MOST_SCHEDULED {
        return Err(Problem::new(
            format!("{MOST_SCHEDULED} messages are to come already"),
            "`schedule_cancel` some, or use `every`",
        ));
    }
    let stored = thread::run::push(&mut queue, &scope.launcher, &event)?;
    match stored.scheduled {
        Some((id, due)) => Ok(Created { id: id.to_string(), next: time::format(due) }),
        // It was due at once.
        None => Ok(Created { id: stored.id.to_string(), next: stored.created_at }),
    }
}

fn create_schedule(
    scope: &Scope,
    path: &Path,
    event: &NewEvent<'_>,
    timing: Timing,
    name: Option<String>,
) -> Result<Created> {
    let wrong = |what: String| Problem::new(what, "see the tool's inputSchema; nothing was stored");
    let now = Utc::now();
    timing.check(now).map_err(|problem| wrong(format!("the schedule {problem}")))?;
    let Some(name) = name else { return Err(wrong("a schedule needs a name".to_owned())) };
    Schedule::check_name(&name).map_err(wrong)?;
    if ScheduledId::parse(&name).is_ok() {
        return Err(wrong(format!("'{name}' is the id of a single message")));
    }
    let schedule = Schedule::of(name, timing, CatchUp::One, event).from_now(now);
    schedule.event(now).map_err(thread::Error::from)?;
    let mut queue = open(path)?;
    let schedules = queue.schedules()?;
    if schedules.len() >= MOST_SCHEDULES {
        return Err(Problem::new(
            format!("there are {MOST_SCHEDULES} schedules already"),
            "`schedule_cancel` some first",
        ));
    }
    if !queue.add_schedule(&schedule)? {
        return Err(Problem::new(
            format!("there is a schedule '{}' already", schedule.name),
            "`schedule_cancel` it first, or choose another name; nothing was changed",
        ));
    }
    attend_to_scheduled(&mut queue, &scope.launcher)?;
    let next = schedule.next.map(time::format).unwrap_or_default();
    Ok(Created { id: schedule.name, next })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListArgs {
    pub session: Option<String>,
}

/// A message that is to come.
#[skip_serializing_none]
#[derive(Serialize, JsonSchema)]
struct ToCome {
    id: String,
    /// When it comes; missing if its schedule is paused.
    next: Option<String>,
    /// For a schedule: by what rule.
    rule: Option<String>,
    content: String,
}

#[derive(Serialize, JsonSchema)]
pub struct Listed {
    /// Schedules, by name, then single messages, the first to come first.
    schedules: Vec<ToCome>,
    /// How many single messages there are besides.
    more: u64,
}

pub fn list(_: &Scope, path: &Path, _: ListArgs) -> Result<Listed> {
    let mut queue = open(path)?;
    let of_schedule = |schedule: Schedule| ToCome {
        next: schedule.next.filter(|_| !schedule.paused).map(time::format),
        rule: Some(schedule.timing.text()),
        content: text::cut(&schedule.content).0,
        id: schedule.name,
    };
    let mut schedules: Vec<ToCome> = queue.schedules()?.into_iter().map(of_schedule).collect();
    let single = queue.scheduled(None, LISTED)?;
    let more = queue.count_scheduled()?.saturating_sub(single.len() as u64);
    schedules.extend(single.into_iter().map(|scheduled| ToCome {
        id: scheduled.id.to_string(),
        next: Some(time::format(scheduled.due)),
        rule: None,
        content: text::cut(&scheduled.event.content).0,
    }));
    Ok(Listed { schedules, more })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelArgs {
    pub session: Option<String>,
    id: String,
}

#[derive(Serialize, JsonSchema)]
pub struct Cancelled {
    id: String,
}

pub fn cancel(scope: &Scope, path: &Path, args: CancelArgs) -> Result<Cancelled> {
    let mut queue = open(path)?;
    let is_there = match ScheduledId::parse(&args.id) {
        Ok(id) => queue.cancel_scheduled(id)?,
        Err(_) => queue.change_schedule(&args.id, &mut |_| Ok(None))?.is_some(),
    };
    if !is_there {
        return Err(Problem::new(
            format!("nothing with the id '{}' is to come", args.id),
            "`schedule_list` shows what is; it may have come already",
        ));
    }
    // A caller that waits for it need not any more.
    attend_to_scheduled(&mut queue, &scope.launcher)?;
    Ok(Cancelled { id: args.id })
}
