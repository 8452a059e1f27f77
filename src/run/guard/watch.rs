//! What the guard itself does.

#![expect(clippy::disallowed_methods, reason = "ends handlers")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::{Deadline, Message};
use crate::error::Result;
use crate::files::Files;
use crate::files::log::log;
use crate::model::location::Location;
use crate::model::run::ProcessId;
use crate::model::subscription::ConsumerId;
use crate::queue::locations::files_of;
use crate::run::{leftovers, process};

/// Polling interval for processes that were killed.
const ENDING_STEP: Duration = Duration::from_millis(10);

/// Guards the handlers of a consumer for the supervisor at the other end of `link`, until that is closed and what was
/// guarded last is gone.
///
/// # Errors
///
/// There is no such supervisor, or no clock.
///
/// # Safety
///
/// Nothing else in this process may own the descriptor `link`.
pub unsafe fn guard(location: &Location, consumer: &ConsumerId, link: RawFd) -> Result<()> {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: no function is called when it arrives.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // SAFETY: guaranteed by the caller.
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    watch(&link, location, consumer).map_err(super::cannot_start)
}

fn watch(link: &OwnedFd, location: &Location, consumer: &ConsumerId) -> io::Result<()> {
    let alarm = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let (mut guarded, mut noted) = (Message::NONE, 0);
    loop {
        // All that has arrived, as a deadline may not be the newest.
        let is_open = receive(link, &mut guarded)?;
        if guarded.group != 0 && (!is_open || guarded.until.is_over()) {
            let files = files_of(location).ok();
            if kill(&guarded, location, consumer, files.as_ref()) {
                if noted != guarded.group {
                    noted = guarded.group;
                    let why = if is_open { "the lease is ending" } else { "its supervisor is gone" };
                    if let Some(files) = files {
                        log!(files, Warn, "guard: consumer={consumer} group={noted} is killed: {why}");
                    }
                }
                wait(link, None, is_open, Some(ENDING_STEP));
                continue;
            }
            guarded = Message::NONE;
        }
        if !is_open {
            return Ok(());
        }
        set(&alarm, guarded)?;
        wait(link, Some(&alarm), is_open, None);
    }
}

/// Takes the newest message, if there are any. Returns false once the supervisor's end is closed.
fn receive(link: &OwnedFd, newest: &mut Message) -> io::Result<bool> {
    loop {
        let mut bytes = [0; Message::BYTES];
        // SAFETY: a plain system call, for bytes that live on this stack.
        let received = unsafe {
            libc::recv(link.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT)
        };
        match received {
            0 => return Ok(false),
            -1 => {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(true),
                    io::ErrorKind::ConnectionReset => return Ok(false),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                }
            }
            _ => *newest = Message::of(bytes),
        }
    }
}

/// Lets the clock ring at the deadline. A clock that is not suspended with the machine, as timeouts are.
fn set(alarm: &OwnedFd, guarded: Message) -> io::Result<()> {
    let Deadline(until) = if guarded.group == 0 { Deadline::NEVER } else { guarded.until };
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let at = match Deadline(until) {
        Deadline::NEVER => never,
        _ => Timespec { tv_sec: until / 1000, tv_nsec: until % 1000 * 1_000_000 },
    };
    timerfd_settime(alarm, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: never, it_value: at })?;
    Ok(())
}

/// Waits for a message, the end of the supervisor, the alarm, or `longest`.
fn wait(link: &OwnedFd, alarm: Option<&OwnedFd>, is_open: bool, longest: Option<Duration>) {
    // A closed link would be ready at once, for ever.
    let link = Some(link).filter(|_| is_open).into_iter().chain(alarm);
    let mut polled: Vec<PollFd<'_>> = link.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
    // If a signal interrupts it, the wait is merely shorter.
    poll(&mut polled, longest.as_ref()).ok();
}

/// Kills what is guarded: the members of the group, and processes that left it but certainly belong to the same lease,
/// such as an agent, which has a group of its own. Returns whether any of them were still running.
fn kill(guarded: &Message, location: &Location, consumer: &ConsumerId, files: Option<&Files>) -> bool {
    let mut given = leftovers::variables(location, consumer);
    if guarded.epoch != 0 {
        given.push(format!("THREAD_EPOCH={}", guarded.epoch).into_bytes());
    }
    let is_certain = |pid| process::was_given(pid, &given);
    let holders = || files.into_iter().flat_map(|files| process::holders_of_any(files, consumer));
    let Ok(group) = u32::try_from(guarded.group) else { return false };
    // The lock does not show of which run a process is, but no other run has this group.
    let belongs = |pid| is_certain(pid) || holders().any(|holder| holder.pid == pid);
    let members = process::members_of_leader(group, 0..=start_ticks(guarded.sent), belongs);
    let id = i32::try_from(group).ok().and_then(Pid::from_raw);
    if let Some(id) = id.filter(|_| !members.is_empty()) {
        // All at once, so that none of them starts another in between.
        kill_process_group(id, Signal::KILL).ok();
    }
    // Without an epoch they may be the next supervisor's.
    let mut others = Vec::new();
    if guarded.epoch != 0 {
        others.extend(
            process::all().filter(|process| is_certain(process.pid)).filter_map(|p| ProcessId::of(p.pid)),
        );
    }
    for process in &others {
        process.signal(Signal::KILL).ok();
    }
    !members.is_empty() || !others.is_empty()
}

/// A time in milliseconds in the unit of the start times of processes.
fn start_ticks(time: i64) -> i64 {
    // SAFETY: a function without effects.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    time.saturating_mul(ticks) / 1000
}
