//! Starting handlers: one at a time per consumer, independent of the process that started them, and
//! without lost wake-ups.

use std::fs;
use std::os::unix::process::CommandExt;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use thread_testkit::users::{NOBODY, as_user, share_with, shared_world};
use thread_testkit::{Dice, Run, World, take_all, take_all_script, wait_until};

/// A world with a thread and a handler `slow` that appends a line to `began`, waits for the file
/// `go`, handles all pending events and appends to `ended`.
fn with_slow_handler() -> World {
    let world = World::with_thread();
    take_all_script(&world);
    world.script(
        "bin/slow",
        "echo $$ $PPID >>began\nuntil [ -e go ]; do sleep 0.01; done\ntake\necho $$ >>ended",
    );
    world
}

fn subscribe(world: &World, consumer: &str, handler: &str, more: &[&str]) {
    let words = ["subscribe", "--consumer", consumer, "--handler", handler];
    world.thread(words.into_iter().chain(more.iter().copied())).quiet();
}

fn push_run(world: &World, content: &str) -> Run {
    world.thread(["push", "--source", "self", "--type", "message", "--content", content])
}

/// The outcome that `dispatch --json` reports for one consumer.
fn outcome(world: &World, consumer: &str) -> String {
    let answer: Value = serde_json::from_str(&world.thread(["dispatch", "--json"]).ok()).unwrap();
    let all = answer["consumers"].as_array().unwrap();
    let one = all.iter().find(|one| one["consumer_id"] == consumer).unwrap();
    one["outcome"].as_str().unwrap().to_owned()
}

fn wait_for_lines(world: &World, name: &str, count: usize) {
    wait_until(&format!("{count} lines in {name}"), || world.lines(name).len() >= count);
}

/// The pids of the first run of `slow`: the handler's and its parent's.
fn pids(world: &World) -> (Pid, Pid) {
    wait_until("the pids", || world.read("began").ends_with('\n'));
    let line = world.lines("began").remove(0);
    let mut pids = line.split(' ').map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
    (pids.next().unwrap(), pids.next().unwrap())
}

/// The ids 1 to `last` as strings, in the format `take` records.
fn up_to(last: i64) -> Vec<String> {
    (1..=last).map(|id| id.to_string()).collect()
}

#[test]
fn a_push_starts_the_handler_and_the_log_tells_the_story() {
    let world = World::with_thread();
    take_all_script(&world);
    subscribe(&world, "worker", "take \"a\\b\"", &["--filter", "type = 'message'"]);
    assert_eq!(push_run(&world, "x").quiet(), "1\n");
    wait_until("the run to end", || world.log().len() == 4);
    world.wait_until_quiet();
    assert_eq!(world.lines("seen.worker"), ["1"]);
    let log = world.log();
    assert_eq!(
        log[..3],
        [
            r#"[INFO] subscribe: consumer=worker handler_cmd="take \"a\\b\"" filter="type = 'message'""#,
            "[INFO] push: source=self type=message id=1",
            r#"[INFO] dispatch: consumer=worker spawned handler_cmd="take \"a\\b\"""#,
        ]
    );
    let rest = log[3].strip_prefix("[INFO] dispatch: consumer=worker ended exit=0 after=").unwrap();
    let (seconds, acked) = rest.split_once("s acked=").unwrap();
    assert_eq!(acked.split(' ').next(), Some("1"));
    let (whole, tenths) = seconds.split_once('.').unwrap();
    assert!(whole.parse::<u32>().is_ok() && tenths.len() == 1 && tenths.parse::<u32>().is_ok(), "{rest}");
    // Every line begins with its time: [2026-03-18T10:30:00.123Z]
    for line in world.lines("inbox/logs/thread.log") {
        let shape: String = line.chars().take(26).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "[0000-00-00T00:00:00.000Z]");
    }
}

#[test]
fn the_log_tells_how_a_handler_ended() {
    for (ending, said) in
        [("exit 3", "exit=3"), ("kill -9 $$", "exit=137 signal=9"), ("kill -TERM $$", "exit=143 signal=15")]
    {
        let world = World::with_thread();
        take_all_script(&world);
        world.script("bin/ending", &format!("take\n{ending}"));
        subscribe(&world, "worker", "exec ending", &[]);
        world.push("x");
        let expected = format!("[INFO] dispatch: consumer=worker ended {said} after=");
        wait_until(&expected, || world.log().iter().any(|line| line.starts_with(&expected)));
    }
}

