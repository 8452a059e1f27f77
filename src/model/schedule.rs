//! Schedules: events that come again and again, and the rule by which they do.

use std::time::Duration;

use chrono::TimeDelta;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde::{Deserialize, Serialize};

use super::duration;
use super::event::{InvalidEvent, NewEvent};
use super::json;
use super::time::{self, Time};

/// At most this many events of a schedule are made in one transaction.
const MOST_AT_ONCE: usize = 1000;

/// The longest name of a schedule, in bytes.
const LONGEST_NAME: usize = 200;

/// A schedule's last time that lies further in the future than this is taken for that of a clock that was wrong. By
/// less, clocks are put back for summer time, and nothing is done twice.
const SET_BACK: TimeDelta = TimeDelta::hours(3);

/// A time that was missed by less than this counts as kept.
const IN_TIME: TimeDelta = TimeDelta::minutes(1);

/// When the events of a schedule are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timing {
    /// By the five fields of cron, in a time zone.
    Cron {
        cron: String,
        zone: String,
    },
    Every(Duration),
}

/// What is done about times that were missed while nothing ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CatchUp {
    /// One event for all of them, for the newest.
    #[default]
    One,
    /// An event for each.
    All,
    /// Nothing.
    None,
}

impl CatchUp {
    pub fn as_str(self) -> &'static str {
        match self {
            CatchUp::One => "one",
            CatchUp::All => "all",
            CatchUp::None => "none",
        }
    }
}

/// A schedule, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    #[serde(skip)]
    pub name: String,
    /// The number of its changes, by which a store refuses one that is based on an older one.
    #[serde(skip)]
    pub revision: i64,
    pub timing: Timing,
    pub catch_up: CatchUp,
    pub paused: bool,
    pub source: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub subtype: Option<String>,
    pub content: String,
    /// A JSON object.
    pub metadata: Option<String>,
    /// After which time each event expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Duration>,
    /// The last time for which an event was made, or that was left out.
    pub last: Option<Time>,
    /// The next one.
    pub next: Option<Time>,
}

/// When something happens again and again, checked.
#[derive(Debug, Clone)]
enum Times {
    Cron(Box<Cron>, TimeZone),
    Every(TimeDelta),
}

impl Timing {
    /// # Errors
    ///
    /// The fields are not those of cron, or never come true; the zone is unknown. Completes "the schedule …".
    pub fn check(&self, now: Time) -> Result<(), String> {
        let times = self.times()?;
        match times.after(now) {
            Some(_) => Ok(()),
            None => Err("has no time in the next years".to_owned()),
        }
    }

    /// The longest wait for the next event, unless that is for a time of day.
    pub fn longest(&self) -> Option<Duration> {
        match self {
            Timing::Cron { .. } => None,
            Timing::Every(every) => Some(*every),
        }
    }

    /// In words: `0 9 * * 1-5 Europe/Berlin`, `every 15m`.
    pub fn text(&self) -> String {
        match self {
            Timing::Cron { cron, zone } => format!("{cron} {zone}"),
            Timing::Every(every) => format!("every {}", duration::format(*every)),
        }
    }

    fn times(&self) -> Result<Times, String> {
        match self {
            Timing::Cron { cron, zone } => {
                let parser =
                    CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
                let cron = parser.parse(cron).map_err(|e| format!("has wrong fields '{cron}': {e}"))?;
                let zone = TimeZone::get(zone).map_err(|_| unknown_zone(zone))?;
                Ok(Times::Cron(Box::new(cron), zone))
            }
            Timing::Every(every) => {
                let every = TimeDelta::from_std(*every).unwrap_or(TimeDelta::MAX);
                Ok(Times::Every(every.max(TimeDelta::milliseconds(1))))
            }
        }
    }
}

/// Says that a zone is not known, with the name of one that was probably meant.
fn unknown_zone(name: &str) -> String {
    let is_meant =
        |known: &&str| known.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(name));
    let all: Vec<String> = jiff::tz::db().available().map(|zone| zone.as_str().to_owned()).collect();
    let meant = all.iter().map(String::as_str).find(is_meant);
    let meant = meant.map_or_else(String::new, |meant| format!("; did you mean '{meant}'?"));
    format!("is in the time zone '{name}', which this machine does not know{meant}")
}

impl Times {
    /// The first time after this one.
    fn after(&self, time: Time) -> Option<Time> {
        match self {
            Times::Cron(cron, zone) => {
                from_zoned(&cron.find_next_occurrence(&to_zoned(time, zone)?, false).ok()?)
            }
            Times::Every(every) => time.checked_add_signed(*every),
        }
    }

