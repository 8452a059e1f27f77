//! Lines typed at the terminal while something else is happening.
//!
//! Nothing is read ahead: input after the requested line is left to the next reader.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{QueueSelector, tcflush};
use tokio::time::sleep;

/// How often to look whether a line was typed. No thread can be left waiting for one instead: it would take
/// the line that the editor reads next.
const LOOK: Duration = Duration::from_millis(50);

/// Forgets what was typed so far: it cannot be the answer to a question that was not seen yet.
pub fn discard() -> io::Result<()> {
    Ok(tcflush(io::stdin(), QueueSelector::IFlush)?)
}

/// The next line; empty at the end of input. Cancel-safe.
pub async fn line() -> io::Result<String> {
    let stdin = io::stdin();
    while poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&Timespec::default()))? == 0 {
        sleep(LOOK).await;
    }
    let mut bytes = [0; 4096];
    let count = rustix::io::read(&stdin, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
}
