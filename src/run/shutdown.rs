//! Shutdown in two steps: the first request lets the work in progress finish, the second ends it.
//!
//! The library sets no signal handlers. The program that runs a supervisor or a worker forwards the
//! signals it gets: each byte on a socket is one request.

use std::cell::Cell;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags};

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
        let mut bytes = [0; 16];
        while let Ok(read) = (&self.socket).read(&mut bytes) {
            self.requests.set(self.requests.get().saturating_add(read as u32));
        }
        self.requests.get()
    }

    /// Becomes readable with the next request.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.socket, PollFlags::IN)
    }
}
