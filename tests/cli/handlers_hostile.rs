//! Misbehaving handlers, and the isolation of a handler from its surroundings.

use thread_testkit::{World, ids, is_running, kill_and_wait, wait_until};

fn push_many(world: &World, count: usize) {
    let lines = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n".repeat(count);
    world.thread(["push", "--batch"]).stdin(lines).ok();
}

#[test]
fn a_handler_has_a_session_of_its_own_no_terminal_and_no_descriptor_but_the_lock() {
    let world = World::with_thread();
    let handler = "ps -o sid= -o pgid= -o tty= -p $$ > ids; echo $$ > pid; env > env; touch up; \
                   while [ ! -e go ]; do sleep 0.02; done; thread ack --event-id 1";
    // The pusher's descriptors and THREAD_* variables must not reach the handler.
    world.subscribe("bot", handler, &[]);
    let push = "exec 7<>stray 8<>stray; thread push --source self --type record --content x >&7 2>&8";
    let mut run = world.sh(push).env("THREAD_STRAY", "1").env("THREAD_NOTIFIER", "embedded");
    run.command().env("KEPT", "yes");
    run.ok();
    world.wait_for_file("up");
    let pid = world.read("pid").trim().to_owned();
    let mut fds: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|fd| {
            let fd = fd.unwrap();
            let target = std::fs::read_link(fd.path()).ok()?;
            Some(format!("{} {}", fd.file_name().to_string_lossy(), target.display()))
        })
        .collect();
    fds.sort_by_key(|fd| fd.split(' ').next().unwrap().parse::<u32>().unwrap());
    world.write("go", "");
    wait_until("the run", || world.consumer("bot")["last_acked_id"] == 1);
    let ids: Vec<String> = world.read("ids").split_whitespace().map(str::to_owned).collect();
    assert_eq!(ids, [pid.as_str(), pid.as_str(), "?"]);
    let inbox = world.inbox().display().to_string();
    assert_eq!(fds.len(), 4, "{fds:?}");
    assert_eq!(fds[0], "0 /dev/null");
    let log = format!("{inbox}/logs/handlers/bot.log");
    assert_eq!(fds[1..3], [format!("1 {log}"), format!("2 {log}")]);
    assert!(fds[3].ends_with(&format!("{inbox}/run/bot.lock")), "{fds:?}");
    let mut ours = world.lines("env");
    ours.retain(|line| line.starts_with("THREAD_") || line.starts_with("KEPT"));
    ours.sort();
    let dir = format!("THREAD_DIR={inbox}");
    let wanted =
        ["KEPT=yes", "THREAD_CONSUMER=bot", &dir, "THREAD_LAST_ACKED_ID=0", "THREAD_NOTIFIER=embedded"];
    assert_eq!(ours, wanted);
}

#[test]
fn a_server_left_in_the_background_does_not_keep_the_consumer_busy() {
    let world = World::with_thread();
    let handler = "cat >> got; [ -e server ] || { sleep 1000 & echo $! > server; }";
    world.subscribe("bot", handler, &["--deliver", "stdin"]);
    world.push("a");
    wait_until("the first", || world.consumer("bot")["last_acked_id"] == 1);
    world.wait_for_state("bot", "idle");
    world.push("b");
    wait_until("the second", || world.consumer("bot")["last_acked_id"] == 2);
    let server = world.read("server").trim().parse().unwrap();
    assert!(is_running(server));
    world.wait_for_state("bot", "idle");
    world.thread(["stop", "--consumer", "bot"]).fails(1);
    assert!(is_running(server), "what an earlier run left is none of stop's business");
    kill_and_wait(server);
    world.wait_until_quiet();
}

#[test]
fn a_handler_that_deletes_its_working_directory_does_so_only_once() {
    let world = World::with_thread();
    std::fs::create_dir(world.path("work")).unwrap();
    let handler = "cat > ../in; rm -r ../work";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--cwd", "work"]);
    world.push("a");
    wait_until("the run", || world.consumer("bot")["last_acked_id"] == 1);
    world.wait_until_quiet();
    world.push("b");
    let info = world.consumer("bot");
    assert_eq!((&info["state"], &info["last_acked_id"]), (&"stalled".into(), &1.into()), "{info}");
    assert!(info["reason"].as_str().unwrap().contains("work, is gone"), "{info}");
    std::fs::create_dir(world.path("work")).unwrap();
    world.push("c");
    wait_until("the rest", || world.consumer("bot")["last_acked_id"] == 3);
}

