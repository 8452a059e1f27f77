//! The process of an agent program: starting it, its input and output, and signalling it.
//!
//! It leads its own session and inherits no file descriptor except its standard three, so it cannot hold
//! the consumer's lock. Its output is read by threads that pass it on through a bounded channel: a program
//! that prints faster than its output can be stored is blocked.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use thread::run::spawn;

/// How much of the end of stderr is kept for error messages, in bytes.
const STDERR_KEPT: usize = 2048;

/// How much of stderr is copied to the handler's log per process, in bytes: it must not fill the disk.
const STDERR_LOGGED: usize = 256 * 1024;

/// What happens to a program, sent through the adapter's channel.
#[derive(Debug)]
pub enum ProgramEvent {
    Output(Vec<u8>),
    /// Every process that had its stdout has closed it.
    StdoutClosed,
    /// It has exited and can be reaped.
    Exited,
    /// Sent after `Exited`: all of its stderr has been read, or the time to wait for the rest is over.
    StderrDone,
}

/// The program's stdin.
#[derive(Debug)]
pub enum Input {
    /// The complete input.
    File(File),
    /// Input is written by [`Program::send`].
    Pipe,
}

/// A program that was started.
#[derive(Debug)]
pub struct Program {
    /// It leads the session and process group of this id.
    pid: Pid,
    /// Distinguishes its events from those of an earlier program that are still in the channel.
    pub number: u64,
    stdin: Option<Sender<Vec<u8>>>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
}

impl Program {
    /// Starts it. Its events are sent to `events` as `message(number, event)`.
    ///
    /// # Errors
    ///
    /// There is no such program, or it cannot be run.
    pub fn start<M: Send + 'static>(
        mut command: Command,
        input: Input,
        number: u64,
        events: SyncSender<M>,
        message: fn(u64, ProgramEvent) -> M,
    ) -> std::io::Result<Program> {
        spawn::detached(&mut command, None);
        match input {
            Input::File(file) => command.stdin(file),
            Input::Pipe => command.stdin(Stdio::piped()),
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
            return Err(std::io::ErrorKind::NotFound.into());
        };
        let program =
            Program { pid, number, stdin: child.stdin.take().map(feed), stderr: Arc::clone(&stderr) };
        read(child, pid, stderr, move |event| events.send(message(number, event)).is_ok());
        Ok(program)
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends it more input, without blocking. Input that it has not read when it exits is lost.
    pub fn send(&self, bytes: Vec<u8>) {
        if let Some(stdin) = &self.stdin {
            stdin.send(bytes).ok();
        }
    }

    /// Closes its stdin once everything sent has been written.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// The end of what it wrote to stderr, as text.
    pub fn stderr(&self) -> String {
        let mut kept = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(kept.make_contiguous()).trim().to_owned()
    }

    /// Signals its process group; no error if the group is already gone.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process_group(self.pid, signal).ok();
        // A stopped process handles signals only once it is continued.
        rustix::process::kill_process_group(self.pid, Signal::CONT).ok();
    }
}

/// Starts a thread that writes to the program: a program that does not read must not block the adapter.
fn feed(mut stdin: ChildStdin) -> Sender<Vec<u8>> {
    let (send, receive): (_, Receiver<Vec<u8>>) = channel();
    std::thread::spawn(move || {
        for bytes in receive {
            if stdin.write_all(&bytes).and_then(|()| stdin.flush()).is_err() {
                return;
            }
        }
    });
    send
}

fn read(
    mut child: Child,
    pid: Pid,
    kept: Arc<Mutex<VecDeque<u8>>>,
    report: impl Fn(ProgramEvent) -> bool + Clone + Send + 'static,
) {
    if let Some(mut stdout) = child.stdout.take() {
        let report = report.clone();
        std::thread::spawn(move || {
            let mut bytes = vec![0; 16 * 1024];
            while let Ok(read) = stdout.read(&mut bytes) {
                if read == 0 || !report(ProgramEvent::Output(bytes[..read].to_vec())) {
                    break;
                }
            }
            report(ProgramEvent::StdoutClosed);
        });
    }
    let stderr = child.stderr.take().map(|stderr| std::thread::spawn(move || keep_tail(stderr, &kept)));
    std::thread::spawn(move || {
        // Not reaped here: the adapter reaps all its children in one place.
        let exited = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = rustix::process::waitid(WaitId::Pid(pid), exited) {}
        report(ProgramEvent::Exited);
        // The end of stderr belongs in the error message, but another process may hold stderr open forever.
        let until = Instant::now() + Duration::from_millis(200);
        while stderr.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        report(ProgramEvent::StderrDone);
    });
}

/// Keeps the end of stderr, and copies its beginning to our own stderr, which is the handler's log.
fn keep_tail(mut stderr: impl Read, kept: &Mutex<VecDeque<u8>>) {
    let mut bytes = vec![0; 16 * 1024];
    let mut logged = 0;
    while let Ok(read) = stderr.read(&mut bytes) {
        if read == 0 {
            return;
        }
        let bytes = &bytes[..read];
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        let surplus = kept.len().saturating_sub(STDERR_KEPT);
        kept.drain(..surplus);
        drop(kept);
        if logged < STDERR_LOGGED {
            // Failing to write the log (full disk) must not end the agent.
            std::io::stderr().write_all(bytes).ok();
            logged += read;
            if logged >= STDERR_LOGGED {
                std::io::stderr().write_all(b"\n(the rest of its stderr is not logged)\n").ok();
            }
        }
    }
}
