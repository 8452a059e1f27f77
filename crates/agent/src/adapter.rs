//! The adapter: one thread, one consumer, one agent program.
//!
//! One loop owns all state. It reads what is new in the thread, decides by the [`Agenda`], stores what the
//! program said, and waits for the next thing to happen: output of the program, a commit, a moment that
//! was set, a signal. What it stores it reads back like everybody's events, so that an adapter which was
//! killed is followed by one that knows as much. While one piece of output is being synced, the next
//! gathers in the channel and is stored as one event.

mod attempt;
mod said;
mod turns;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions, WaitStatus};
use thread::files::log::Level;
use thread::model::filter::Filter;
use thread::model::run::ProcessId;
use thread::model::subscription::{ConsumerId, Subscription};
use thread::queue::{Remaining, Selection};
use thread::run::Launcher;
use thread::{After, Error, Event, LOOK_EVERY, Queue, Result};

use self::attempt::Attempt;
use self::said::Unsaid;
use crate::agenda::{Agenda, Noted};
use crate::conversation::{Entry, end_key};
use crate::marked::{self, Mark};
use crate::program::{Heard, Program};
use crate::protocol::Protocol;
use crate::store::store;

/// So many pieces of output may wait to be stored.
const CHANNEL: usize = 64;

/// How long a program that is no longer needed has to end by itself, and then after TERM.
const GOODBYE: Duration = Duration::from_secs(2);

/// How long processes that were killed may take to be gone.
const GONE: Duration = Duration::from_secs(30);

/// The variable that says by which protocol a program is talked to.
const AGENT: &str = "THREAD_AGENT";

/// The variable with the paths of the files that came with the message, one a line.
const ATTACHMENTS: &str = "THREAD_ATTACHMENTS";

/// How requests for permission are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// By anybody who reads the thread.
    Ask,
    Allow,
    Reject,
}

/// What an adapter works for, and how.
pub struct Options {
    pub consumer: ConsumerId,
    /// The agent program and its arguments; not empty.
    pub program: Vec<OsString>,
    /// What it gets into its environment besides.
    pub environment: Vec<(String, String)>,
    pub protocol: Box<dyn Protocol>,
    /// How many attempts a message has, at least 1.
    pub attempts: u64,
    /// How long to stay with nothing to do.
    pub idle: Duration,
    /// How long the program may print nothing while it owes an answer.
    pub quiet: Duration,
    pub permit: Permit,
}

/// Why an adapter ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// There was nothing to do for long enough, or the consumer may not go on.
    Idle,
    /// It was told to, by [`Stop`].
    Stopped,
}

/// Tells an adapter to end its program and itself.
#[derive(Debug, Clone)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    wake: SyncSender<Happened>,
}

impl Stop {
    pub fn stop(&self) {
        self.flag.store(true, Ordering::Relaxed);
        // Where the channel is full, the adapter is awake.
        self.wake.try_send(Happened::Nudge).ok();
    }
}

/// What the loop waits for.
#[derive(Debug)]
enum Happened {
    Program(u64, Heard),
    /// There may be something new in the thread, or somebody wants the loop to look.
    Nudge,
}

/// A program that is kept, and what is known of it.
struct Kept {
    program: Program,
    /// Set when it has ended: its exit code,
    exited: Option<i32>,
    /// how long has been waited for its output since,
    listened: Duration,
    /// and how many bytes have come.
    late: usize,
    /// Its stdout is closed, and its stderr has been read.
    closed: bool,
    silent: bool,
}