#[test]
fn a_running_handler_is_notified_of_a_dispatch() {
    let world = World::with_thread();
    world.subscribe("worker", "until [ -e go ]; do sleep 0.01; done", &["--deliver", "stdin"]);
    world.push("first");
    world.wait_for_state("worker", "running");
    let touched = || std::fs::metadata(world.path("inbox/run/_commit")).unwrap().modified().unwrap();
    let before = touched();
    // As a program does that gives no notice.
    world
        .db()
        .execute("INSERT INTO events (source, type, content) VALUES ('x', 'message', 'y')", [])
        .unwrap();
    assert_eq!(touched(), before);
    world.thread(["dispatch"]).quiet();
    assert!(touched() > before);
    world.write("go", "");
    world.wait_until_quiet();
}

#[test]
fn dispatch_prints_nothing_and_returns_while_the_handler_runs() {
    let world = with_slow_handler();
    subscribe(&world, "worker", "slow", &[]);
    push_run(&world, "x").env("THREAD_NOTIFIER", "off").quiet();
    assert_eq!(world.thread(["dispatch"]).quiet(), "");
    wait_for_lines(&world, "began", 1);
    assert_eq!(outcome(&world, "worker"), "running");
    assert_eq!(world.log().last().unwrap(), "[INFO] dispatch: consumer=worker skipped (lock held)");
    world.write("go", "");
    wait_for_lines(&world, "ended", 1);
    world.wait_until_quiet();
    assert_eq!(outcome(&world, "worker"), "idle");
}

#[test]
fn only_consumers_whose_filter_matches_are_started() {
    let world = World::with_thread();
    take_all_script(&world);
    subscribe(&world, "records", "take", &["--filter", "type = 'record'"]);
    subscribe(&world, "messages", "take", &["--filter", "type = 'message'"]);
    world.push("x");
    world.wait_until_quiet();
    assert_eq!(world.lines("seen.messages"), ["1"]);
    assert!(!world.log().iter().any(|line| line.contains("consumer=records spawned")));
}

