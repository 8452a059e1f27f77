//! Ending an attempt: stopping its program, and recording how it ended.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use thread::Result;
use thread::model::filter::{Filter, Scope};
use thread::queue::{Remaining, Selection};

use super::Adapter;
use super::attempt::{Attempt, Ending, LONGEST_PIPE, OUTPUT_GRACE, Why, is_id_of};
use super::output::{LONGEST_ANSWER, push_status, too_long};
use crate::protocol::{Done, Ended};
use crate::sub_agent::{Sub, cancel_those_of};
use thread_conversation::runs::{OpenRun, Verdict};
use thread_conversation::{Answer, Entry, MAX_PARTIAL, Run, Spent, Status, ToolResult};

/// The backoff between attempts; the last wait repeats.
const WAITS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(15)];

/// The longest error that clients see, and that is logged, in bytes.
const LONGEST_ERROR: usize = 1000;
const LONGEST_LOGGED: usize = 16 * 1024;

/// The error of a call that is still open when its run is answered.
const NOT_WAITED_FOR: &str = "the answer came without it";

impl Adapter {
    /// Begins to end the attempt: asks the program to stop.
    pub(super) fn end(&mut self, why: Why) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.ending = Some(Ending::new(why.clone()));
        attempt.asked.clear();
        attempt.client_calls.clear();
        attempt.waiting.clear();
        if self.ahead.take().is_some() {
            self.options.protocol.forget_ahead();
        }
        let Some(running) = &self.running else { return };
        let mut out = Vec::new();
        // A program that has failed may no longer follow its protocol, so it gets a signal.
        let broken = matches!(why, Why::Failed { .. });
        if !broken && self.options.protocol.cancel(&mut out) {
            running.program.send(out);
        } else {
            running.program.signal(Signal::INT);
        }
    }

    /// Sends the next signal, if it is due, to a program that does not stop.
    pub(super) fn escalate(&mut self) {
        let Some(ending) = self.attempt.as_mut().and_then(|attempt| attempt.ending.as_mut()) else { return };
        let Some(running) = &self.running else { return };
        if let Some(signal) = ending.escalate() {
            running.program.signal(signal);
        }
    }

    /// Whether the program is done with this attempt.
    pub(super) fn program_is_done(&mut self) -> bool {
        let Some(attempt) = &self.attempt else { return false };
        let failed = matches!(attempt.ending, Some(Ending { why: Why::Failed { .. }, .. }));
        // A persistent program continues with the next message, unless it has failed: then it must exit first.
        if attempt.done.is_some() && !failed && self.options.protocol.keeps_process() {
            return true;
        }
        // A model's attempt may wait for a permission, or for the first turn, without a process.
        let needs_none = self.options.protocol.remembers_by_thread() && attempt.ending.is_none();
        let Some(running) = &mut self.running else { return !needs_none || attempt.done.is_some() };
        let Some(code) = running.exited else { return false };
        // If it was asked to stop, the rest of its output does not matter, even if another process holds its stdout
        // open. Otherwise everything left in the pipe is read first; only the time spent waiting for it counts, not
        // the time spent storing it.
        let more = !running.stdout_closed || !running.stderr_done;
        let in_time = running.waited < OUTPUT_GRACE && running.late_bytes < LONGEST_PIPE;
        if more && attempt.ending.is_none() && in_time {
            return false;
        }
        if attempt.done.is_none() {
            for output in self.options.protocol.ended(Ended(code)) {
                self.handle_output(output);
            }
        }
        true
    }

    /// Ends the attempt: the program is done with it.
    pub(super) fn finish(&mut self) -> Result<()> {
        // Which calls are open is known once all output has been stored and read back.
        self.flush_and_catch_up()?;
        let program = self.running.as_ref().map(|running| running.program.pid);
        self.drop_exited();
        let Some(mut attempt) = self.attempt.take() else { return Ok(()) };
        let id = attempt.run.reply_to;
        if attempt.run.is_own {
            self.options.protocol.unasked_done();
        }
        let why = match (attempt.ending.take(), attempt.done.take()) {
            (Some(ending), _) => ending.why,
            (None, Some(Done::Answered { content, total_tokens, stage })) => {
                let content = content.unwrap_or_else(|| attempt.take_answer());
                if content.len() <= LONGEST_ANSWER {
                    return self
                        .answer(&mut attempt, Answer { content, total_tokens, stage, ..Answer::default() });
                }
                Why::Failed { error: too_long(), retryable: false }
            }
            (None, Some(Done::Failed { error, retryable })) => Why::Failed { error, retryable },
            (None, Some(Done::Cancelled)) => {
                Why::Verdict(Verdict::Cancelled("cancelled by the agent program".into()))
            }
            (None, Some(Done::Broken(error))) => Why::Failed { error, retryable: true },
            (None, None) => Why::Failed { error: "the agent program is gone".into(), retryable: true },
        };
        self.end_attempt_processes(&attempt, program);
        self.close_after(id, why, Some(&attempt.spent))?;
        if let (Some(wait), Some((of, at))) = (attempt.retry_after, &mut self.retry)
            && *of == id
        {
            *at = (*at).max(Instant::now() + wait);
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, attempt: &mut Attempt, answer: Answer) -> Result<()> {
        // Sub-agents in the background continue: their calls already have a result.
        let waited_for = self.runs.get(attempt.run.reply_to).filter(|open| !open.open_calls.is_empty());
        if let Some(open) = waited_for.cloned() {
            let is_open = |sub: &Sub| open.open_calls.contains_key(&sub.call_id);
            self.cancel_sub_agents(&open, NOT_WAITED_FOR, is_open);
            self.close_calls(open.id(), NOT_WAITED_FOR);
        }
        push_status(attempt, &mut self.outbox, Status::Done);
        let latency = attempt.began.elapsed().as_millis();
        let begun = self.runs.get(attempt.run.reply_to).map_or(0, |open| open.last_begun);
        let spent = self.spent(&attempt.run, begun, Some(&attempt.spent))?;
        self.outbox.event(spent.noted(attempt.run.answer(&Answer {
            message_id: Some(attempt.message_id.clone()),
            latency_ms: u64::try_from(latency).ok(),
            ..answer
        })));
        Ok(())
    }

    /// Records how an attempt without an answer ended, or why a run gets none.
    pub(super) fn close(&mut self, id: i64, why: Why) -> Result<()> {
        self.close_after(id, why, None)
    }

    /// The same, after an attempt that has taken `said`.
    fn close_after(&mut self, id: i64, why: Why, said: Option<&Spent>) -> Result<()> {
        let Some(open) = self.runs.get(id).cloned() else { return Ok(()) };
        let run = &open.run;
        let partial = self.answer_so_far(run, open.last_begun)?;
        let (reason, event) = match why {
            Why::Ended => return Ok(()),
            Why::Verdict(Verdict::Cancelled(why)) => (why.clone(), run.cancelled(&why, &partial)),
            Why::Verdict(Verdict::Interrupted { by, source, resume }) => {
                let why = format!("interrupted by event {by} from {source}");
                let event = match resume {
                    true => run.attempt_failed(&why, Some(by)),
                    false => run.cancelled(&why, &partial),
                };
                (why, event)
            }
            Why::Stopped => {
                let why = "the agent was stopped".to_owned();
                let event = match run.is_own {
                    true => run.failed(&why, &partial),
                    false => run.attempt_failed(&why, None),
                };
                (why, event)
            }
            Why::Failed { error, retryable } => {
                let error = self.shortened(error);
                let event = match retryable && !run.is_own && open.attempts < self.options.stay.attempts {
                    true => {
                        self.retry = Some((id, Instant::now() + wait_after(open.attempts)));
                        run.attempt_failed(&error, None)
                    }
                    false => run.failed(&error, &partial),
                };
                (error, event)
            }
        };
        // Not again what an attempt has taken that is over.
        let begun = if open.in_attempt { open.last_begun } else { 0 };
        let spent = self.spent(&open.run, begun, said)?;
        self.abandon(&open, &reason);
        self.outbox.event(spent.noted(event));
        Ok(())
    }

    /// An error as clients see it; more of a long one is in the log.
    fn shortened(&self, mut error: String) -> String {
        if error.len() > LONGEST_ERROR {
            error.truncate(error.floor_char_boundary(LONGEST_LOGGED));
            self.warn(error.replace(char::is_control, " "));
            error.truncate(error.floor_char_boundary(LONGEST_ERROR));
            error.push('…');
        }
        error
    }

    /// Returns the part of the answer that the last attempt of a run, which began with that event, produced. Read
    /// from the thread: it may have been another adapter's.
    fn answer_so_far(&mut self, run: &Run, last_begun: i64) -> Result<String> {
        let mut text = String::new();
        if last_begun == 0 {
            return Ok(text);
        }
        let filter =
            Filter::new("source = 'self' AND subtype IN ('token', 'turn_cut', 'model')", Scope::Reading)?;
        let mut selection = Selection { after: last_begun, limit: None, filter };
        let is_its = |message_id: &Option<String>| message_id.as_ref().is_some_and(|id| is_id_of(run, id));
        while text.len() < MAX_PARTIAL
            && self.queue.read_page(&mut selection, &mut |row| {
                match Entry::of(&row.to_event()) {
                    Entry::Token { text: piece, message_id } if is_its(&message_id) => text.push_str(&piece),
                    Entry::TurnCut { message_id } if is_its(&message_id) => text.clear(),
                    // The answer is what a later turn says.
                    Entry::Model { turn, message_id } if turn.has_calls() && is_its(&message_id) => {
                        text.clear()
                    }
                    _ => {}
                }
                ControlFlow::Continue(())
            })? == Remaining::Some
        {}
        Ok(text)
    }

    /// Cancels the sub-agents of a run and closes its open calls: their results are no longer needed.
    pub(super) fn abandon(&mut self, open: &OpenRun, why: &str) {
        if open.last_begun > 0 {
            self.cancel_sub_agents(open, why, |_| true);
        }
        self.close_calls(open.id(), why);
    }

    fn cancel_sub_agents(&self, open: &OpenRun, why: &str, selected: impl Fn(&Sub) -> bool) {
        let done = cancel_those_of(self.queue.path(), &open.run.run_id, &self.launcher, why, selected);
        if let Err(e) = done {
            self.warn(format_args!("cannot cancel a sub-agent: {e}"));
        }
    }

    /// Gives each open call of a run an error as its result.
    fn close_calls(&mut self, id: i64, why: &str) {
        let Some(open) = self.runs.get(id) else { return };
        let (run, calls) = (open.run.clone(), open.open_calls.clone());
        for (call_id, name) in calls {
            let result = ToolResult::new(call_id, name, Err(why.to_owned()));
            self.result_event(&run, &result.call_id, run.unreported_result(&result));
        }
    }
}

/// The wait after that many attempts.
fn wait_after(attempts: u64) -> Duration {
    let step = usize::try_from(attempts.max(1) - 1).unwrap_or(usize::MAX);
    WAITS[step.min(WAITS.len() - 1)]
}
