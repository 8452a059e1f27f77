//! The adapter: one thread, one consumer, one agent program.
//!
//! One loop owns all state. It reads new events from the thread, lets [`Runs`] decide, stores the program's output,
//! and waits for output, a commit, a deadline or a signal. It learns of its own events by reading them back, like
//! all others, so the successor of a killed adapter knows as much. Text that arrives during a sync, or shortly
//! after the last one was stored, is stored as one event.

mod attempt;
mod beginning;
mod commands;
mod ending;
mod model;
mod options;
mod output;
mod permission;
mod process;
#[cfg(all(test, target_os = "linux"))]
mod simulation;
mod spending;
mod steering;
mod turns;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use thread::files::log::Level;
use thread::files::stamp::Stamp;
use thread::model::exponential_backoff::ExponentialBackoff;
use thread::model::filter::{Filter, Scope};
use thread::model::run::ProcessId;
use thread::model::subscription::{ConsumerId, Subscription};
use thread::queue::{Remaining, Selection};
use thread::run::Launcher;
use thread::{After, Error, Event, LOOK_EVERY, NewEvent, Queue, Result};

use self::attempt::Attempt;
use self::output::Outbox;
use self::process::Running;
use self::spending::spent_upto;
use crate::processes;
use crate::program::ProgramEvent;
use crate::protocol::{Output, Protocol};
use crate::seat::Seat;
use crate::settings::{Settings, Stay};
use crate::slots::{AgentSlots, Slot, Waiter};
use crate::store::{keep_from, push_once, store};
use thread_conversation::runs::{Noted, Runs};
use thread_conversation::{AgentOptions, Entry, PermissionAnswer, Record, Session, Spent, is_ending};

/// How many pieces of output may wait to be stored.
const CHANNEL: usize = 64;

/// Settings of an adapter.
pub struct Options {
    pub consumer: ConsumerId,
    /// The agent program and its arguments; not empty.
    pub program: Vec<OsString>,
    /// Additional environment variables for the program.
    pub environment: Vec<(String, String)>,
    pub protocol: Box<dyn Protocol>,
    pub seat: Seat,
    pub settings: Settings,
    pub stay: Stay,
}

/// A handle to stop an adapter, which then ends its program and itself.
#[derive(Debug, Clone)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    wake: SyncSender<LoopEvent>,
}

impl Stop {
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Relaxed);
        // If the channel is full, the loop is not waiting.
        self.wake.try_send(LoopEvent::Nudge).ok();
    }
}

/// What the loop waits for.
#[derive(Debug)]
enum LoopEvent {
    Program(u64, ProgramEvent),
    /// There may be new events in the thread, or the stop flag was set.
    Nudge,
}

pub struct Adapter {
    queue: Queue,
    launcher: Launcher,
    options: Options,
    stop: Arc<AtomicBool>,
    send: SyncSender<LoopEvent>,
    receive: Receiver<LoopEvent>,
    /// The process that adopts the program's orphans.
    supervisor: ProcessId,
    subscription: Subscription,
    filter: Option<Filter>,
    runs: Runs,
    /// Events up to this id have been read.
    seen: i64,
    /// How far this adapter has moved the cursor; at first, the stored cursor.
    acknowledged: i64,
    /// Retention keeps this event and all after it, if prompts follow from the thread.
    kept_from: i64,
    /// The agent program's session, as recorded in the thread.
    session: Option<String>,
    /// The commands that the agent takes, as recorded in the thread; `None` before that was looked up.
    commands: Option<Value>,
    /// What can be chosen at the agent, as it has said last; `None` before that was looked up.
    options_said: Option<AgentOptions>,
    /// Somebody has chosen something since.
    has_choice: bool,
    /// The event with which the thread came to this agent: sessions from before are those of others. 0 if it has been
    /// the only one.
    joined: i64,
    /// What was taken in this thread, if there is a budget.
    spent_so_far: Spent,
    /// The newest request to forget what was said before it; 0 if there is none.
    cleared: i64,
    /// The newest such request when the program was started. If there is a newer one, the program knows what it
    /// should have forgotten.
    program_cleared: i64,
    /// Output that the program printed unasked, after its answer: a run of its own begins with it.
    unasked: Vec<Output>,
    /// The message that the program was given while it was working on another.
    ahead: Option<i64>,
    running: Option<Running>,
    /// Where programs are counted, if their number is limited.
    slots: Option<AgentSlots>,
    /// Held while a program lives, and from just before it is started.
    slot: Option<Slot>,
    waiter: Option<Waiter>,
    /// How many programs were started so far.
    started: u64,
    attempt: Option<Attempt>,
    /// The run waiting for its next attempt, and when that is due.
    retry: Option<(i64, Instant)>,
    idle_since: Instant,
    outbox: Outbox,
}

