//! What a handler answers, and what becomes of its events.

use std::time::Instant;

use chrono::Utc;

use super::places::Place;
use super::{Pool, open};
use crate::error::Result;
use crate::model::answer::{Answer, Verdict};
use crate::model::run::{BAD_EVENT, ERROR_KEPT, Exit, NOT_NOW, end_of};
use crate::run::pipes::Output;
use crate::run::settle::{Failed, fail};
use crate::store::DeadLetterUpdate;

impl Pool<'_, '_> {
    /// Takes what a handler that is kept has printed. Returns whether there may be more.
    pub(super) fn read(&mut self, at: usize) -> Result<bool> {
        let supervisor = self.supervisor;
        let place = &mut self.places[at];
        let Some(pipes) = &mut place.pipes else { return Ok(false) };
        let (mut answers, mut text) = (Vec::new(), Vec::new());
        let more = pipes.read(|part| match part {
            Output::Line(line) => match Answer::parse(line) {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => {
                    text.extend_from_slice(line);
                    text.push(b'\n');
                }
                Err(why) => {
                    text.extend_from_slice(line);
                    text.extend_from_slice(format!("\n=== not an answer: {why}\n").as_bytes());
                }
            },
            Output::Text(part) => text.extend_from_slice(part),
        });
        if !text.is_empty() {
            place.running.log_output(supervisor.files, &self.current, &text);
        }
        if !answers.is_empty() && !self.is_void() && self.may_sleep()? {
            self.look_again()?;
        }
        if !answers.is_empty() {
            let mut place = self.places.remove(at);
            answers.into_iter().for_each(|answer| self.take(answer, &mut place));
            self.places.insert(at, place);
        }
        Ok(more)
    }

    /// Whether steps are done for events.
    fn may_sleep(&mut self) -> Result<bool> {
        if !self.uses_steps {
            self.uses_steps = open(self.supervisor, &mut self.queue)?.store.has_steps()?;
        }
        Ok(self.uses_steps)
    }

    fn take(&mut self, Answer { id, verdict }: Answer, place: &mut Place) {
        let given = place.given.remove(&id).filter(|_| self.window.has_given(id));
        let took = given.map(|since| since.elapsed());
        if took.is_none() || self.is_void() {
            let note = format!("an answer for event {id}, which it does not have");
            return place.running.note(self.supervisor.files, &self.current, &note);
        }
        let is_asleep = self.current.state.asleep.contains_key(&id);
        let verdict = match verdict {
            Verdict::Ack if is_asleep => {
                let note = format!("event {id} sleeps, so it is not acknowledged");
                place.running.note(self.supervisor.files, &self.current, &note);
                Verdict::Nack { delay: None, counts: false, error: String::new() }
            }
            verdict => verdict,
        };
        let now = Instant::now();
        place.last_answer = now;
        self.changed.get_or_insert(now);
        let mut error = |error: String| match error.is_empty() {
            true => place.running.last_output(),
            false => abridge(error),
        };
        let (exit, counts, judged, delay, error) = match verdict {
            Verdict::Ack => {
                place.answered += 1;
                self.succeeded();
                self.tally.figures.handled(1, took);
                match place.dead.take_if(|dead| *dead == id) {
                    Some(event_id) => {
                        self.window.drop_taken(event_id);
                        self.dead_letters.push(DeadLetterUpdate::Remove { event_id });
                    }
                    None => self.window.finish(id),
                }
                return;
            }
            Verdict::Nack { delay, counts: true, error: text } => {
                (Exit::Code(1), true, false, delay, error(text))
            }
            Verdict::Nack { delay, counts: false, error: text } => {
                (Exit::Code(NOT_NOW), false, false, delay, error(text))
            }
            Verdict::Reject { error: text } => (Exit::Code(BAD_EVENT), true, true, None, error(text)),
        };
        if place.dead.take_if(|dead| *dead == id).is_some() {
            self.window.drop_taken(id);
            if counts {
                self.tally.figures.failed(true, took);
                let (error, at) = (end_of(&error, ERROR_KEPT).to_owned(), Utc::now());
                self.dead_letters.push(DeadLetterUpdate::FailedAgain { event_id: id, exit, error, at });
            } else {
                self.dead_after = Some(now + delay.unwrap_or_else(|| self.current.options.wait_after(1)));
            }
            return;
        }
        let at = self.now();
        self.fail(id, Failed { exit, counts, judged, delay, error, at, took });
    }

    /// A handler that is kept failed at an event.
    pub(super) fn fail(&mut self, id: i64, failed: Failed) {
        let (window, tally, letters) = (&mut self.window, &mut self.tally, &mut self.dead_letters);
        if let Some(why) = fail(window, tally, &self.current, id, failed, letters, &mut self.runs) {
            self.stall(why);
        }
    }

    /// A run failed at an event. Its end is noted and counted by itself.
    pub(super) fn fail_in_run(&mut self, id: i64, failed: Failed) {
        let (noted, counted) = (self.runs.len(), self.tally.figures.clone());
        self.fail(id, failed);
        self.runs.truncate(noted);
        self.tally.figures = counted;
    }
}

fn abridge(mut text: String) -> String {
    if text.len() > ERROR_KEPT {
        let end = (0..=ERROR_KEPT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
