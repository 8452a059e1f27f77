//! A socket of a worker that takes pushes and nothing else: for users who may store events in a thread, but not read it,
//! nor register a command that would run as its owner.
//!
//! A line is an event, as for `push --batch`; it is stored, synced, and answered by a line. Each connection has a thread of
//! the worker's process to itself, and limits, so neither a slow nor a silent client holds up anybody else. The worker
//! hears of what is stored as of any other push.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::environment;
use super::output::failure_line;
use crate::error::Code;
use crate::failure::{Failure, Result, WithHint, failed, usage};
use crate::model::event::{Defaults, NewEvent, Type};
use crate::model::location::Location;
use crate::model::time;
use crate::queue::{PushedEvent, Queue};
use crate::run::due::attend_to_scheduled;

/// The longest line, in bytes, without its newline.
const MAX_LINE: usize = 1024 * 1024;

/// How many connections may be open at a time, and how long a further one waits for one of them to end. All that come
/// after it wait as well, so this is short.
const MAX_CONNECTIONS: usize = 64;
const BURST_WAIT: Duration = Duration::from_millis(200);

/// How long a connection has for each line, and for reading an answer.
const LINE_TIME: Duration = Duration::from_secs(30);
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// How long a push waits for other writers, and the client for its answer.
const BUSY_LIMIT: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(60);

/// How long pushes under way may take when the worker ends.
const CLOSING_TIME: Duration = Duration::from_secs(5);

/// A socket that is listened to. Dropping it removes its file.
pub struct Socket {
    path: PathBuf,
    inode: u64,
    shared: Arc<Shared>,
}

/// What the threads of a socket share.
struct Shared {
    thread: Location,
    connections: AtomicUsize,
    /// How many events are being stored.
    storing: AtomicUsize,
    is_closing: AtomicBool,
}