#[test]
fn one_handler_at_a_time_per_consumer() {
    let world = World::with_thread();
    take_all_script(&world);
    // `mkdir` is atomic: if the directory exists, another handler is running.
    world.script(
        "bin/alone",
        "mkdir busy.$THREAD_CONSUMER || echo $THREAD_CONSUMER >>overlaps\ntake\n\
         sleep 0.0$(( $$ % 4 ))\nrmdir busy.$THREAD_CONSUMER",
    );
    for consumer in ["a", "b"] {
        subscribe(&world, consumer, "alone", &[]);
    }
    let pushers = (0..6).map(|_| {
        let script = "for i in $(seq 10); do thread push --source self --type message --content x; thread dispatch; done";
        world.sh(script).spawn()
    });
    for pusher in pushers.collect::<Vec<_>>() {
        let output = pusher.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    for consumer in ["a", "b"] {
        wait_for_lines(&world, &format!("seen.{consumer}"), 60);
    }
    world.wait_until_quiet();
    assert_eq!(world.read("overlaps"), "");
    for consumer in ["a", "b"] {
        assert_eq!(world.lines(format!("seen.{consumer}")), up_to(60));
    }
}

#[test]
fn a_handler_sees_its_own_variables_and_no_stray_ones() {
    let world = World::with_thread();
    world.script("bin/show", "env | sort >env.part; mv env.part env.$THREAD_LAST_ACKED_ID; thread pop --last-event-id $((THREAD_LAST_ACKED_ID + 1))");
    subscribe(&world, "worker", "show", &[]);
    for id in 1..=2 {
        let push =
            push_run(&world, "x").env("THREAD_DIR", "./other/../inbox").env("THREAD_CONSUMER", "somebody");
        let push = push.env("THREAD_LAST_ACKED_ID", "77").env("THREAD_STRAY", "1").env("THREAD_", "1");
        push.env("THREAD_NOTIFIER", "embedded").env("KEPT", "a b").env("THREADS", "2").quiet();
        world.wait_until_quiet();
        let env = world.lines(format!("env.{}", id - 1));
        let ours: Vec<&String> = env.iter().filter(|line| line.starts_with("THREAD")).collect();
        let expected = [
            "THREADS=2".to_owned(),
            "THREAD_CONSUMER=worker".to_owned(),
            format!("THREAD_DIR={}", world.inbox().display()),
            format!("THREAD_LAST_ACKED_ID={}", id - 1),
            "THREAD_NOTIFIER=embedded".to_owned(),
        ];
        let mut ours: Vec<String> = ours.into_iter().cloned().collect();
        ours.sort();
        assert_eq!(ours, expected);
        assert!(env.contains(&"KEPT=a b".to_owned()));
    }
}

#[test]
fn a_handler_leads_a_session_of_its_own_without_a_terminal() {
    let world = World::with_thread();
    let report = "(ps -o sid=,pgid=,tty= -p $$ >ps.part; echo $$ >>ps.part); mv ps.part ps; take";
    take_all_script(&world);
    subscribe(&world, "worker", report, &[]);
    world.push("x");
    wait_for_lines(&world, "ps", 2);
    let lines = world.lines("ps");
    let fields: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(fields, [&*lines[1], &*lines[1], "?"]);
}

/// A handler that records the targets of its file descriptors, then does `and_then`.
fn fds_handler(world: &World, and_then: &str) -> String {
    let name = format!("fds.{}", world.root().join("bin").read_dir().unwrap().count());
    // The subshell lists its parent's descriptors, so that the listing itself adds none.
    let text = format!(
        "(for fd in /proc/$$/fd/*; do readlink $fd; done | sort >fds.part.$THREAD_CONSUMER)\n\
         mv fds.part.$THREAD_CONSUMER fds.$THREAD_CONSUMER\n{and_then}"
    );
    world.write(&name, text);
    // Evaluated by the handler's shell: a script file would be open as one more descriptor.
    format!("eval \"$(cat {name})\"")
}

fn only_the_lock_of(world: &World, consumer: &str) -> Vec<String> {
    let lock = world.inbox().join("run").join(format!("{consumer}.lock"));
    let log = world.inbox().join("logs").join("handlers").join(format!("{consumer}.log"));
    let log = log.to_str().unwrap().to_owned();
    vec!["/dev/null".to_owned(), log.clone(), log, lock.to_str().unwrap().to_owned()]
}

#[test]
fn a_handler_gets_no_descriptor_but_its_lock() {
    let world = World::with_thread();
    take_all_script(&world);
    subscribe(&world, "worker", &fds_handler(&world, "take"), &[]);
    let push = "exec 3<bin 4>marker 7<>other 9>&1; thread push --source self --type message --content x";
    assert_eq!(world.sh(push).quiet(), "1\n");
    wait_for_lines(&world, "fds.worker", 1);
    assert_eq!(world.lines("fds.worker"), only_the_lock_of(&world, "worker"));
    // A pusher without open descriptors makes no difference.
    world.sh("exec <&- >&- 2>&-; thread push --source self --type message --content x || true").quiet();
    wait_for_lines(&world, "seen.worker", 2);
    assert_eq!(world.lines("fds.worker"), only_the_lock_of(&world, "worker"));
}

#[test]
fn a_handler_that_pushes_does_not_pass_its_lock_on() {
    let world = World::with_thread();
    take_all_script(&world);
    let forward = "thread push --source self --type record --content y; take";
    subscribe(&world, "first", &fds_handler(&world, forward), &["--filter", "type = 'message'"]);
    world.script("bin/linger", "echo $$ >linger; until [ -e go ]; do sleep 0.01; done");
    let second = fds_handler(&world, "take; linger");
    subscribe(&world, "second", &second, &["--filter", "type = 'record'"]);
    world.push("x");
    wait_for_lines(&world, "linger", 1);
    assert_eq!(world.lines("fds.first"), only_the_lock_of(&world, "first"));
    assert_eq!(world.lines("fds.second"), only_the_lock_of(&world, "second"));
    // While the second consumer runs, the first can start again.
    wait_for_lines(&world, "seen.first", 1);
    let id = world.push("z").to_string();
    wait_until("the first to run again", || world.lines("seen.first").contains(&id));
    assert_eq!(world.lines("linger").len(), 1);
    world.write("go", "");
    world.wait_until_quiet();
}

#[test]
fn a_handler_has_default_signal_handling_whatever_the_pusher_ignores() {
    let world = World::with_thread();
    take_all_script(&world);
    subscribe(&world, "worker", "grep -E 'Sig(Blk|Ign)' /proc/self/status >signals; take", &[]);
    let mut push = push_run(&world, "x");
    // SAFETY: these calls are safe between fork and exec, and allocate nothing.
    unsafe {
        push.command().pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGPIPE, libc::SIGCHLD, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_IGN);
            }
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            Ok(())
        });
    }
    push.quiet();
    wait_for_lines(&world, "signals", 2);
    for line in world.lines("signals") {
        let (_, mask) = line.split_once(":\t").unwrap();
        // Signals 32 and 33 are reserved by the C library and cannot be set by others.
        let mask = u64::from_str_radix(mask, 16).unwrap() & !(0b11 << 31);
        assert_eq!(mask, 0, "{line}");
    }
}

