//! The settings of a thread, as `thread config` shows and sets them.
//!
//! They are stored as texts. What a newer program has stored is kept and has no effect here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use super::duration;
use super::subscription::ConsumerId;

/// A setting of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key<'k> {
    RetentionAge,
    RetentionEvents,
    RetentionLogs,
    RetentionSteps,
    /// The first event that this holder needs. The name may be that of a consumer.
    Hold(&'k str),
}

/// What the names of holds begin with.
const HOLD: &str = "hold.";

/// How long steps are kept once their events are finished, if that is not set.
const STEPS: Duration = Duration::from_secs(7 * 86_400);

impl<'k> Key<'k> {
    /// All of them but holds, by name.
    pub const ALL: [Key<'static>; 4] =
        [Key::RetentionAge, Key::RetentionEvents, Key::RetentionLogs, Key::RetentionSteps];

    /// As it is stored and written.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Key::RetentionAge => "retention.age".into(),
            Key::RetentionEvents => "retention.events".into(),
            Key::RetentionLogs => "retention.logs".into(),
            Key::RetentionSteps => "retention.steps".into(),
            Key::Hold(holder) => format!("{HOLD}{holder}").into(),
        }
    }

    /// The key with that name. The error is a key with a similar name, if there is one.
    pub fn parse(name: &'k str) -> Result<Key<'k>, Option<Key<'static>>> {
        let holder = name.strip_prefix(HOLD).filter(|holder| ConsumerId::new(holder).is_ok());
        let found = Key::ALL.into_iter().find(|key| key.name() == name).or(holder.map(Key::Hold));
        found.ok_or_else(|| {
            // `retention-age`, `age`, `Retention.Age` and `retention.agee`.
            let name = name.to_lowercase().replace(['-', '_'], ".");
            let is_like = |key: &Key<'_>| {
                let known = key.name();
                let last = known.rsplit('.').next().unwrap_or_default();
                name == last || strsim::osa_distance(&name, &known) <= 2
            };
            Key::ALL.into_iter().find(is_like)
        })
    }

    /// A value as it is to be stored. The error is a human-readable sentence.
    pub fn check(self, value: &str) -> Result<String, String> {
        match self {
            // A bare number would be seconds, which nobody means.
            Key::RetentionAge | Key::RetentionLogs | Key::RetentionSteps
                if count(value).is_some_and(|count| count > 0) =>
            {
                Err(format!("'{value}' has no unit; give one, as in {value}d"))
            }
            Key::RetentionAge | Key::RetentionLogs | Key::RetentionSteps => {
                duration::parse_positive(value).map(duration::format)
            }
            Key::RetentionEvents | Key::Hold(_) => match count(value) {
                Some(0) => Err(match self {
                    Key::Hold(_) => {
                        "'0' is zero; give the id of an event, or --unset to hold none".to_owned()
                    }
                    _ => "'0' is zero; give a larger number, or --unset to keep all events".to_owned(),
                }),
                Some(count) => Ok(count.to_string()),
                None => Err(format!("'{value}' is not a whole number, 1 or more")),
            },
        }
    }
}

/// Digits only: no sign, space or fraction. At most the largest id.
fn count(text: &str) -> Option<i64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// What a thread keeps; `None` for no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Events older than this are deleted.
    pub age: Option<Duration>,
    /// At most so many of the newest events are kept; not 0.
    pub events: Option<i64>,
    /// Logs older than this are deleted.
    pub logs: Option<Duration>,
    /// Steps of events that have been finished for so long are deleted, or for [`STEPS`].
    steps: Option<Duration>,
}

impl Retention {
    /// The part of a thread's settings that is about retention. An invalid value, which only another program can have
    /// stored, sets no limit.
    pub fn of(config: &BTreeMap<String, String>) -> Retention {
        let of = |key: Key<'_>| config.get(&*key.name());
        let duration = |key: Key<'_>| duration::parse_positive(of(key)?).ok();
        Retention {
            age: duration(Key::RetentionAge),
            events: of(Key::RetentionEvents).and_then(|text| count(text)).filter(|&count| count > 0),
            logs: duration(Key::RetentionLogs),
            steps: duration(Key::RetentionSteps),
        }
    }

    /// Whether everything but steps is kept.
    pub fn keeps_all(&self) -> bool {
        Retention { steps: None, ..*self } == Retention::default()
    }

