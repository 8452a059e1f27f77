//! Shutdown in two steps: the first request lets the work in progress finish, the second ends it.
//!
//! The library sets no signal handlers. The program that runs a supervisor or a worker forwards the
//! signals it gets: each byte on a socket is one request.

use std::cell::Cell;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Counts the shutdown requests received so far.
#[derive(Debug)]
pub struct Shutdown {
    requests: Cell<u32>,
    socket: UnixStream,
    sender: UnixStream,
}

impl Shutdown {
    pub fn new() -> io::Result<Shutdown> {
        let (socket, sender) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        Ok(Shutdown { requests: Cell::new(0), socket, sender })
    }

    /// The other end of the socket: each byte written to it is a request.
    pub fn sender(&self) -> &UnixStream {
        &self.sender
    }

    /// The number of requests so far.
    pub fn requests(&self) -> u32 {
        #[cfg(all(test, target_os = "linux"))]
        if crate::files::simulated::system().is_some_and(|system| !system.is_asked_to_end()) {
            return self.requests.get();
        }
        let mut bytes = [0; 16];
        while let Ok(read) = (&self.socket).read(&mut bytes) {
            self.requests.set(self.requests.get().saturating_add(read as u32));
        }
        self.requests.get()
    }

    /// Waits for the next request, for at most `timeout`.
    pub(super) fn wait(&self, timeout: Duration) {
        #[cfg(all(test, target_os = "linux"))]
        if let Some(system) = crate::files::simulated::system() {
            return system.wait(timeout);
        }
        // If a signal interrupts it, the wait is merely shorter.
        poll(&mut [self.poll_fd()], Timespec::try_from(timeout).ok().as_ref()).ok();
    }

    /// Becomes readable with the next request.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.socket, PollFlags::IN)
    }
}