    /// The newest of its times from `next`, which is one of them, to `now`.
    fn newest(&self, next: Time, now: Time) -> Time {
        let newest = match self {
            Times::Cron(cron, zone) => to_zoned(now, zone)
                .and_then(|now| from_zoned(&cron.find_previous_occurrence(&now, true).ok()?)),
            Times::Every(every) => {
                let (passed, every) = ((now - next).num_milliseconds(), every.num_milliseconds());
                Some(next + TimeDelta::milliseconds(passed / every * every))
            }
        };
        newest.unwrap_or(next).max(next)
    }
}

fn to_zoned(time: Time, zone: &TimeZone) -> Option<Zoned> {
    Some(Timestamp::from_millisecond(time.timestamp_millis()).ok()?.to_zoned(zone.clone()))
}

fn from_zoned(time: &Zoned) -> Option<Time> {
    Time::from_timestamp_millis(time.timestamp().as_millisecond())
}

impl Schedule {
    /// A schedule of such events.
    pub fn of(name: String, timing: Timing, catch_up: CatchUp, event: &NewEvent<'_>) -> Schedule {
        Schedule {
            name,
            revision: 0,
            timing,
            catch_up,
            paused: false,
            source: event.source.to_string(),
            kind: event.kind.as_str().to_owned(),
            subtype: event.subtype.as_deref().map(str::to_owned),
            content: event.content.to_string(),
            metadata: event.metadata.as_deref().map(str::to_owned),
            expires: None,
            last: None,
            next: None,
        }
    }