#[test]
fn a_handler_runs_where_it_was_subscribed() {
    let world = World::with_thread();
    take_all_script(&world);
    for dir in ["home of it", "elsewhere"] {
        fs::create_dir(world.path(dir)).unwrap();
    }
    let home = world.path("home of it");
    let words = ["subscribe", "--consumer", "worker", "--handler", "pwd >>where; take"];
    world.thread(words).dir(&home).quiet();
    // A subscription without a recorded directory, made by another program, runs in the dispatcher's.
    let row =
        "INSERT INTO subscriptions (consumer_id, handler_cmd) VALUES ('plain', 'pwd >>where.plain; take')";
    world.db().execute(row, []).unwrap();
    push_run(&world, "x").dir(world.path("elsewhere")).quiet();
    wait_for_lines(&world, "home of it/where", 1);
    assert_eq!(world.lines("home of it/where"), [home.to_str().unwrap()]);
    wait_for_lines(&world, "elsewhere/where.plain", 1);
    assert_eq!(world.lines("elsewhere/where.plain"), [world.path("elsewhere").to_str().unwrap()]);
}

#[test]
fn without_its_directory_a_handler_is_not_started_and_the_log_says_why() {
    let world = World::with_thread();
    take_all(&world, "other");
    let home = world.path("home");
    fs::create_dir(&home).unwrap();
    world
        .thread(["subscribe", "--consumer", "worker", "--handler", "touch started; take"])
        .dir(&home)
        .quiet();
    fs::remove_dir(&home).unwrap();
    world.push("x");
    wait_for_lines(&world, "seen.other", 1);
    world.wait_until_quiet();
    let why = format!("the working directory of 'worker', {}, is gone", home.display());
    let line = format!("[ERROR] dispatch: consumer=worker not started: {why}");
    assert_eq!(world.log().iter().filter(|found| **found == line).count(), 1, "{:?}", world.log());
    let warning = world.thread(["dispatch"]).warns();
    assert_eq!(warning, format!("Warning: the consumer 'worker' was not started: {why}\n"));
    assert_eq!(outcome(&world, "worker"), "broken");
    assert!(!world.log().iter().any(|line| line.contains("consumer=worker spawned")));
    // The lock was released: with the directory back, the next dispatch starts the handler.
    fs::create_dir(&home).unwrap();
    world.thread(["dispatch"]).quiet();
    wait_for_lines(&world, "home/seen.worker", 1);
}

#[test]
fn what_a_handler_leaves_in_the_background_does_not_keep_its_consumer_busy() {
    let world = World::with_thread();
    take_all_script(&world);
    subscribe(&world, "worker", "sleep 1000 & echo $! >>left; take", &[]);
    let ended = || world.log().iter().filter(|line| line.contains("ended exit=0")).count();
    for run in 1..=2 {
        world.push("x");
        wait_until("the run to end", || ended() == run);
    }
    let left = world.lines("left");
    assert_eq!(left.len(), 2);
    for pid in left {
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        test_kill_process(pid).expect("it should still run");
        kill_process(pid, Signal::KILL).unwrap();
    }
    world.wait_until_quiet();
    assert_eq!(world.lines("seen.worker"), ["1", "2"]);
}

#[test]
fn the_lock_outlives_a_killed_supervisor_for_as_long_as_the_handler_runs() {
    let world = with_slow_handler();
    subscribe(&world, "worker", "slow", &[]);
    world.push("x");
    let (_, supervisor) = pids(&world);
    // `sh -c` may have replaced itself with the handler or sit between the two; find the real supervisor.
    let supervisor = supervisor_of(&world, supervisor);
    kill_process(supervisor, Signal::KILL).unwrap();
    wait_until("the supervisor to be gone", || {
        !world.processes().contains(&(supervisor.as_raw_nonzero().get() as u32))
    });
    for content in ["y", "z"] {
        world.push(content);
        assert_eq!(outcome(&world, "worker"), "running");
        assert_eq!(world.log().last().unwrap(), "[INFO] dispatch: consumer=worker skipped (lock held)");
    }
    assert_eq!(world.lines("began").len(), 1);
    world.write("go", "");
    wait_for_lines(&world, "ended", 1);
    // No supervisor was left to look for new events; the next push recovers.
    world.wait_until_quiet();
    let last = world.push("heal");
    wait_until("all to be handled", || world.lines("seen.worker") == up_to(last));
    assert_eq!(world.lines("began").len(), 2);
}

