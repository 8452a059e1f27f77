//! One run of a handler: what it is given, starting it, its output, and ending it.
//!
//! A run ends when its `sh` has been reaped; what that left in the background is its own affair. A
//! run that is being *ended* (by a time limit or `stop`) is over only when its whole process group
//! is gone. Standard output and error go straight to a file, so nobody has to read along.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::error::{OrFix, Result};
use crate::event;
use crate::files::Files;
use crate::lock::Lock;
use crate::log::Level;
use crate::process::{self, Identity};
use crate::rotation;
use crate::rule::{Deliver, Exit, Task};
use crate::spawn;
use crate::store::Reading;
use crate::subscription::Subscription;
use crate::thread::Thread;

/// A batch on stdin ends at about this many bytes.
const BATCH_BYTES: u64 = 1024 * 1024;

/// A handler's log longer than this is set aside before the next run.
const LOG_LIMIT: u64 = 10 * 1024 * 1024;

/// How much of the end of a run's output a dead letter keeps, in bytes.
const OUTPUT_KEPT: u64 = 2048;

/// How often a run that is being ended is looked at.
const ENDING_STEP: Duration = Duration::from_millis(10);

/// What the next run is to be given, with its stdin if it is fed. Nothing when nothing is pending
/// any more.
pub fn next_task(thread: &mut Thread, subscription: &Subscription) -> Result<Option<(Task, Option<File>)>> {
    if subscription.policy.deliver == Deliver::Wake {
        return Ok(Some((Task::Wake, None)));
    }
    let consumer = &subscription.consumer;
    while let Some(id) = thread.store.letter_to_retry(consumer)? {
        let mut page = Vec::new();
        let mut reading = Reading { after: id.saturating_sub(1), left: Some(1), filter: None };
        thread.store.read_page(&mut reading, &mut page)?;
        if reading.after == id {
            return Ok(Some((Task::Letter(id), Some(stdin_file(thread, &[&page])?))));
        }
        thread.store.discard_letters(consumer, Some(id))?;
        thread.log(
            Level::Warn,
            format_args!("dead: consumer={consumer} id={id} is no longer stored; discarded"),
        );
    }
    let filter = crate::dispatch::checked_filter(thread, subscription)?;
    let start = subscription.known_upto(subscription.last_acked_id);
    let mut reading = Reading { after: start, left: Some(1), filter: filter.as_ref() };
    let mut pages = Vec::new();
    let (mut count, mut bytes, mut last) = (0, 0, 0);
    // The first event decides whether the rest may come with it.
    let mut most = 1;
    while count < most && bytes < BATCH_BYTES {
        reading.left = Some(if count == 0 { 1 } else { most - count });
        let mut page = Vec::new();
        let more = thread.store.read_rows(&mut reading, |row| {
            row.write_line(&mut page);
            count += 1;
            last = row.id;
            bytes + (page.len() as u64) < BATCH_BYTES
        })?;
        bytes += page.len() as u64;
        pages.push(page);
        if most == 1 && count == 1 && last > subscription.state.narrow_upto {
            most = subscription.policy.batch_size;
        } else if !more {
            break;
        }
    }
    let task = match count {
        0 => return Ok(None),
        1 => Task::Single(last),
        _ => Task::Batch(last),
    };
    let pages: Vec<&[u8]> = pages.iter().map(Vec::as_slice).collect();
    Ok(Some((task, Some(stdin_file(thread, &pages)?))))
}

/// An unlinked file with these contents, to be read from its beginning. A regular file: nothing
/// blocks, and a handler that does not read it disturbs nobody.
fn stdin_file(thread: &Thread, pages: &[&[u8]]) -> Result<File> {
    let make = || {
        let mut file = tempfile::tempfile_in(thread.dir().join("run"))?;
        for page in pages {
            file.write_all(page)?;
        }
        file.rewind()?;
        Ok::<File, std::io::Error>(file)
    };
    make().or_fix("cannot write the handler's stdin in run/", "free some space, then run `thread dispatch`")
}

/// Starts the handler, which then holds a copy of `lock`.
pub fn start(
    thread: &Thread,
    subscription: &Subscription,
    task: Task,
    stdin: Option<File>,
    lock: &Lock,
) -> Result<Running> {
    let mut output = Output::open(&thread.files, subscription);
    let mut command = command(thread, subscription);
    spawn::detached(&mut command, Some(lock.as_raw_fd()));
    if let Some(file) = stdin {
        command.stdin(file);
    }
    match &mut output {
        Ok(output) => {
            output.begin(subscription, task);
            let (out, err) = (output.file.try_clone(), output.file.try_clone());
            if let (Ok(out), Ok(err)) = (out, err) {
                command.stdout(out).stderr(err);
            }
        }
        Err(e) => {
            let consumer = &subscription.consumer;
            thread.log(Level::Warn, format_args!("handler: consumer={consumer} its output is lost: {e}"));
        }
    }
    let child = command.spawn().or_fix(
        "cannot start the handler",
        "check the limits on processes and memory, then run `thread dispatch`",
    )?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or("no such process").or_fix("cannot start the handler", "run `thread dispatch`")?;
    Ok(Running { pid, exit: None, ending: None, began: Instant::now(), output: output.ok() })
}