impl Socket {
    /// Listens at `path` for pushes into `thread`. The socket's owner and group may connect; the group is this process's
    /// unless it is given, by name or number.
    ///
    /// # Errors
    ///
    /// Something else is at the path; it cannot be made; there is no such group.
    #[expect(clippy::disallowed_methods, reason = "a path that the caller names")]
    pub fn listen(path: &Path, group: Option<&str>, thread: &Location) -> Result<Socket> {
        let group = group.map(group_id).transpose()?;
        let (shown, hint) = (path.display(), "choose another path for --socket");
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return failed(Code::Failed, format_args!("{shown} is there, and no socket"), hint);
            }
            if UnixStream::connect(path).is_ok() {
                return failed(Code::Failed, format_args!("another process listens at {shown}"), hint);
            }
            // Of a worker that was killed.
            fs::remove_file(path).with_hint(format_args!("cannot replace {shown}"), hint)?;
        }
        let before = rustix::process::umask(Mode::from_raw_mode(0o117));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = listener.with_hint(format_args!("cannot listen at {shown}"), hint)?;
        let inode = fs::symlink_metadata(path).map_or(0, |found| found.ino());
        let shared = Arc::new(Shared {
            thread: thread.clone(),
            connections: AtomicUsize::new(0),
            storing: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
        });
        let socket = Socket { path: path.to_owned(), inode, shared: Arc::clone(&shared) };
        if group.is_some() {
            let given = std::os::unix::fs::chown(path, None, group);
            given.with_hint(
                format_args!("cannot give {shown} to the group"),
                "name a group that you are in",
            )?;
        }
        let accept = std::thread::Builder::new().spawn(move || shared.accept(&listener));
        accept.with_hint("cannot start a thread", "check the limits on processes and memory")?;
        Ok(socket)
    }

    /// Takes no further events, and waits until those under way are stored.
    pub fn close(&self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        let began = Instant::now();
        while self.shared.storing.load(Ordering::SeqCst) > 0 && began.elapsed() < CLOSING_TIME {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Socket {
    #[expect(clippy::disallowed_methods, reason = "a path that the caller has named")]
    fn drop(&mut self) {
        // Unless another worker has taken its place.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            drop(fs::remove_file(&self.path));
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Shared>, listener: &UnixListener) {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                // No descriptor is left, for instance.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            // A burst of pushes is over soon.
            let accepted = Instant::now();
            while self.connections.load(Ordering::SeqCst) >= MAX_CONNECTIONS
                && accepted.elapsed() < BURST_WAIT
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            if self.connections.fetch_add(1, Ordering::SeqCst) >= MAX_CONNECTIONS {
                self.connections.fetch_sub(1, Ordering::SeqCst);
                let what = format_args!("{MAX_CONNECTIONS} connections are open, which is the most");
                let refusal = Failure::new(1, Code::Locked, what, "try again later; nothing was stored");
                drop(answer(&stream, &failure_line(&refusal, true)));
                continue;
            }
            let shared = Arc::clone(self);
            let started = std::thread::Builder::new().spawn(move || {
                let _connection = Counted(&shared.connections);
                shared.serve(&stream);
            });
            if started.is_err() {
                self.connections.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Stores the events of a connection until it ends or breaks a limit.
    fn serve(&self, stream: &UnixStream) {
        let (mut input, mut queue) = (Lines { stream, read: Vec::new() }, None);
        loop {
            let line = match input.next() {
                Ok(Some(line)) => line,
                Ok(None) => return,
                Err(refusal) => return drop(answer(stream, &failure_line(&refusal, true))),
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let storing = Counted::of(&self.storing);
            if self.is_closing.load(Ordering::SeqCst) {
                return;
            }
            let reply = match self.store(&mut queue, &line) {
                Ok(PushedEvent { id, created_at, scheduled, repeated, .. }) => {
                    let mut reply = match scheduled {
                        Some((id, due)) => {
                            json!({ "scheduled_id": id.to_string(), "due_at": time::format(due) })
                        }
                        None => json!({ "id": id, "created_at": created_at }),
                    };
                    if repeated {
                        reply["repeated"] = true.into();
                    }
                    format!("{reply}\n")
                }
                Err(failure) => {
                    // It may have been moved.
                    queue = None;
                    failure_line(&failure, true)
                }
            };
            drop(storing);
            if answer(stream, &reply).is_err() {
                return;
            }
        }
    }

    fn store(&self, queue: &mut Option<Queue>, line: &[u8]) -> Result<PushedEvent> {
        // Who pushes is not known here, so there is no default source.
        let defaults = Defaults { kind: Some(Type::Message.as_str().to_owned()), ..Defaults::default() };
        let event = NewEvent::from_json(line.trim_ascii(), &defaults, &mut |_| {})?;
        let queue = match queue {
            Some(queue) => queue,
            None => queue.insert(Queue::open_waiting(&self.thread, BUSY_LIMIT)?),
        };
        queue.files().must_be_there()?;
        let stored = queue.push(&event)?;
        if stored.scheduled.is_some() {
            attend_to_scheduled(queue, &environment::launcher())?;
        }
        Ok(stored)
    }
}

/// Counts something for as long as it exists.
struct Counted<'c>(&'c AtomicUsize);

impl Counted<'_> {
    fn of(count: &AtomicUsize) -> Counted<'_> {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn answer(mut stream: &UnixStream, line: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(ANSWER_TIME))?;
    stream.write_all(line.as_bytes())
}

/// The lines of a connection.
struct Lines<'s> {
    stream: &'s UnixStream,
    /// What was read after the last line.
    read: Vec<u8>,
}

impl Lines<'_> {
    /// The next line; `None` at the end, or if nothing has come for [`LINE_TIME`].
    ///
    /// # Errors
    ///
    /// The line is too long or takes too long; the next one cannot be found.
    fn next(&mut self) -> std::result::Result<Option<Vec<u8>>, Failure> {
        let (end, mut searched) = (Instant::now() + LINE_TIME, 0);
        let mut chunk = vec![0; 16 * 1024];
        loop {
            let found = memchr::memchr(b'\n', &self.read[searched..]).map(|at| searched + at);
            if let Some(at) = found.filter(|at| *at <= MAX_LINE) {
                let rest = self.read.split_off(at + 1);
                return Ok(Some(std::mem::replace(&mut self.read, rest)));
            }
            searched = self.read.len();
            if searched > MAX_LINE {
                let what = format_args!("the line is longer than {MAX_LINE} bytes");
                let hint = "store the content in a file and push its path; nothing was stored";
                return Err(Failure::new(1, Code::TooLarge, what, hint));
            }
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let read = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut chunk));
            match read {
                Ok(0) if searched == 0 => return Ok(None),
                Ok(0) => return Ok(Some(std::mem::take(&mut self.read))),
                Ok(length) if Instant::now() < end => self.read.extend_from_slice(&chunk[..length]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                _ if searched == 0 => return Ok(None),
                _ => {
                    let what = format_args!("the line was not complete after {} s", LINE_TIME.as_secs());
                    return Err(Failure::new(1, Code::TimedOut, what, "send it at once; nothing was stored"));
                }
            }
        }
    }
}

