//! One run of a handler: its input, starting it, its output, and ending it.
//!
//! A run whose `sh` ends with 0 ends when that has been reaped, whatever it left in the background. Any other run is
//! over only when its whole process group is gone: one that is being *ended* (by a time limit or `stop`), and one
//! whose `sh` failed, so that what this left does not work on beside the next attempt. Standard output and error go
//! straight to a file, so no process has to read them from a pipe. In a pool, where several handlers share a log, that
//! is a file of its own, which is added to the log when the run ends.

#[cfg(all(test, target_os = "linux"))]
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::num::NonZeroI32;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::guard::{Deadline, Guard};
use super::pipes::{Ends, Pipes};
use super::{process, spawn};
use crate::error::{Error, IoContext, Result};
use crate::files::lock::Lock;
use crate::files::log::log;
#[cfg(all(test, target_os = "linux"))]
use crate::files::simulated::{self, Given};
use crate::files::{Access, Files, HANDLER_LOGS, rotation};
use crate::model::run::{Deliver, Exit, ProcessId, Span, TAIL_KEPT, Task, end_of};
use crate::model::subscription::Subscription;
use crate::model::time;
use crate::pending::checked_filter;
use crate::queue::{Queue, Remaining, Selection};

/// A batch on stdin is cut off after the event with which it reaches this many bytes.
pub const BATCH_BYTES: usize = 1024 * 1024;

/// How many rotated files of a handler's log are kept.
const LOGS_KEPT: usize = 3;

/// How long processes that a failed `sh` left have between TERM and KILL.
pub const REST_GRACE: Duration = Duration::from_secs(10);

/// Polling interval for a run that is being ended.
const ENDING_STEP: Duration = Duration::from_millis(10);

/// How often orphans of the run that have ended are reaped.
const REAP_EVERY: Duration = Duration::from_secs(30);

/// Polling interval for a run on systems without pidfds.
const WITHOUT_NOTICE: Duration = Duration::from_millis(20);

/// The input of the next run.
pub struct NextTask {
    pub task: Task,
    /// How many events are on stdin.
    pub events: u64,
    /// The last of them, if some may expire.
    pub given_upto: Option<i64>,
    /// `None` if the handler pops.
    pub stdin: Option<File>,
}

