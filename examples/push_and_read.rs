//! Pushes a message, then reads the thread from there on: `push_and_read <thread> <content>`.
//!
//! Makes the thread if it does not exist.

use thread::{After, Error, NewEvent, Queue};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, path, content] = &args[..] else { return Err("usage: push_and_read <thread> <content>".into()) };
    match Queue::init(path) {
        Ok(_) | Err(Error::AlreadyAThread(_)) => {}
        Err(e) => return Err(e.into()),
    }
    let mut queue = Queue::open(path)?;
    let pushed = queue.push(&NewEvent::message("self", content)?)?;
    if let Some(e) = pushed.log_behind {
        eprintln!("event {} is stored, but events.jsonl lacks it until the next push: {e}", pushed.id);
    }
    for event in queue.read(After(pushed.id - 1), None)? {
        println!("{} {} {}: {}", event.id, event.created_at, event.source, event.content);
    }
    Ok(())
}