    /// # Errors
    ///
    /// It cannot be the name of a schedule; says what a name is.
    pub fn check_name(name: &str) -> Result<(), String> {
        if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
            return Err(format!("a name has 1 to {LONGEST_NAME} bytes and no control characters"));
        }
        Ok(())
    }

    /// The first time after this one; `None` if its timing has become invalid.
    pub fn after(&self, time: Time) -> Option<Time> {
        self.timing.times().ok()?.after(time)
    }

    /// Why it makes no events; completes "it …".
    pub fn problem(&self, now: Time) -> Option<String> {
        self.timing.check(now).err().or_else(|| self.event(now).err().map(|e| e.to_string()))
    }

    /// Whether they make the same events by the same rule, wherever each is with it.
    pub fn is_like(&self, other: &Schedule) -> bool {
        let (revision, paused, last, next) = (other.revision, other.paused, other.last, other.next);
        *other == Schedule { revision, paused, last, next, ..self.clone() }
    }

    /// From now on, without anything that was missed.
    pub fn from_now(&self, now: Time) -> Schedule {
        Schedule { next: self.after(now), ..self.clone() }
    }

    /// If something is due: the times for which events are to be made, and the schedule after that. There may be more
    /// for the same `now`.
    pub fn due(&self, now: Time) -> Option<(Vec<Time>, Schedule)> {
        let next = self.next.filter(|_| !self.paused)?;
        if self.last.is_some_and(|last| last - now > SET_BACK) {
            return Some((Vec::new(), Schedule { last: None, ..self.from_now(now) }));
        }
        if next > now {
            return None;
        }
        let Ok(times) = self.timing.times() else { return None };
        let newest = times.newest(next, now);
        let (made, last) = match self.catch_up {
            CatchUp::All => {
                let mut made = vec![next];
                while let Some(more) = made.last().and_then(|last| times.after(*last))
                    && more <= now
                    && made.len() < MOST_AT_ONCE
                {
                    made.push(more);
                }
                let last = made.last().copied().unwrap_or(next);
                (made, last)
            }
            CatchUp::None if now - newest >= IN_TIME => (Vec::new(), newest),
            CatchUp::One | CatchUp::None => (vec![newest], newest),
        };
        Some((made, Schedule { last: Some(last), next: times.after(last), ..self.clone() }))
    }

    /// The event for one of its times.
    ///
    /// # Errors
    ///
    /// It is none: another program has stored the schedule.
    pub fn event(&self, time: Time) -> Result<NewEvent<'_>, InvalidEvent> {
        let event = NewEvent::new(
            &*self.source,
            &self.kind,
            self.subtype.as_deref().map(Into::into),
            &*self.content,
        )?;
        let event = match &self.metadata {
            Some(metadata) => event.with_metadata(metadata)?,
            None => event,
        };
        let mut name = Vec::new();
        json::write_string(&mut name, self.name.as_bytes());
        let event = event.with_own("schedule", &String::from_utf8_lossy(&name))?;
        let event = event.with_own("scheduled_for", &format!("\"{}\"", time::format(time)))?;
        match self.expires {
            Some(after) => event.with_expiry(after, time),
            None => Ok(event),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(timing: Timing, catch_up: CatchUp, next: &str) -> Schedule {
        Schedule {
            name: "s".into(),
            revision: 0,
            timing,
            catch_up,
            paused: false,
            source: "self".into(),
            kind: "message".into(),
            subtype: None,
            content: "x".into(),
            metadata: None,
            expires: None,
            last: None,
            next: Some(at(next)),
        }
    }

    fn at(text: &str) -> Time {
        time::parse(text).unwrap()
    }

    fn cron(fields: &str, zone: &str) -> Timing {
        Timing::Cron { cron: fields.into(), zone: zone.into() }
    }

    /// The first times after a time.
    fn times(timing: Timing, after: &str, count: usize) -> Vec<String> {
        let schedule = schedule(timing, CatchUp::One, after);
        let mut time = at(after);
        let next = std::iter::repeat_with(|| {
            time = schedule.after(time).unwrap();
            time::format(time).replace(":00.000Z", "Z")
        });
        next.take(count).collect()
    }

    #[test]
    fn a_time_that_the_clocks_skip_comes_right_after_and_one_that_they_repeat_comes_once() {
        let berlin = |fields, after| times(cron(fields, "Europe/Berlin"), after, 3);
        assert_eq!(
            berlin("30 2 * * *", "2026-03-28T00:00:00Z"),
            ["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"]
        );
        assert_eq!(
            berlin("30 2 * * *", "2026-10-24T12:00:00Z"),
            ["2026-10-25T00:30Z", "2026-10-26T01:30Z", "2026-10-27T01:30Z"]
        );
        assert_eq!(
            berlin("*/30 * * * *", "2026-10-25T00:20:00Z"),
            ["2026-10-25T00:30Z", "2026-10-25T01:00Z", "2026-10-25T01:30Z"]
        );
    }

    #[test]
    fn invalid_timings_are_refused() {
        let now = at("2026-03-18T00:00:00Z");
        for fields in ["", "* * * *", "60 * * * *", "* * * * * *", "0 0 30 2 *", "a b c d e", "@never"] {
            assert!(cron(fields, "UTC").check(now).is_err(), "{fields}");
        }
        assert!(cron("* * * * *", "Europe/Atlantis").check(now).is_err());
        for fields in ["0 9 * * 1-5", "@daily", "*/5 0-6,22 1 JAN-MAR sun"] {
            assert_eq!(cron(fields, "UTC").check(now), Ok(()), "{fields}");
        }
    }

    /// What is made at `now`, all together.
    fn made(mut schedule: Schedule, now: &str) -> (Vec<String>, Schedule) {
        let mut all = Vec::new();
        while let Some((made, after)) = schedule.due(at(now)) {
            all.extend(made.into_iter().map(|time| time::format(time).replace(":00.000Z", "Z")));
            schedule = after;
        }
        (all, schedule)
    }

    #[test]
    fn what_was_missed_is_made_up_for_once_each_or_not() {
        let next = "2026-03-18T20:00:00Z";
        let now = "2026-03-18T23:10:00Z";
        for timing in [cron("0 * * * *", "UTC"), Timing::Every(Duration::from_secs(3600))] {
            for (catch_up, expected) in [
                (CatchUp::One, &["2026-03-18T23:00Z"][..]),
                (
                    CatchUp::All,
                    &["2026-03-18T20:00Z", "2026-03-18T21:00Z", "2026-03-18T22:00Z", "2026-03-18T23:00Z"],
                ),
                (CatchUp::None, &[]),
            ] {
                let (times, after) = made(schedule(timing.clone(), catch_up, next), now);
                assert_eq!(
                    (&times[..], after.next),
                    (
                        &expected.iter().map(ToString::to_string).collect::<Vec<_>>()[..],
                        Some(at("2026-03-19T00:00:00Z"))
                    )
                );
            }
        }
        for (now, expected) in
            [("2026-03-18T20:00:59.999Z", &["2026-03-18T20:00Z"][..]), ("2026-03-18T20:01:00Z", &[])]
        {
            let in_time = made(schedule(cron("0 * * * *", "UTC"), CatchUp::None, next), now);
            assert_eq!(in_time.0, expected, "{now}");
        }
        let each = schedule(Timing::Every(Duration::from_millis(100)), CatchUp::All, next);
        assert_eq!(each.due(at(now)).unwrap().0.len(), MOST_AT_ONCE);
        assert_eq!(made(each, "2026-03-18T20:10:00Z").0.len(), 6001);
    }

    #[test]
    fn a_clock_that_is_set_back_repeats_nothing_and_does_not_stop_it() {
        let hourly = schedule(cron("0 * * * *", "UTC"), CatchUp::One, "2026-03-18T20:00:00Z");
        let (times, after) = made(hourly, "2026-03-18T20:00:00Z");
        assert_eq!(times, ["2026-03-18T20:00Z"]);
        // By an hour: nothing twice.
        assert!(after.due(at("2026-03-18T19:30:00Z")).is_none());
        assert!(after.due(at("2026-03-18T20:00:00Z")).is_none());
        // Forward by a day, and back.
        let (times, ahead) = made(after, "2026-03-19T20:10:00Z");
        assert_eq!(times, ["2026-03-19T20:00Z"]);
        let (times, back) = made(ahead, "2026-03-18T20:10:00Z");
        assert_eq!((times.len(), back.next), (0, Some(at("2026-03-18T21:00:00Z"))));
    }

    #[test]
    fn a_clock_is_taken_for_wrong_from_more_than_three_hours_on() {
        let hourly = schedule(cron("0 * * * *", "UTC"), CatchUp::One, "2026-03-18T21:00:00Z");
        let ahead = Schedule { last: Some(at("2026-03-18T20:00:00Z")), ..hourly };
        assert!(ahead.due(at("2026-03-18T17:00:00Z")).is_none());
        let (made, after) = ahead.due(at("2026-03-18T16:59:59Z")).unwrap();
        assert_eq!((made, after.last, after.next), (Vec::new(), None, Some(at("2026-03-18T17:00:00Z"))));
    }

    #[test]
    fn a_schedule_is_like_another_wherever_each_is_with_it() {
        let one = schedule(cron("0 * * * *", "UTC"), CatchUp::One, "2026-03-18T20:00:00Z");
        let later = Schedule { revision: 7, paused: true, last: one.next, next: None, ..one.clone() };
        assert!(one.is_like(&later) && later.is_like(&one));
        assert!(!one.is_like(&Schedule { catch_up: CatchUp::All, ..one.clone() }));
        assert!(!one.is_like(&Schedule { timing: cron("1 * * * *", "UTC"), ..one.clone() }));
    }

    #[test]
    fn timings_are_said_in_words_and_have_a_longest_wait_if_they_are_durations() {
        let every = Timing::Every(Duration::from_secs(900));
        assert_eq!((every.text(), every.longest()), ("every 15m".to_owned(), Some(Duration::from_secs(900))));
        let daily = cron("0 9 * * *", "Europe/Berlin");
        assert_eq!((daily.text(), daily.longest()), ("0 9 * * * Europe/Berlin".to_owned(), None));
        for catch_up in [CatchUp::One, CatchUp::All, CatchUp::None] {
            assert_eq!(serde_json::to_value(catch_up).unwrap(), catch_up.as_str());
        }
    }

    #[test]
    fn it_is_said_why_a_schedule_makes_no_events() {
        let now = at("2026-03-18T20:00:00Z");
        let good = schedule(cron("0 * * * *", "UTC"), CatchUp::One, "2026-03-18T20:00:00Z");
        assert_eq!(good.problem(now), None);
        let berlin = Schedule { timing: cron("0 * * * *", "berlin"), ..good.clone() };
        assert_eq!(
            berlin.problem(now).as_deref(),
            Some(
                "is in the time zone 'berlin', which this machine does not know; did you mean 'Europe/Berlin'?"
            )
        );
        let kind = Schedule { kind: "no type".into(), ..good };
        assert!(kind.problem(now).is_some());
    }

    #[test]
    fn a_name_is_short_and_has_no_control_characters() {
        let long = "a".repeat(LONGEST_NAME);
        for (name, is_name) in [
            ("a", true),
            ("é b", true),
            (&*long, true),
            (&format!("{long}a"), false),
            ("", false),
            ("a\n", false),
        ] {
            assert_eq!(Schedule::check_name(name).is_ok(), is_name, "{name:?}");
        }
    }

    #[test]
    fn a_paused_schedule_makes_nothing() {
        let paused = Schedule {
            paused: true,
            ..schedule(Timing::Every(Duration::from_secs(1)), CatchUp::All, "2026-03-18T20:00:00Z")
        };
        assert!(paused.due(at("2026-03-18T21:00:00Z")).is_none());
    }

    #[test]
    fn an_event_says_which_schedule_and_time_it_is_for() {
        let schedule = Schedule {
            name: "a \"b\"".into(),
            metadata: Some("{\"x\":1}".into()),
            ..schedule(Timing::Every(Duration::from_secs(1)), CatchUp::All, "2026-03-18T20:00:00Z")
        };
        let event = schedule.event(at("2026-03-18T20:00:00Z")).unwrap();
        assert_eq!(
            event.metadata.as_deref(),
            Some(r#"{"x":1,"schedule":"a \"b\"","scheduled_for":"2026-03-18T20:00:00.000Z"}"#)
        );
    }
}