pub struct Adapter {
    queue: Queue,
    launcher: Launcher,
    options: Options,
    stop: Arc<AtomicBool>,
    send: SyncSender<Happened>,
    receive: Receiver<Happened>,
    /// What its program's orphans become children of.
    supervisor: ProcessId,
    subscription: Subscription,
    filter: Option<Filter>,
    agenda: Agenda,
    /// Events up to this id have been read.
    seen: i64,
    /// The cursor, as far as this adapter has moved it.
    acknowledged: i64,
    /// The session of the agent program that the thread remembers.
    session: Option<String>,
    kept: Option<Kept>,
    /// How many programs were started.
    started: u64,
    attempt: Option<Attempt>,
    /// The turn that waits for its next attempt, and until when.
    retry: Option<(i64, Instant)>,
    idle_since: Instant,
    unsaid: Unsaid,
}

impl Adapter {
    /// An adapter for a consumer of this thread, beginning at its cursor.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownConsumer`], [`Error::BrokenFilter`]; those of the database.
    pub fn new(mut queue: Queue, launcher: Launcher, options: Options) -> Result<Adapter> {
        let subscription = queue.subscription(&options.consumer)?;
        let filter = thread::pending::checked_filter(&subscription)?;
        let (send, receive) = sync_channel(CHANNEL);
        watch(&queue, send.clone());
        let session = last_session(&mut queue, options.protocol.name())?;
        let cursor = subscription.last_acked_id;
        Ok(Adapter {
            queue,
            launcher,
            options,
            stop: Arc::default(),
            supervisor: marked::own_supervisor(),
            send,
            receive,
            subscription,
            filter,
            agenda: Agenda::default(),
            seen: cursor,
            acknowledged: cursor,
            session,
            kept: None,
            started: 0,
            attempt: None,
            retry: None,
            idle_since: Instant::now(),
            unsaid: Unsaid::default(),
        })
    }

    pub fn stopper(&self) -> Stop {
        Stop { flag: Arc::clone(&self.stop), wake: self.send.clone() }
    }

    /// Works until there is nothing to do for long enough, or it is stopped.
    ///
    /// # Errors
    ///
    /// [`Error::Moved`]; those of the database when they cannot be waited out.
    pub fn run(mut self) -> Result<End> {
        let ended = self.work();
        self.dismiss();
        let ended = ended?;
        // Somebody may have moved it back meanwhile; all of that has its endings.
        let (consumer, upto) = (&self.options.consumer, self.acknowledged);
        match self.queue.acknowledge(consumer, upto) {
            Ok(_) | Err(Error::UnknownConsumer(_)) => Ok(ended),
            Err(e) => Err(e),
        }
    }

    fn work(&mut self) -> Result<End> {
        self.look()?;
        self.end_leftovers();
        loop {
            self.look()?;
            let next = self.act()?;
            if self.flush()? {
                continue;
            }
            match next {
                Step::Again => {}
                Step::End(end) => return Ok(end),
                Step::Wait(until) => {
                    self.wait(until);
                    // At once: somebody waits for what the program says, and looking takes time. Storing may
                    // take long, too: what the program has said meanwhile it did not say too late.
                    if self.flush()? {
                        self.take(None);
                    }
                }
            }
            if !self.queue.files().still_there() {
                return Err(Error::Moved(self.queue.path().to_owned()));
            }
        }
    }

    /// Reads what is new in the thread, and moves the cursor over what is finished.
    fn look(&mut self) -> Result<()> {
        let mut selection = Selection::from(After(self.seen));
        loop {
            let mut page: Vec<(Event, bool)> = Vec::new();
            let filter = self.filter.as_ref();
            let remaining = self.queue.read_page(&mut selection, &mut |row| {
                let is_pending = filter.is_none_or(|filter| filter.matches(&row).unwrap_or(false));
                // Tokens are most of a conversation and decide nothing.
                if is_pending || !matches!(row.subtype, Some(b"token" | b"thinking")) {
                    page.push((row.to_event(), is_pending));
                }
                std::ops::ControlFlow::Continue(())
            })?;
            for (event, is_pending) in &page {
                self.note(event, *is_pending)?;
            }
            self.seen = selection.after;
            if remaining == Remaining::None {
                break;
            }
        }
        let Some(upto) = self.agenda.acknowledge() else { return Ok(()) };
        match self.queue.acknowledge(&self.options.consumer, upto) {
            Ok(_) | Err(Error::UnknownConsumer(_)) => {
                self.agenda.acknowledged(upto);
                self.acknowledged = self.acknowledged.max(upto);
            }
            // It is moved with the next event: until then, these are skipped as finished.
            Err(e) => self.warn(format_args!("the cursor stays where it is: {e}")),
        }
        Ok(())
    }

