//! The signals a supervisor lives by, as something to wait for.
//!
//! Handlers of signals only write a byte to a pipe; the supervisor polls it. So a signal that comes
//! between a look and the wait after it is not lost.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGUSR1};
use signal_hook::low_level::pipe;

/// What tells a supervisor that its row has changed.
pub const NUDGE: Signal = Signal::USR1;

/// Child ends and nudges, waiting to be noticed.
pub struct Signals {
    children: UnixStream,
    nudges: UnixStream,
}

impl Signals {
    /// From now on these signals are remembered instead of ending the process.
    pub fn listen() -> io::Result<Signals> {
        Ok(Signals { children: listen_to(SIGCHLD)?, nudges: listen_to(SIGUSR1)? })
    }

    /// Waits for a signal, for at most `time` (none: for ever). Whether there was a nudge.
    pub fn wait(&self, time: Option<Duration>) -> bool {
        let timeout = time.and_then(|time| Timespec::try_from(time).ok());
        let mut ready =
            [PollFd::new(&self.children, PollFlags::IN), PollFd::new(&self.nudges, PollFlags::IN)];
        // Interrupted by a signal is woken by it.
        poll(&mut ready, timeout.as_ref()).ok();
        drain(&self.children);
        drain(&self.nudges)
    }
}

fn listen_to(signal: i32) -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    pipe::register(signal, write)?;
    Ok(read)
}

/// Takes what is there; whether there was anything.
fn drain(mut stream: &UnixStream) -> bool {
    let mut bytes = [0; 64];
    let mut any = false;
    while stream.read(&mut bytes).is_ok_and(|read| read > 0) {
        any = true;
    }
    any
}
