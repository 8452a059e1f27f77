//! Waking through an external notifier: how it is called, and what happens when it misbehaves.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sha1::{Digest, Sha1};
use thread_testkit::{Dice, Run, World, copy_program, quoted, take_all, take_all_script, wait_until};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/notifier");

/// Puts a notifier on `PATH` that writes its arguments to `calls`, one a line and `.` after each
/// call, then does `and_then`.
fn recorder(world: &World, and_then: &str) -> PathBuf {
    recorder_at(world, "bin/notifier", and_then)
}

fn recorder_at(world: &World, name: &str, and_then: &str) -> PathBuf {
    let calls = world.path("calls");
    let text = format!("printf '%s\\n' \"$@\" . >>{}\n{and_then}", quoted(calls));
    world.script(name, &text)
}

/// The arguments of each call.
fn calls(world: &World) -> Vec<Vec<String>> {
    let text = world.read("calls");
    let calls = text.split_terminator("\n.\n");
    calls.map(|call| call.split('\n').map(str::to_owned).collect()).collect()
}

/// The values of `--author`, `--task-id` and `--command` in a call, which must have exactly this form.
fn parts(call: &[String]) -> [&str; 3] {
    let words: Vec<&str> = call.iter().map(String::as_str).collect();
    match words[..] {
        ["task", "add", "--author", author, "--task-id", task, "--command", command] => {
            [author, task, command]
        }
        _ => panic!("not the agreed arguments: {call:?}"),
    }
}

/// The expected task id for the thread at `path`.
fn task_id(path: &Path) -> String {
    let path = path.to_str().unwrap();
    let plain: String = path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let plain = plain.trim_matches('-').to_owned();
    if plain.len() <= 40 {
        return format!("dispatch-{plain}");
    }
    let digest: String = Sha1::digest(path).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("dispatch-{}-{}", &plain[..32], &digest[..6])
}

fn push_run(world: &World, source: &str, content: &str) -> Run {
    world.thread(["push", "--source", source, "--type", "message", "--content", content])
}

/// The outcome of the wake-up that `push --json` reports.
fn dispatch_word(push: Run) -> String {
    let answer: serde_json::Value = serde_json::from_str(&push.arg("--json").ok()).unwrap();
    answer["dispatch"].as_str().unwrap().to_owned()
}

fn subscribe(world: &World, handler: &str) {
    world.thread(["subscribe", "--consumer", "worker", "--handler", handler]).quiet();
}

/// The notifier's daemon, running the tasks of its real queue. Killed when dropped.
struct Daemon<'w> {
    world: &'w World,
    child: Child,
}

