//! `thread dispatch --follow`: a foreground worker that starts handlers for what other processes push.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;
use thread_testkit::{PATIENCE, World, is_running, kill_and_wait, skipped, take_all_script, wait_until};

const NOBODY: [u32; 0] = [];

/// A running worker. Killed when dropped, so that it does not outlive its world.
struct Worker {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// The service manager's end of the notification socket.
    socket: Option<UnixDatagram>,
}

impl Worker {
    fn of(mut child: Child) -> Worker {
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Worker { child, stderr, socket: None }
    }

    /// Starts a worker with these arguments after `dispatch --follow`, and waits until it is ready.
    fn start(world: &World, words: &[&str]) -> Worker {
        let socket = manager(world);
        let words = ["dispatch", "--follow"].into_iter().chain(words.iter().copied());
        let child = world.thread(words).env("NOTIFY_SOCKET", "manager").spawn();
        assert_eq!(heard(&socket), "READY=1");
        Worker { socket: Some(socket), ..Worker::of(child) }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the worker to end with exit 0, and returns its stderr.
    #[track_caller]
    fn ends(mut self) -> String {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.stderr.read_to_string(&mut stderr).unwrap();
        assert!(self.child.wait().unwrap().success(), "{stderr}");
        assert_eq!(stdout, "");
        drop(self.socket);
        stderr
    }

    /// The next line on stderr.
    fn says(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    #[track_caller]
    fn ends_on(self, signal: Signal) -> String {
        self.signal(signal);
        self.ends()
    }
}

/// The socket of a service manager, `manager` in the world's folder.
fn manager(world: &World) -> UnixDatagram {
    // A previous worker may have been killed and left it.
    fs::remove_file(world.path("manager")).ok();
    // The world's path may be longer than a socket's can be.
    let dir = fs::File::open(world.root()).unwrap();
    let socket = UnixDatagram::bind(format!("/proc/self/fd/{}/manager", dir.as_raw_fd())).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn heard(socket: &UnixDatagram) -> String {
    let mut message = [0; 100];
    let length = socket.recv(&mut message).expect("the service manager hears something");
    String::from_utf8_lossy(&message[..length]).into_owned()
}

fn push(world: &World, thread: &Path) {
    world
        .off(["push", "--source", "self", "--type", "message", "--content", "x"])
        .env("THREAD_DIR", thread)
        .quiet();
}

/// Creates a thread whose consumer `worker` appends its events to `<name>.got`.
fn thread_with_consumer(world: &World, name: &str) -> PathBuf {
    let path = world.path(name);
    world.thread(["init"]).arg(&path).quiet();
    let handler = format!("cat >>{}.got", name.replace('/', "-"));
    let words = ["subscribe", "--consumer", "worker", "--deliver", "stdin", "--handler", &handler];
    world.off(words).env("THREAD_DIR", &path).quiet();
    path
}

/// Subscribes the consumer `worker` in the inbox, which runs this script with events on stdin.
fn subscribe(world: &World, script: &str) {
    let words = ["subscribe", "--consumer", "worker", "--deliver", "stdin", "--handler", script];
    world.off(words).quiet();
}

fn wait_for_lines(world: &World, name: &str, count: usize) {
    wait_until(&format!("{count} lines in {name}"), || world.lines(name).len() >= count);
}

#[test]
fn handlers_of_pushes_that_start_nothing_are_started_at_once() {
    let world = World::with_thread();
    subscribe(&world, "cat >>got");
    push(&world, &world.inbox());
    let worker = Worker::start(&world, &[]);
    wait_for_lines(&world, "got", 1);
    let mut took = Vec::new();
    for count in 2..=16 {
        push(&world, &world.inbox());
        let pushed = Instant::now();
        wait_for_lines(&world, "got", count);
        took.push(pushed.elapsed());
    }
    took.sort();
    eprintln!("from the end of a push to the handler's output: {took:?}");
    // Without notices it would take half a second.
    assert!(took[took.len() / 2] < Duration::from_millis(300), "{took:?}");
    assert_eq!(worker.ends_on(Signal::TERM), "");
    assert_eq!(world.processes(), NOBODY);
}

#[test]
fn changes_that_make_a_consumer_due_start_it_too() {
    let world = World::with_thread();
    push(&world, &world.inbox());
    let worker = Worker::start(&world, &[]);
    subscribe(&world, "cat >>got");
    wait_until("the first to be taken", || world.consumer("worker")["last_acked_id"] == 1);
    world.off(["seek", "--consumer", "worker", "--to", "earliest"]).quiet();
    wait_for_lines(&world, "got", 2);
    world.off(["pause", "--consumer", "worker"]).quiet();
    push(&world, &world.inbox());
    world.off(["resume", "--consumer", "worker"]).quiet();
    wait_for_lines(&world, "got", 3);
    // An insert that gives no notice.
    world
        .db()
        .execute("INSERT INTO events (source, type, content) VALUES ('self', 'message', 'x')", [])
        .unwrap();
    wait_for_lines(&world, "got", 4);
    worker.ends_on(Signal::INT);
}

#[test]
fn a_run_killed_together_with_its_supervisor_is_taken_over() {
    let world = World::with_thread();
    take_all_script(&world);
    world.script("bin/once", "[ -e killed ] || { touch runs; exec sleep 1000; }\ntake");
    world.off(["subscribe", "--consumer", "worker", "--handler", "once", "--backoff", "10ms"]).quiet();
    // Started by a push outside the worker, as in another container.
    world.push("x");
    world.wait_for_file("runs");
    let worker = Worker::start(&world, &[]);
    wait_until("the handler's record", || !world.run_state("worker", "$.handler").is_null());
    let pid = |who: &str| world.run_state("worker", &format!("$.{who}.pid")).as_u64().unwrap() as u32;
    let (supervisor, handler) = (pid("supervisor"), pid("handler"));
    world.write("killed", "");
    kill_and_wait(supervisor);
    kill_process_group(Pid::from_raw(handler as i32).unwrap(), Signal::KILL).unwrap();
    // No more pushes or other writes happen now.
    wait_for_lines(&world, "seen.worker", 1);
    worker.ends_on(Signal::TERM);
}

#[test]
fn on_term_runs_end_by_themselves_and_no_others_begin() {
    let world = World::with_thread();
    subscribe(&world, "cat >>got; echo $$ >>began; until [ -e go ]; do sleep 0.01; done");
    let worker = Worker::start(&world, &["--grace", "5m"]);
    push(&world, &world.inbox());
    wait_for_lines(&world, "began", 1);
    worker.signal(Signal::TERM);
    let told = "[INFO] dispatch: consumer=worker ends after this run";
    wait_until("the supervisor to hear of it", || world.log().iter().any(|line| line == told));
    // Pushed after the worker stopped.
    push(&world, &world.inbox());
    world.write("go", "");
    assert_eq!(worker.ends(), "");
    assert_eq!(world.processes(), NOBODY);
    let consumer = world.consumer("worker");
    assert_eq!((&consumer["state"], &consumer["last_acked_id"]), (&json!("idle"), &json!(1)));
    assert_eq!(consumer["last_exit"], json!("exit=0"));
    assert_eq!(world.lines("got").len(), 1);
    // The next worker continues.
    let worker = Worker::start(&world, &[]);
    wait_for_lines(&world, "got", 2);
    worker.ends_on(Signal::HUP);
}

#[test]
fn runs_that_do_not_end_in_time_are_stopped_cost_no_attempt_and_are_due_again() {
    let world = World::with_thread();
    let stubborn = "cat >>got; trap '' TERM; echo $$ >>began; while [ ! -e go ]; do sleep 0.05; done";
    subscribe(&world, stubborn);
    world.off(["subscribe", "--consumer", "sleeper", "--handler", "sleep 1000"]).quiet();
    push(&world, &world.inbox());
    let worker = Worker::start(&world, &["--grace", "100ms"]);
    wait_for_lines(&world, "began", 1);
    world.wait_for_state("sleeper", "running");
    assert_eq!(worker.ends_on(Signal::TERM), "");
    assert_eq!(world.processes(), NOBODY);
    for (name, exit) in [("worker", "exit=137 signal=9"), ("sleeper", "exit=143 signal=15")] {
        let consumer = world.consumer(name);
        let facts = (&consumer["state"], &consumer["pending"], &consumer["last_exit"]);
        assert_eq!(facts, (&json!("idle"), &json!(1), &json!(exit)));
        assert_eq!(world.run_state(name, "$.attempts"), json!(0));
        assert_eq!(world.run_state(name, "$.failed"), json!(0));
    }
    assert!(world.log().iter().any(|line| line.ends_with(" interrupted")), "{:?}", world.log());
    world.write("go", "");
    let worker = Worker::start(&world, &["--grace", "0"]);
    wait_until("the event to be taken", || world.consumer("worker")["last_acked_id"] == 1);
    worker.ends_on(Signal::TERM);
}

#[test]
fn a_second_signal_stops_runs_at_once_and_waits_end_with_the_first() {
    let world = World::with_thread();
    subscribe(&world, "touch began; sleep 1000");
    let words = ["--handler", "false", "--backoff", "1h"];
    world.off(["subscribe", "--consumer", "waiter"].iter().chain(&words)).quiet();
    push(&world, &world.inbox());
    let worker = Worker::start(&world, &["--grace", "1h"]);
    world.wait_for_file("began");
    world.wait_for_state("waiter", "waiting");
    worker.signal(Signal::INT);
    wait_until("the wait to end", || world.consumer("waiter")["reason"] == "interrupted");
    assert_eq!(world.state("worker"), "running");
    assert_eq!(worker.ends_on(Signal::INT), "");
    assert_eq!(world.processes(), NOBODY);
}

#[test]
fn a_worker_that_was_killed_and_restarted_continues() {
    let world = World::with_thread();
    subscribe(&world, "cat >>got; mkdir alone || echo twice >>overlaps; sleep 0.3; rmdir alone");
    for round in 1..=3 {
        let worker = Worker::start(&world, &[]);
        push(&world, &world.inbox());
        // The run may be over already.
        wait_for_lines(&world, "got", round);
        kill_and_wait(worker.pid());
    }
    let worker = Worker::start(&world, &[]);
    wait_until("all to be taken", || world.consumer("worker")["last_acked_id"] == 3);
    worker.ends_on(Signal::TERM);
    assert_eq!(world.read("overlaps"), "");
}

#[test]
fn several_threads_and_all_in_a_directory_have_one_worker() {
    let world = World::with_thread();
    fs::create_dir(world.path("root")).unwrap();
    let [a, b, early] = ["a", "b", "root/early"].map(|name| thread_with_consumer(&world, name));
    fs::create_dir(world.path("root/no-thread")).unwrap();
    let mut worker = Worker::start(&world, &["--thread", "a", "-t", "b", "--root", "root"]);
    for (thread, got) in [(&a, "a.got"), (&b, "b.got"), (&early, "root-early.got")] {
        push(&world, thread);
        wait_for_lines(&world, got, 1);
    }
    // One thread is added, one is moved, one is removed.
    let late = thread_with_consumer(&world, "root/late");
    push(&world, &late);
    wait_for_lines(&world, "root-late.got", 1);
    let moved = world.path("root/moved");
    fs::rename(&early, &moved).unwrap();
    push(&world, &moved);
    wait_for_lines(&world, "root-early.got", 2);
    world.sh("until rm -r root/late; do sleep 0.1; done").ends_with(0);
    // The worker waits for a thread that it was given by name.
    fs::rename(&b, world.path("elsewhere")).unwrap();
    let expected = format!(
        "Warning: {0} is not a thread (it has no events.db); waiting for it to appear at {0}\n",
        b.display()
    );
    assert_eq!(worker.says(), expected);
    assert_eq!(watches(worker.pid()), 2);
    fs::rename(world.path("elsewhere"), &b).unwrap();
    push(&world, &b);
    wait_for_lines(&world, "b.got", 2);
    assert_eq!(worker.ends_on(Signal::TERM), "");
}

/// The number of inotify watches of a process.
fn watches(pid: u32) -> usize {
    let infos = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    let texts = infos.filter_map(|info| fs::read_to_string(info.path()).ok());
    texts.map(|text| text.matches("inotify wd:").count()).sum()
}

#[test]
fn quiet_threads_cost_neither_descriptors_nor_processor_time() {
    const THREADS: usize = 120;
    let world = World::with_thread();
    fs::create_dir(world.path("root")).unwrap();
    let made = "for i in $(seq 120); do thread init root/$i && THREAD_NOTIFIER=off thread subscribe -t root/$i \
                --consumer worker --handler true || exit 1; done";
    world.sh(made).ends_with(0);
    let worker = Worker::start(&world, &["--root", "root"]);
    push(&world, &world.path("root/7"));
    wait_until("a run", || world.read("root/7/logs/thread.log").contains("ended exit=0"));
    let pid = worker.pid();
    assert_eq!(watches(pid), THREADS);
    let open = || -> Vec<PathBuf> {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        descriptors.filter_map(|fd| fs::read_link(fd.path()).ok()).collect()
    };
    wait_until("all databases to be closed", || !open().iter().any(|path| path.starts_with(world.root())));
    assert!(open().len() < 16, "{:?}", open());
    let status = |name: &str| -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    };
    assert!(status("VmRSS:") < 50_000, "{} kB", status("VmRSS:"));
    // It polls about once a second and sleeps in between.
    wait_until("it to sleep", || {
        let before = status("voluntary_ctxt_switches:");
        std::thread::sleep(Duration::from_secs(2));
        status("voluntary_ctxt_switches:") - before <= 6
    });
    worker.ends_on(Signal::TERM);
}

#[test]
fn without_notices_a_worker_polls() {
    let world = World::with_thread();
    subscribe(&world, "cat >>got");
    let script = "echo 0 >/proc/sys/user/max_inotify_watches || exit 77; exec thread dispatch --follow";
    let run = world.sh("exec unshare -Ur /bin/sh -c \"$0\"").arg(script).env("PATH", path_with(&world));
    let mut child = run.spawn();
    push(&world, &world.inbox());
    wait_until("a run, or the end", || world.lines("got").len() == 1 || child.try_wait().unwrap().is_some());
    if child.try_wait().unwrap().is_some() {
        return skipped("the right to lower the number of watches");
    }
    assert_eq!(watches(child.id()), 0);
    push(&world, &world.inbox());
    wait_for_lines(&world, "got", 2);
    assert_eq!(Worker::of(child).ends_on(Signal::TERM), "");
}

/// The world's programs, followed by the system's.
fn path_with(world: &World) -> String {
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", world.bin().display())
}

#[test]
fn as_process_1_it_reaps_and_leaves_nothing_behind() {
    let world = World::with_thread();
    world.script("bin/leaver", "cat >>got\n(sleep 0.1; echo left >>left) &\nsetsid sleep 1000 &");
    subscribe(&world, "leaver");
    let run = world.sh("exec unshare --pid --fork --mount-proc thread dispatch --follow");
    let mut child = run.env("PATH", path_with(&world)).spawn();
    let first = || children_of(child.id()).first().copied();
    wait_until("the worker, or the end of unshare", || first().is_some() || !is_running(child.id()));
    let Some(first) = first().filter(|_| child.try_wait().unwrap().is_none()) else {
        child.wait().unwrap();
        return skipped("a PID namespace");
    };
    push(&world, &world.inbox());
    wait_for_lines(&world, "left", 1);
    push(&world, &world.inbox());
    wait_for_lines(&world, "left", 2);
    // As PID 1, the worker is the parent of processes that handlers leave behind.
    wait_until("what has ended to be reaped", || {
        let children = children_of(first);
        !children.is_empty() && children.iter().all(|&pid| is_running(pid))
    });
    kill_process(Pid::from_raw(first as i32).unwrap(), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(world.processes(), NOBODY);
    assert_eq!(world.consumer("worker")["last_acked_id"], 2);
}

/// The children of a process, including zombies.
fn children_of(parent: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .filter(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields = stat.rsplit(") ").next().map(|rest| rest.split(' ').collect::<Vec<_>>());
            fields.and_then(|fields| fields.get(1)?.parse::<u32>().ok()) == Some(parent)
        })
        .collect()
}

#[test]
fn the_service_manager_is_notified_of_start_and_stop() {
    let world = World::with_thread();
    subscribe(&world, "env >environment; touch began");
    let socket = manager(&world);
    push(&world, &world.inbox());
    let worker = world.thread(["dispatch", "--follow"]).env("NOTIFY_SOCKET", "manager").spawn();
    assert_eq!(heard(&socket), "READY=1");
    let worker = Worker::of(worker);
    world.wait_for_file("began");
    worker.signal(Signal::TERM);
    assert_eq!(heard(&socket), "STOPPING=1");
    assert_eq!(worker.ends(), "");
    assert!(!world.read("environment").contains("NOTIFY_SOCKET"));
    // A missing socket does not stop the worker.
    let worker = world.thread(["dispatch", "--follow"]).env("NOTIFY_SOCKET", "/nowhere").spawn();
    push(&world, &world.inbox());
    wait_until("a run", || world.consumer("worker")["last_acked_id"] == 2);
    let said = Worker::of(worker).ends_on(Signal::TERM);
    assert!(said.starts_with("Warning: cannot notify the service manager at NOTIFY_SOCKET: "), "{said}");
}

#[test]
fn a_broken_thread_is_reported_once_and_holds_up_no_other() {
    let world = World::with_thread();
    fs::create_dir(world.path("root")).unwrap();
    let [bad, good] = ["root/bad", "root/good"].map(|name| thread_with_consumer(&world, name));
    Connection::open(bad.join("events.db")).unwrap().execute_batch("PRAGMA user_version = 9").unwrap();
    let worker = Worker::start(&world, &["--root", "root"]);
    for count in 1..=2 {
        push(&world, &good);
        wait_for_lines(&world, "root-good.got", count);
    }
    // When the database can be used again, the worker returns to the thread.
    Connection::open(bad.join("events.db")).unwrap().execute_batch("PRAGMA user_version = 0").unwrap();
    push(&world, &bad);
    wait_for_lines(&world, "root-bad.got", 1);
    let said = worker.ends_on(Signal::TERM);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("nothing is started in") && said.contains("schema version 9"), "{said}");
}

#[test]
fn invalid_arguments_of_a_worker_are_reported_at_once() {
    let world = World::with_thread();
    let fails = |code: i32, words: &[&str], said: &str| {
        let error = world.thread(["dispatch"].iter().chain(words)).fails(code);
        assert!(error.contains(said), "{error}");
    };
    fails(1, &["--follow", "--thread", "nowhere"], "is not a thread");
    fails(1, &["--follow", "--root", "nowhere"], "nowhere");
    fails(2, &["--follow", "--root", "inbox"], "is a thread itself");
    fails(2, &["--root", "."], "--follow");
    fails(2, &["--grace", "1s"], "--follow");
    fails(2, &["--thread", "inbox", "--thread", "inbox"], "more than one --thread");
    world.thread(["info", "-t", "inbox", "-t", "inbox"]).fails(2);
}

#[test]
fn no_more_runs_than_allowed_are_under_way_and_every_consumer_gets_its_turn() {
    let world = World::with_thread();
    // Each run takes a slot among numbered directories, and notes how many were taken.
    let handler =
        "cat >>$THREAD_CONSUMER.got; mkdir slot.$$; ls -d slot.* | wc -l >>taken; sleep 0.05; rmdir slot.$$";
    let names: Vec<String> = (0..6).map(|n| format!("c{n}")).collect();
    for name in &names {
        let words = ["subscribe", name, handler, "--deliver", "stdin", "--batch-size", "1"];
        world.off(words).quiet();
    }
    world.off(["push", "--lines"]).stdin("a\nb\nc\n").quiet();
    let worker = Worker::start(&world, &["--max-runs", "2"]);
    for name in &names {
        wait_for_lines(&world, &format!("{name}.got"), 3);
    }
    // Also for what is pushed later.
    world.off(["push", "d"]).quiet();
    for name in &names {
        wait_for_lines(&world, &format!("{name}.got"), 4);
    }
    wait_for_lines(&world, "taken", 24);
    let taken: Vec<u32> = world.lines("taken").iter().map(|line| line.trim().parse().unwrap()).collect();
    assert!(taken.iter().all(|&count| count <= 2), "{taken:?}");
    assert!(taken.contains(&2), "{taken:?}");
    assert_eq!(worker.ends_on(Signal::TERM), "");
}

#[test]
fn a_consumer_that_waits_for_its_next_attempt_takes_no_slot() {
    let world = World::with_thread();
    let handler = "echo x >>tried; exit 1";
    let words = ["subscribe", "a-fails", handler, "--deliver", "stdin", "--backoff", "200ms,1h"];
    world.off(words).quiet();
    world.off(["subscribe", "works", "cat >>got", "--deliver", "stdin"]).quiet();
    world.off(["push", "x"]).quiet();
    let worker = Worker::start(&world, &["--max-runs", "1"]);
    // The second attempt comes after its wait, though no supervisor waits.
    wait_for_lines(&world, "tried", 2);
    wait_for_lines(&world, "got", 1);
    world.off(["push", "y"]).quiet();
    wait_for_lines(&world, "got", 2);
    world.wait_for_state("a-fails", "waiting");
    assert_eq!(world.off(["doctor"]).quiet(), "healthy\n");
    // The wait can be stopped, though no process waits.
    world.off(["stop", "a-fails"]).quiet();
    world.wait_for_state("a-fails", "stalled");
    assert_eq!(worker.ends_on(Signal::TERM), "");
}

#[test]
fn a_run_of_a_killed_worker_looks_for_more_by_itself() {
    let world = World::with_thread();
    subscribe(&world, "cat >>got; touch began; until [ -e go ]; do sleep 0.01; done");
    let worker = Worker::start(&world, &["--max-runs", "1"]);
    push(&world, &world.inbox());
    world.wait_for_file("began");
    kill_and_wait(worker.pid());
    push(&world, &world.inbox());
    world.write("go", "");
    wait_for_lines(&world, "got", 2);
    world.wait_until_quiet();
}
