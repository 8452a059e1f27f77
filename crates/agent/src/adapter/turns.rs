//! Choosing what is due: the next run, or the end of the attempt that is running.

use std::time::{Duration, Instant};

use thread::Result;

use super::attempt::{Attempt, Ending, OUTPUT_GRACE, Why};
use super::{Adapter, Step};
use crate::protocol::Done;
use crate::slots::{AgentSlots, Turn};
use thread_conversation::runs::Next;
use thread_conversation::{Run, Status};

/// How often an idle adapter looks whether its slot is wanted.
const GIVE_WAY: Duration = Duration::from_secs(1);

/// How long a program may go on printing when its next message is due.
pub(super) const SETTLE: Duration = Duration::from_secs(1);

/// A run that the agent began itself is over when it has been quiet for this long.
const UNASKED_QUIET: Duration = Duration::from_secs(3);

/// How long it may take to stop, once asked to.
const UNASKED_STOP: Duration = Duration::from_millis(300);

/// How long a program that works in the background without output is kept.
const BACKGROUND: Duration = Duration::from_secs(60 * 60);

/// The error of an attempt that a previous adapter left open.
pub(super) const KILLED: &str = "the adapter was killed";

impl Adapter {
    /// Does what is due now, and returns what the loop does next.
    pub(super) fn act(&mut self) -> Result<Step> {
        self.reject_overdue();
        self.give_up_client_calls();
        if self.attempt.is_some() {
            return self.check_attempt();
        }
        self.drop_exited();
        self.check_ahead();
        if !self.unasked.is_empty() && self.ahead.is_none() {
            self.begin_unasked()?;
            return Ok(Step::Again);
        }
        // It still knows what it should forget.
        if self.program_cleared < self.cleared {
            self.end_program();
            self.unasked.clear();
            self.program_cleared = self.cleared;
        }
        if self.running.is_none() {
            self.slot = None;
        }
        if self.stopped() {
            return Ok(Step::End);
        }
        if self.runs.iter().next().is_some() {
            self.idle_since = Instant::now();
            if !self.may_continue()? {
                return Ok(Step::End);
            }
        }
        let next = self.runs.next(self.options.stay.attempts);
        self.waiter.take_if(|waiter| !matches!(next, Next::Run(id) | Next::GiveUp(id) if id == waiter.id));
        match next {
            Next::Nothing => {
                self.restore_cursor()?;
                // Only a program that is kept is worth staying for. The supervisor looks for new messages
                // again after this, so none is missed.
                let idle = self.options.stay.idle;
                let until = match self.options.protocol.keeps_process() {
                    true if self.works_in_background() => self.idle_since + idle.max(BACKGROUND),
                    true => self.idle_since + idle,
                    false => Instant::now(),
                };
                let may_end = self.running.is_some() && !self.works_in_background();
                let is_wanted = |slots: &AgentSlots| may_end && slots.is_wanted();
                if Instant::now() >= until || self.slots.as_ref().is_some_and(is_wanted) {
                    return Ok(Step::End);
                }
                let look = self.slots.as_ref().map_or(until, |_| Instant::now() + GIVE_WAY);
                return Ok(Step::Wait(look.min(until)));
            }
            // An attempt that continues does not count again.
            Next::GiveUp(id) if !self.is_continued(id) => {
                self.clean_up_before(id);
                let attempts = self.options.stay.attempts;
                let error = match self.runs.get(id).is_some_and(|open| open.run.is_own) {
                    true => KILLED.to_owned(),
                    false => format!("{KILLED} or the agent program failed in each of {attempts} attempts"),
                };
                self.close(id, Why::Failed { error, retryable: false })?;
            }
            Next::Run(id) | Next::GiveUp(id) => {
                if let Some((_, at)) = self.retry.filter(|&(of, at)| of == id && Instant::now() < at) {
                    return Ok(Step::Wait(at));
                }
                self.retry = None;
                let is_begun = self.is_continued(id) || self.ahead == Some(id);
                if let Some(error) = self.over_budget().filter(|_| !is_begun) {
                    self.clean_up_before(id);
                    self.close(id, Why::Failed { error, retryable: false })?;
                    return Ok(Step::Again);
                }
                // Output printed before it gets the message is no answer to it.
                if self.ahead.is_none() {
                    self.settle_program();
                    if !self.unasked.is_empty() {
                        return Ok(Step::Again);
                    }
                    // What it does in the background is not lost for that.
                    if self.running.is_some()
                        && !self.works_in_background()
                        && self.options.protocol.is_outdated()
                    {
                        self.end_program();
                    }
                }
                if let Some(wait) = self.take_slot(id) {
                    return Ok(Step::Wait(Instant::now() + wait));
                }
                self.begin(id)?;
            }
            Next::End(id, verdict) => {
                self.clean_up_before(id);
                self.close(id, Why::Verdict(verdict))?;
            }
        }
        Ok(Step::Again)
    }

    /// Takes a slot for the program that is to answer a message, unless there is one. If none is free, returns
    /// when to try again.
    fn take_slot(&mut self, id: i64) -> Option<Duration> {
        if self.slot.is_some() {
            return None;
        }
        let (slots, open) = (self.slots.as_ref()?, self.runs.get(id)?);
        let begins = self.waiter.is_none();
        let turn = match self.waiter.take().map_or_else(|| slots.wait(&open.created_at, id), Ok) {
            Ok(mut waiter) => slots.take(&mut waiter).inspect(|_| self.waiter = Some(waiter)),
            Err(e) => Err(e),
        };
        match turn {
            Ok(Turn::Wait(wait)) => {
                if begins {
                    self.outbox.event(open.run.status(Status::Waiting));
                }
                return Some(wait);
            }
            Ok(Turn::Taken(slot)) => self.slot = Some(slot),
            // Too many agents are better than none.
            Err(e) => self.warn(format_args!("agents cannot be counted: {e}")),
        }
        self.waiter = None;
        None
    }