impl Daemon<'_> {
    fn start(world: &World) -> Daemon<'_> {
        symlink(FIXTURE, world.bin().join("notifier")).unwrap();
        let child = world.sh("exec notifier daemon").env("NOTIFIER_HOME", world.path("tasks")).spawn();
        Daemon { world, child }
    }

    fn push(&self, content: &str) -> i64 {
        let push = push_run(self.world, "self", content).env("NOTIFIER_HOME", self.world.path("tasks"));
        push.quiet().trim().parse().unwrap()
    }

    /// Stops the daemon, and checks that it ran every task and left nothing behind.
    fn stop(mut self) {
        let pending = self.world.path("tasks/pending");
        wait_until("the tasks to be done", || fs::read_dir(&pending).unwrap().count() == 0);
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        let left = fs::read_dir(self.world.path("tasks")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<String> = left.map(|name| name.into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["pending", "stderr", "stdout"]);
        assert_eq!(self.world.read("tasks/stderr") + &self.world.read("tasks/stdout"), "");
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        // Does nothing if it has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_push_calls_the_notifier_once_with_exactly_these_arguments_even_without_consumers() {
    let world = World::with_thread();
    recorder(&world, "exit 0");
    let source = "external:telegram:tg-main:dm:alice:alice";
    assert_eq!(dispatch_word(push_run(&world, source, "hello")), "queued");
    let command = format!("thread dispatch --thread {}", quoted(world.inbox()));
    let [call] = &calls(&world)[..] else { panic!("{:?}", calls(&world)) };
    assert_eq!(parts(call), [source, &task_id(&world.inbox()), &command]);
    assert!(world.log().contains(&"[INFO] notifier: queued a dispatch".to_owned()), "{:?}", world.log());
    push_run(&world, "self", "again").quiet();
    assert_eq!(calls(&world).len(), 2);
}

#[test]
fn the_task_of_a_long_path_ends_in_a_digest() {
    let world = World::new();
    recorder(&world, "exit 0");
    let dir = world.path("a-directory-with-a-long-name/and another/inbox");
    world.thread(["init"]).arg(&dir).quiet();
    push_run(&world, "self", "x").env("THREAD_DIR", &dir).quiet();
    let calls = calls(&world);
    let [_, task, command] = parts(&calls[0]);
    assert_eq!(task, task_id(&dir));
    assert_eq!(task.len(), "dispatch-".len() + 32 + 1 + 6);
    // As a shell takes it apart.
    let words = world.sh(&format!("printf '%s\\n' {command}")).quiet();
    assert_eq!(words, format!("thread\ndispatch\n--thread\n{}\n", dir.display()));
}

#[test]
fn a_batch_calls_the_notifier_once_with_the_source_of_its_last_event() {
    let world = World::with_thread();
    recorder(&world, "exit 0");
    let line = |source| format!("{{\"source\":\"{source}\",\"type\":\"record\",\"content\":\"x\"}}\n");
    let batch = line("first") + &line("second") + &line("last") + "\n";
    assert_eq!(world.thread(["push", "--batch"]).stdin(batch).quiet(), "3\n");
    let made = calls(&world);
    assert_eq!(made.len(), 1);
    assert_eq!(parts(&made[0])[0], "last");
}

#[test]
fn a_push_that_stores_nothing_does_not_call_the_notifier() {
    let world = World::with_thread();
    recorder(&world, "exit 0");
    assert_eq!(world.thread(["push", "--batch"]).stdin("\n").quiet(), "0\n");
    world.thread(["push", "--batch"]).stdin("[]\n").fails(2);
    world.thread(["push", "--source", "self", "--type", "letter", "--content", "x"]).fails(2);
    assert_eq!(calls(&world).len(), 0);
}

#[test]
fn the_author_is_the_source_made_fit_for_a_file_name() {
    let world = World::with_thread();
    recorder(&world, "exit 0");
    let long = "é".repeat(60);
    let odd = format!("a{long}");
    let cases = [
        ("self", "self"),
        ("external:t:c:group:grp-1/topic-2:p", "external:t:c:group:grp-1-topic-2:p"),
        ("/etc/passwd", "_etc-passwd"),
        ("-rf", "_rf"),
        (".hidden", "_hidden"),
        ("../x", "_.-x"),
        ("a.b-c", "a.b-c"),
        ("$(id) 'a' \"b\"", "$(id) 'a' \"b\""),
        (&long, &"é".repeat(50)),
        (&odd, &format!("a{}", "é".repeat(49))),
        (&"x".repeat(101), &"x".repeat(100)),
    ];
    for (source, _) in cases {
        world.thread(["push", "--type", "message", "--content", "x", "--source"]).arg(source).ok();
    }
    let made = calls(&world);
    assert_eq!(made.len(), cases.len());
    for ((source, author), call) in cases.iter().zip(&made) {
        assert_eq!(parts(call)[0], *author, "for {source}");
    }
}

#[test]
fn the_command_names_the_program_in_full_where_path_has_another_or_none() {
    let own = fs::canonicalize(env!("CARGO_BIN_EXE_thread")).unwrap();
    for other in [false, true] {
        let world = World::with_thread();
        recorder_at(&world, "bare-notifier", "exit 0");
        fs::create_dir(world.path("bare")).unwrap();
        fs::rename(world.path("bare-notifier"), world.path("bare/notifier")).unwrap();
        if other {
            world.script("bare/thread", "exit 0");
        }
        push_run(&world, "self", "x").env("PATH", world.path("bare")).quiet();
        let made = calls(&world);
        // As a shell takes it apart, since the paths may need quotes.
        let words = world.sh(&format!("printf '%s\\n' {}", parts(&made[0])[2])).quiet();
        let (own, inbox) = (own.display(), world.inbox());
        let expected = format!("{own}\ndispatch\n--thread\n{}\n", inbox.display());
        assert_eq!(words, expected, "with another on PATH: {other}");
    }
}

#[test]
fn a_program_path_that_a_shell_would_mangle_is_quoted_and_runs() {
    let world = World::with_thread();
    fs::create_dir(world.path("my $(bin)")).unwrap();
    let program = world.path("my $(bin)/thread");
    copy_program(&world, &program);
    take_all(&world, "worker");
    let daemon = Daemon::start(&world);
    let push = "'my $(bin)/thread' push --source self --type message --content x";
    assert_eq!(world.sh(push).env("NOTIFIER_HOME", world.path("tasks")).quiet(), "1\n");
    wait_until("the event to be handled", || world.lines("seen.worker").len() == 1);
    daemon.stop();
}

#[test]
fn threads_with_awkward_paths_work_through_the_daemon() {
    for name in
        ["a b", "it's", "say \"hi\"", "$(touch pwned)`touch pwned`", "a; touch pwned; b", "-n *&|<>#~ é"]
    {
        let world = World::named("awkward");
        let dir = world.path(name).join(name);
        world.thread(["init"]).arg(Path::new("./").join(name).join(name)).quiet();
        let there = |run: Run| run.env("THREAD_DIR", &dir).env("NOTIFIER_HOME", world.path("tasks"));
        let handler =
            "thread pop --resume --consumer worker >>seen && thread ack --consumer worker --event-id 1";
        there(world.thread(["subscribe", "--consumer", "worker", "--handler", handler])).quiet();
        let daemon = Daemon::start(&world);
        there(push_run(&world, "self", "x")).quiet();
        wait_until("the event to be handled", || world.lines("seen").len() == 1);
        daemon.stop();
        assert!(!world.path("pwned").exists(), "{name} was run");
        assert_eq!(world.read(dir.join("events.jsonl")).lines().count(), 1);
    }
}

#[test]
fn a_path_that_is_not_utf8_is_dispatched_without_the_notifier() {
    let world = World::new();
    let dir = world.path(std::ffi::OsStr::from_bytes(b"not-\xff-text"));
    let notifier = recorder(&world, "exit 0");
    let there = |run: Run| run.env("THREAD_DIR", &dir).env("THREAD_NOTIFIER", &notifier);
    world.thread(["init"]).arg(&dir).quiet();
    there(world.thread([
        "subscribe",
        "--consumer",
        "worker",
        "--deliver",
        "stdin",
        "--handler",
        "cat >>seen",
    ]))
    .quiet();
    let pushed = there(push_run(&world, "self", "x").arg("--json")).ok();
    assert!(pushed.contains("\"dispatch\":\"embedded\""), "{pushed}");
    wait_until("the event to be handled", || world.lines("seen").len() == 1);
    world.wait_until_quiet();
    assert!(calls(&world).is_empty());
    let log = world.read(dir.join("logs/thread.log"));
    assert!(log.contains("[WARN] notifier: the thread's path is not UTF-8"), "{log}");
}

#[test]
fn every_push_reaches_an_idle_consumer_through_the_daemon_without_another() {
    let world = World::with_thread();
    take_all(&world, "worker");
    let daemon = Daemon::start(&world);
    let mut dice = Dice::new();
    let mut last = 0;
    while last < 200 {
        // One to three pushes, so that some meet a task that is queued or running.
        for _ in 0..dice.up_to(2) + 1 {
            last = daemon.push("x");
            std::thread::sleep(Duration::from_micros(dice.up_to(30_000)));
        }
        let id = last.to_string();
        wait_until(&format!("event {last}, {dice:?}"), || world.lines("seen.worker").last() == Some(&id));
    }
    let seen: Vec<i64> = world.lines("seen.worker").iter().map(|id| id.parse().unwrap()).collect();
    assert_eq!(seen, (1..=last).collect::<Vec<_>>(), "{dice:?}");
    daemon.stop();
}

#[test]
fn the_variable_selects_the_way_of_waking() {
    let world = World::with_thread();
    take_all(&world, "worker");
    let other = recorder_at(&world, "other", "exit 0");
    let found = recorder(&world, "exit 0");
    let other = other.to_str().unwrap();
    let cases = [
        (Some("off"), "off", 0),
        (Some("auto"), "queued", 1),
        (Some(""), "queued", 1),
        (None, "queued", 1),
        (Some(other), "queued", 1),
        (Some("./other"), "queued", 1),
    ];
    for (value, word, asked) in cases {
        fs::remove_file(world.path("calls")).ok();
        let push = push_run(&world, "self", "x");
        let push = match value {
            Some(value) => push.env("THREAD_NOTIFIER", value),
            None => push,
        };
        assert_eq!(dispatch_word(push), word, "{value:?}");
        assert_eq!(calls(&world).len(), asked, "{value:?}");
    }
    // A path names exactly that program, not one on PATH.
    fs::remove_file(&found).unwrap();
    fs::remove_file(world.path("calls")).unwrap();
    assert_eq!(dispatch_word(push_run(&world, "self", "x").env("THREAD_NOTIFIER", other)), "queued");
    assert_eq!(calls(&world).len(), 1);
    recorder(&world, "exit 0");
    assert_eq!(dispatch_word(push_run(&world, "self", "x").env("THREAD_NOTIFIER", "embedded")), "embedded");
    assert_eq!(calls(&world).len(), 1);
    wait_until("the events to be handled", || world.lines("seen.worker").len() == cases.len() + 2);
}

#[test]
fn without_a_notifier_on_path_the_push_dispatches_by_itself() {
    for value in ["auto", ""] {
        let world = World::with_thread();
        take_all(&world, "worker");
        // Directories and files without execute permission are not programs.
        fs::create_dir(world.path("more")).unwrap();
        world.write("more/notifier", "#!/bin/sh\n");
        fs::set_permissions(world.path("more/notifier"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::create_dir(world.bin().join("notifier")).unwrap();
        let path = format!("{}:{}", world.path("more").display(), world.bin().display());
        let push = push_run(&world, "self", "x").env("THREAD_NOTIFIER", value).env("PATH", path);
        assert_eq!(dispatch_word(push), "embedded");
        wait_until("the event to be handled", || world.lines("seen.worker").len() == 1);
    }
}

#[test]
fn off_starts_nothing_until_somebody_dispatches() {
    let world = World::with_thread();
    push_run(&world, "self", "before").env("THREAD_NOTIFIER", "off").quiet();
    let handler = world.script(
        "take",
        "thread pop --resume --consumer worker >>seen\nthread ack --consumer worker --event-id 2",
    );
    let subscribe = world.thread(["subscribe", "--consumer", "worker", "--handler", &quoted(handler)]);
    subscribe.env("THREAD_NOTIFIER", "off").quiet();
    push_run(&world, "self", "after").env("THREAD_NOTIFIER", "off").quiet();
    world.wait_until_quiet();
    assert!(!world.path("seen").exists());
    world.thread(["dispatch"]).env("THREAD_NOTIFIER", "off").quiet();
    wait_until("both events to be handled", || world.lines("seen").len() == 2);
}

#[test]
fn a_missing_notifier_is_logged_and_the_push_dispatches_by_itself() {
    let world = World::with_thread();
    take_all(&world, "worker");
    let push = push_run(&world, "self", "x").env("THREAD_NOTIFIER", "/nowhere/notifier");
    assert_eq!(dispatch_word(push), "embedded");
    wait_until("the event to be handled", || world.lines("seen.worker").len() == 1);
    let expected = "[WARN] notifier: cannot start /nowhere/notifier: No such file or directory (os error 2); \
                    dispatching without it";
    assert!(world.log().contains(&expected.to_owned()), "{:?}", world.log());
}

#[test]
fn a_notifier_that_fails_is_logged_and_the_push_dispatches_by_itself() {
    for (ending, said) in
        [("exit 7", "exit status: 7"), ("exit 2", "exit status: 2"), ("kill -9 $$", "signal: 9 (SIGKILL)")]
    {
        let world = World::with_thread();
        take_all(&world, "worker");
        let notifier = recorder(&world, ending);
        assert_eq!(dispatch_word(push_run(&world, "self", "x")), "embedded");
        wait_until("the event to be handled", || world.lines("seen.worker").len() == 1);
        let expected =
            format!("[WARN] notifier: {} ended with {said}; dispatching without it", notifier.display());
        assert!(world.log().contains(&expected), "{:?}", world.log());
        assert_eq!(calls(&world).len(), 1);
    }
}

#[test]
fn a_notifier_that_hangs_is_killed_after_five_seconds_with_what_it_started() {
    let world = World::with_thread();
    take_all(&world, "worker");
    let notifier = recorder(&world, "sleep 1000 & trap '' TERM INT HUP; sleep 1000; exit 0");
    let began = Instant::now();
    assert_eq!(dispatch_word(push_run(&world, "self", "x")), "embedded");
    assert!(began.elapsed() >= Duration::from_secs(5));
    wait_until("the event to be handled", || world.lines("seen.worker").len() == 1);
    let expected = format!(
        "[WARN] notifier: {} gave no answer within 5 s and was killed; dispatching without it",
        notifier.display()
    );
    assert!(world.log().contains(&expected), "{:?}", world.log());
    world.wait_until_quiet();
}

#[test]
fn a_notifiers_answer_is_seen_even_if_the_pusher_blocks_or_ignores_sigchld() {
    use std::os::unix::process::CommandExt;
    for ignored in [false, true] {
        let world = World::with_thread();
        recorder(&world, "sleep 0.2; exit 0");
        let mut push = push_run(&world, "self", "x");
        // SAFETY: both calls are safe between fork and exec, and allocate nothing.
        unsafe {
            push.command().pre_exec(move || {
                if ignored {
                    libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                    return Ok(());
                }
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, libc::SIGCHLD);
                libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
                Ok(())
            });
        }
        assert_eq!(dispatch_word(push), "queued", "ignored: {ignored}");
    }
}

/// The watchdog processes, which do the notifier's work if it does not.
fn watchdogs(world: &World) -> Vec<u32> {
    let is_watchdog = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains("\0_wake\0")
    };
    let parent = |pid: u32| stat_field(pid, 1).and_then(|parent| parent.parse::<u32>().ok());
    let all: Vec<u32> = world.processes().into_iter().filter(is_watchdog).collect();
    // A watchdog's child looks the same until it becomes a supervisor.
    all.iter().copied().filter(|&pid| parent(pid).is_some_and(|parent| !all.contains(&parent))).collect()
}

/// A field of `/proc/PID/stat`, counted from the state (0).
fn stat_field(pid: u32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(number).map(str::to_owned)
}

/// The targets of a process's file descriptors; empty if it has ended.
fn open_files(pid: u32) -> Vec<PathBuf> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| fs::read_link(fd.path()).ok()).collect()
}

