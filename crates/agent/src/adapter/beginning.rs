//! Beginning an attempt: what the program is given, and starting it.

use std::io::{ErrorKind, Seek, Write};
use std::time::{Duration, Instant};

use thread::model::filter::{Filter, Scope};
use thread::queue::{Remaining, Selection};
use thread::{Event, Result};

use super::attempt::{Attempt, turn_id_of};
use super::output::push_status;
use super::turns::{KILLED, SETTLE};
use super::{Adapter, LoopEvent, Running};
use crate::attachments::attachments;
use crate::memory::{Memory, Step};
use crate::processes::descendants;
use crate::program::Program;
use crate::protocol::{Done, Prompt};
use crate::transcript::transcript;
use thread_conversation::{Answer, ClientInput, Entry, Message, Record, Run, Status, is_ending};

/// The environment variable with the paths of the message's attached files, one per line.
const ATTACHMENTS_VARIABLE: &str = "THREAD_ATTACHMENTS";

/// The events that prompts are made of, if the thread is the agent's whole memory.
const REMEMBERED: &str = "type = 'message' OR subtype IN ('run', 'model', 'turn_cut', 'error', 'cancelled', 'clear', \
                          'forked')";

impl Adapter {
    /// Whether the next attempt of a run is one that another adapter has left open, and that is continued.
    pub(super) fn is_continued(&self, id: i64) -> bool {
        self.options.protocol.remembers_by_thread() && self.runs.get(id).is_some_and(|open| open.in_attempt)
    }

    /// Begins the next attempt of a run, or continues one.
    pub(super) fn begin(&mut self, id: i64) -> Result<()> {
        self.clean_up_before(id);
        let Some(open) = self.runs.get(id).cloned() else { return Ok(()) };
        let continues = self.is_continued(id);
        if open.in_attempt && !continues {
            self.abandon(&open, KILLED);
            self.outbox.event(open.run.attempt_failed(KILLED, None));
        }
        let run = match continues {
            true => open.run,
            false => Run { attempt: open.run.attempt + 1, ..open.run },
        };
        if !continues {
            self.outbox.event(run.started());
        }
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
                self.answer(&mut unasked, Answer { content, ..Answer::default() })?;
                self.flush_and_catch_up()?;
            }
        }
        let mut prompt = self.prompt(run)?;
        if self.options.protocol.remembers_by_thread() {
            match self.next_step(id)? {
                Some(Step::Ask { messages, number }) => {
                    // What was streamed before the other adapter was killed counts for nothing.
                    if continues {
                        self.outbox.event(attempt.run.turn_cut(&turn_id_of(&attempt.run, number)));
                    }
                    attempt.message_id = turn_id_of(&attempt.run, number + u64::from(continues));
                    prompt.messages = messages;
                }
                answered => {
                    attempt.done = Some(done(answered, &mut attempt.message_id));
                    self.attempt = Some(attempt);
                    return Ok(());
                }
            }
            if let Err(error) = self.options.protocol.prepare(&mut prompt) {
                attempt.done = Some(Done::Failed { error, retryable: false });
                self.attempt = Some(attempt);
                return Ok(());
            }
        }
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

    /// What the thread says the run of a message does next.
    fn next_step(&mut self, id: i64) -> Result<Option<Step>> {
        let filter = Filter::new(REMEMBERED, Scope::Reading)?;
        let mut selection = Selection { after: self.cleared.min(id - 1), limit: None, filter };
        let mut memory = Memory::default();
        loop {
            let mut page: Vec<Event> = Vec::new();
            let remaining = self.queue.read_page(&mut selection, &mut |row| {
                page.push(row.to_event());
                std::ops::ControlFlow::Continue(())
            })?;
            for event in page {
                let record = Record::of(event);
                let is_ending = is_ending(&mut self.queue, record.id(), &record.entry)?;
                memory.note(&record, is_ending);
            }
            if remaining == Remaining::None {
                return Ok(memory.next(id));
            }
        }
    }

    /// Does what follows from a model's turn, which is stored now.
    pub(super) fn turn_stored(&mut self) -> Result<()> {
        let is_due = |attempt: &&Attempt| attempt.done.is_none() && attempt.ending.is_none();
        let Some(id) = self.attempt.as_ref().filter(is_due).map(|attempt| attempt.run.reply_to) else {
            return Ok(());
        };
        let next = self.next_step(id)?;
        if let Some(attempt) = &mut self.attempt {
            attempt.done = Some(done(next, &mut attempt.message_id));
        }
        Ok(())
    }

    /// Reads what a persistent program printed since its last answer, and ends it if it should have printed
    /// nothing.
    pub(super) fn settle_program(&mut self) {
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
        let message = match event.as_ref().map(Entry::of) {
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
            messages: Vec::new(),
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
        let mut input = None;
        if !keeps {
            let mut file = self.queue.files().make_unnamed_file("run")?;
            file.write_all(&bytes)?;
            file.rewind()?;
            input = Some(file);
        }
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
}

/// How an attempt ends whose model need not be asked again. Sets the id of its answer.
fn done(next: Option<Step>, message_id: &mut String) -> Done {
    let Some(Step::Answer { turn, message_id: id }) = next else {
        let error = "what was asked is no longer in the thread".to_owned();
        return Done::Failed { error, retryable: false };
    };
    *message_id = id.unwrap_or_else(|| std::mem::take(message_id));
    let text = turn.text();
    if text.is_empty() && turn.message.contains_key("tool_calls") {
        let error = "the model wants to use a tool, and has none".to_owned();
        return Done::Failed { error, retryable: false };
    }
    let stage = Some(turn.finish_reason.clone()).filter(|reason| reason != "stop");
    Done::Answered { content: Some(text), total_tokens: turn.total_tokens(), stage }
}
