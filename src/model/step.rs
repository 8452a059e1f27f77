//! Steps: what a handler has done for an event, so that its next run for the same event continues there.

use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

use super::ledger::{EventWait, Sleep};
use super::subscription::ConsumerId;
use super::time::Time;

/// The longest name of a step, in bytes.
pub const LONGEST_NAME: usize = 200;

/// The longest output of a command that is kept, in bytes.
pub const LONGEST_RESULT: usize = 1024 * 1024;

/// How much of a step's words is kept for people to read, in bytes.
const WORDS_KEPT: usize = 200;

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Runs a command once.
    Step,
    /// Waits for a time.
    Sleep,
    /// Waits for an event.
    Await,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Step => "step",
            Kind::Sleep => "sleep",
            Kind::Await => "await",
        }
    }
}

/// A step of a consumer's handler, for one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    #[serde(skip, default = "nobody")]
    pub consumer: ConsumerId,
    #[serde(skip)]
    pub event_id: i64,
    #[serde(skip)]
    pub name: String,
    /// Counts its changes.
    #[serde(skip)]
    pub revision: i64,
    pub kind: Kind,
    /// The command, the time or the filter, abridged for people.
    pub words: String,
    /// Identifies all of it.
    pub digest: String,
    /// What a command gets, the same each time, as `THREAD_STEP_KEY`; empty for others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The filter of an event that is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// When it was first begun.
    pub since: Time,
    /// How long it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Nothing from its own event up to here is the one that it waits for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub scanned: i64,
    /// When it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// No event came in time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// What it prints, each time, once it is done; not loaded where many are listed.
    #[serde(skip)]
    pub result: Vec<u8>,
}

fn is_zero(id: &i64) -> bool {
    *id == 0
}

fn nobody() -> ConsumerId {
    ConsumerId::stored("")
}

impl Step {
    /// A step that begins now. `words` are all that it consists of; two steps with equal words are the same.
    pub fn new(consumer: &ConsumerId, event_id: i64, name: &str, kind: Kind, words: &[&[u8]]) -> Step {
        let text: Vec<String> = words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let text = match kind {
            Kind::Step => shlex::try_join(text.iter().map(String::as_str)).unwrap_or_default(),
            Kind::Sleep | Kind::Await => text.join(" "),
        };
        let mut digest = Sha1::new();
        for word in words {
            digest.update((word.len() as u64).to_be_bytes());
            digest.update(word);
        }
        let digest = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Step {
            consumer: consumer.clone(),
            event_id,
            name: name.to_owned(),
            revision: 0,
            kind,
            words: abridged(&text),
            digest,
            key: String::new(),
            filter: None,
            since: chrono::Utc::now(),
            until: None,
            scanned: event_id,
            ended: None,
            timed_out: false,
            result: Vec::new(),
        }
    }

    /// Whether it is the same, but for what has happened to it. The length of a sleep may be another one: the first
    /// counts.
    pub fn is_like(&self, other: &Step) -> bool {
        self.kind == other.kind && (self.kind == Kind::Sleep || self.digest == other.digest)
    }

    pub fn is_done(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether its time is over, if it has one. Setting the clock back must not prolong it.
    pub fn is_over(&self, now: Time) -> bool {
        let wait = |until| EventWait { since: self.since, until, ..EventWait::default() };
        self.until.is_some_and(|until| wait(until).is_over(now))
    }

    /// If the clock was set back to before it began, it begins now: otherwise it would not end before the clock is there
    /// again.
    pub fn follow_clock(&mut self, now: Time) {
        if self.since > now {
            self.until = self.until.map(|until| now + (until - self.since));
            self.since = now;
        }
    }

    /// How long its event sleeps.
    pub fn sleep(&self, now: Time) -> Sleep {
        let until = self.until.map(|until| until.min(now + (until - self.since)));
        Sleep::new(until, now, self.kind == Kind::Await)
    }

    /// Whether it waits for an event.
    pub fn awaits(&self) -> bool {
        self.kind == Kind::Await && !self.is_done()
    }

    /// Whether it keeps its event from going on, by itself.
    pub fn holds(&self, now: Time) -> bool {
        self.kind != Kind::Step && !self.is_done() && !self.is_over(now)
    }

    /// Its state in one word.
    pub fn state(&self, now: Time) -> &'static str {
        match self.kind {
            _ if self.timed_out => "timed_out",
            _ if self.is_done() => "done",
            Kind::Step => "begun",
            Kind::Sleep | Kind::Await if self.is_over(now) => "due",
            Kind::Sleep | Kind::Await => "waiting",
        }
    }

    /// Checks a name. The error is a complete sentence.
    pub fn check_name(name: &str) -> Result<(), String> {
        if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
            return Err(format!("a name has 1 to {LONGEST_NAME} bytes and no control characters"));
        }
        Ok(())
    }
}