/// Returns the task of the next run; `first` is the oldest pending event. `None` if nothing is pending any
/// more, or if the oldest has expired.
pub fn next_task(
    queue: &mut Queue,
    subscription: &Subscription,
    first: Option<i64>,
) -> Result<Option<NextTask>> {
    if subscription.options.deliver == Deliver::Wake {
        let is_expired = first.map(|first| queue.has_expired(subscription, first)).transpose()?;
        let next = NextTask { task: Task::Wake, events: 0, given_upto: None, stdin: None };
        return Ok((is_expired != Some(true)).then_some(next));
    }
    let consumer = &subscription.consumer;
    let letters =
        if subscription.has_retry() { queue.store.dead_letters(Some(consumer))? } else { Vec::new() };
    for letter in letters.into_iter().filter(|letter| letter.retry) {
        let id = letter.event_id;
        let mut page = Vec::new();
        queue.store.read(id.saturating_sub(1), id, 1, &mut |row| {
            row.write_line(&mut page);
            ControlFlow::Continue(())
        })?;
        if !page.is_empty() {
            let stdin = Some(stdin_file(queue, &page)?);
            return Ok(Some(NextTask { task: Task::DeadLetter(id), events: 1, given_upto: None, stdin }));
        }
        queue.store.discard_dead_letters(consumer, Some(&[id]))?;
        log!(queue, Warn, "dead: consumer={consumer} id={id} is no longer stored; discarded");
    }
    let Some(first) = first else { return Ok(None) };
    let most = if first <= subscription.single_upto() { 1 } else { subscription.options.batch_size };
    let filter = checked_filter(subscription)?;
    let mut selection = Selection { after: first - 1, limit: Some(most), filter };
    let (mut batch, mut count, mut last) = (Vec::new(), 0, 0);
    let (mut is_cut, mut expire) = (false, false);
    while batch.len() < BATCH_BYTES && !is_cut {
        let remaining = queue.read_page(&mut selection, &mut |row| {
            if subscription.passes_over(&row) {
                is_cut = true;
                return ControlFlow::Break(());
            }
            expire |= row.expires_at().is_some();
            row.write_line(&mut batch);
            count += 1;
            last = row.id;
            if batch.len() < BATCH_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if remaining == Remaining::None {
            break;
        }
    }
    let task = match count {
        0 => return Ok(None),
        1 => Task::Single(last),
        _ => Task::Batch(last),
    };
    let given_upto = expire.then_some(last);
    Ok(Some(NextTask { task, events: count, given_upto, stdin: Some(stdin_file(queue, &batch)?) }))
}

/// Returns an unlinked file with these contents, positioned at its beginning. A regular file, not a pipe:
/// no writer blocks if the handler does not read it.
pub fn stdin_file(queue: &Queue, contents: &[u8]) -> Result<File> {
    let make = || {
        let mut file = queue.files.make_unnamed_file("run")?;
        file.write_all(contents)?;
        file.rewind()?;
        Ok::<File, std::io::Error>(file)
    };
    make().at("write the handler's stdin in", &queue.files.path_of("run"))
}

/// What a handler is started with.
pub struct Terms<'t> {
    /// It holds a copy.
    pub lock: &'t Lock,
    /// In a pool, its place.
    pub place: Option<u32>,
    /// Of the lease, if there is one.
    pub epoch: Option<i64>,
    /// What ends it if its supervisor cannot, and when.
    pub guard: Option<(&'t Guard, Deadline)>,
}

/// Starts the handler.
pub fn start(
    files: &Files,
    subscription: &Subscription,
    task: Task,
    stdin: Option<File>,
    terms: Terms<'_>,
) -> Result<Running> {
    #[cfg(all(test, target_os = "linux"))]
    if let Some(system) = simulated::system() {
        let lock =
            terms.lock.file().try_clone().map_err(|source| Error::Spawn { what: "the handler", source })?;
        return Ok(Running::simulated(system.handler(Given::Stdin(stdin), lock)));
    }
    let begins = begins(subscription, task, terms.place);
    let output = open_output(files, subscription, |output| match terms.place {
        None => output.begin(&begins),
        Some(_) => {
            let file = files.make_unnamed_file(HANDLER_LOGS)?;
            // It is read while the handler may write to it.
            rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND)?;
            output.printed = Printed::Aside { file, begins };
            Ok(())
        }
    });
    let mut command = command(files, subscription);
    if let Some(epoch) = terms.epoch {
        command.env("THREAD_EPOCH", epoch.to_string());
    }
    if let Task::Single(id) | Task::DeadLetter(id) = task
        && subscription.options.batch_size == 1
    {
        command.env("THREAD_EVENT_ID", id.to_string());
    }
    let file = output.as_ref().map(Output::target);
    let spawned = match terms.guard {
        #[cfg(target_os = "linux")]
        None if !spawn::passes_other_limit() => {
            let given = spawn::Given { stdin: stdin.as_ref(), output: file, errors: file };
            spawn::without_fork(&command, terms.lock, given)
        }
        _ => {
            // By a fork, in which the child itself tells the guard its process group before it executes anything.
            spawn::detached(&mut command, Some(terms.lock));
            if let Some((guard, until)) = terms.guard {
                guard.admit(&mut command, terms.epoch, until)?;
            }
            fork(command, stdin, file)
        }
    };
    let pid = spawned.map_err(|source| Error::Spawn { what: "the handler", source })?;
    Ok(Running::new(pid, output))
}

/// Starts a handler that is kept, with the pipes to and from it.
pub fn start_kept(files: &Files, subscription: &Subscription, terms: Terms<'_>) -> Result<(Running, Pipes)> {
    let failed = |source| Error::Spawn { what: "the handler", source };
    #[cfg(all(test, target_os = "linux"))]
    if let Some(system) = simulated::system() {
        let (pipes, Ends { stdin, stdout, stderr }) = Pipes::new().map_err(failed)?;
        let lock = terms.lock.file().try_clone().map_err(failed)?;
        let pid = system.handler(Given::Pipes([stdin, stdout, stderr]), lock);
        return Ok((Running::simulated(pid), pipes));
    }
    let output = open_output(files, subscription, |output| {
        output.printed = Printed::Kept { recent: Vec::new(), is_shared: terms.place.is_some() };
        output.begin(&begins(subscription, Task::Pool, terms.place))
    });
    let (pipes, Ends { stdin, stdout, stderr }) = Pipes::new().map_err(failed)?;
    let mut command = command(files, subscription);
    if let Some(epoch) = terms.epoch {
        command.env("THREAD_EPOCH", epoch.to_string());
    }
    spawn::detached(&mut command, Some(terms.lock));
    if let Some((guard, until)) = terms.guard {
        guard.admit(&mut command, terms.epoch, until)?;
    }
    let child = command.stdin(stdin).stdout(stdout).stderr(stderr).spawn().map_err(failed)?;
    Ok((Running::new(Pid::from_child(&child), output), pipes))
}

/// The handler's log, after `begin` has noted there that a run begins.
fn open_output(
    files: &Files,
    subscription: &Subscription,
    begin: impl FnOnce(&mut Output) -> io::Result<()>,
) -> Option<Output> {
    let output = Output::open(files, subscription).and_then(|mut output| {
        begin(&mut output)?;
        Ok(output)
    });
    let consumer = &subscription.consumer;
    output.inspect_err(|e| log!(files, Warn, "handler: consumer={consumer} its output is lost: {e}")).ok()
}

/// The line before what a run prints.
fn begins(subscription: &Subscription, task: Task, place: Option<u32>) -> String {
    let given = match task {
        Task::Wake | Task::Pool => String::new(),
        Task::Batch(last) => format!(" events upto={last}"),
        Task::Single(id) => format!(" event id={id}"),
        Task::DeadLetter(id) => format!(" dead letter id={id}"),
    };
    let attempt = match task {
        Task::Pool => String::new(),
        _ => format!(" attempt={}", subscription.state.attempts),
    };
    let place = place.map(|place| format!(" place={place}")).unwrap_or_default();
    format!("=== {} begins{attempt}{given}{place}\n", time::now())
}

fn fork(mut command: Command, stdin: Option<File>, output: Option<&File>) -> io::Result<Pid> {
    if let Some(file) = stdin {
        command.stdin(file);
    }
    if let Some(file) = output
        && let (Ok(out), Ok(err)) = (file.try_clone(), file.try_clone())
    {
        command.stdout(out).stderr(err);
    }
    Ok(Pid::from_child(&command.spawn()?))
}

/// The handler's command line, with its working directory and environment.
fn command(files: &Files, subscription: &Subscription) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(&subscription.handler_cmd);
    command.env_clear().envs(spawn::handler_environment(&subscription.options));
    command.env("THREAD_DIR", files.location().as_os_str());
    command.env("THREAD_CONSUMER", subscription.consumer.as_str());
    command.env("THREAD_LAST_ACKED_ID", subscription.last_acked_id.to_string());
    if let Some(cwd) = &subscription.cwd {
        command.current_dir(files.resolve(cwd));
    }
    command
}