impl Adapter {
    /// Creates an adapter for a consumer of this thread, starting at the consumer's cursor.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownConsumer`], [`Error::BrokenFilter`]; those of the database.
    pub fn new(mut queue: Queue, launcher: Launcher, options: Options) -> Result<Adapter> {
        let subscription = queue.subscription(&options.consumer)?;
        let filter = thread::pending::checked_filter(&subscription)?;
        let (send, receive) = sync_channel(CHANNEL);
        watch(&queue, send.clone());
        let cleared = newest_matching(&mut queue, "subtype = 'clear'")?.unwrap_or(0);
        let cwd = std::env::current_dir().unwrap_or_default();
        if let Some(missing) =
            options.seat.missing(&mut queue, options.settings.model.as_deref(), &cwd.to_string_lossy())?
        {
            push_once(&mut queue, &launcher, missing)?;
        }
        let joined = options.seat.joined(&mut queue)?;
        let session = last_session(&mut queue, options.protocol.name(), cleared.max(joined))?;
        let cursor = subscription.last_acked_id;
        let spent_so_far = match options.settings.budget {
            Some(_) => spent_upto(&mut queue, cursor)?,
            None => Spent::default(),
        };
        let slots = AgentSlots::of(queue.path(), options.stay.max_agents);
        Ok(Adapter {
            queue,
            launcher,
            options,
            stop: Arc::default(),
            supervisor: processes::own_supervisor(),
            send,
            receive,
            subscription,
            filter,
            runs: Runs::after(cursor),
            seen: cursor,
            acknowledged: cursor,
            kept_from: 0,
            session,
            commands: None,
            options_said: None,
            has_choice: false,
            joined,
            spent_so_far,
            cleared,
            program_cleared: cleared,
            unasked: Vec::new(),
            ahead: None,
            running: None,
            slots,
            slot: None,
            waiter: None,
            started: 0,
            attempt: None,
            retry: None,
            idle_since: Instant::now(),
            outbox: Outbox::default(),
        })
    }

    pub fn stopper(&self) -> Stop {
        Stop { flag: Arc::clone(&self.stop), wake: self.send.clone() }
    }

