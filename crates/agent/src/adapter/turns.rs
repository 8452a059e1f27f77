//! Choosing the next run, beginning its attempt, and ending it.

use std::io::{ErrorKind, Seek, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use thread::Result;
use thread::model::filter::{Filter, Scope};
use thread::queue::{Remaining, Selection};

use super::attempt::{Attempt, Ending, LONGEST_PIPE, OUTPUT_GRACE, Stage, Why, message_id_of};
use super::output::{LONGEST_ANSWER, push_status, too_long};
use super::{ATTACHMENTS_VARIABLE, Adapter, LoopEvent, Running, Step};
use crate::attachments::attachments;
use crate::processes::{Mark, descendants};
use crate::program::{Input, Program};
use crate::protocol::{Done, Ended, Prompt};
use crate::slots::{AgentSlots, Turn};
use crate::sub_agent::{Sub, cancel_those_of};
use crate::transcript::transcript;
use thread_conversation::runs::{Next, OpenRun, Verdict};
use thread_conversation::{Answer, ClientInput, Entry, MAX_PARTIAL, Message, Run, Status, ToolResult};

/// The backoff between attempts; the last wait repeats.
const WAITS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(15)];

/// The longest error that clients see, and that is logged, in bytes.
const LONGEST_ERROR: usize = 1000;
const LONGEST_LOGGED: usize = 16 * 1024;

/// How often an idle adapter looks whether its slot is wanted.
const GIVE_WAY: Duration = Duration::from_secs(1);

/// How long a program may go on printing when its next message is due.
const SETTLE: Duration = Duration::from_secs(1);

/// A run that the agent began itself is over when it has been quiet for this long.
const UNASKED_QUIET: Duration = Duration::from_secs(3);

/// How long it may take to stop, once it was told to.
const UNASKED_STOP: Duration = Duration::from_millis(300);

/// How long a program is kept that works in the background and says nothing.
const BACKGROUND: Duration = Duration::from_secs(60 * 60);

/// The error of an attempt that a previous adapter left open.
const KILLED: &str = "the adapter was killed";

/// The error of a call that is still open when its run is answered.
const NOT_WAITED_FOR: &str = "the answer came without it";

