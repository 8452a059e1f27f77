//! A process that ends a handler when its supervisor cannot: because that was killed, is suspended or hangs, or has
//! lost its server for too long.
//!
//! A supervisor starts at most one, when it first needs it, and is linked to it by a socket, on which it sends the
//! process group to guard and a deadline. When the supervisor's end of the socket is closed, however that came about,
//! or the deadline passes without a later one, the guard kills the whole group. The first message about a group is
//! sent by the handler itself, after it has made the group and before it executes anything: so there is no moment in
//! which a handler is at work and its guard knows nothing of it. Until then the handler has a copy of the supervisor's
//! end, which keeps the guard waiting.

mod watch;

use std::cell::{Cell, Ref, RefCell};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal};
use rustix::time::{ClockId, clock_gettime};

pub use self::watch::guard;
use super::launcher::GUARD;
use crate::error::{Error, Result};
use crate::model::location::Location;
use crate::model::run::ProcessId;
use crate::model::subscription::ConsumerId;

/// How often a guard is replaced during one run.
const MOST_REPLACED: u32 = 5;

/// The time at which the guard ends a handler without being told to, on a clock that also runs while the machine is
/// suspended, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(i64);

impl Deadline {
    pub const NEVER: Deadline = Deadline(i64::MAX);

    /// After what `left` returns, which counts from when it is called.
    pub fn after(left: impl FnOnce() -> Duration) -> Deadline {
        let now = now();
        Deadline(now.saturating_add(i64::try_from(left().as_millis()).unwrap_or(i64::MAX)))
    }

    fn is_over(self) -> bool {
        self.0 <= now()
    }
}

fn now() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// What a supervisor, or a handler that begins, tells the guard.
#[derive(Debug, Clone, Copy)]
struct Message {
    /// The process group to guard, which is the handler's at the time `sent`; 0 for none.
    group: i64,
    /// `THREAD_EPOCH` of the handler; 0 if it has none.
    epoch: i64,
    until: Deadline,
    sent: i64,
}

impl Message {
    const NONE: Message = Message { group: 0, epoch: 0, until: Deadline::NEVER, sent: 0 };
    const BYTES: usize = 4 * size_of::<i64>();

    fn of(bytes: [u8; Message::BYTES]) -> Message {
        let (numbers, _) = bytes.as_chunks();
        let number = |at: usize| numbers.get(at).map_or(0, |bytes| i64::from_ne_bytes(*bytes));
        Message { group: number(0), epoch: number(1), until: Deadline(number(2)), sent: number(3) }
    }