/// The id of a group, given by name or number.
#[expect(clippy::disallowed_methods, reason = "the system's list of groups")]
fn group_id(group: &str) -> Result<u32> {
    let list = fs::read_to_string("/etc/group").unwrap_or_default();
    let mut entries = list.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let named =
        entries.find(|entry| entry.first() == Some(&group)).and_then(|entry| entry.get(2)?.parse().ok());
    match named.or_else(|| group.parse().ok()) {
        Some(id) => Ok(id),
        None => {
            usage(format_args!("there is no group '{group}'"), "give --socket-group a group of this machine")
        }
    }
}

/// An event, as it is sent.
#[derive(Serialize)]
struct Sent<'e> {
    source: &'e str,
    #[serde(rename = "type")]
    kind: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subtype: Option<&'e str>,
    content: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'e RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'e str>,
}

/// An answer: the first two if the event is stored.
#[derive(Deserialize)]
struct Reply {
    id: Option<i64>,
    created_at: Option<String>,
    #[serde(default)]
    repeated: bool,
    #[serde(default)]
    error: String,
    #[serde(default)]
    suggestion: String,
    #[serde(default)]
    code: String,
}

/// Pushes an event through a worker's socket.
pub fn push(path: &Path, event: &NewEvent<'_>) -> Result<PushedEvent> {
    let hint = "check --socket, and that `thread dispatch --follow --socket` runs; nothing was stored";
    let mut stream =
        UnixStream::connect(path).with_hint(format_args!("cannot connect to {}", path.display()), hint)?;
    let odd = ("cannot send the event", "see `thread push --help`; nothing was stored");
    let metadata = event.metadata.as_deref().map(serde_json::from_str).transpose().map_err(io::Error::from);
    let sent = Sent {
        source: &event.source,
        kind: event.kind.as_str(),
        subtype: event.subtype.as_deref(),
        content: &event.content,
        metadata: metadata.with_hint(odd.0, odd.1)?,
        idempotency_key: event.idempotency_key.as_deref(),
    };
    let mut line = serde_json::to_vec(&sent).map_err(io::Error::from).with_hint(odd.0, odd.1)?;
    if line.len() > MAX_LINE {
        return failed(
            Code::TooLarge,
            format_args!("the event takes more than {MAX_LINE} bytes, the most that a socket takes"),
            "store the content in a file and push its path; nothing was stored",
        );
    }
    line.push(b'\n');
    // A server that refuses the connection says why without reading.
    let written = stream.set_write_timeout(Some(PATIENCE)).and_then(|()| stream.write_all(&line));
    let mut reply = Vec::new();
    let read = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| {
        stream.shutdown(std::net::Shutdown::Write).ok();
        stream.take(MAX_LINE as u64).read_to_end(&mut reply)
    });
    let unknown = |why: String| {
        failed(
            Code::OutcomeUnknown,
            format_args!("the worker did not answer{why}, so it is unknown whether the event was stored"),
            "look with `thread peek`, or push it again under the same --idempotency-key",
        )
    };
    let Ok(reply) = serde_json::from_slice::<Reply>(&reply) else {
        return unknown(written.and(read.map(drop)).err().map(|e| format!(": {e}")).unwrap_or_default());
    };
    match (reply.id, reply.created_at) {
        (Some(id), Some(created_at)) => {
            Ok(PushedEvent { id, created_at, scheduled: None, repeated: reply.repeated, log_behind: None })
        }
        _ => {
            let code = Code::ALL.iter().copied().find(|code| code.as_str() == reply.code);
            failed(code.unwrap_or(Code::Failed), reply.error, reply.suggestion)
        }
    }
}