    /// Whether nothing is set: steps are kept as long as usual, and everything else for good.
    pub fn is_default(&self) -> bool {
        *self == Retention::default()
    }

    /// How long steps are kept once their events are finished.
    pub fn of_steps(&self) -> Duration {
        self.steps.unwrap_or(STEPS)
    }
}

/// Of the events that are held, the oldest, with its holder. An invalid value, which only another program can have
/// stored, holds all events.
pub fn oldest_hold(config: &BTreeMap<String, String>) -> Option<(i64, &str)> {
    let holds = config.iter().filter_map(|(name, value)| Some((name.strip_prefix(HOLD)?, value)));
    holds.map(|(holder, value)| (count(value).unwrap_or(1), holder)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_and_stored_in_one_form() {
        let checked = |key: Key<'_>, value: &str| key.check(value).ok();
        assert_eq!(checked(Key::RetentionAge, "1w").as_deref(), Some("7d"));
        assert_eq!(checked(Key::RetentionLogs, "90s").as_deref(), Some("1m30s"));
        assert_eq!(checked(Key::RetentionLogs, "90"), None, "no unit");
        assert_eq!(checked(Key::RetentionEvents, "00100").as_deref(), Some("100"));
        assert_eq!(checked(Key::Hold("a"), "007").as_deref(), Some("7"));
        for (key, instead) in
            [(Key::Hold("a"), "the id of an event"), (Key::RetentionEvents, "a larger number")]
        {
            assert!(key.check("0").unwrap_err().contains(instead));
        }
        assert!(Key::RetentionAge.check("0").unwrap_err().contains("zero"));
        for bad in ["", "0", "0s", "-1", "+1", " 1", "1.5", "7y", "ever", "11y", "99999999999999999999"] {
            assert_eq!(checked(Key::RetentionAge, bad), None, "{bad}");
            assert_eq!(checked(Key::RetentionEvents, bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_that_is_nearly_right_has_a_suggestion() {
        assert_eq!(Key::parse("retention.age"), Ok(Key::RetentionAge));
        for (name, meant) in [
            ("retention-age", Some(Key::RetentionAge)),
            ("Retention.Events", Some(Key::RetentionEvents)),
            ("logs", Some(Key::RetentionLogs)),
            ("retention.evnts", Some(Key::RetentionEvents)),
            ("steps", Some(Key::RetentionSteps)),
            ("retention.stepz", Some(Key::RetentionSteps)),
            ("retention.runs", None),
            ("hold.", None),
            ("hold.a b", None),
            ("core.editor", None),
            ("", None),
        ] {
            assert_eq!(Key::parse(name), Err(meant), "{name}");
        }
    }

    #[test]
    fn the_oldest_hold_counts() {
        let config = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let oldest =
            |pairs: &[(&str, &str)]| oldest_hold(&config(pairs)).map(|(id, holder)| (id, holder.to_owned()));
        assert_eq!(oldest(&[("retention.events", "5")]), None);
        let holds = [("hold.a", "9"), ("hold.b.c", "7"), ("retention.events", "5")];
        assert_eq!(oldest(&holds), Some((7, "b.c".to_owned())));
        assert_eq!(oldest(&[("hold.a", "9"), ("hold.b", "x")]), Some((1, "b".to_owned())));
        assert_eq!(Key::parse("hold.b.c"), Ok(Key::Hold("b.c")));
        assert_eq!(Key::Hold("b.c").name(), "hold.b.c");
    }

    #[test]
    fn what_is_not_valid_sets_no_limit() {
        let config = |pairs: [(&str, &str); 3]| pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
        let set = config([("retention.age", "7d"), ("retention.events", "5"), ("retention.logs", "90d")]);
        let day = Duration::from_secs(86_400);
        let expected = Retention { age: Some(7 * day), events: Some(5), logs: Some(90 * day), steps: None };
        assert_eq!(Retention::of(&set), expected);
        assert!(!expected.keeps_all() && !expected.is_default());
        for none in ["-5", "0"] {
            let odd = config([("retention.age", "0"), ("retention.events", none), ("retention.new", "1d")]);
            assert!(Retention::of(&odd).keeps_all() && Retention::of(&odd).is_default());
        }
        let steps = |value| Retention::of(&config([("retention.steps", value); 3]));
        assert!(steps("1d").keeps_all() && !steps("1d").is_default());
        assert_eq!((steps("1d").of_steps(), steps("0").of_steps()), (day, 7 * day));
    }
}