/// A running handler, which is a child of this process.
pub struct Running {
    /// Its `sh`, the leader of its own session and process group.
    pid: Pid,
    /// Becomes readable when the `sh` has ended.
    exit_notice: Option<OwnedFd>,
    exit: Option<Exit>,
    /// Set once the run is being ended: from this time on, KILL is sent to its processes.
    kill_at: Option<Instant>,
    /// Its `sh` has ended, but not other processes, and they may not stay.
    has_rest: bool,
    output: Option<Output>,
}

impl Running {
    fn new(pid: Pid, output: Option<Output>) -> Running {
        #[cfg(target_os = "linux")]
        let exit_notice = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok();
        #[cfg(not(target_os = "linux"))]
        let exit_notice = None;
        with_ended(|ended| ended.insert(pid.as_raw_nonzero(), None));
        Running { pid, exit_notice, exit: None, kill_at: None, has_rest: false, output }
    }

    /// A process that a test stands for.
    #[cfg(all(test, target_os = "linux"))]
    fn simulated(pid: i32) -> Running {
        let mut running = Running::new(Pid::from_raw(pid).unwrap(), None);
        running.exit_notice = simulated::notices();
        running
    }

    /// Says how a process has ended that a test stands for.
    #[cfg(all(test, target_os = "linux"))]
    pub fn has_ended(pid: i32, exit: Exit) {
        with_ended(|ended| {
            if let Some(slot) = ended.get_mut(&NonZeroI32::new(pid).unwrap()) {
                *slot = Some(exit);
            }
        });
    }

    /// Writes to the handler's log what it has printed.
    pub fn log_output(&mut self, files: &Files, subscription: &Subscription, text: &[u8]) {
        if let Some(output) = &mut self.output {
            output.append(files, subscription, text);
        }
    }

    /// Writes a line about the handler to its log.
    pub fn note(&mut self, files: &Files, subscription: &Subscription, text: &str) {
        self.log_output(files, subscription, format!("=== {} {text}\n", time::now()).as_bytes());
    }

