//! `thread push --lines --follow` and `--batch --follow`: storing lines while more of them come.
//!
//! Each transaction is a push of its own, by a connection of its own, and takes whole lines from the front of what was
//! read; they are dropped only once they are stored or refused for good. So each line is stored once, and what is not
//! stored is known whenever this ends. While a transaction fails for a reason that may pass, nothing more is read, and
//! the producer waits.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Aftermath, apply_retention, attend, take_further_steps};
use crate::cli::batch::{LineFormat, Lines, must_have_input};
use crate::cli::{environment, output, signals};
use crate::error::{Code, DatabaseErrorKind, Error};
use crate::failure::{Failure, Result, WithHint, failed, hint};
use crate::files::log::log;
use crate::model::exponential_backoff::ExponentialBackoff;
use crate::model::location::Location;
use crate::queue::Queue;
use crate::run::reap;
use crate::run::shutdown::Shutdown;
use crate::store::Appended;

/// How long a line may wait for the next transaction.
const PERIOD: Duration = Duration::from_secs(1);

/// So many lines, or bytes, do not wait.
const LINES: usize = 1000;
const BYTES: usize = 1024 * 1024;

/// How much to read at a time, and after a signal: no pipe holds more unless it was told to.
const CHUNK: usize = 64 * 1024;
const LAST_READ: u64 = 1024 * 1024;

/// How long a transaction waits for other writers before that is trouble, and the longest pause after trouble.
const BUSY_LIMIT: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Stores the lines of stdin until it ends, or a signal asks to end.
pub fn follow(location: &Location, format: &LineFormat, as_json: bool) -> Result<()> {
    must_have_input()?;
    let shutdown = signals::as_shutdown_requests(&[SIGTERM, SIGINT, SIGHUP])?;
    drop(Queue::open_waiting(location, BUSY_LIMIT)?);
    let mut follower = Follower {
        location,
        format,
        as_json,
        shutdown,
        input: Input::default(),
        done: Lines::default(),
        warned_of_key: false,
        stored: 0,
        last_id: None,
        refused: None,
        aftermath: Aftermath::default(),
    };
    let read = follower.read_and_store()?;
    follower.end(read)
}

/// What was read and not stored yet.
#[derive(Default)]
struct Input {
    text: Vec<u8>,
    /// The length of its whole lines, and their number.
    whole: usize,
    lines: usize,
}

impl Input {
    /// Waits for input, at most until `until`, and reads some. Returns false at its end, and after a signal, once what
    /// had come by then is read.
    fn read(&mut self, until: Option<Instant>, longest: usize, shutdown: &Shutdown) -> io::Result<bool> {
        let stdin = environment::stdin();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled = [PollFd::new(&stdin, PollFlags::IN), shutdown.poll_fd()];
        match poll(&mut polled, timeout.as_ref()) {
            Err(Errno::INTR) | Ok(0) => return Ok(true),
            polled => polled?,
        };
        if shutdown.requests() == 0 {
            return self.read_some(CHUNK, longest).map(|read| read != Some(0));
        }
        let mut left = rustix::io::ioctl_fionread(&stdin).unwrap_or(0).min(LAST_READ) as usize;
        while left > 0 {
            match self.read_some(left.min(CHUNK), longest)? {
                None | Some(0) => break,
                Some(read) => left -= read,
            }
        }
        Ok(false)
    }

    /// Reads at most so many bytes. Returns how many; `None` if there is nothing yet.
    fn read_some(&mut self, most: usize, longest: usize) -> io::Result<Option<usize>> {
        let mut chunk = vec![0; most];
        let read = match environment::stdin().lock().read(&mut chunk) {
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                return Ok(None);
            }
            read => read?,
        };
        self.add(&chunk[..read], longest);
        Ok(Some(read))
    }

    /// Appends what was read. Of a line that is longer than `longest`, one byte more is kept, which shows that.
    fn add(&mut self, chunk: &[u8], longest: usize) {
        let (end_of_line, rest) = chunk.split_at(memchr::memchr(b'\n', chunk).unwrap_or(chunk.len()));
        let room = (longest + 1).saturating_sub(self.text.len() - self.whole);
        self.text.extend_from_slice(&end_of_line[..end_of_line.len().min(room)]);
        self.lines += memchr::memchr_iter(b'\n', rest).count();
        if let Some(last) = memchr::memrchr(b'\n', rest) {
            self.whole = self.text.len() + last + 1;
        }
        self.text.extend_from_slice(rest);
    }

    /// No more will come: a last line may have no line end.
    fn close(&mut self) {
        self.lines += usize::from(self.text.len() > self.whole);
        self.whole = self.text.len();
    }

    fn remove(&mut self, lines: usize, length: usize) {
        self.text.drain(..length);
        self.whole -= length;
        self.lines -= lines;
    }
}