/// The handler's command line, with nothing of ours in its environment but what it needs.
fn command(thread: &Thread, subscription: &Subscription) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(&subscription.handler_cmd);
    for name in spawn::own_variables() {
        command.env_remove(name);
    }
    command.env("THREAD_DIR", thread.dir());
    command.env("THREAD_CONSUMER", subscription.consumer.as_str());
    command.env("THREAD_LAST_ACKED_ID", subscription.last_acked_id.to_string());
    if let Some(cwd) = &subscription.cwd {
        command.current_dir(cwd);
    }
    command
}

/// A handler at work. This process is its parent.
pub struct Running {
    /// Its `sh`, which leads a session and a process group of its own.
    pid: Pid,
    exit: Option<Exit>,
    ending: Option<Ending>,
    began: Instant,
    output: Option<Output>,
}

struct Ending {
    /// From then on its processes are killed.
    kill_at: Instant,
}

impl Running {
    /// The handler's first process, for the record.
    pub fn identity(&self) -> Option<Identity> {
        Identity::of(self.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// How the run ended, once it has. Reaps whoever of its processes has ended, and kills those
    /// whose time is up.
    pub fn poll(&mut self) -> Result<Option<Exit>> {
        for (pid, status) in reaped() {
            if pid == self.pid {
                self.exit = Some(exit_of(status));
            }
        }
        let Some(ending) = &self.ending else { return Ok(self.exit) };
        if !process::group_is_alive(self.pid)
            && let Some(exit) = self.exit
        {
            return Ok(Some(exit));
        }
        if Instant::now() >= ending.kill_at {
            // A group that is gone by now is what was wanted.
            rustix::process::kill_process_group(self.pid, Signal::KILL).ok();
        }
        Ok(None)
    }

    /// How long to wait before the next [`Running::poll`], given what else is due.
    pub fn pause(&self, due: Option<Duration>) -> Option<Duration> {
        match &self.ending {
            Some(_) => Some(ENDING_STEP),
            None => due,
        }
    }

    /// Asks all its processes to end, and kills them after `grace`.
    pub fn end(&mut self, signal: i32, grace: Duration) {
        let kill_at = Instant::now() + grace;
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.min(kill_at);
        } else {
            self.ending = Some(Ending { kill_at });
        }
        let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
        // A stopped process would not notice before it goes on.
        rustix::process::kill_process_group(self.pid, signal).ok();
        rustix::process::kill_process_group(self.pid, Signal::CONT).ok();
    }

    /// Notes the end in the handler's log, and answers with the end of its output.
    pub fn finish(self, exit: Exit) -> String {
        let after = self.began.elapsed();
        self.output.map(|mut output| output.end(exit, after)).unwrap_or_default()
    }
}

/// Reaps children nobody asks about: what earlier runs left behind.
pub fn reap() {
    reaped().for_each(drop);
}

fn reaped() -> impl Iterator<Item = (Pid, WaitStatus)> {
    std::iter::from_fn(|| rustix::process::wait(WaitOptions::NOHANG).ok().flatten())
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
    /// Where this run's output begins.
    from: u64,
}

impl Output {
    fn open(files: &Files, subscription: &Subscription) -> std::io::Result<Output> {
        let path = files.handler_log(&subscription.consumer);
        if let Some(dir) = path.parent() {
            files.make_dir(dir)?;
        }
        if fs::metadata(&path).is_ok_and(|log| log.len() > LOG_LIMIT) {
            // The `~` keeps these names apart from every consumer's.
            rotation::set_aside(&path, &format!("{}~", subscription.consumer.file_stem()), "log")?;
        }
        let file = files.open(&path, OpenOptions::new().read(true).append(true))?;
        Ok(Output { file, from: 0 })
    }

    fn begin(&mut self, subscription: &Subscription, task: Task) {
        let given = match task {
            Task::Wake => String::new(),
            Task::Batch(last) => format!(" events upto={last}"),
            Task::Single(id) => format!(" event id={id}"),
            Task::Letter(id) => format!(" dead letter id={id}"),
        };
        self.note(&format!("begins attempt={}{given}", subscription.state.attempts));
        self.from = self.file.metadata().map(|log| log.len()).unwrap_or(0);
    }

    fn end(&mut self, exit: Exit, after: Duration) -> String {
        let tail = self.tail().unwrap_or_default();
        if !tail.is_empty() && !tail.ends_with('\n') {
            self.write("\n");
        }
        self.note(&format!("ended {exit} after={:.1}s", after.as_secs_f64()));
        tail.trim_end().to_owned()
    }

    fn tail(&mut self) -> std::io::Result<String> {
        let length = self.file.metadata()?.len();
        let from = self.from.max(length.saturating_sub(OUTPUT_KEPT));
        self.file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        (&self.file).take(OUTPUT_KEPT).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn note(&mut self, text: &str) {
        self.write(&format!("=== {} {text}\n", event::now()));
    }

    fn write(&mut self, text: &str) {
        // The output is for people to read; a full disk must not fail the run.
        drop(self.file.write_all(text.as_bytes()));
    }
}