/// Pushes until a watchdog can be stopped during its wait. Returns its pid and the number of pushes.
fn stopped_watchdog(world: &World) -> (Pid, usize) {
    let (mut found, mut pushes) = (None, 0);
    wait_until("a watchdog to be stopped", || {
        push_run(world, "self", "x").quiet();
        pushes += 1;
        found = watchdogs(world).first().and_then(|&pid| {
            let watchdog = Pid::from_raw(pid as i32)?;
            kill_process(watchdog, Signal::STOP).ok()?;
            wait_until("it to stop", || {
                stat_field(pid, 0).is_none_or(|state| ["T", "Z", "X"].contains(&state.as_str()))
            });
            // During its wait, the watchdog has the lock open and the database closed.
            let has = |name: &str| open_files(pid).iter().any(|open| open.ends_with(name));
            (has("run/_wake.lock") && !has("events.db")).then_some(watchdog)
        });
        found.is_some()
    });
    (found.unwrap(), pushes)
}

#[test]
fn a_task_that_the_notifier_accepts_but_does_not_run_is_done_a_second_later() {
    for (code, word) in [(0, "queued"), (1, "already-queued")] {
        let world = World::with_thread();
        take_all(&world, "worker");
        recorder(&world, &format!("exit {code}"));
        let began = Instant::now();
        assert_eq!(dispatch_word(push_run(&world, "self", "x")), word);
        wait_until("the event to be handled", || world.lines("seen.worker") == ["1"]);
        assert!(began.elapsed() >= Duration::from_secs(1), "only {:?}", began.elapsed());
        world.wait_until_quiet();
        assert_eq!(calls(&world).len(), 1, "it is asked once for each push");
        let log = world.log();
        assert!(log.iter().all(|line| line.starts_with("[INFO]")), "{log:?}");
        // A task that is queued already is not logged again.
        let told = log.iter().filter(|line| line.contains("notifier: ")).count();
        assert_eq!(told, usize::from(code == 0), "{log:?}");
    }
}