impl Adapter {
    /// Does what is due now, and returns what the loop does next.
    pub(super) fn act(&mut self) -> Result<Step> {
        self.reject_overdue();
        self.give_up_client_calls();
        if self.attempt.is_some() {
            return self.check_attempt();
        }
        self.drop_exited();
        if !self.unasked.is_empty() {
            self.begin_unasked()?;
            return Ok(Step::Again);
        }
        // It knows what it is to forget.
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
        let next = self.runs.next(self.options.attempts);
        self.waiter.take_if(|waiter| next != Next::Run(waiter.id));
        match next {
            Next::Nothing => {
                self.restore_cursor()?;
                // Only a program that is kept is worth staying for. The supervisor looks for new messages
                // again after this, so none is missed.
                let idle = self.options.idle;
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
            Next::Run(id) => {
                if let Some((_, at)) = self.retry.filter(|&(of, at)| of == id && Instant::now() < at) {
                    return Ok(Step::Wait(at));
                }
                self.retry = None;
                // What it says before the message is given to it is no answer to that.
                self.settle_program();
                if !self.unasked.is_empty() {
                    return Ok(Step::Again);
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
            Next::GiveUp(id) => {
                self.clean_up_before(id);
                let attempts = self.options.attempts;
                let error = match self.runs.get(id).is_some_and(|open| open.run.is_own) {
                    true => KILLED.to_owned(),
                    false => format!("{KILLED} or the agent program failed in each of {attempts} attempts"),
                };
                self.close(id, Why::Failed { error, retryable: false })?;
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

    /// Whether the program is still at work, though it has answered. Where none is to stay, nobody waits for that.
    fn works_in_background(&self) -> bool {
        let stays = self.running.is_some() && !self.options.idle.is_zero();
        stays && self.options.protocol.works_in_background()
    }

    /// Begins a run with what the program has said unasked.
    fn begin_unasked(&mut self) -> Result<()> {
        let run = Run::own();
        self.outbox.event(run.started());
        self.outbox.attempt_begins();
        // Stored before what is said in it; its id is that of this event.
        self.flush_and_catch_up()?;
        let said = std::mem::take(&mut self.unasked);
        let begun = self.runs.with_run_id(&run.run_id).next().map(|open| open.run.clone());
        let Some(run) = begun else {
            self.warn("the cursor was moved past what the agent said unasked");
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
            None if !attempt.calls.is_empty() => self.options.quiet,
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

    /// Whether the consumer is still subscribed as it was, and not paused. Messages that somebody else has
    /// acknowledged are not run.
    fn may_continue(&mut self) -> Result<bool> {
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
        let quiet_at = attempt.last_output + self.options.quiet;
        if attempt.ending.is_none() && attempt.done.is_none() {
            let why = if self.stopped() {
                Some(Why::Stopped)
            } else if self.runs.get(id).is_none() {
                Some(Why::Ended)
            } else if let Some(verdict) = self.runs.verdict(id) {
                Some(Why::Verdict(verdict))
            } else if !attempt.run.is_own && !attempt.waits_for_somebody() && Instant::now() >= quiet_at {
                let quiet = thread::model::duration::format(self.options.quiet);
                let error = format!("the agent program printed nothing for {quiet}");
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
            attempt.ending.as_ref().and_then(Ending::next_stage_at),
            (attempt.ending.is_none() && !attempt.waits_for_somebody() && !attempt.run.is_own)
                .then_some(quiet_at),
            attempt.asked.iter().map(|asked| asked.until).min(),
            attempt.client_calls.values().filter(|call| call.event_id.is_some()).map(|call| call.until).min(),
        ];
        let far = Instant::now() + Duration::from_secs(3600);
        Ok(Step::Wait(moments.into_iter().flatten().min().unwrap_or(far)))
    }

    /// Begins to end the attempt: tells the program to stop.
    pub(super) fn end(&mut self, why: Why) {
        let Some(attempt) = &mut self.attempt else { return };
        attempt.ending = Some(Ending::new(why.clone()));
        attempt.asked.clear();
        attempt.client_calls.clear();
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
    fn escalate(&mut self) {
        let Some(ending) = self.attempt.as_mut().and_then(|attempt| attempt.ending.as_mut()) else { return };
        let Some(running) = &self.running else { return };
        match ending.escalate() {
            Some(Stage::Terminated) => running.program.signal(Signal::TERM),
            Some(Stage::Killed) => running.program.signal(Signal::KILL),
            Some(Stage::Asked) | None => {}
        }
    }

    /// Whether the program is done with this attempt.
    fn program_is_done(&mut self) -> bool {
        let Some(attempt) = &self.attempt else { return false };
        let failed = matches!(attempt.ending, Some(Ending { why: Why::Failed { .. }, .. }));
        // A persistent program goes on to the next message, unless it has failed: then it must exit first.
        if attempt.done.is_some() && !failed && self.options.protocol.keeps_process() {
            return true;
        }
        let Some(running) = &mut self.running else { return true };
        let Some(code) = running.exited else { return false };
        // If it was told to stop, the rest of its output does not matter, even if another process holds its
        // stdout open. Otherwise everything it can have left in the pipe is read first: only the time spent
        // waiting for it counts, not the time spent storing it.
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
    fn finish(&mut self) -> Result<()> {
        // Which calls are open is known once all output has been stored and read back.
        self.flush_and_catch_up()?;
        let program = self.running.as_ref().map(|running| running.program.pid());
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
                    self.answer(&mut attempt, Answer { content, total_tokens, stage, ..Answer::default() });
                    return Ok(());
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
        self.close(id, why)
    }

    fn answer(&mut self, attempt: &mut Attempt, answer: Answer) {
        // Sub-agents in the background go on: their calls already have a result.
        let waited_for = self.runs.get(attempt.run.reply_to).filter(|open| !open.open_calls.is_empty());
        if let Some(open) = waited_for.cloned() {
            let is_open = |sub: &Sub| open.open_calls.contains_key(&sub.call_id);
            self.cancel_sub_agents(&open, NOT_WAITED_FOR, is_open);
            self.close_calls(open.id(), NOT_WAITED_FOR);
        }
        push_status(attempt, &mut self.outbox, Status::Done);
        let latency = attempt.began.elapsed().as_millis();
        self.outbox.event(attempt.run.answer(&Answer {
            message_id: Some(attempt.message_id.clone()),
            latency_ms: u64::try_from(latency).ok(),
            ..answer
        }));
    }

    /// Records how an attempt without an answer ended, or why a run gets none.
    fn close(&mut self, id: i64, why: Why) -> Result<()> {
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
                let event = match retryable && !run.is_own && open.attempts < self.options.attempts {
                    true => {
                        self.retry = Some((id, Instant::now() + wait_after(open.attempts)));
                        run.attempt_failed(&error, None)
                    }
                    false => run.failed(&error, &partial),
                };
                (error, event)
            }
        };
        self.abandon(&open, &reason);
        self.outbox.event(event);
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

    /// Returns what the last attempt of a run, which began with that event, has said of its answer. From the
    /// thread: it may have been another adapter's.
    fn answer_so_far(&mut self, run: &Run, last_begun: i64) -> Result<String> {
        let mut text = String::new();
        if last_begun == 0 {
            return Ok(text);
        }
        let filter = Filter::new("source = 'self' AND subtype = 'token'", Scope::Reading)?;
        let mut selection = Selection { after: last_begun, limit: None, filter };
        let written_as = message_id_of(run);
        while text.len() < MAX_PARTIAL
            && self.queue.read_page(&mut selection, &mut |row| {
                if let Entry::Token { text: piece, message_id } = Entry::of(&row.to_event())
                    && message_id.as_ref() == Some(&written_as)
                {
                    text.push_str(&piece);
                }
                ControlFlow::Continue(())
            })? == Remaining::Some
        {}
        Ok(text)
    }

    /// Cancels the sub-agents of a run and closes its open calls: nobody waits for them any more.
    fn abandon(&mut self, open: &OpenRun, why: &str) {
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

    /// Begins the next attempt of a run.
    fn begin(&mut self, id: i64) -> Result<()> {
        self.clean_up_before(id);
        let Some(open) = self.runs.get(id).cloned() else { return Ok(()) };
        if open.in_attempt {
            self.abandon(&open, KILLED);
            self.outbox.event(open.run.attempt_failed(KILLED, None));
        }
        let run = Run { attempt: open.run.attempt + 1, ..open.run };
        self.outbox.event(run.started());
        self.outbox.attempt_begins();
        let mut attempt = Attempt::new(run.clone(), self.outbox.count());
        push_status(&mut attempt, &mut self.outbox, Status::Thinking);
        // Stored before the program starts, so that a crash does not lose the count.
        self.flush_and_catch_up()?;
        if !self.options.protocol.keeps_process() {
            attempt.spared = descendants(&self.supervisor);
        }
        self.settle_program();
        if !self.unasked.is_empty() {
            // It spoke up just now: a run within this one, which has not been given its message yet.
            self.begin_unasked()?;
            self.flush_and_catch_up()?;
            if let Some(mut unasked) = self.attempt.take() {
                self.options.protocol.unasked_done();
                let content = unasked.take_answer();
                self.answer(&mut unasked, Answer { content, ..Answer::default() });
                self.flush_and_catch_up()?;
            }
        }
        let prompt = self.prompt(run)?;
        if self.options.protocol.takes(ClientInput::TOOLS) {
            attempt.client_tools = prompt.input.tools().map(str::to_owned).collect();
        }
        let fields = prompt.input.fields().map(|(field, _)| field);
        let unsupported: Vec<_> = fields.filter(|field| !self.options.protocol.takes(field)).collect();
        if !unsupported.is_empty() && attempt.run.attempt == 1 {
            self.outbox.event(attempt.run.unsupported(&unsupported));
        }
        let started = self.start(&attempt, prompt);
        self.attempt = Some(attempt);
        if let Err(e) = started {
            let program = self.options.program[0].to_string_lossy().into_owned();
            let error = format!("the agent program '{program}' cannot be run: {e}");
            // A missing program stays missing; a full disk or process table may have room again.
            let retryable = matches!(
                e.kind(),
                ErrorKind::StorageFull
                    | ErrorKind::QuotaExceeded
                    | ErrorKind::WouldBlock
                    | ErrorKind::OutOfMemory
                    | ErrorKind::ExecutableFileBusy
            );
            if let Some(attempt) = &mut self.attempt {
                attempt.done = Some(Done::Failed { error, retryable });
            }
        }
        Ok(())
    }

    /// Reads what a persistent program has printed since its last answer, and ends it if it should not have.
    fn settle_program(&mut self) {
        let until = Instant::now() + SETTLE;
        while let Some(running) = &self.running {
            let is_read = running.program.is_read();
            self.drain(None);
            if is_read || !self.unasked.is_empty() {
                break;
            }
            if Instant::now() >= until {
                if !self.options.protocol.speaks_unasked() {
                    self.stray();
                }
                break;
            }
            self.wait(Instant::now() + Duration::from_millis(1));
        }
        if self.running.as_ref().is_some_and(|running| running.strayed) {
            self.warn("the agent program printed something while no answer was due, so it is ended");
            self.end_program();
        }
        self.drop_exited();
    }

    fn prompt(&mut self, run: Run) -> Result<Prompt> {
        let mut json = Vec::new();
        let event = self.queue.event(run.reply_to)?;
        if let Some(event) = &event {
            event.row().write_json(&mut json);
        }
        let message = match event.as_ref().map(|event| Entry::of(event)) {
            Some(Entry::Message(message)) => message,
            _ => Message::default(),
        };
        let fresh = self.running.is_none();
        let transcript = match self.options.protocol.transcript() {
            most if fresh && most > 0 => {
                let (runs, cleared) = (&self.runs, self.cleared);
                transcript(&mut self.queue, cleared, most, |id| runs.get(id).is_some())?
            }
            _ => Vec::new(),
        };
        Ok(Prompt {
            run,
            event: String::from_utf8_lossy(&json).into_owned(),
            attachments: attachments(self.queue.path(), &message.other),
            input: ClientInput::of(&message.other),
            content: message.content,
            transcript,
            session: self.session.clone().filter(|_| fresh),
        })
    }

    /// Gives the prompt to the program, and starts it if it is not running.
    fn start(&mut self, attempt: &Attempt, prompt: Prompt) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        let files: Vec<&str> = prompt.attachments.iter().map(|file| file.path.as_str()).collect();
        let files = files.join("\n");
        if let Some(running) = &self.running {
            self.options.protocol.prompt(prompt, &mut bytes);
            running.program.log_more();
            running.program.send(bytes);
            return Ok(());
        }
        self.options.protocol.started();
        self.options.protocol.prompt(prompt, &mut bytes);
        let keeps = self.options.protocol.keeps_process();
        let input = if keeps {
            Input::Pipe
        } else {
            let mut file = self.queue.files().make_unnamed_file("run")?;
            file.write_all(&bytes)?;
            file.rewind()?;
            Input::File(file)
        };
        self.started += 1;
        self.program_cleared = self.cleared;
        let mut command = self.command(attempt);
        if !keeps && !files.is_empty() {
            command.env(ATTACHMENTS_VARIABLE, files);
        }
        let program = Program::start(command, input, self.started, self.send.clone(), LoopEvent::Program)?;
        if keeps {
            program.send(bytes);
        }
        self.running = Some(Running {
            program,
            exited: None,
            waited: Duration::ZERO,
            late_bytes: 0,
            stdout_closed: false,
            stderr_done: false,
            strayed: false,
        });
        Ok(())
    }

    /// Drops a program that has exited, and kills what a persistent program started.
    fn drop_exited(&mut self) {
        let Some(running) = self.running.take_if(|running| running.exited.is_some()) else { return };
        if self.options.protocol.keeps_process() {
            self.kill(self.mark_of_program().session(running.program.pid()));
        }
    }

    /// Kills what earlier attempts of a run left running.
    fn clean_up_before(&self, id: i64) {
        if let Some(open) = self.runs.get(id).filter(|open| open.last_begun > 0)
            && !self.options.protocol.keeps_process()
        {
            self.kill(self.mark().with("THREAD_RUN_ID", &open.run.run_id));
        }
    }

    /// Kills what an attempt without an answer left running.
    fn end_attempt_processes(&self, attempt: &Attempt, program: Option<Pid>) {
        // A persistent program has the run id of the run it was started for, which need not be this one.
        if !self.options.protocol.keeps_process() {
            let mark = self.mark().with("THREAD_RUN_ID", &attempt.run.run_id);
            let mark = mark.below(self.supervisor.clone(), attempt.spared.clone());
            self.kill(program.into_iter().fold(mark, Mark::session));
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// The wait after that many attempts.
fn wait_after(attempts: u64) -> Duration {
    let step = usize::try_from(attempts.max(1) - 1).unwrap_or(usize::MAX);
    WAITS[step.min(WAITS.len() - 1)]
}