struct Follower<'a> {
    location: &'a Location,
    format: &'a LineFormat,
    as_json: bool,
    shutdown: Shutdown,
    input: Input,
    /// The lines that are stored or refused.
    done: Lines,
    warned_of_key: bool,
    /// How many events were stored, and the last one's id.
    stored: u64,
    last_id: Option<i64>,
    /// How many lines were refused, and the first one's number.
    refused: Option<(u64, u64)>,
    /// After the last transaction.
    aftermath: Aftermath,
}

impl Follower<'_> {
    /// Reads to the end of the input or until a signal, and stores what came in time; then all the rest.
    fn read_and_store(&mut self) -> Result<io::Result<()>> {
        let (mut due, longest) = (Instant::now(), self.format.max_line());
        let read = loop {
            let until = (self.input.lines > 0).then_some(due);
            match self.input.read(until, longest, &self.shutdown) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(e) => break Err(e),
            }
            let Input { whole, lines, .. } = self.input;
            if lines > 0 && (Instant::now() >= due || lines >= LINES || whole >= BYTES) {
                self.store()?;
                due = Instant::now() + PERIOD;
            }
        };
        self.input.close();
        self.store()?;
        Ok(read)
    }

    /// Stores all whole lines, however long that takes; after a signal only if it does not fail.
    fn store(&mut self) -> Result<()> {
        // Lines to be stored one by one, because the key of one of them conflicts.
        let mut singly = 0_usize;
        let mut backoff = ExponentialBackoff::new(PERIOD, LONGEST_PAUSE);
        while self.input.lines > 0 {
            let lines = if singly > 0 { 1 } else { self.input.lines };
            match self.store_first(lines) {
                Ok(()) => {
                    if !backoff.is_first() {
                        output::note(format_args!(
                            "the lines are stored again, up to line {}",
                            self.done.number
                        ));
                    }
                    backoff.reset();
                    singly = singly.saturating_sub(1);
                }
                Err(Error::KeyConflict { .. }) if lines > 1 => singly = lines,
                Err(e) if !may_pass(&e) || self.shutdown.requests() > 0 => return Err(self.not_stored(&e)),
                Err(e) => {
                    if backoff.is_first() {
                        let next = self.done.number + 1;
                        output::warn(format_args!(
                            "nothing is stored from line {next} on for now, and nothing more is read: {e} - {}",
                            hint(&e)
                        ));
                    }
                    let pause = Timespec::try_from(backoff.pause()).ok();
                    // A signal ends the pause.
                    poll(&mut [self.shutdown.poll_fd()], pause.as_ref()).ok();
                }
            }
        }
        Ok(())
    }

    /// Stores the first of the whole lines in one transaction, and removes them.
    fn store_first(&mut self, lines: usize) -> crate::Result<()> {
        let (mut done, mut length) = (self.done.clone(), 0);
        let (mut events, mut refused) = (Vec::new(), Vec::new());
        for line in self.input.text[..self.input.whole].split_inclusive(|byte| *byte == b'\n').take(lines) {
            length += line.len();
            match done.parse(line, self.format) {
                Ok(event) => events.extend(event),
                Err(problem) => refused.push((done.number, problem.to_string())),
            }
        }
        let mut stored = None;
        if let Some(last) = events.last() {
            // The supervisors of consumers that were woken before.
            reap();
            let mut queue = Queue::open_waiting(self.location, BUSY_LIMIT)?;
            match queue.append(&mut |put| put(&events).map(drop)) {
                Ok(appended) => {
                    log!(queue, Info, "push batch: {appended}");
                    if appended.scheduled > 0 {
                        attend(&mut queue);
                    }
                    let aftermath = take_further_steps(&mut queue, &last.source, &mut |_| {});
                    if let Some(last_id) = appended.last_id {
                        apply_retention(&mut queue, last_id, appended.count);
                    }
                    stored = Some((appended, aftermath));
                }
                Err(Error::KeyConflict { key, id }) if lines == 1 => {
                    let problem =
                        format!("has the idempotency key '{key}' of event {id}, which is different");
                    refused.push((done.number, problem));
                }
                Err(e) => return Err(e),
            }
        }
        drop(events);
        self.input.remove(lines, length);
        self.done = done;
        self.refuse(&refused);
        self.done.warn_of_unknown_key(&mut self.warned_of_key);
        if let Some((appended, aftermath)) = stored {
            self.report(&appended, aftermath);
        }
        Ok(())
    }

    fn refuse(&mut self, refused: &[(u64, String)]) {
        let [(first, problem), others @ ..] = refused else { return };
        let what = match others {
            [] => "it was not stored".to_owned(),
            [(last, _)] => format!("it was not stored, nor was line {last}"),
            [.., (last, _)] => {
                format!("it was not stored, nor were {} more lines up to line {last}", others.len())
            }
        };
        output::warn(format_args!("line {first} {problem}; {what}"));
        self.refused.get_or_insert((0, *first)).0 += refused.len() as u64;
    }

    fn report(&mut self, appended: &Appended, aftermath: Aftermath) {
        let Appended { count, first_id, last_id, .. } = appended;
        self.stored += count + appended.scheduled;
        self.last_id = last_id.or(self.last_id);
        if aftermath != self.aftermath {
            aftermath.print();
            self.aftermath = aftermath;
        }
        if self.as_json {
            let lines = self.done.number;
            let facts = json!({ "count": count, "first_id": first_id, "last_id": last_id, "lines": lines });
            output::confirm(output::line(facts), "what was pushed is stored");
        }
    }

    /// Why the lines that were read last are not stored.
    fn not_stored(&self, e: &Error) -> Failure {
        let (first, last) = (self.done.number + 1, self.done.number + self.input.lines as u64);
        let lines = match last - first {
            0 => format!("line {first}"),
            _ => format!("lines {first} to {last}"),
        };
        let unfinished = match self.input.text.len() > self.input.whole {
            true => ", nor is the unfinished line after that",
            false => "",
        };
        let what = match is_outcome_unknown(e) {
            false => format!("not stored: {lines}{unfinished}"),
            true => format!("not known whether it is stored: {lines}; nothing after that is stored"),
        };
        let before = match self.last_id {
            Some(id) if self.stored == 1 => format!("1 event before that is, event {id}"),
            Some(id) => format!("{} events before that are, up to event {id}", self.stored),
            None => "nothing was stored before that".to_owned(),
        };
        Failure::new(1, e.code(), format_args!("{what}; {before}: {e}"), hint(e))
    }

    /// Prints how many events were stored. Fails if reading did, or if a line was refused.
    fn end(self, read: io::Result<()>) -> Result<()> {
        if !self.as_json {
            output::confirm(output::line(self.stored), "what was pushed is stored");
        }
        read.with_hint("cannot read on; every line that was read is stored", "check where stdin comes from")?;
        let what = match self.refused {
            None => return Ok(()),
            Some((1, line)) => format!("line {line} was not stored; all others are"),
            Some((count, first)) => {
                format!("{count} lines were not stored, the first of them line {first}; all others are")
            }
        };
        failed(Code::EventInvalid, what, "correct what writes them, and push these again")
    }
}

/// Whether to try again. Not if the lines may be stored: they would be stored twice.
fn may_pass(error: &Error) -> bool {
    error.may_pass() && !is_outcome_unknown(error)
}

fn is_outcome_unknown(error: &Error) -> bool {
    matches!(error, Error::Database(e) if e.kind == DatabaseErrorKind::OutcomeUnknown)
}