fn abridged(text: &str) -> String {
    if text.len() <= WORDS_KEPT {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(WORDS_KEPT)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(kind: Kind, words: &[&[u8]]) -> Step {
        Step::new(&ConsumerId::stored("c"), 1, "n", kind, words)
    }

    #[test]
    fn steps_are_alike_if_all_their_words_are() {
        let of = |words: &[&[u8]]| step(Kind::Step, words);
        let words = |words: &[&str]| of(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        assert!(words(&["a", "b"]).is_like(&words(&["a", "b"])));
        for other in [&["ab"][..], &["a b"], &["a"], &["a", "b", ""], &["b", "a"]] {
            assert!(!words(&["a", "b"]).is_like(&words(other)), "{other:?}");
        }
        // Bytes that are shown as the same characters, and words of which the end is not shown.
        assert!(!of(&[b"\xff"]).is_like(&of(&[b"\xfe"])));
        let long = |end: &str| of(&[format!("{}{end}", "é".repeat(300)).as_bytes()]);
        assert!(!long("a").is_like(&long("b")));
        assert_eq!(long("a").words, long("b").words);
        assert!(!step(Kind::Sleep, &[b"1h"]).is_like(&of(&[b"1h"])));
        assert!(step(Kind::Sleep, &[b"1h"]).is_like(&step(Kind::Sleep, &[b"2h"])));
        assert!(!step(Kind::Await, &[b"a"]).is_like(&step(Kind::Await, &[b"b"])));
    }

    #[test]
    fn kinds_have_the_names_under_which_they_are_stored() {
        for kind in [Kind::Step, Kind::Sleep, Kind::Await] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }

    #[test]
    fn a_name_is_short_and_has_no_control_characters() {
        for (name, is_name) in [
            ("a", true),
            ("é b", true),
            (&*"a".repeat(200), true),
            (&"a".repeat(201), false),
            ("", false),
            ("a\n", false),
        ] {
            assert_eq!(Step::check_name(name).is_ok(), is_name, "{name:?}");
        }
    }

    #[test]
    fn the_words_of_a_step_are_abridged() {
        assert_eq!(step(Kind::Step, &[b"echo", b"a b"]).words, "echo 'a b'");
        assert_eq!(step(Kind::Await, &[b"id >", b"5"]).words, "id > 5");
        let whole = "é".repeat(100);
        assert_eq!(step(Kind::Await, &[whole.as_bytes()]).words, whole);
        let words = step(Kind::Await, &["é".repeat(101).as_bytes()]).words;
        assert_eq!(words, format!("{whole}…"));
    }

    #[test]
    fn what_waits_for_an_event_does_so_until_it_is_done() {
        let now = chrono::Utc::now();
        let mut waits = step(Kind::Await, &[b"id > 5"]);
        assert!(waits.awaits() && waits.sleep(now).awaits);
        waits.ended = Some(now);
        assert!(!waits.awaits());
        let sleeps = step(Kind::Sleep, &[b"1h"]);
        assert!(!sleeps.awaits() && !sleeps.sleep(now).awaits);
        // Where it is stored what was looked at.
        let stored = serde_json::to_value(step(Kind::Await, &[b"id > 5"])).unwrap();
        assert_eq!(stored["scanned"], 1);
        let of_none = Step { scanned: 0, ..step(Kind::Await, &[b"id > 5"]) };
        assert_eq!(serde_json::to_value(of_none).unwrap().get("scanned"), None);
    }

    #[test]
    fn the_state_of_a_step_is_one_word_and_only_one_that_waits_holds_its_event() {
        let now = chrono::Utc::now();
        let (before, after) = (now - chrono::TimeDelta::hours(1), now + chrono::TimeDelta::hours(1));
        for (kind, until, ended, timed_out, state, holds) in [
            (Kind::Step, None, None, false, "begun", false),
            (Kind::Step, None, Some(now), false, "done", false),
            (Kind::Sleep, Some(after), None, false, "waiting", true),
            (Kind::Sleep, Some(now), None, false, "due", false),
            (Kind::Sleep, Some(after), Some(now), false, "done", false),
            (Kind::Await, None, None, false, "waiting", true),
            (Kind::Await, Some(now), Some(now), true, "timed_out", false),
        ] {
            let step = Step { since: before, until, ended, timed_out, ..step(kind, &[b"a"]) };
            assert_eq!((step.state(now), step.holds(now)), (state, holds), "{step:?}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_prolongs_no_sleep() {
        let hour = chrono::TimeDelta::hours(1);
        let mut sleep = step(Kind::Sleep, &[b"1h"]);
        assert!(!sleep.is_over(sleep.since + hour * 2), "it has no time");
        sleep.until = Some(sleep.since + hour);
        assert!(sleep.holds(sleep.since) && !sleep.is_over(sleep.since));
        let back = sleep.since - hour * 24;
        assert_eq!(sleep.sleep(back).until, back + hour);
        assert_eq!(Some(sleep.sleep(sleep.since).until), sleep.until);
        assert!(sleep.is_over(sleep.since + hour) && !sleep.holds(sleep.since + hour));
        let none = Step { until: Some(sleep.since), ..sleep.clone() };
        assert!(none.is_over(back), "a sleep of no length");
        sleep.ended = Some(sleep.since);
        assert!(!sleep.holds(sleep.since));
    }
}
