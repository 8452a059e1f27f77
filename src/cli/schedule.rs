//! `thread schedule`: events that come again and again.

use std::time::Duration;

use chrono::Utc;
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::event::EventArgs;
use super::{Globals, limit, output, push};
use crate::error::{Code, Error};
use crate::failure::{Failure, Result, failed, usage};
use crate::model::duration;
use crate::model::schedule::{CatchUp, Schedule as Stored, Timing};
use crate::model::time::{self, Time};
use crate::queue::scheduled::local_zone;

/// Push an event again and again, by cron's rules or at an interval
///
/// Each event has the schedule's name in its metadata, as `schedule`, and the time that it is for, as `scheduled_for`. A
/// time that was missed, because no process was there, is made up for by one event (--catch-up).
#[derive(Args)]
#[command(after_help = "\
Examples:
  thread schedule add -t inbox am --cron '0 9 * * 1-5' --tz Europe/Berlin 'Up'
  thread schedule list -t inbox
  thread schedule next -t inbox am -n 3")]
pub struct Schedule {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Add a schedule
    ///
    /// --cron takes the five fields of crontab(5), or a name like @daily. A time that the clocks skip comes right after;
    /// one that they repeat comes once, unless it is one of every hour. --every counts from now.
    #[command(after_help = "\
Examples:
  thread schedule add -t inbox am --cron '0 9 * * 1-5' --tz Europe/Berlin 'Up'
  thread schedule add -t inbox poll --every 15m --catch-up none 'Look for mail'")]
    Add(Box<Add>),
    /// List the schedules
    ///
    /// With --json it prints one JSON object per line.
    #[command(after_help = "Example:\n  thread schedule list -t inbox --json")]
    List,
    /// Remove a schedule
    #[command(after_help = "Example:\n  thread schedule remove -t inbox morning")]
    Remove(Name),
    /// Let a schedule rest; a resumed one continues from then
    #[command(after_help = "Example:\n  thread schedule pause -t inbox morning")]
    Pause(Name),
    /// Let a paused schedule continue; what was due in between is left out
    #[command(after_help = "Example:\n  thread schedule resume -t inbox morning")]
    Resume(Name),
    /// Print the next times of a schedule
    #[command(after_help = "Example:\n  thread schedule next -t inbox morning -n 5")]
    Next(Next),
}

#[derive(Args)]
struct Add {
    /// The schedule's name
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// Minute, hour, day of the month, month and day of the week, as in crontab(5)
    #[arg(long, value_name = "FIELDS", required_unless_present = "every")]
    cron: Option<String>,
    /// At this interval
    #[arg(long, value_name = "D", value_parser = duration::parse_positive, conflicts_with_all = ["cron", "tz"])]
    every: Option<Duration>,
    /// The time zone of --cron, like Europe/Berlin [default: this machine's]
    #[arg(long, value_name = "ZONE")]
    tz: Option<String>,
    /// How many events make up for times that were missed
    #[arg(long, value_name = "HOW", value_enum, default_value = "one")]
    catch_up: MakeUp,
    /// Replace a schedule of that name, if there is one; the same one is left as it is
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    event: EventArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum MakeUp {
    /// One for all of them
    One,
    /// One for each
    #[value(alias = "each")]
    All,
    /// None: only what is less than a minute late
    None,
}

impl From<MakeUp> for CatchUp {
    fn from(how: MakeUp) -> CatchUp {
        match how {
            MakeUp::One => CatchUp::One,
            MakeUp::All => CatchUp::All,
            MakeUp::None => CatchUp::None,
        }
    }
}

#[derive(Args)]
struct Name {
    /// The schedule's name
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
}

#[derive(Args)]
struct Next {
    #[command(flatten)]
    name: Name,
    /// How many
    #[arg(short = 'n', long, value_name = "N", value_parser = limit, default_value = "5")]
    count: u64,
}

fn name(text: &str) -> std::result::Result<String, String> {
    Stored::check_name(text).map(|()| text.to_owned())
}

impl Schedule {
    pub fn run(self, globals: &Globals) -> Result<()> {
        match self.what {
            What::Add(add) => add.run(globals),
            What::List => list(globals),
            What::Remove(Name { name }) => change(&name, globals, |_| None),
            What::Pause(Name { name }) => {
                change(&name, globals, |seen| Some(Stored { paused: true, ..seen.clone() }))
            }
            What::Resume(Name { name }) => change(&name, globals, |seen| {
                let resumed = Stored { paused: false, ..seen.clone() };
                Some(if seen.paused { resumed.from_now(Utc::now()) } else { resumed })
            }),
            What::Next(next) => next.run(globals),
        }
    }
}

impl Add {
    fn run(self, globals: &Globals) -> Result<()> {
        let path = globals.location()?;
        let timing = match (self.cron, self.every) {
            (Some(cron), _) => Timing::Cron { cron, zone: self.tz.unwrap_or_else(zone_here) },
            (None, every) => Timing::Every(every.unwrap_or_default()),
        };
        let now = Utc::now();
        if let Err(problem) = timing.check(now) {
            return usage(
                format_args!("the schedule {}", output::plain(&problem)),
                "see `thread schedule add --help`; nothing was stored",
            );
        }
        let mut event = self.event;
        // Counted from the time of each.
        let expires = event.expires.take();
        let event = event.into_event(&path, None, None)?;
        if event.idempotency_key.is_some() {
            return usage(
                "a schedule has many events, and an idempotency key is for one",
                "leave out --idempotency-key: a schedule makes no event twice; nothing was stored",
            );
        }
        let schedule = Stored { expires, ..Stored::of(self.name, timing, self.catch_up.into(), &event) };
        // What would be refused then is refused now.
        schedule.event(now)?;
        let mut schedule = schedule.from_now(now);
        let mut queue = super::opened::Opened::open(path)?;
        if self.replace {
            queue.change_schedule(&schedule.name.clone(), &mut |seen| {
                if let Some(same) = seen.filter(|seen| seen.is_like(&schedule)) {
                    schedule = same.clone();
                }
                Ok::<_, Error>(Some(schedule.clone()))
            })?;
        } else if !queue.add_schedule(&schedule)? {
            return failed(
                Code::Failed,
                format_args!("there is a schedule '{}' already", output::plain(&schedule.name)),
                "add --replace, or choose another name; nothing was changed",
            );
        }
        push::attend(&mut queue);
        let next = schedule.next.map(|next| in_zone(next, &schedule.timing));
        globals.print(
            format_args!("{}  next={}", output::plain(&schedule.name), next.unwrap_or_default()),
            object(&schedule),
        )
    }
}

/// The name of this machine's time zone.
fn zone_here() -> String {
    local_zone().iana_name().unwrap_or("UTC").to_owned()
}

/// A time, in the zone of a schedule if that is known.
fn in_zone(time: Time, timing: &Timing) -> String {
    let zone = match timing {
        Timing::Cron { zone, .. } => TimeZone::get(zone).ok(),
        Timing::Every(_) => None,
    };
    let zoned = zone.zip(Timestamp::from_millisecond(time.timestamp_millis()).ok());
    zoned.map_or_else(
        || time::format(time),
        |(zone, time)| time.to_zoned(zone).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
    )
}

fn list(globals: &Globals) -> Result<()> {
    let mut queue = globals.open()?;
    let mut text = String::new();
    for schedule in queue.schedules()? {
        text.push_str(&match globals.json {
            true => object(&schedule).to_string() + "\n",
            false => text_line(&schedule),
        });
    }
    output::bytes(text.as_bytes()).map(drop)
}

fn object(schedule: &Stored) -> Value {
    let Stored {
        name,
        timing,
        catch_up,
        paused,
        source,
        kind,
        subtype,
        content,
        metadata,
        expires,
        last,
        next,
        ..
    } = schedule;
    let (cron, zone, every) = match timing {
        Timing::Cron { cron, zone } => (Some(cron), Some(zone), None),
        Timing::Every(every) => (None, None, Some(duration::format(*every))),
    };
    let metadata = metadata.as_deref();
    let metadata = metadata.map(|text| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)));
    json!({
        "name": name,
        "cron": cron,
        "tz": zone,
        "every": every,
        "catch_up": catch_up.as_str(),
        "paused": paused,
        "last": last.map(time::format),
        "next": next.filter(|_| !paused).map(time::format),
        "source": source,
        "type": kind,
        "subtype": subtype,
        "content": content,
        "metadata": metadata,
        "expires": expires.map(duration::format),
    })
}