/// The pid itself if it is a supervisor, or else the world's supervisor.
fn supervisor_of(world: &World, pid: Pid) -> Pid {
    let cmdline = |pid: Pid| fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let is_ours = |pid: Pid| String::from_utf8_lossy(&cmdline(pid)).contains("_supervise");
    if is_ours(pid) {
        return pid;
    }
    let all = world.processes().into_iter().filter_map(|pid| Pid::from_raw(pid as i32));
    all.into_iter().find(|&pid| is_ours(pid)).expect("a supervisor")
}

#[test]
fn a_killed_handler_frees_its_consumer_even_without_a_supervisor() {
    let world = with_slow_handler();
    subscribe(&world, "worker", "exec slow", &[]);
    world.push("x");
    let (handler, supervisor) = pids(&world);
    for pid in [supervisor, handler] {
        kill_process(pid, Signal::KILL).unwrap();
    }
    // The killed handler's `sleep` inherited the lock and holds it a moment longer.
    world.wait_until_quiet();
    world.write("go", "");
    world.push("y");
    wait_for_lines(&world, "seen.worker", 2);
    assert_eq!(world.lines("seen.worker"), ["1", "2"]);
}

#[test]
fn after_unsubscribe_a_run_finishes_and_is_not_followed_by_another() {
    let world = with_slow_handler();
    subscribe(&world, "worker", "slow", &[]);
    world.push("x");
    wait_for_lines(&world, "began", 1);
    world.push("y");
    world.thread(["unsubscribe", "--consumer", "worker"]).quiet();
    world.write("go", "");
    wait_for_lines(&world, "ended", 1);
    world.wait_until_quiet();
    assert_eq!(world.lines("began").len(), 1);
    assert_eq!(world.query("SELECT count(*) FROM consumer_progress"), 0);
}

#[test]
fn a_consumer_subscribed_again_during_a_run_starts_when_that_run_ends() {
    let world = with_slow_handler();
    subscribe(&world, "worker", "slow", &[]);
    world.push("x");
    wait_for_lines(&world, "began", 1);
    world.thread(["unsubscribe", "--consumer", "worker"]).quiet();
    subscribe(&world, "worker", "[ -e ended ] || touch early; echo new >>new; take", &[]);
    // The old handler pops as the same consumer; the events that it leaves pending are for the new one.
    world.script("bin/take.old", "exit 0");
    fs::rename(world.bin().join("take"), world.bin().join("take.new")).unwrap();
    world.script("bin/take", "if [ -e new ]; then exec take.new; fi");
    assert_eq!(outcome(&world, "worker"), "running");
    world.write("go", "");
    wait_until("the new handler to take it", || world.lines("seen.worker") == ["1"]);
    world.wait_until_quiet();
    assert!(!world.path("early").exists(), "two handlers at a time");
    assert_eq!(world.lines("began").len(), 1);
    assert_eq!(world.lines("new"), ["new"]);
}

#[test]
fn a_thread_that_is_moved_during_a_run_leaves_nothing_at_its_old_place() {
    let world = with_slow_handler();
    subscribe(&world, "worker", "slow", &[]);
    world.push("x");
    wait_for_lines(&world, "began", 1);
    fs::rename(world.inbox(), world.path("moved")).unwrap();
    world.write("go", "");
    wait_for_lines(&world, "ended", 1);
    world.wait_until_quiet();
    assert!(!world.inbox().exists());
    assert_eq!(world.lines("began").len(), 1);
    push_run(&world, "y").env("THREAD_DIR", "moved").quiet();
    wait_until("both to be handled", || world.lines("seen.worker") == ["1", "2"]);
    world.wait_until_quiet();
    assert!(!world.inbox().exists());
}