    /// Processes messages until nothing is left to do, and has been for [`Stay::idle`] if a program is kept; the
    /// consumer is paused, unsubscribed or changed; or it is stopped by a [`Stop`].
    ///
    /// # Errors
    ///
    /// [`Error::Moved`]; those of the database, but storing events is retried until the adapter is stopped.
    pub fn run(mut self) -> Result<()> {
        let worked = self.work();
        self.end_program();
        worked?;
        // The cursor may have been moved back since; every message up to here has its ending.
        let (consumer, upto) = (&self.options.consumer, self.acknowledged);
        match self.queue.acknowledge(consumer, upto) {
            Ok(_) | Err(Error::UnknownConsumer(_)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn work(&mut self) -> Result<()> {
        self.catch_up()?;
        self.end_leftovers();
        loop {
            self.catch_up()?;
            let next = self.act()?;
            if self.flush()? {
                continue;
            }
            match next {
                Step::Again => {}
                Step::End => return Ok(()),
                Step::Wait(until) => {
                    self.wait(self.outbox.due().map_or(until, |due| due.min(until)));
                    // Readers are waiting for this output, so it is stored before catching up. Storing may block:
                    // output printed in the meantime is read first, so that the program does not seem quiet.
                    if self.flush()? {
                        self.drain(None);
                    }
                }
            }
            self.queue.files().must_be_there()?;
        }
    }

    /// Reads new events, and moves the cursor past those that are finished.
    fn catch_up(&mut self) -> Result<()> {
        let mut selection = Selection::from(After(self.seen));
        loop {
            let mut page: Vec<(Event, bool)> = Vec::new();
            let filter = self.filter.as_ref();
            let remaining = self.queue.read_page(&mut selection, &mut |row| {
                let is_pending = filter.is_none_or(|filter| filter.matches(&row).unwrap_or(false));
                // Tokens are most of a conversation and affect no decision.
                if is_pending || !matches!(row.subtype, Some(b"token" | b"thinking")) {
                    page.push((row.to_event(), is_pending));
                }
                std::ops::ControlFlow::Continue(())
            })?;
            for (event, is_pending) in page {
                self.note(&Record::of(event), is_pending)?;
            }
            self.seen = selection.after;
            #[cfg(all(test, target_os = "linux"))]
            if let Some(system) = crate::simulated::system() {
                system.has_read(self.seen);
            }
            if remaining == Remaining::None {
                break;
            }
        }
        let Some(upto) = self.runs.acknowledge() else { return Ok(()) };
        match self.queue.acknowledge(&self.options.consumer, upto) {
            Ok(_) | Err(Error::UnknownConsumer(_)) => {
                self.runs.acknowledged(upto);
                self.acknowledged = self.acknowledged.max(upto);
            }
            // Not fatal: the next call tries again, and a successor would skip these as finished.
            Err(e) => self.warn(format_args!("cannot move the cursor: {e}")),
        }
        Ok(())
    }

    fn note(&mut self, record: &Record, is_pending: bool) -> Result<()> {
        let id = record.id();
        let is_ending = is_ending(&mut self.queue, id, &record.entry)?;
        self.spent_so_far += &record.spent;
        match &record.entry {
            Entry::Session(Session { protocol, session_id, cleared })
                if protocol == self.options.protocol.name() && *cleared >= self.cleared.max(self.joined) =>
            {
                self.session = Some(session_id.clone());
            }
            Entry::Clear if id > self.cleared => {
                self.cleared = id;
                self.session = None;
            }
            Entry::Model { .. } | Entry::Summary { .. } if self.is_own(record) => self.go_on()?,
            Entry::OptionChosen(chosen) if id > self.joined => self.option_chosen(chosen),
            Entry::PermissionAnswer(PermissionAnswer { request_id, choice }) => {
                self.permission_answered(request_id, choice);
            }
            Entry::ToolCall(call) if self.is_own(record) => {
                self.client_called(&call.call_id, id);
                self.call_stored(&call.call_id);
            }
            Entry::ToolResult(result) if self.is_own(record) => {
                self.client_answered(result, &record.input());
                self.result_stored(&result.call_id)?;
            }
            _ => {}
        }
        self.runs.note(Noted { record, is_pending, is_ending });
        Ok(())
    }

    /// Keeps retention from deleting this event, which prompts follow from, and all after it.
    fn keep_from(&mut self, first: i64) {
        if self.kept_from < first {
            keep_from(&mut self.queue, self.options.consumer.as_str(), first);
            self.kept_from = first;
        }
    }

    /// Whether an event belongs to the attempt that is running.
    fn is_own(&self, record: &Record) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.run.has(record))
    }

    /// Stores the events in the outbox that are due. Returns whether there were any.
    fn flush(&mut self) -> Result<bool> {
        let events = self.outbox.take_due();
        self.store(events)
    }

    /// Stores all events in the outbox, and reads them back.
    fn flush_and_catch_up(&mut self) -> Result<()> {
        let events = self.outbox.take();
        self.store(events)?;
        self.catch_up()
    }

    fn store(&mut self, events: Vec<NewEvent<'static>>) -> Result<bool> {
        if events.is_empty() {
            return Ok(false);
        }
        let is_text = |event: &NewEvent<'_>| matches!(event.subtype.as_deref(), Some("token" | "thinking"));
        let has_text = events.iter().any(is_text);
        store(&mut self.queue, (&self.launcher, &self.options.consumer), events, &self.stop)?;
        if has_text {
            self.outbox.text_stored();
        }
        Ok(true)
    }

    /// Waits for the next event in the channel, at most until the deadline.
    fn wait(&mut self, until: Instant) {
        let began = Instant::now();
        let next = self.receive(until.saturating_duration_since(began));
        if let Some(running) = self.running.as_mut().filter(|running| running.exited.is_some()) {
            running.waited += began.elapsed();
        }
        self.drain(next);
    }

    fn receive(&self, timeout: Duration) -> Option<LoopEvent> {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = crate::simulated::system() {
            let next = self.receive.try_recv();
            return next
                .or_else(|_| {
                    system.wait(timeout);
                    self.receive.try_recv()
                })
                .ok();
        }
        self.receive.recv_timeout(timeout).ok()
    }

    /// Handles `next` and up to a channel's worth of further events, so that they are stored together.
    fn drain(&mut self, mut next: Option<LoopEvent>) {
        for _ in 0..CHANNEL {
            let Some(event) = next.or_else(|| self.receive.try_recv().ok()) else { break };
            if let LoopEvent::Program(number, event) = event {
                self.program_event(number, event);
            }
            next = None;
        }
        self.reap();
    }

    fn program_event(&mut self, number: u64, event: ProgramEvent) {
        let Some(running) = self.running.as_mut().filter(|running| running.program.number == number) else {
            return;
        };
        match event {
            ProgramEvent::Output(bytes) => {
                let mut answer = Vec::new();
                let output = self.options.protocol.read(&bytes, &mut answer);
                running.program.send(answer);
                if running.exited.is_some() {
                    running.late_bytes += bytes.len();
                }
                if let Some(attempt) = &mut self.attempt {
                    attempt.last_output = Instant::now();
                }
                for output in output {
                    self.handle_output(output);
                }
            }
            ProgramEvent::StdoutClosed => running.stdout_closed = true,
            ProgramEvent::StderrDone => running.stderr_done = true,
            ProgramEvent::Exited => self.reap(),
        }
    }

    fn warn(&self, text: impl std::fmt::Display) {
        self.queue.log(Level::Warn, format_args!("agent: consumer={} {text}", self.options.consumer));
    }
}

/// What the loop does next.
enum Step {
    /// Start over at once.
    Again,
    Wait(Instant),
    /// There is nothing left to stay for.
    End,
}

/// The longest pause between looks for commits by other programs, while there are none.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Starts a thread that nudges the loop after each commit. One by another program, which gives no notice, is found by
/// the state of the files. Pauses between looks at it double from [`LOOK_EVERY`]: hundreds of idle adapters together
/// would be busy with them.
fn watch(queue: &Queue, send: SyncSender<LoopEvent>) {
    #[cfg(all(test, target_os = "linux"))]
    if crate::simulated::system().is_some() {
        return;
    }
    let (watcher, files) = (queue.watcher(), queue.files().clone());
    std::thread::spawn(move || {
        let (mut seen, mut backoff) = (None, ExponentialBackoff::new(LOOK_EVERY, LONGEST_PAUSE));
        loop {
            let noticed = watcher.wait(backoff.pause(), None);
            let stamp = Stamp::of(files.location(), files.path());
            if !noticed && stamp.is_some() && stamp == seen {
                continue;
            }
            backoff.reset();
            seen = stamp.filter(|stamp| !stamp.is_fresh());
            // If the channel is full, the loop is awake anyway; if it is closed, the adapter has ended.
            if let Err(std::sync::mpsc::TrySendError::Disconnected(_)) = send.try_send(LoopEvent::Nudge) {
                return;
            }
        }
    });
}

/// Returns the session recorded last, wherever the cursor is; `None` if it is of another protocol, or from before the
/// event `newest`.
fn last_session(queue: &mut Queue, protocol: &str, newest: i64) -> Result<Option<String>> {
    let id = newest_matching(queue, "source = 'self' AND subtype = 'session'")?;
    let recorded = id.map(|id| queue.event(id)).transpose()?.flatten();
    Ok(match recorded.as_ref().map(Entry::of) {
        Some(Entry::Session(session)) if session.protocol == protocol && session.cleared >= newest => {
            Some(session.session_id)
        }
        _ => None,
    })
}

/// Returns the id of the newest event that matches a condition.
fn newest_matching(queue: &mut Queue, condition: &str) -> Result<Option<i64>> {
    let filter = Filter::new(condition, Scope::Reading)?;
    Ok(queue.newest_matching(filter.as_ref(), i64::MAX, 1)?.first().copied())
}