    fn note(&mut self, event: &Event, is_pending: bool) -> Result<()> {
        let (run_id, entry) = Entry::of(event);
        let is_ending = match entry.ends() {
            Some(of) => self.queue.store().id_of_key(&end_key(of))? == Some(event.id),
            None => false,
        };
        match &entry {
            Entry::Session { protocol, session_id } if protocol == self.options.protocol.name() => {
                self.session = Some(session_id.clone());
            }
            Entry::PermissionAnswer { request_id, choice } => self.permitted(request_id, choice),
            _ => {}
        }
        self.agenda.note(Noted { id: event.id, source: &event.source, run_id, entry, is_pending, is_ending });
        Ok(())
    }

    /// Stores what was not stored yet. Returns whether there was anything.
    fn flush(&mut self) -> Result<bool> {
        let events = self.unsaid.take();
        if events.is_empty() {
            return Ok(false);
        }
        store(&mut self.queue, (&self.launcher, &self.options.consumer), events, &self.stop)?;
        Ok(true)
    }

    /// Stores what was not stored yet, and reads it back.
    fn settle(&mut self) -> Result<()> {
        self.flush()?;
        self.look()
    }

    /// Waits until something happens, or until that moment.
    fn wait(&mut self, until: Instant) {
        let began = Instant::now();
        let next = self.receive.recv_timeout(until.saturating_duration_since(began)).ok();
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.exited.is_some()) {
            kept.listened += began.elapsed();
        }
        self.take(next);
    }

    /// Takes what has happened: it is stored together, up to what the channel holds.
    fn take(&mut self, mut next: Option<Happened>) {
        for _ in 0..CHANNEL {
            let Some(happened) = next.or_else(|| self.receive.try_recv().ok()) else { break };
            if let Happened::Program(number, heard) = happened {
                self.heard(number, heard);
            }
            next = None;
        }
        self.reap();
    }

    fn heard(&mut self, number: u64, heard: Heard) {
        let Some(kept) = self.kept.as_mut().filter(|kept| kept.program.number == number) else { return };
        match heard {
            Heard::Output(bytes) => {
                let mut answer = Vec::new();
                let said = self.options.protocol.read(&bytes, &mut answer);
                kept.program.send(answer);
                if kept.exited.is_some() {
                    kept.late += bytes.len();
                }
                if let Some(attempt) = &mut self.attempt {
                    attempt.last_output = Instant::now();
                }
                for said in said {
                    self.said(said);
                }
            }
            Heard::Closed => kept.closed = true,
            Heard::Silent => kept.silent = true,
            Heard::Exited => self.reap(),
        }
    }

    /// Reaps whatever has ended: the program, and supervisors that a wake-up started.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if let Some(kept) = self.kept.as_mut().filter(|kept| kept.program.pid() == pid) {
                kept.exited = Some(code_of(status));
            }
        }
    }

    /// Ends the program, if there is one, and all that it started. Blocks for a few seconds at most.
    fn dismiss(&mut self) {
        let Some(mut kept) = self.kept.take() else { return };
        kept.program.close_input();
        let mut killed_at = Instant::now() + 2 * GOODBYE;
        let mut term_at = Some(Instant::now() + GOODBYE);
        while kept.exited.is_none() {
            let now = Instant::now();
            if term_at.is_some_and(|at| now >= at) {
                kept.program.signal(Signal::TERM);
                term_at = None;
            }
            if now >= killed_at {
                kept.program.signal(Signal::KILL);
                killed_at = now + GONE;
            }
            // It may be waiting to be heard.
            drop(self.receive.recv_timeout(Duration::from_millis(10)));
            while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
                if pid == kept.program.pid() {
                    kept.exited = Some(code_of(status));
                }
            }
        }
        if self.options.protocol.keeps_process() {
            self.kill(self.mark_of_kept().session(kept.program.pid()));
        }
    }

    /// What marks the processes of this consumer's agent.
    fn mark(&self) -> Mark {
        Mark::thread(self.queue.path()).with("THREAD_CONSUMER", self.options.consumer.as_str())
    }

    /// What marks the processes of a program that is kept: nothing else of this consumer's is at work.
    fn mark_of_kept(&self) -> Mark {
        let mark = self.mark().with(AGENT, self.options.protocol.name());
        mark.below(self.supervisor.clone(), BTreeSet::new())
    }

    fn kill(&self, mark: Mark) {
        if let Err(e) = mark.kill(GONE) {
            self.warn(e);
        }
    }

    /// Ends programs that an adapter which was killed has kept, and what it left when it was killed during
    /// an attempt: they must not work on beside a new one.
    fn end_leftovers(&self) {
        for protocol in ["ndjson", "acp"] {
            self.kill(self.mark().with(AGENT, protocol));
        }
        if let Some(turn) = self.agenda.turns().find(|turn| turn.open) {
            let mark = self.mark().with("THREAD_RUN_ID", &turn.run.run_id);
            self.kill(mark.below(self.supervisor.clone(), BTreeSet::new()));
        }
    }

    /// The program with its arguments, and what it is to know.
    fn command(&self, attempt: &Attempt) -> Command {
        let mut command = Command::new(&self.options.program[0]);
        command.args(&self.options.program[1..]);
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        // The gateway's token, and where a consumer stood that the program is not.
        command.env_remove("THREAD_TOKEN").env_remove("THREAD_LAST_ACKED_ID");
        command.env("THREAD_DIR", self.queue.path());
        command.env("THREAD_CONSUMER", self.options.consumer.as_str());
        command.env("THREAD_RUN_ID", &attempt.run.run_id);
        command.env("THREAD_EVENT_ID", attempt.run.reply_to.to_string());
        command.env(AGENT, self.options.protocol.name());
        command
    }

    fn warn(&self, text: impl std::fmt::Display) {
        self.queue.log(Level::Warn, format_args!("agent: consumer={} {text}", self.options.consumer));
    }
}

