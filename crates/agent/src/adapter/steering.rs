//! Giving the program a message while it works on another, if it takes that.
//!
//! The program decides when it looks at the message. When it has answered the first one, which may be early, the run of
//! the second begins: whatever it says from then on belongs to that. So there is one attempt at a time, as ever.

use thread::Result;
use thread_conversation::Run;
use thread_conversation::runs::Next;

use super::Adapter;

impl Adapter {
    /// Gives the program the message that is to be seen in the middle of this run, if there is one.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub(super) fn steer(&mut self) -> Result<()> {
        let Some(attempt) = &self.attempt else { return Ok(()) };
        let run = attempt.run.clone();
        let is_at_work = attempt.done.is_none() && attempt.ending.is_none() && !run.is_own;
        if self.ahead.is_some() || !is_at_work || !self.options.protocol.takes_ahead() {
            return Ok(());
        }
        let Some(next) = self.runs.steers().map(|open| open.run.clone()) else { return Ok(()) };
        if self.over_budget().is_some() || !self.may_continue()? {
            return Ok(());
        }
        // It is stored before the program knows of it.
        self.outbox.event(run.steered(next.reply_to));
        self.flush_and_catch_up()?;
        if self.attempt.as_ref().is_none_or(|attempt| attempt.done.is_some() || attempt.ending.is_some()) {
            return Ok(());
        }
        let run = Run { attempt: next.attempt + 1, ..next };
        let prompt = self.prompt(run.clone())?;
        self.ahead = Some(run.reply_to);
        let started = self.start(&run, prompt);
        self.is_started(started);
        Ok(())
    }

    /// Ends a program that was given a message whose run is not the next: it would answer that one.
    pub(super) fn check_ahead(&mut self) {
        let Some(id) = self.ahead else { return };
        let is_next = self.runs.next(self.options.stay.attempts) == Next::Run(id);
        if !is_next || self.running.is_none() {
            self.end_program();
            self.unasked.clear();
            self.ahead = None;
        }
    }
}