#[test]
fn a_thread_has_one_watchdog_which_sees_events_pushed_during_its_wait() {
    let world = World::with_thread();
    take_all(&world, "worker");
    recorder(&world, "exit 1");
    let (watchdog, pushes) = stopped_watchdog(&world);
    for _ in 0..5 {
        assert_eq!(dispatch_word(push_run(&world, "self", "x")), "already-queued");
    }
    assert_eq!(watchdogs(&world), [watchdog.as_raw_nonzero().get() as u32]);
    kill_process(watchdog, Signal::CONT).unwrap();
    wait_until("the events to be handled", || world.lines("seen.worker").len() == pushes + 5);
    world.wait_until_quiet();
    assert_eq!(calls(&world).len(), pushes + 5);
}

#[test]
fn the_watchdog_is_independent_of_the_push_that_started_it() {
    let world = World::with_thread();
    recorder(&world, "exit 0");
    // `stopped_watchdog` already shows that the push ends, with its output closed, before the
    // watchdog does. It may be stopped while it has another file open for a moment.
    let mut watchdog = None;
    wait_until("a watchdog with nothing but its lock open", || {
        let (stopped, _) = stopped_watchdog(&world);
        let pid = stopped.as_raw_nonzero().get() as u32;
        assert_eq!(stat_field(pid, 3), Some(pid.to_string()), "a session of its own");
        let mut open = open_files(pid);
        // The watchdog opened the thread's directory itself.
        open.retain(|to| to != Path::new("/dev/null") && *to != world.inbox());
        let is_alone = open == [world.inbox().join("run/_wake.lock")];
        watchdog = is_alone.then_some(stopped);
        if !is_alone {
            kill_process(stopped, Signal::CONT).unwrap();
        }
        is_alone
    });
    let watchdog = watchdog.unwrap();
    kill_process(watchdog, Signal::CONT).unwrap();
    world.wait_until_quiet();
}