#[test]
fn a_handler_that_kills_its_supervisor_keeps_the_lock_until_it_ends() {
    let world = World::with_thread();
    let handler = "echo run >> runs; [ -e go ] && exec cat >> got; kill -9 $PPID; touch up; \
                   while [ ! -e go ]; do sleep 0.02; done";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--backoff", "10ms"]);
    world.push("a");
    world.wait_for_file("up");
    world.push("b");
    world.thread(["dispatch"]).quiet();
    assert_eq!(world.lines("runs").len(), 1, "two runs of one consumer at a time");
    assert_eq!(world.state("bot"), "running");
    world.write("go", "");
    world.wait_until_quiet();
    assert_eq!(world.consumer("bot")["last_acked_id"], 0, "no supervisor saw its end");
    world.thread(["dispatch"]).quiet();
    wait_until("both events", || ids(&world.read("got")) == [1, 2]);
}

#[test]
fn a_handler_that_forks_is_done_when_its_shell_is() {
    let world = World::with_thread();
    world.subscribe(
        "bot",
        "for n in 1 2 3; do (while [ ! -e go ]; do sleep 0.02; done; echo $n >> late) & done; cat >> got",
        &["--deliver", "stdin"],
    );
    world.push("a");
    wait_until("the first", || world.consumer("bot")["last_acked_id"] == 1);
    world.write("go", "");
    wait_until("the rest of it", || world.lines("late").len() == 3);
    world.wait_until_quiet();
}

#[test]
fn many_runs_leak_neither_descriptors_nor_zombies() {
    let world = World::with_thread();
    let handler = "true & cat > in; set -- /proc/$PPID/fd/*; \
                   echo $PPID $# $(ps -o stat= --ppid $PPID | grep -c Z) >> census";
    push_many(&world, 150);
    world.subscribe("bot", handler, &["--deliver", "stdin", "--batch-size", "1"]);
    wait_until("all runs", || world.consumer("bot")["last_acked_id"] == 150);
    let census: Vec<Vec<u32>> = world
        .lines("census")
        .iter()
        .map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect())
        .collect();
    assert_eq!(census.len(), 150);
    for run in &census {
        assert_eq!(run[0], census[0][0], "one supervisor takes care of them all");
        // The database may be open at that moment, which takes a few descriptors.
        assert!(run[1] <= 24, "descriptors: {census:?}");
        assert!(run[2] <= 3, "zombies: {census:?}");
    }
    world.wait_until_quiet();
}

#[test]
fn many_dispatches_leave_nothing_behind() {
    let world = World::with_thread();
    for consumer in ["one", "two"] {
        world.subscribe(consumer, "cat > /dev/null", &["--deliver", "stdin"]);
    }
    for n in 1..=40 {
        world.push(&n.to_string());
    }
    wait_until("both", || ["one", "two"].iter().all(|name| world.consumer(name)["last_acked_id"] == 40));
    world.wait_until_quiet();
    let mut names: Vec<String> = std::fs::read_dir(world.inbox().join("run"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('_'))
        .collect();
    names.sort();
    assert_eq!(names, ["one.lock", "two.lock"]);
}

#[test]
fn an_orphaned_supervisor_of_a_moved_thread_ends_and_creates_nothing() {
    let world = World::with_thread();
    world.subscribe("bot", "touch up; while [ ! -e go ]; do sleep 0.02; done", &["--backoff", "1d"]);
    world.push("a");
    world.wait_for_file("up");
    std::fs::rename(world.inbox(), world.path("elsewhere")).unwrap();
    world.write("go", "");
    world.wait_until_quiet();
    assert!(!world.inbox().exists());
    world.thread(["dispatch", "--thread", "elsewhere"]).quiet();
    wait_until("the run at the new place", || {
        world.read("elsewhere/logs/thread.log").contains("waiting until=")
    });
}
