use thread::Queue;
use thread_conversation::{Entry, Message, Priority, Record};

pub fn example() -> Result<(), thread::Error> {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("talk");
    Queue::init(&path)?;
    let mut queue = Queue::open(&path)?;
    let hello = Message { priority: Priority::Later, ..Message::text("Hello") };
    queue.push(&hello.event("external:web:main:dm:default:ada")?)?;
    let event = queue.read(thread::After(0), None)?.remove(0);
    let record = Record::of(event);
    assert_eq!((record.run_id.as_deref(), record.entry), (Some("run_1"), Entry::Message(hello)));
    Ok(())
}