#[test]
fn a_watchdog_whose_thread_was_moved_ends_and_creates_nothing() {
    let world = World::with_thread();
    take_all(&world, "worker");
    recorder(&world, "exit 0");
    let (watchdog, pushes) = stopped_watchdog(&world);
    fs::rename(world.inbox(), world.path("elsewhere")).unwrap();
    kill_process(watchdog, Signal::CONT).unwrap();
    world.wait_until_quiet();
    assert!(!world.inbox().exists());
    assert!(!world.read("elsewhere/logs/thread.log").contains("[ERROR]"));
    fs::rename(world.path("elsewhere"), world.inbox()).unwrap();
    push_run(&world, "self", "x").quiet();
    wait_until("all to be handled", || world.lines("seen.worker").len() == pushes + 1);
}

#[test]
fn if_the_notifier_runs_its_task_nothing_is_done_twice() {
    let world = World::with_thread();
    world.subscribe("worker", "echo run >> runs; cat >> got", &["--deliver", "stdin"]);
    recorder(&world, "sh -c \"$8\"; exit 0");
    assert_eq!(dispatch_word(push_run(&world, "self", "x")), "queued");
    world.wait_until_quiet();
    assert_eq!((world.lines("runs").len(), world.lines("got").len()), (1, 1));
}