#[test]
fn a_thread_that_is_removed_during_a_run_is_not_recreated() {
    let world = with_slow_handler();
    subscribe(&world, "worker", "slow", &[]);
    world.push("x");
    wait_for_lines(&world, "began", 1);
    fs::remove_dir_all(world.inbox()).unwrap();
    world.write("go", "");
    wait_for_lines(&world, "ended", 1);
    world.wait_until_quiet();
    assert!(!world.inbox().exists());
}

#[test]
fn a_run_of_an_old_thread_does_not_touch_a_new_one_in_its_place() {
    let world = with_slow_handler();
    subscribe(&world, "worker", "slow; true", &[]);
    world.push("x");
    wait_for_lines(&world, "began", 1);
    fs::rename(world.inbox(), world.path("moved")).unwrap();
    world.thread(["init", "inbox"]).quiet();
    subscribe(&world, "worker", "touch wrong", &["--filter", "type = 'record'"]);
    let before = world.log();
    world.write("go", "");
    wait_for_lines(&world, "ended", 1);
    world.wait_until_quiet();
    assert_eq!(world.log(), before);
    assert!(!world.path("wrong").exists());
    assert_eq!(fs::read_dir(world.inbox().join("run")).unwrap().count(), 0);
}

#[test]
fn broken_subscriptions_do_not_hold_up_the_others() {
    let world = World::with_thread();
    let row = "INSERT INTO subscriptions (consumer_id, handler_cmd, filter) VALUES (?, ?, ?)";
    let broken = [
        ("aaa", "touch wrong", Some("type = 'message') OR (1")),
        ("bbb", "touch wrong", Some("nonsense = 1")),
        ("ccc", "", None),
        ("ddd", "   ", None),
        ("eee", "no-such-program-at-all", None),
        ("fff", "'", None),
    ];
    for (consumer, handler, filter) in broken {
        world.db().execute(row, (consumer, handler, filter)).unwrap();
    }
    take_all(&world, "zzz");
    world.push("x");
    wait_for_lines(&world, "seen.zzz", 1);
    world.push("y");
    wait_for_lines(&world, "seen.zzz", 2);
    assert!(!world.path("wrong").exists());
    for consumer in ["aaa", "bbb"] {
        let start = format!("[ERROR] dispatch: consumer={consumer} not started: the filter of '{consumer}' ");
        let log = world.log();
        assert!(log.iter().any(|line| line.starts_with(&start)), "{log:?}");
        assert_eq!(outcome(&world, consumer), "broken");
    }
}

#[test]
fn foreign_consumer_names_stay_usable_and_inside_run() {
    let world = World::with_thread();
    take_all_script(&world);
    let row = "INSERT INTO subscriptions (consumer_id, handler_cmd) VALUES (?, 'thread pop --resume >\"$OUT\" && thread ack --event-id 1')";
    for consumer in ["../../evil", "a b", "_jsonl", "-x"] {
        world.db().execute(row, [consumer]).unwrap();
    }
    push_run(&world, "x").env("OUT", world.path("out")).quiet();
    for consumer in ["../../evil", "a b", "_jsonl", "-x"] {
        wait_until(consumer, || world.consumer(consumer)["last_acked_id"] == 1);
    }
    world.wait_until_quiet();
    assert!(!world.path("evil.lock").exists());
    let names = fs::read_dir(world.inbox().join("run")).unwrap();
    let locks = names.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().ends_with(".lock"));
    assert_eq!(locks.count(), 4);
    world.assert_log_is_exact();
}

#[test]
fn a_push_that_comes_while_a_handler_ends_is_not_lost() {
    let world = World::with_thread();
    // Runs briefly, so that most pushes arrive while a run is about to end.
    world.script(
        "bin/once",
        "ids=$(thread pop --resume --limit 3 | sed 's/^{\"id\":\\([0-9]*\\),.*/\\1/')\n\
         [ -n \"$ids\" ] || exit 0\nprintf '%s\\n' \"$ids\" >>seen.$THREAD_CONSUMER\n\
         thread ack --event-id ${ids##*[!0-9]}",
    );
    let consumers = ["a", "b", "c"];
    for consumer in consumers {
        subscribe(&world, consumer, "once", &[]);
    }
    let mut dice = Dice::new();
    let mut last = 0;
    while last < 200 {
        let pauses: Vec<u64> = (0..dice.up_to(3) + 1).map(|_| dice.up_to(40)).collect();
        last += pauses.len() as i64;
        let pushers: Vec<_> = pauses
            .iter()
            .map(|pause| {
                let push = "thread push --source self --type message --content x";
                world.sh(&format!("sleep 0.{pause:03}; {push}")).spawn()
            })
            .collect();
        for pusher in pushers {
            assert!(pusher.wait_with_output().unwrap().status.success());
        }
        let newest = last.to_string();
        for consumer in consumers {
            let name = format!("seen.{consumer}");
            wait_until(&format!("{consumer} to see event {last}, {dice:?}"), || {
                world.lines(&name).last() == Some(&newest)
            });
        }
    }
    for consumer in consumers {
        assert_eq!(world.lines(format!("seen.{consumer}")), up_to(last), "{dice:?}");
    }
    world.wait_until_quiet();
    world.assert_log_is_exact();
}