fn text_line(schedule: &Stored) -> String {
    let next = match schedule.next {
        _ if schedule.paused => "paused".to_owned(),
        Some(next) => format!("next={}", in_zone(next, &schedule.timing)),
        None => "next=never".to_owned(),
    };
    let last = schedule.last.map(|last| format!(" last={}", in_zone(last, &schedule.timing)));
    format!(
        "{}  {}  {next}{}\n",
        output::plain(&schedule.name),
        output::plain(&schedule.timing.text()),
        last.unwrap_or_default()
    )
}

fn change(name: &str, globals: &Globals, to: impl Fn(&Stored) -> Option<Stored>) -> Result<()> {
    let mut queue = globals.open()?;
    let mut is_there = false;
    queue.change_schedule(name, &mut |seen| {
        is_there = seen.is_some();
        Ok::<_, Error>(seen.and_then(&to))
    })?;
    if !is_there {
        return Err(unknown(name));
    }
    push::attend(&mut queue);
    globals.print(output::plain(name), json!({ "name": name }))
}

impl Next {
    fn run(self, globals: &Globals) -> Result<()> {
        let name = &self.name.name;
        let mut queue = globals.open()?;
        let Some(schedule) = queue.schedules()?.into_iter().find(|schedule| schedule.name == *name) else {
            return Err(unknown(name));
        };
        if let Some(problem) = schedule.problem(Utc::now()) {
            return failed(
                Code::Failed,
                format_args!("'{}' makes no events: it {}", output::plain(name), output::plain(&problem)),
                "remove it and add it again, or install the time zones (tzdata)",
            );
        }
        if schedule.paused {
            output::note(format_args!(
                "'{}' is paused; these are its times once `thread schedule resume` lets it continue",
                output::plain(name)
            ));
        }
        let mut next = schedule.next.filter(|_| !schedule.paused).or_else(|| schedule.after(Utc::now()));
        let (mut text, mut left) = (String::new(), self.count);
        while let Some(time) = next.filter(|_| left > 0) {
            let line = match globals.json {
                true => json!({ "next": time::format(time) }).to_string(),
                false => in_zone(time, &schedule.timing),
            };
            text.push_str(&(line + "\n"));
            (next, left) = (schedule.after(time), left - 1);
            if text.len() > 8192 {
                output::bytes(std::mem::take(&mut text).as_bytes())?;
            }
        }
        output::bytes(text.as_bytes()).map(drop)
    }
}

fn unknown(name: &str) -> Failure {
    let what = format_args!("there is no schedule '{}'", output::plain(name)).to_string();
    Failure::new(1, Code::UnknownSchedule, what, "see `thread schedule list`")
}