    /// The last part of what the handler has printed, without the notes in between.
    pub fn last_output(&mut self) -> String {
        let tail = self.output.as_mut().and_then(|output| output.tail().ok()).unwrap_or_default();
        let lines: Vec<&str> = tail.lines().filter(|line| !line.starts_with("=== ")).collect();
        lines.join("\n").trim_end().to_owned()
    }

    /// Whether it is being ended.
    pub fn is_being_ended(&self) -> bool {
        self.kill_at.is_some()
    }

    /// Kills what the handler has left behind in its process group.
    #[expect(clippy::disallowed_methods, reason = "ends a handler")]
    pub fn kill_rest(&self) {
        // Fails if the group is gone, which is fine.
        rustix::process::kill_process_group(self.pid, Signal::KILL).ok();
    }

    /// Identifies the handler's first process, to be recorded.
    pub fn process(&self) -> Option<ProcessId> {
        ProcessId::of(self.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// The process group that it leads.
    pub fn group(&self) -> Pid {
        self.pid
    }

    /// Ends the processes that the `sh` left when it failed, unless the run is being ended anyway. Returns whether this
    /// begins now.
    pub fn end_rest(&mut self) -> bool {
        let begins = self.has_rest && self.kill_at.is_none();
        if begins {
            self.end(libc::SIGTERM, REST_GRACE);
        }
        begins
    }

    /// Returns how the run ended; `None` if it has not. Reaps ended children, and kills the process group
    /// once its grace period is over.
    #[expect(clippy::disallowed_methods, reason = "ends a handler")]
    pub fn poll(&mut self) -> Option<Exit> {
        reap();
        if self.exit.is_none() {
            let pid = self.pid.as_raw_nonzero();
            self.exit = with_ended(|ended| ended.get_mut(&pid).and_then(Option::take));
        }
        if let Some(exit) = self.exit {
            let may_leave = exit == Exit::Code(0) && self.kill_at.is_none();
            if may_leave || !process::group_is_alive(self.pid) {
                return Some(exit);
            }
            self.has_rest = true;
        }
        if self.kill_at.is_some_and(|kill_at| kill_at <= Instant::now()) {
            // Fails if the group is already gone, which is fine.
            rustix::process::kill_process_group(self.pid, Signal::KILL).ok();
        }
        None
    }

    /// What to wait for before the next [`Running::poll`], and the longest time to wait.
    pub fn wait_for(&self) -> (Option<PollFd<'_>>, Duration) {
        match (&self.kill_at, &self.exit_notice) {
            (Some(_), _) => (None, ENDING_STEP),
            (None, Some(notice)) => (Some(PollFd::new(notice, PollFlags::IN)), REAP_EVERY),
            (None, None) => (None, WITHOUT_NOTICE),
        }
    }

    /// Sends `signal` to the process group; [`Running::poll`] kills what is left after `grace`.
    #[expect(clippy::disallowed_methods, reason = "ends a handler")]
    pub fn end(&mut self, signal: i32, grace: Duration) {
        let kill_at = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = simulated::system() {
            return system.ends(self.pid.as_raw_nonzero().get(), signal, grace);
        }
        let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
        // A stopped process handles the signal only once it continues.
        rustix::process::kill_process_group(self.pid, signal).ok();
        rustix::process::kill_process_group(self.pid, Signal::CONT).ok();
    }

    /// Writes the end of the run and its duration, `after`, to the handler's log. Returns the last part of
    /// the run's output, at most [`TAIL_KEPT`] bytes, and where all of it is in the log.
    pub fn finish(mut self, exit: Exit, after: Duration) -> (String, Option<Span>) {
        self.output.take().map(|mut output| output.end(exit, after)).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        with_ended(|ended| ended.remove(&self.pid.as_raw_nonzero()));
    }
}

/// The first processes of handlers, and how those have ended that were reaped.
type Ended = BTreeMap<NonZeroI32, Option<Exit>>;

/// Reads or changes what is known of the handlers that run here.
fn with_ended<T>(work: impl FnOnce(&mut Ended) -> T) -> T {
    static ENDED: Mutex<Ended> = Mutex::new(BTreeMap::new());
    // Each thread's simulation has processes of its own.
    #[cfg(all(test, target_os = "linux"))]
    if simulated::system().is_some() {
        thread_local!(static SIMULATED: RefCell<Ended> = const { RefCell::new(BTreeMap::new()) });
        return SIMULATED.with_borrow_mut(work);
    }
    work(&mut ENDED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Reaps all ended children: handlers, and processes that earlier runs left behind.
pub fn reap() {
    #[cfg(all(test, target_os = "linux"))]
    if simulated::system().is_some() {
        return;
    }
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        with_ended(|ended| {
            if let Some(exit) = ended.get_mut(&pid.as_raw_nonzero()) {
                *exit = Some(exit_of(status));
            }
        });
    }
}

fn exit_of(status: WaitStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Unknown,
    }
}

/// The handler's log file, during one run.
struct Output {
    file: File,
    /// The offset at which this run's output begins, in bytes.
    from: u64,
    printed: Printed,
}

/// Where the output of a run is.
enum Printed {
    /// In the log.
    There,
    /// In a file of its own, until it ends; and the line that comes before it in the log.
    Aside { file: File, begins: String },
    /// In the log, written by this process, perhaps among that of others; and the end of it.
    Kept { recent: Vec<u8>, is_shared: bool },
}

impl Output {
    fn open(files: &Files, subscription: &Subscription) -> io::Result<Output> {
        let name = files.handler_log(&subscription.consumer);
        files.make_dir(HANDLER_LOGS)?;
        if files.size(&name) > rotation::MAX_LOG {
            let stem = files.rotated_handler_logs(&subscription.consumer);
            rotation::set_log_aside(files, &name.to_string_lossy(), &stem, LOGS_KEPT)?;
        }
        let file = files.open_file(name, Access::Append)?;
        Ok(Output { file, from: 0, printed: Printed::There })
    }

    /// What the handler's own output is written to.
    fn target(&self) -> &File {
        match &self.printed {
            Printed::Aside { file, .. } => file,
            Printed::There | Printed::Kept { .. } => &self.file,
        }
    }

    fn begin(&mut self, begins: &str) -> io::Result<()> {
        self.write(begins);
        self.from = self.file.metadata()?.len();
        Ok(())
    }

    fn end(&mut self, exit: Exit, after: Duration) -> (String, Option<Span>) {
        let tail = self.tail().unwrap_or_default();
        if let Printed::Aside { file, begins } = std::mem::replace(&mut self.printed, Printed::There) {
            let mut file = file;
            let added = self.begin(&begins).and_then(|()| file.rewind());
            // Only for people to read, too.
            drop(added.and_then(|()| io::copy(&mut file, &mut self.file)));
        }
        let is_mixed = matches!(self.printed, Printed::Kept { is_shared: true, .. });
        let span = self.file.metadata().ok().filter(|_| !is_mixed).map(|log| {
            let length = log.len().saturating_sub(self.from);
            Span { file: log.ino(), offset: self.from, length }
        });
        if !tail.is_empty() && !tail.ends_with('\n') {
            self.write("\n");
        }
        self.note(&format!("ended {exit} after={:.1}s", after.as_secs_f64()));
        (tail.trim_end().to_owned(), span)
    }

    fn tail(&mut self) -> io::Result<String> {
        let (mut file, from) = match &self.printed {
            Printed::There => (&self.file, self.from),
            Printed::Aside { file, .. } => (file, 0),
            Printed::Kept { recent, .. } => return Ok(text_of_end(recent)),
        };
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(length.saturating_sub(TAIL_KEPT as u64))))?;
        let mut bytes = Vec::new();
        file.take(TAIL_KEPT as u64).read_to_end(&mut bytes)?;
        Ok(text_of_end(&bytes))
    }

