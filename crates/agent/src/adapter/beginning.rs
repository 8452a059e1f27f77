//! Beginning an attempt: what the program is given, and starting it.

use std::io::{ErrorKind, Seek, Write};
use std::time::{Duration, Instant};

use thread::Result;
use thread::model::filter::{Filter, Scope};

use super::attempt::Attempt;
use super::output::push_status;
use super::turns::{KILLED, SETTLE};
use super::{Adapter, LoopEvent, Running};
use crate::attachments::attachments;
use crate::history::history;
use crate::processes::descendants;
use crate::program::Program;
use crate::protocol::{Done, Prompt, Protocol};
use crate::transcript::transcript;
use thread_conversation::{Answer, ClientInput, Entry, Message, Run, Status};

/// The environment variable with the paths of the message's attached files, one per line.
const ATTACHMENTS_VARIABLE: &str = "THREAD_ATTACHMENTS";

impl Adapter {
    /// Whether the next attempt of a run is one that another adapter has left open, and that is continued.
    pub(super) fn is_continued(&self, id: i64) -> bool {
        self.options.protocol.remembers_by_thread() && self.runs.get(id).is_some_and(|open| open.in_attempt)
    }

    /// Whether the last that is known of a run is a piece of a turn that was not finished.
    fn was_cut(&mut self, run: &Run) -> Result<bool> {
        let condition = format!(
            "source = 'self' AND metadata ->> 'run_id' = '{}' AND subtype IN ('run', 'token', 'thinking', 'model', \
             'turn_cut', 'toolcall', 'toolresult')",
            run.run_id.replace('\'', "''")
        );
        let filter = Filter::new(&condition, Scope::Reading)?;
        let newest = self.queue.newest_matching(filter.as_ref(), i64::MAX, 1)?;
        let last = newest.first().map(|id| self.queue.event(*id)).transpose()?.flatten();
        Ok(last.is_some_and(|event| matches!(event.subtype.as_deref(), Some("token" | "thinking"))))
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
        if self.ahead.take().is_some() {
            // It was given the message already, and may have said something.
            self.attempt = Some(attempt);
            for output in std::mem::take(&mut self.unasked) {
                self.handle_output(output);
            }
            return Ok(());
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
        let prompt = self.prompt(run)?;
        if self.options.protocol.takes(ClientInput::TOOLS) {
            attempt.client_tools = prompt.input.tools().map(str::to_owned).collect();
        }
        attempt.handed = prompt.input.fields().map(|(_, value)| value.to_string().len()).sum();
        let fields = prompt.input.fields().map(|(field, _)| field);
        let unsupported: Vec<_> = fields.filter(|field| !self.options.protocol.takes(field)).collect();
        if !unsupported.is_empty() && attempt.run.attempt == 1 {
            self.outbox.event(attempt.run.unsupported(&unsupported));
        }
        if self.options.protocol.remembers_by_thread() {
            attempt.is_continued = continues && self.was_cut(&attempt.run)?;
            self.attempt = Some(attempt);
            return self.begin_turns();
        }
        let mut prompt = prompt;
        if let Err(error) = self.options.protocol.prepare(&mut prompt) {
            attempt.done = Some(Done::Failed { error, retryable: false });
            self.attempt = Some(attempt);
            return Ok(());
        }
        let started = self.start(&attempt.run, prompt);
        self.attempt = Some(attempt);
        self.is_started(started);
        Ok(())
    }

    /// Ends the attempt if the program could not be started.
    pub(super) fn is_started(&mut self, started: std::io::Result<()>) {
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

    pub(super) fn prompt(&mut self, run: Run) -> Result<Prompt> {
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
        let (messages, state) = match self.options.protocol.takes_history() {
            true => {
                self.keep_from(self.cleared.max(1));
                history(&mut self.queue, self.cleared, run.reply_to)?
            }
            false => Default::default(),
        };
        let chosen = match fresh && self.options.protocol.has_options() {
            true => self.chosen()?,
            false => Vec::new(),
        };
        Ok(Prompt {
            run,
            chosen,
            event: String::from_utf8_lossy(&json).into_owned(),
            attachments: attachments(self.queue.path(), &message.other),
            input: ClientInput::of(&message.other),
            content: message.content,
            transcript,
            session: self.session.clone().filter(|_| fresh),
            messages,
            state,
        })
    }

    /// Gives the prompt to the program, and starts it if it is not running.
    pub(super) fn start(&mut self, run: &Run, prompt: Prompt) -> std::io::Result<()> {
        let files: Vec<&str> = prompt.attachments.iter().map(|file| file.path.as_str()).collect();
        let files = files.join("\n");
        self.tell(run, &files, |protocol, out| protocol.prompt(prompt, out))
    }

    /// Writes something to the program, and starts it if it is not running.
    pub(super) fn tell(
        &mut self,
        run: &Run,
        files: &str,
        write: impl FnOnce(&mut dyn Protocol, &mut Vec<u8>),
    ) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        if let Some(running) = &self.running {
            write(&mut *self.options.protocol, &mut bytes);
            running.program.log_more();
            running.program.send(bytes);
            return Ok(());
        }
        self.options.protocol.started();
        write(&mut *self.options.protocol, &mut bytes);
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
        let mut command = self.command(run);
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