    /// Sends it, without waiting. Also called between fork and exec, so it allocates nothing.
    fn send(self, link: RawFd) -> io::Result<()> {
        let numbers = [self.group, self.epoch, self.until.0, self.sent].map(i64::to_ne_bytes);
        let bytes = numbers.as_flattened();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: a plain system call, on bytes that live on this stack.
        match unsafe { libc::send(link, bytes.as_ptr().cast(), bytes.len(), flags) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// A supervisor's guard, which is started when it is needed. Dropping it while a group is guarded kills that group.
#[derive(Debug)]
pub struct Guard {
    location: Location,
    consumer: ConsumerId,
    started: RefCell<Option<Started>>,
    /// How many were replaced since nothing was guarded.
    replaced: Cell<u32>,
}

#[derive(Debug)]
struct Started {
    link: OwnedFd,
    process: Option<ProcessId>,
}

impl Guard {
    /// A guard for handlers of this consumer. None is started yet.
    pub fn new(location: &Location, consumer: &ConsumerId) -> Guard {
        Guard {
            location: location.clone(),
            consumer: consumer.clone(),
            started: RefCell::default(),
            replaced: Cell::new(0),
        }
    }

    /// Makes the handler that `command` starts tell the guard of its process group before it executes anything, and
    /// end instead if the deadline is over by then. To be called once `command` is to become the leader of a group
    /// ([`detached`](super::spawn::detached)). Starts the guard if it is not there.
    ///
    /// # Errors
    ///
    /// The guard cannot be started.
    pub fn admit(&self, command: &mut Command, epoch: Option<i64>, until: Deadline) -> Result<()> {
        let link = self.link()?.as_raw_fd();
        let tell = move || {
            let group = i64::from(rustix::process::getpid().as_raw_nonzero().get());
            Message { group, epoch: epoch.unwrap_or(0), until, sent: now() }.send(link)?;
            // From here on the guard kills the group when it is over.
            if until.is_over() { Err(rustix::io::Errno::TIME.into()) } else { Ok(()) }
        };
        // SAFETY: between fork and exec, the closure only makes system calls, and allocates nothing. The descriptor is
        // open there: it is only closed by the exec, and here by functions that start another guard.
        unsafe { command.pre_exec(tell) };
        Ok(())
    }

    /// Guards this handler, whose first process was not reaped or whose group is not empty, until a later time. If the
    /// guard is gone, another one takes over.
    ///
    /// # Errors
    ///
    /// None can be started, or each ends at once.
    pub fn keep(&self, group: Pid, epoch: Option<i64>, until: Deadline) -> Result<()> {
        #[cfg(all(test, target_os = "linux"))]
        if crate::files::simulated::system().is_some() {
            return Ok(());
        }
        let group = i64::from(group.as_raw_nonzero().get());
        let message = Message { group, epoch: epoch.unwrap_or(0), until, sent: now() };
        let told =
            self.started.borrow().as_ref().is_some_and(|guard| message.send(guard.link.as_raw_fd()).is_ok());
        if told {
            return Ok(());
        }
        self.give_up();
        self.replaced.set(self.replaced.get() + 1);
        if self.replaced.get() > MOST_REPLACED {
            return Err(cannot_start(io::Error::other("it ends again and again")));
        }
        message.send(self.link()?.as_raw_fd()).map_err(cannot_start)
    }

    /// From now on nothing is guarded: what the handler left, if anything, may stay.
    pub fn release(&self) {
        self.replaced.set(0);
        if let Some(guard) = &*self.started.borrow() {
            // If it is gone, it guards nothing either.
            Message::NONE.send(guard.link.as_raw_fd()).ok();
        }
    }

    /// Calls `wait` with what has an error or hangup when the guard is gone.
    pub fn watched<T>(&self, wait: impl FnOnce(Option<PollFd<'_>>) -> T) -> T {
        wait(self.started.borrow().as_ref().map(|guard| PollFd::new(&guard.link, PollFlags::empty())))
    }

    /// The supervisor's end of the link to a guard that is there.
    fn link(&self) -> Result<Ref<'_, OwnedFd>> {
        let is_there = |guard: &Started| Message::NONE.send(guard.link.as_raw_fd()).is_ok();
        if !self.started.borrow().as_ref().is_some_and(is_there) {
            self.give_up();
            *self.started.borrow_mut() = Some(self.start().map_err(cannot_start)?);
        }
        let started = self.started.borrow();
        Ref::filter_map(started, |started| started.as_ref().map(|guard| &guard.link))
            .map_err(|_| cannot_start(io::ErrorKind::NotFound.into()))
    }

    /// Ends a guard that takes no messages, so that it does not act on old ones some day.
    fn give_up(&self) {
        if let Some(Started { process: Some(process), .. }) = self.started.borrow_mut().take() {
            process.signal(Signal::KILL).ok();
        }
    }

    fn start(&self) -> io::Result<Started> {
        let (link, its_end) = pair()?;
        // This very program, also if it has been replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("thread").arg(GUARD).arg("--thread").arg(self.location.as_os_str());
        // The link is its stdin. So no function has to run between fork and exec, and this process is not copied.
        command.arg("--consumer").arg(self.consumer.as_str()).args(["--lock-fd", "0"]);
        command.stdin(its_end).stdout(Stdio::null()).stderr(Stdio::null());
        let process = ProcessId::of(command.spawn()?.id());
        Ok(Started { link, process })
    }
}

fn cannot_start(source: io::Error) -> Error {
    Error::Spawn { what: "the guard of the handler", source }
}

/// Two connected sockets that keep messages apart.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for two descriptors, and nothing else owns those.
    unsafe {
        match libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))),
        }
    }
}