#[test]
fn an_internal_command_started_by_hand_refuses() {
    let world = World::with_thread();
    let words = ["_supervise", "--consumer", "worker", "--lock-fd", "0", "--thread"];
    world.thread(words).arg(world.inbox()).fails(1);
    let words = ["_supervise", "--consumer", "worker", "--thread"];
    world.thread(words).arg(world.inbox()).fails(2);
    let words = ["_wake", "--delay-ms", "0", "--lock-fd", "99", "--thread"];
    world.thread(words).arg(world.inbox()).fails(1);
    assert_eq!(fs::read_dir(world.inbox().join("run")).unwrap().count(), 0);
}

#[test]
fn the_error_that_ends_a_supervisor_is_logged() {
    let world = World::with_thread();
    world.db().execute_batch("PRAGMA user_version = 99").unwrap();
    let supervise = "exec 9>inbox/run/worker.lock; \
                     exec thread _supervise --consumer worker --lock-fd 9 --thread \"$THREAD_DIR\"";
    let error = world.sh(supervise).fails(1);
    let why = error.strip_prefix("Error: ").unwrap();
    assert!(why.contains("has schema version 99"), "{why}");
    assert!(world.log().contains(&format!("[ERROR] _supervise: {why}")), "{:?}", world.log());
}

#[test]
fn another_users_push_is_stored_and_left_to_the_owner() {
    let Some(world) = shared_world() else { return };
    world.thread(["init", "inbox"]).quiet();
    take_all(&world, "worker");
    world.script("notifier", "touch asked; exit 0");
    share_with(&world.inbox(), NOBODY.id);
    let push = "thread push --source self --type message --content x --json";
    for notifier in ["embedded", "./notifier", "off"] {
        let run = as_user(&world, NOBODY, push).env("THREAD_NOTIFIER", notifier);
        let (stdout, stderr) = run.ends_with(0);
        let answer: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(answer["dispatch"], "left-to-owner", "{notifier}");
        assert_eq!(
            stderr,
            "Note: the thread is another user's, whose next push or dispatch starts the handlers\n"
        );
    }
    world.wait_until_quiet();
    let log = world.log();
    let left = log.iter().filter(|line| **line == "[INFO] wake: left to the owner of the thread").count();
    assert_eq!(left, 3, "{log:?}");
    assert!(!world.path("asked").exists() && !world.path("seen.worker").exists());
    world.assert_log_is_exact();
    // The owner's next push delivers all of it.
    world.push("y");
    wait_until("all to be handled", || world.lines("seen.worker") == up_to(4));
    world.assert_log_is_exact();
}

#[test]
fn another_users_dispatch_is_refused() {
    let Some(world) = shared_world() else { return };
    world.thread(["init", "inbox"]).quiet();
    take_all(&world, "worker");
    push_run(&world, "x").env("THREAD_NOTIFIER", "off").quiet();
    share_with(&world.inbox(), NOBODY.id);
    let error = as_user(&world, NOBODY, "thread dispatch").fails(1);
    let expected = format!(
        "Error: {} belongs to another user - run this as that user: only the owner may start and stop handlers",
        world.inbox().display()
    );
    assert_eq!(error, expected);
    // `doctor` does not suggest it to other users either.
    let (findings, _) = as_user(&world, NOBODY, "thread doctor").ends_with(1);
    assert!(findings.contains(
        "'worker' has events pending, and nothing is running it or waiting to retry it - its owner's next push"
    ));
    assert!(!findings.contains("run `thread dispatch`, or"), "{findings}");
    world.wait_until_quiet();
    assert!(!world.path("seen.worker").exists());
    world.thread(["dispatch"]).quiet();
    wait_for_lines(&world, "seen.worker", 1);
}