#[test]
fn a_consumer_that_becomes_due_without_a_push_is_woken_too() {
    let world = World::with_thread();
    let handler = "cat > in; [ -e fine ] || exit 1; cat in >> got";
    world.subscribe("fed", handler, &["--deliver", "stdin", "--backoff", "10ms", "--max-attempts", "1"]);
    push_run(&world, "self", "x").quiet();
    wait_until("the dead letter", || world.consumer("fed")["dead"] == 1);
    world.wait_until_quiet();
    world.write("fine", "");
    recorder(&world, "exit 0");
    let asked = |words: &[&str], times: usize| {
        world.thread(words.iter().chain(&["--consumer", "fed"])).quiet();
        assert_eq!(calls(&world).len(), times, "{words:?}");
    };
    asked(&["dead", "retry", "--all"], 1);
    wait_until("the dead letter", || world.lines("got").len() == 1);
    asked(&["seek", "--to", "earliest"], 2);
    wait_until("the event once more", || world.lines("got").len() == 2);
    world.wait_until_quiet();
    asked(&["pause"], 2);
    asked(&["seek", "--to", "earliest"], 2);
    asked(&["resume"], 3);
    wait_until("the event once more", || world.lines("got").len() == 3);
    world.wait_until_quiet();
    asked(&["unsubscribe"], 3);
    asked(&["subscribe", "--handler", "cat >> got", "--deliver", "stdin", "--from", "all"], 4);
    wait_until("the backlog", || world.lines("got").len() == 4);
    world.wait_until_quiet();
}

