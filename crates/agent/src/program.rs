//! An agent program at work: starting it, its input and output, and ending it.
//!
//! It leads a session of its own, has none of our descriptors but its three, and so cannot hold the
//! consumer's lock. What it prints is read by threads that hand it on through a channel that is bounded: a
//! program that prints faster than its words can be stored waits.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use thread::run::spawn;

/// How much of the end of its stderr is kept for an error, in bytes.
const STDERR_KEPT: usize = 2048;

/// How much of its stderr goes to the handler's log, for each process, in bytes: it must not fill the disk.
const STDERR_LOGGED: usize = 256 * 1024;

/// What a program does, told through the adapter's channel.
#[derive(Debug)]
pub enum Heard {
    Output(Vec<u8>),
    /// Its stdout is closed, by everybody who had it.
    Closed,
    /// It has ended and is to be reaped.
    Exited,
    /// After its end: all of its stderr has been read, or what is left of it is not waited for.
    Silent,
}

/// What it gets on stdin.
#[derive(Debug)]
pub enum Input {
    /// All of it at once.
    File(File),
    /// More as it is sent.
    Pipe,
}

/// A program that was started and not reaped yet, or not forgotten.
#[derive(Debug)]
pub struct Program {
    /// It leads the session and process group of that number.
    pid: Pid,
    /// Tells what it says from what an earlier one said.
    pub number: u64,
    stdin: Option<Sender<Vec<u8>>>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
}

impl Program {
    /// Starts it. `say` hands on what it does.
    ///
    /// # Errors
    ///
    /// There is no such program, or it cannot be run.
    pub fn start<M: Send + 'static>(
        mut command: Command,
        input: Input,
        number: u64,
        say: SyncSender<M>,
        message: fn(u64, Heard) -> M,
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
        read(child, pid, stderr, move |heard| say.send(message(number, heard)).is_ok());
        Ok(program)
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends it more input. What it does not read is lost when it ends.
    pub fn send(&self, bytes: Vec<u8>) {
        if let Some(stdin) = &self.stdin {
            stdin.send(bytes).ok();
        }
    }

    /// Lets it see the end of its input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// The end of what it wrote to stderr, as text.
    pub fn stderr(&self) -> String {
        let mut kept = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(kept.make_contiguous()).trim().to_owned()
    }

    /// Signals its process group. One that is gone by now is what was wanted.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process_group(self.pid, signal).ok();
        // A stopped process would not notice before it goes on.
        rustix::process::kill_process_group(self.pid, Signal::CONT).ok();
    }
}

/// A thread that writes to the program, so that one that does not read keeps nobody else waiting.
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
    say: impl Fn(Heard) -> bool + Clone + Send + 'static,
) {
    if let Some(mut stdout) = child.stdout.take() {
        let say = say.clone();
        std::thread::spawn(move || {
            let mut bytes = vec![0; 16 * 1024];
            while let Ok(read) = stdout.read(&mut bytes) {
                if read == 0 || !say(Heard::Output(bytes[..read].to_vec())) {
                    break;
                }
            }
            say(Heard::Closed);
        });
    }
    let stderr = child.stderr.take().map(|stderr| std::thread::spawn(move || keep_tail(stderr, &kept)));
    std::thread::spawn(move || {
        // Not reaped here: the adapter reaps all its children in one place.
        let exited = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = rustix::process::waitid(WaitId::Pid(pid), exited) {}
        say(Heard::Exited);
        // Its last words belong to its end; another process that has its stderr may keep it open for ever.
        let until = Instant::now() + Duration::from_millis(200);
        while stderr.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        say(Heard::Silent);
    });
}

/// Keeps the end of what comes, and passes the beginning on to our own stderr, which is the handler's log.
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
            // The log is for people: a full disk must not end the agent.
            std::io::stderr().write_all(bytes).ok();
            logged += read;
            if logged >= STDERR_LOGGED {
                std::io::stderr().write_all(b"\n(no more of its stderr is kept)\n").ok();
            }
        }
    }
}