    /// Appends what a handler that is kept has printed, rotating the log when it is long.
    fn append(&mut self, files: &Files, subscription: &Subscription, text: &[u8]) {
        if self.file.metadata().is_ok_and(|log| log.len() > rotation::MAX_LOG)
            && let Ok(new) = Output::open(files, subscription)
        {
            (self.file, self.from) = (new.file, new.from);
        }
        drop(self.file.write_all(text));
        if let Printed::Kept { recent, .. } = &mut self.printed {
            recent.extend_from_slice(text);
            let surplus = recent.len().saturating_sub(TAIL_KEPT);
            recent.drain(..surplus);
        }
    }

    fn note(&mut self, text: &str) {
        self.write(&format!("=== {} {text}\n", time::now()));
    }

    fn write(&mut self, text: &str) {
        // The log is only for people to read; a full disk must not fail the run.
        drop(self.file.write_all(text.as_bytes()));
    }
}

/// The end of an output as text, at most [`TAIL_KEPT`] bytes.
fn text_of_end(bytes: &[u8]) -> String {
    // It may begin in the middle of a character.
    let cut = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
    let bytes = if bytes.len() < TAIL_KEPT { bytes } else { &bytes[cut..] };
    end_of(&String::from_utf8_lossy(bytes), TAIL_KEPT).to_owned()
}
