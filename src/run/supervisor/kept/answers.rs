//! What a handler answers, and what becomes of its events.

use std::time::Instant;

use chrono::Utc;

use super::{Closing, Desk, ERROR_KEPT};
use crate::error::Result;
use crate::model::answer::{Answer, Verdict};
use crate::model::run::{BAD_EVENT, Exit, NOT_NOW};
use crate::run::handler::Running;
use crate::run::pipes::{Output, Pipes};
use crate::run::settle::{Failed, fail};
use crate::store::DeadLetterUpdate;

impl Desk<'_, '_> {
    /// Takes what the handler has printed. Returns whether there may be more.
    pub(super) fn read(&mut self, running: &mut Running, pipes: &mut Pipes) -> Result<bool> {
        let supervisor = self.supervisor;
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
            running.log_output(supervisor.files, &self.current, &text);
        }
        for answer in answers {
            self.take(answer, running);
        }
        Ok(more)
    }

    pub(super) fn take(&mut self, Answer { id, verdict }: Answer, running: &mut Running) {
        let was_given = self.dead == Some(id) || self.window.has_given(id);
        if !was_given || self.is_void() {
            let note = format!("an answer for event {id}, which it does not have");
            return running.note(self.supervisor.files, &self.current, &note);
        }
        let now = Instant::now();
        self.last_answer = now;
        self.given_at.remove(&id);
        self.changed.get_or_insert(now);
        let error = |error: String, running: &mut Running| match error.is_empty() {
            true => running.last_output(),
            false => abridge(error),
        };
        let (exit, counts, judged, delay, error) = match verdict {
            Verdict::Ack => {
                self.answered += 1;
                self.tally.success();
                match self.dead.take_if(|dead| *dead == id) {
                    Some(event_id) => self.dead_letters.push(DeadLetterUpdate::Remove { event_id }),
                    None => self.window.finish(id),
                }
                return;
            }
            Verdict::Nack { delay, counts: true, error: text } => {
                (Exit::Code(1), true, false, delay, error(text, running))
            }
            Verdict::Nack { delay, counts: false, error: text } => {
                (Exit::Code(NOT_NOW), false, false, delay, error(text, running))
            }
            Verdict::Reject { error: text } => {
                (Exit::Code(BAD_EVENT), true, true, None, error(text, running))
            }
        };
        if self.dead.take_if(|dead| *dead == id).is_some() {
            if counts {
                let at = Utc::now();
                self.dead_letters.push(DeadLetterUpdate::FailedAgain { event_id: id, exit, error, at });
            } else {
                self.dead_after = Some(now + delay.unwrap_or_else(|| self.current.options.wait_after(1)));
            }
            return;
        }
        let at = self.now();
        self.fail(id, Failed { exit, counts, judged, delay, error, at });
    }

    pub(super) fn fail(&mut self, id: i64, failed: Failed) {
        let stalls = fail(
            &mut self.window,
            &mut self.tally,
            &self.current,
            id,
            failed,
            &mut self.dead_letters,
            &mut self.runs,
        );
        if let Some(why) = stalls {
            self.stalls = Some(why);
            self.closing.get_or_insert((Closing::Stalled, Instant::now()));
        }
    }
}

fn abridge(mut text: String) -> String {
    if text.len() > ERROR_KEPT {
        let end = (0..=ERROR_KEPT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