#[test]
fn a_consumer_resumed_during_the_watchdogs_wait_is_started() {
    let world = World::with_thread();
    take_all(&world, "other");
    take_all(&world, "worker");
    world.thread(["pause", "--consumer", "other"]).quiet();
    recorder(&world, "exit 1");
    let (watchdog, pushes) = stopped_watchdog(&world);
    world.thread(["resume", "--consumer", "other"]).quiet();
    kill_process(watchdog, Signal::CONT).unwrap();
    for consumer in ["other", "worker"] {
        let seen = format!("seen.{consumer}");
        wait_until("both to have everything", || world.lines(&seen).len() == pushes);
    }
}

#[test]
fn a_run_whose_supervisor_was_killed_is_followed_by_another() {
    let world = World::with_thread();
    take_all_script(&world);
    world.script("bin/dies", "[ -e died ] && exec take; touch died; kill -9 $PPID $$");
    subscribe(&world, "exec dies");
    push_run(&world, "self", "x").env("THREAD_NOTIFIER", "embedded").quiet();
    wait_until("the handler to die", || world.path("died").exists());
    world.wait_until_quiet();
    recorder(&world, "exit 1");
    assert_eq!(dispatch_word(push_run(&world, "self", "y")), "already-queued");
    wait_until("both to be handled", || world.lines("seen.worker") == ["1", "2"]);
    world.wait_until_quiet();
    assert_eq!(calls(&world).len(), 1);
}

#[test]
fn dispatch_does_not_call_the_notifier() {
    let world = World::with_thread();
    take_all(&world, "worker");
    push_run(&world, "self", "x").env("THREAD_NOTIFIER", "off").quiet();
    recorder(&world, "exit 0");
    world.thread(["dispatch"]).quiet();
    wait_until("the event to be handled", || world.lines("seen.worker") == ["1"]);
    assert_eq!(calls(&world).len(), 0);
}

#[test]
fn a_backlog_wakes_a_new_consumer_through_the_notifier() {
    let world = World::with_thread();
    world.push("x");
    recorder(&world, "exit 0");
    subscribe(&world, "true");
    assert_eq!(calls(&world).len(), 1);
    world.thread(["subscribe", "--consumer", "other", "--handler", "true", "--filter", "id > 5"]).quiet();
    assert_eq!(calls(&world).len(), 1, "without a backlog no notifier is called");
}

#[test]
fn the_notifier_gets_nothing_of_the_pushers_descriptors() {
    let world = World::with_thread();
    recorder(
        &world,
        "(ls -l /proc/$$/fd >fds); (readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2 >std); exit 0",
    );
    world.sh("exec 7>marker 8<bin 9>&1; thread push --source self --type message --content x").quiet();
    assert_eq!(world.lines("std"), ["/dev/null"; 3]);
    let fds = world.read("fds");
    assert!(fds.contains("/dev/null"), "{fds}");
    let root = world.root().to_str().unwrap();
    let theirs = |line: &&str| line.contains(root) && !line.ends_with("bin/notifier");
    let inherited: Vec<&str> =
        fds.lines().filter(theirs).chain(fds.lines().filter(|l| l.contains("pipe:"))).collect();
    assert_eq!(inherited, Vec::<&str>::new());
}
