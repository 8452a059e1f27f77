//! Prints the events after an id, then each one as it comes: `follow <thread> [<id>]`.
//!
//! A follower keeps its own position: store the last finished id to continue from there after a restart.

use std::io::Write;
use std::time::Duration;

use thread::{After, Queue};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: follow <thread> [<id>]")?;
    let mut after = args.next().map_or(Ok(0), |id| id.parse())?;
    let mut queue = Queue::open(path)?;
    let mut out = std::io::stdout().lock();
    loop {
        for event in queue.read(After(after), None)? {
            writeln!(out, "{} {}: {}", event.id, event.source, event.content)?;
            after = event.id;
        }
        // Returns at once if an event came in the meantime.
        queue.wait(After(after), Duration::from_secs(60))?;
    }
}