/// What the loop does after a look.
enum Step {
    /// Look again at once.
    Again,
    Wait(Instant),
    End(End),
}

/// A thread that nudges the loop whenever something was committed, and once a second.
fn watch(queue: &Queue, send: SyncSender<Happened>) {
    let watcher = queue.watcher();
    std::thread::spawn(move || {
        loop {
            watcher.wait(LOOK_EVERY, None);
            // A full channel keeps the loop awake, too; a closed one is an adapter that has ended.
            if let Err(std::sync::mpsc::TrySendError::Disconnected(_)) = send.try_send(Happened::Nudge) {
                return;
            }
        }
    });
}

/// The newest session of the program that the thread remembers, wherever the cursor is.
fn last_session(queue: &mut Queue, protocol: &str) -> Result<Option<String>> {
    use thread::model::filter::Scope;
    let filter = Filter::new("source = 'self' AND subtype = 'session'", Scope::Reading)?;
    let after = queue.start_of_tail(filter.as_ref(), 0, 1)?;
    let found = queue.read(After(after), filter.as_ref())?;
    Ok(found.iter().rev().find_map(|event| match Entry::of(event).1 {
        Entry::Session { protocol: of, session_id } if of == protocol => Some(session_id),
        _ => None,
    }))
}

fn code_of(status: WaitStatus) -> i32 {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(-1)
}