    /// Whether the program is still working although it has answered. If no program is kept open, this does not
    /// matter.
    fn works_in_background(&self) -> bool {
        let stays = self.running.is_some() && !self.options.stay.idle.is_zero();
        stays && self.options.protocol.works_in_background()
    }

    /// Begins a run with unasked output of the program.
    pub(super) fn begin_unasked(&mut self) -> Result<()> {
        let run = Run::own();
        self.outbox.event(run.started());
        self.outbox.attempt_begins();
        // Stored before its output; its id is that of this event.
        self.flush_and_catch_up()?;
        let said = std::mem::take(&mut self.unasked);
        let begun = self.runs.with_run_id(&run.run_id).next().map(|open| open.run.clone());
        let Some(run) = begun else {
            self.warn("the cursor was moved past unasked output of the agent");
            return Ok(());
        };
        self.attempt = Some(Attempt::new(run, self.outbox.count()));
        for output in said {
            self.handle_output(output);
        }
        Ok(())
    }

    /// Ends a run that the agent began itself once it has been quiet for a while: it does not say when it is done.
    /// Returns when to look again.
    fn check_unasked(&mut self) -> Option<Instant> {
        let has_gone = self.running.is_none();
        let attempt = self.attempt.as_mut().filter(|attempt| attempt.run.is_own && attempt.done.is_none())?;
        let id = attempt.run.reply_to;
        let quiet = match &attempt.ending {
            Some(ending) if matches!(ending.why, Why::Failed { .. }) => return None,
            Some(_) => UNASKED_STOP,
            None if attempt.waits_for_somebody() => return None,
            None if self.runs.iter().any(|open| open.id() != id) => SETTLE,
            None if !attempt.calls.is_empty() => self.options.settings.quiet,
            None => UNASKED_QUIET,
        };
        let until = attempt.last_said + quiet;
        if Instant::now() < until && !has_gone {
            return Some(until);
        }
        attempt.done = Some(Done::Answered { content: None, total_tokens: None, stage: None });
        None
    }

    /// Moves the cursor forward again if it was moved back: every message up to there has its ending.
    fn restore_cursor(&mut self) -> Result<()> {
        let consumer = &self.options.consumer;
        let now = self.queue.find_subscription(consumer)?;
        if now.is_some_and(|now| now.last_acked_id < self.acknowledged) {
            self.queue.acknowledge(consumer, self.acknowledged)?;
        }
        Ok(())
    }

    /// Whether the consumer is still subscribed as it was, and not paused. Messages acknowledged by another process
    /// are not run.
    pub(super) fn may_continue(&mut self) -> Result<bool> {
        let now = self.queue.find_subscription(&self.options.consumer)?;
        if let Some(now) = &now {
            self.runs.acknowledged(now.last_acked_id);
        }
        Ok(now.is_some_and(|now| now.is_same(&self.subscription) && !now.state.paused))
    }

    /// Checks whether the running attempt must be ended, or is finished.
    fn check_attempt(&mut self) -> Result<Step> {
        let Some(attempt) = &self.attempt else { return Ok(Step::Again) };
        let id = attempt.run.reply_to;
        self.idle_since = Instant::now();
        let quiet_at = attempt.last_output + self.options.settings.quiet;
        if attempt.ending.is_none() && attempt.done.is_none() {
            let why = if self.stopped() {
                Some(Why::Stopped)
            } else if self.runs.get(id).is_none() {
                Some(Why::Ended)
            } else if let Some(verdict) = self.runs.verdict(id) {
                Some(Why::Verdict(verdict))
            } else if !attempt.run.is_own && !attempt.waits_for_somebody() && Instant::now() >= quiet_at {
                let quiet = thread::model::duration::format(self.options.settings.quiet);
                let error = match self.options.protocol.remembers_by_thread() {
                    true => format!("the model sent nothing for {quiet}"),
                    false => format!("the agent program printed nothing for {quiet}"),
                };
                Some(Why::Failed { error, retryable: true })
            } else {
                None
            };
            if let Some(why) = why {
                self.end(why);
            }
        }
        // A cancelled run that is queued need not wait for the end of this attempt.
        if let Some((id, verdict)) = self.runs.cancelled(id) {
            self.close(id, Why::Verdict(verdict))?;
            return Ok(Step::Again);
        }
        self.steer()?;
        self.tools_listed()?;
        self.shorten()?;
        if self.go_on_after_exit()? {
            return Ok(Step::Again);
        }
        self.escalate();
        let unasked_until = self.check_unasked();
        if self.program_is_done() {
            self.finish()?;
            return Ok(Step::Again);
        }
        let Some(attempt) = &self.attempt else { return Ok(Step::Again) };
        let exited = self.running.as_ref().filter(|running| running.exited.is_some());
        let moments = [
            exited.map(|running| Instant::now() + OUTPUT_GRACE.saturating_sub(running.waited)),
            unasked_until,
            attempt.ending.as_ref().and_then(Ending::next_signal_at),
            (attempt.ending.is_none() && !attempt.waits_for_somebody() && !attempt.run.is_own)
                .then_some(quiet_at),
            attempt.asked.iter().filter_map(|asked| asked.until).min(),
            attempt.client_calls.values().filter(|call| call.event_id.is_some()).map(|call| call.until).min(),
        ];
        let far = Instant::now() + Duration::from_secs(3600);
        Ok(Step::Wait(moments.into_iter().flatten().min().unwrap_or(far)))
    }

    fn stopped(&self) -> bool {
        self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }
}
