//! Runs the programs in `examples/` as separate processes: what another program can do with only the library.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use thread::files::DB;
use thread::{NewEvent, Queue};
use thread_testkit::PATIENCE;

/// An example binary; cargo builds the examples before it runs all tests.
fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let path: PathBuf = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is missing: run `cargo build --examples`, or all tests", path.display());
    Command::new(path)
}

fn new_thread() -> (tempfile::TempDir, Queue) {
    let dir = tempfile::tempdir().unwrap();
    Queue::init(dir.path()).unwrap();
    let queue = Queue::open(dir.path()).unwrap();
    (dir, queue)
}

fn push(queue: &mut Queue, content: &str) -> i64 {
    queue.push(&NewEvent::message("self", content).unwrap()).unwrap().id
}

/// A running example and its output lines. Killed when dropped.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line).ok());
        });
        Running { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("another line in time")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Inserts an event through plain SQLite, as a program that does not use this library would.
fn insert_directly(thread: &Path, content: &str) {
    let conn = rusqlite::Connection::open(thread.join(DB)).unwrap();
    conn.execute("INSERT INTO events (source, type, content) VALUES ('other', 'message', ?)", [content])
        .unwrap();
}

#[test]
fn push_and_read_makes_a_thread_and_reads_what_it_pushed() {
    let dir = tempfile::tempdir().unwrap();
    let thread = dir.path().join("new/inbox");
    for (id, content) in [(1, "hello"), (2, "again")] {
        let output = example("push_and_read").arg(&thread).arg(content).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{text}");
        let created_at =
            &Queue::open(&thread).unwrap().read(thread::After(id - 1), None).unwrap()[0].created_at;
        assert_eq!(text, format!("{id} {created_at} self: {content}\n"));
    }
}

#[test]
fn follow_prints_what_is_there_and_what_comes() {
    let (dir, mut queue) = new_thread();
    push(&mut queue, "before");
    push(&mut queue, "first");
    let mut command = example("follow");
    command.arg(dir.path()).arg("1");
    let follower = Running::start(command);
    assert_eq!(follower.line(), "2 self: first");
    for n in 3..10 {
        push(&mut queue, "next");
        assert_eq!(follower.line(), format!("{n} self: next"));
    }
    insert_directly(dir.path(), "without a notice");
    assert_eq!(follower.line(), "10 other: without a notice");
}

#[test]
fn server_has_a_hundred_waiters_on_one_thread() {
    let (dir, mut queue) = new_thread();
    assert_eq!(push(&mut queue, "before"), 1);
    let mut command = example("server");
    command.arg(dir.path());
    let mut server = Running::start(command);
    assert_eq!(server.line(), "100 clients wait for the events after 1");
    if cfg!(target_os = "linux") {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
        assert_eq!(tasks.count(), 1);
    }
    for id in 2..=50 {
        assert_eq!(push(&mut queue, "one"), id);
        assert_eq!(server.line(), id.to_string());
    }
    insert_directly(dir.path(), "without a notice");
    assert_eq!(server.line(), "51");
    // Wakes all remaining waiters with one batch.
    let rest = queue.push_all(&mut |put| put(&vec![NewEvent::message("self", "")?; 50]).map(drop));
    assert_eq!(rest.unwrap().appended.last_id, Some(101));
    let mut woken: Vec<i64> = (52..=101).map(|_| server.line().parse().unwrap()).collect();
    woken.sort_unstable();
    assert_eq!(woken, (52..=101).collect::<Vec<_>>());
    assert!(server.child.wait().unwrap().success());
}
