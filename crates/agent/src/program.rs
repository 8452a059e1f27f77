//! The process of an agent program: starting it, its input and output, and signalling it.
//!
//! It leads its own session and inherits no file descriptor except its standard three, so it cannot hold
//! the consumer's lock. Its output is read by threads that pass it on through a bounded channel: a program
//! that prints faster than its output can be stored is blocked.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use thread::run::spawn;

/// How much of stderr is copied to the handler's log per attempt, in bytes: it must not fill the disk.
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

/// A program that was started.
#[derive(Debug)]
pub struct Program {
    /// It leads the session and process group of this id.
    pub pid: Pid,
    /// Distinguishes its events from those of an earlier program that are still in the channel.
    pub number: u64,
    stdin: Option<Sender<Vec<u8>>>,
    stdout: Arc<Stdout>,
    /// How many bytes of stderr were copied to the log in this attempt.
    logged: Arc<AtomicUsize>,
}

/// The reading end of a program's stdout.
#[derive(Debug)]
struct Stdout {
    pipe: ChildStdout,
    /// Held from before something is read until it is in the adapter's channel.
    reading: Mutex<()>,
}

impl Program {
    /// Starts it. `input` is all its input; without it, [`Program::send`] sends some. Its events are sent to `events` as
    /// `message(number, event)`.
    ///
    /// # Errors
    ///
    /// There is no such program, or it cannot be run.
    pub fn start<M: Send + 'static>(
        mut command: Command,
        input: Option<File>,
        number: u64,
        events: SyncSender<M>,
        message: fn(u64, ProgramEvent) -> M,
    ) -> std::io::Result<Program> {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = crate::simulated::system() {
            use std::sync::mpsc::TrySendError::Full;
            let (send, receive) = channel();
            let keeps = input.is_none();
            // What an adapter that is gone has not read is lost.
            let report = move |event| !matches!(events.try_send(message(number, event)), Err(Full(_)));
            let (pid, pipe) = system.start(&command, keeps.then_some(receive), Box::new(report))?;
            let stdout = Arc::new(Stdout { pipe, reading: Mutex::new(()) });
            let stdin = keeps.then_some(send);
            return Ok(Program { pid, number, stdin, stdout, logged: Arc::default() });
        }
        spawn::detached(&mut command, None);
        command.stdin(input.map_or_else(Stdio::piped, Stdio::from));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (Some(pid), Some(pipe)) =
            (i32::try_from(child.id()).ok().and_then(Pid::from_raw), child.stdout.take())
        else {
            return Err(std::io::ErrorKind::NotFound.into());
        };
        let stdout = Arc::new(Stdout { pipe, reading: Mutex::new(()) });
        let logged = Arc::default();
        let program = Program {
            pid,
            number,
            stdin: child.stdin.take().map(feed),
            stdout: Arc::clone(&stdout),
            logged: Arc::clone(&logged),
        };
        read(child, pid, (stdout, logged), move |event| events.send(message(number, event)).is_ok());
        Ok(program)
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

    /// Whether everything that it has printed so far is in the adapter's channel.
    pub fn is_read(&self) -> bool {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = crate::simulated::system() {
            return system.is_read(self.pid);
        }
        let reading = self.stdout.reading.try_lock();
        !matches!(reading, Err(TryLockError::WouldBlock)) && ioctl_fionread(&self.stdout.pipe) == Ok(0)
    }

    /// Lets the log have as much of its stderr again as at the beginning.
    pub fn log_more(&self) {
        self.logged.store(0, Ordering::Relaxed);
    }

    /// Signals its process group; no error if the group is already gone.
    pub fn signal(&self, signal: Signal) {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = crate::simulated::system() {
            return system.signal(self.pid, signal);
        }
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
    (stdout, logged): (Arc<Stdout>, Arc<AtomicUsize>),
    report: impl Fn(ProgramEvent) -> bool + Clone + Send + 'static,
) {
    let report_output = report.clone();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 16 * 1024];
        loop {
            let mut readable = [PollFd::new(&stdout.pipe, PollFlags::IN)];
            if poll(&mut readable, None).is_err_and(|e| e != Errno::INTR) {
                break;
            }
            let _reading = stdout.reading.lock();
            match rustix::io::read(&stdout.pipe, &mut bytes) {
                Err(Errno::INTR) => {}
                Ok(read) if read > 0 && report_output(ProgramEvent::Output(bytes[..read].to_vec())) => {}
                _ => break,
            }
        }
        report_output(ProgramEvent::StdoutClosed);
    });
    let stderr = child.stderr.take().map(|stderr| std::thread::spawn(move || log(stderr, &logged)));
    std::thread::spawn(move || {
        // Not reaped here: the adapter reaps all its children in one place.
        let exited = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(Errno::INTR) = rustix::process::waitid(WaitId::Pid(pid), exited) {}
        report(ProgramEvent::Exited);
        // The adapter may end now, and the end of stderr belongs in the log, but another process may hold stderr open forever.
        let until = Instant::now() + Duration::from_millis(200);
        while stderr.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        report(ProgramEvent::StderrDone);
    });
}

/// Copies the beginning of stderr to our own stderr, which is the handler's log.
fn log(mut stderr: impl Read, logged: &AtomicUsize) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read) = stderr.read(&mut bytes) {
        if read == 0 {
            return;
        }
        let before = logged.fetch_add(read, Ordering::Relaxed);
        if before < STDERR_LOGGED {
            // Failing to write the log (full disk) must not end the agent.
            std::io::stderr().write_all(&bytes[..read]).ok();
            if before + read >= STDERR_LOGGED {
                std::io::stderr().write_all(b"\n(the rest of its stderr is not logged)\n").ok();
            }
        }
    }
}
