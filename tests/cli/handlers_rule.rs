//! The rule for runs: attempts, backoff, stalls, and what ends them.

use thread_testkit::{World, wait_until};

/// The times, in milliseconds, that a handler recorded with `date +%s%3N >> runs`.
fn times(world: &World) -> Vec<i64> {
    world.lines("runs").iter().map(|line| line.parse().unwrap()).collect()
}

const NOTE: &str = "date +%s%3N >> runs; exit 3";

#[test]
fn a_failing_handler_is_tried_again_after_each_backoff_and_then_stalls() {
    let world = World::with_thread();
    world.subscribe("bot", NOTE, &["--backoff", "100ms,400ms,200ms", "--max-attempts", "4"]);
    world.push("a");
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    let runs = times(&world);
    assert_eq!(runs.len(), 4);
    for (pair, wait) in runs.windows(2).zip([100, 400, 200]) {
        // Times are stored in whole milliseconds.
        assert!(pair[1] - pair[0] >= wait - 1, "{runs:?}");
    }
    let info = world.consumer("bot");
    assert_eq!((&info["reason"], &info["attempt"]), (&"out of attempts".into(), &4.into()));
    assert_eq!((&info["pending"], &info["last_exit"]), (&1.into(), &"exit=3".into()));
    let log = world.log();
    assert!(log.contains(&"[WARN] dispatch: consumer=bot stalled reason=\"out of attempts\"".to_owned()));
    assert_eq!(log.iter().filter(|line| line.contains("consumer=bot ended exit=3 after=")).count(), 4);
}

#[test]
fn exit_0_without_progress_is_a_failed_attempt_too() {
    let world = World::with_thread();
    world.subscribe("bot", "echo run >> runs", &["--backoff", "10ms", "--max-attempts", "3"]);
    world.push("never acknowledged");
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    assert_eq!(world.lines("runs").len(), 3);
}

#[test]
fn progress_forgets_the_attempts_and_runs_again_at_once() {
    let world = World::with_thread();
    let one_each = "thread ack --event-id $((THREAD_LAST_ACKED_ID + 1)) >> out; exit 1";
    world.subscribe("bot", one_each, &["--backoff", "1d", "--max-attempts", "2"]);
    let batch = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n".repeat(6);
    world.thread(["push", "--batch"]).stdin(batch).ok();
    wait_until("all to be acknowledged", || world.consumer("bot")["last_acked_id"] == 6);
    world.wait_for_state("bot", "idle");
    world.wait_until_quiet();
    assert!(!world.log().iter().any(|line| line.contains("waiting until=")));
}

#[test]
fn neither_push_nor_dispatch_shortens_a_wait() {
    let world = World::with_thread();
    world.subscribe("bot", NOTE, &["--backoff", "1d"]);
    world.push("a");
    world.wait_for_state("bot", "waiting");
    let before = world.consumer("bot");
    assert_eq!(before["attempt"], 1);
    world.push("b");
    world.thread(["dispatch"]).quiet();
    let outcome = world.thread(["dispatch", "--json"]).quiet();
    assert_eq!(outcome, "{\"consumers\":[{\"consumer_id\":\"bot\",\"outcome\":\"waiting\"}]}\n");
    let after = world.consumer("bot");
    assert_eq!((&after["next_try"], &after["state"]), (&before["next_try"], &"waiting".into()));
    assert_eq!(times(&world).len(), 1);
}

#[test]
fn a_newer_matching_event_gives_a_stalled_consumer_one_more_run_after_the_longest_backoff() {
    let world = World::with_thread();
    let options =
        ["--backoff", "10ms,500ms,10ms", "--max-attempts", "2", "--filter", "content <> 'not for me'"];
    world.subscribe("bot", NOTE, &options);
    world.push("a");
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    world.push("not for me");
    assert_eq!((world.state("bot").as_str(), world.processes().len()), ("stalled", 0));
    world.push("b");
    wait_until("the third run", || times(&world).len() == 3);
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    let runs = times(&world);
    assert_eq!(runs.len(), 3, "one more run, and only one");
    assert!(runs[2] - runs[1] >= 499, "{runs:?}");
}

#[test]
fn dispatch_does_not_revive_a_stalled_consumer_but_a_newer_event_does() {
    let world = World::with_thread();
    world.subscribe("bot", NOTE, &["--backoff", "300ms", "--max-attempts", "1"]);
    world.push("a");
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    let outcome = world.thread(["dispatch", "--json"]).quiet();
    assert_eq!(outcome, "{\"consumers\":[{\"consumer_id\":\"bot\",\"outcome\":\"idle\"}]}\n");
    world.thread(["dispatch"]).quiet();
    world.wait_until_quiet();
    assert_eq!((world.state("bot").as_str(), times(&world).len()), ("stalled", 1));
    world.push("b");
    wait_until("the second run", || times(&world).len() == 2);
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    assert_eq!(times(&world).len(), 2);
}

#[test]
fn a_program_that_cannot_be_run_stalls_at_once_and_holds_up_no_other_consumer() {
    let world = World::with_thread();
    world.write("plain-file", "#!/bin/sh\n");
    world.subscribe("missing", "no-such-program --at all", &["--backoff", "1d"]);
    world.subscribe("forbidden", "./plain-file", &["--backoff", "1d", "--deliver", "stdin"]);
    world.subscribe("fine", "cat >> got", &["--deliver", "stdin"]);
    world.push("a");
    wait_until("the sound one", || world.lines("got").len() == 1);
    for (consumer, code) in [("missing", 127), ("forbidden", 126)] {
        world.wait_for_state(consumer, "stalled");
        let reason = format!("the handler cannot be run (exit {code})");
        let info = world.consumer(consumer);
        assert_eq!((&info["reason"], &info["attempt"]), (&reason.as_str().into(), &1.into()));
        assert_eq!(info["dead"], 0, "no event is at fault");
        let line = format!("[WARN] dispatch: consumer={consumer} stalled reason=\"{reason}\"");
        wait_until("the log to say so", || world.log().contains(&line));
    }
    world.wait_until_quiet();
}

#[test]
fn a_consumer_broken_by_other_programs_is_reported_and_holds_up_no_other() {
    let world = World::with_thread();
    for (consumer, handler) in [("filter", "true"), ("handler", "true"), ("fine", "cat >> got")] {
        world.subscribe(consumer, handler, &["--deliver", "stdin"]);
    }
    std::fs::create_dir(world.path("gone")).unwrap();
    world.subscribe("folder", "true", &["--deliver", "stdin", "--cwd", "gone"]);
    std::fs::remove_dir(world.path("gone")).unwrap();
    let db = world.db();
    db.execute("UPDATE subscriptions SET filter = 'no such (' WHERE consumer_id = 'filter'", []).unwrap();
    db.execute("UPDATE subscriptions SET handler_cmd = ' ' WHERE consumer_id = 'handler'", []).unwrap();
    world.push("a");
    wait_until("the sound one", || world.lines("got").len() == 1);
    for (consumer, what) in
        [("filter", "the filter of 'filter'"), ("handler", "is empty"), ("folder", "the working directory")]
    {
        let info = world.consumer(consumer);
        assert_eq!(info["state"], "stalled", "{info}");
        assert!(info["reason"].as_str().unwrap().contains(what), "{info}");
        let start = format!("[ERROR] dispatch: consumer={consumer} not started: ");
        assert!(world.log().iter().any(|line| line.starts_with(&start) && line.contains(what)));
    }
    world.wait_until_quiet();
    std::fs::create_dir(world.path("gone")).unwrap();
    world.thread(["dispatch"]).ends_with(0);
    wait_until("the repaired one", || world.consumer("folder")["last_acked_id"] == 1);
    let warning = world.thread(["resume", "--consumer", "filter"]).ends_with(0).1;
    assert!(warning.starts_with("Warning: 'filter' was not woken: the filter of 'filter'"), "{warning}");
}

#[test]
fn attempts_survive_killed_supervisors_and_the_remainder_is_waited_out() {
    let world = World::with_thread();
    let handler = "date +%s%3N >> runs; kill -9 $PPID";
    world.subscribe("bot", handler, &["--backoff", "300ms", "--max-attempts", "3"]);
    world.push("a");
    let mut due = vec![0];
    for attempt in 1..=3 {
        wait_until("a run", || times(&world).len() == attempt);
        world.wait_until_quiet();
        let info = world.consumer("bot");
        assert_eq!((&info["attempt"], &info["reason"]), (&attempt.into(), &"interrupted".into()));
        // No process saw the end, so the backoff counts from the recorded start.
        let began =
            "SELECT CAST(unixepoch(json_extract(run, '$.since'), 'subsec') * 1000 AS INTEGER) FROM consumers";
        due.push(world.query(began) + 300);
        world.thread(["dispatch"]).quiet();
    }
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    let runs = times(&world);
    assert_eq!(runs.len(), 3);
    assert!(runs.iter().zip(&due).all(|(run, due)| run >= due), "{runs:?} {due:?}");
}

#[test]
fn a_reboot_forgets_neither_attempts_nor_wait() {
    let world = World::with_thread();
    world.subscribe("bot", NOTE, &["--backoff", "1500ms,1d"]);
    world.push("a");
    world.wait_for_state("bot", "waiting");
    let before = world.consumer("bot");
    world.kill_supervisor("bot");
    world.thread(["dispatch"]).quiet();
    world.wait_for_state("bot", "waiting");
    assert_eq!(world.consumer("bot")["next_try"], before["next_try"]);
    wait_until("the second attempt", || world.consumer("bot")["attempt"] == 2);
    world.wait_for_state("bot", "waiting");
    let runs = times(&world);
    assert!(runs.len() == 2 && runs[1] - runs[0] >= 1499, "{runs:?}");
}

#[test]
fn a_reboot_in_the_middle_of_a_run_is_one_failed_attempt() {
    let world = World::with_thread();
    world.subscribe("bot", "date +%s%3N >> runs; sleep 1000", &["--backoff", "1d"]);
    world.push("a");
    wait_until("the run", || times(&world).len() == 1);
    world.kill_supervisor("bot");
    for pid in world.processes() {
        thread_testkit::kill_and_wait(pid);
    }
    // Both recorded pids now belong to an unrelated process: this test.
    let own = std::process::id();
    for process in ["supervisor", "handler"] {
        world.set_run_state("bot", &format!("$.{process}.boot"), "another boot");
        world.set_run_state("bot", &format!("$.{process}.pid"), own);
    }
    world.thread(["dispatch"]).quiet();
    world.wait_for_state("bot", "waiting");
    wait_until("somebody to attend to the wait", || world.timer().is_some_and(|pid| pid != own));
    assert_eq!(world.consumer("bot")["attempt"], 1);
    assert_eq!(times(&world).len(), 1);
    assert!(world.log().contains(&"[WARN] dispatch: consumer=bot abandoned by its supervisor".to_owned()));
}

#[test]
fn resume_ends_a_wait_a_stall_and_a_pause_and_starts_afresh() {
    let world = World::with_thread();
    world.subscribe("bot", NOTE, &["--backoff", "1d", "--max-attempts", "2"]);
    world.push("a");
    for runs in 2..=4 {
        // The attempts were reset; otherwise the second run would have been the last.
        world.wait_for_state("bot", "waiting");
        assert_eq!(world.consumer("bot")["attempt"], 1);
        assert_eq!(world.thread(["resume", "--consumer", "bot"]).quiet(), "bot\n");
        wait_until("the next run", || times(&world).len() == runs);
    }
    world.wait_for_state("bot", "waiting");
    world.thread(["pause", "--consumer", "bot"]).quiet();
    world.wait_until_quiet();
    assert_eq!(world.state("bot"), "paused");
    world.thread(["resume", "--consumer", "bot"]).quiet();
    wait_until("the run after the pause", || times(&world).len() == 5);
    world.thread(["unsubscribe", "--consumer", "bot"]).ok();
    world.wait_until_quiet();

    world.subscribe("other", NOTE, &["--max-attempts", "1", "--from", "0"]);
    wait_until("its run", || times(&world).len() == 6);
    world.wait_for_state("other", "stalled");
    world.thread(["resume", "--consumer", "other"]).quiet();
    wait_until("the run after the stall", || times(&world).len() == 7);
    world.thread(["resume", "--consumer", "nobody"]).fails(1);
}

#[test]
fn a_paused_consumer_is_not_started_and_its_run_continues() {
    let world = World::with_thread();
    let handler = "touch up; while [ ! -e go ]; do sleep 0.02; done; cat >> got";
    world.subscribe("bot", handler, &["--deliver", "stdin"]);
    world.push("a");
    world.wait_for_file("up");
    assert_eq!(world.thread(["pause", "--consumer", "bot"]).quiet(), "bot\n");
    assert_eq!(world.state("bot"), "running");
    world.push("b");
    world.write("go", "");
    world.wait_for_state("bot", "paused");
    world.wait_until_quiet();
    let info = world.consumer("bot");
    assert_eq!((&info["last_acked_id"], &info["pending"]), (&1.into(), &1.into()));
    world.push("c");
    world.thread(["dispatch"]).quiet();
    assert_eq!((world.processes().len(), world.lines("got").len()), (0, 1));
    assert_eq!(
        world.thread(["resume", "--consumer", "bot", "--json"]).quiet(),
        "{\"consumer_id\":\"bot\"}\n"
    );
    wait_until("the rest", || world.lines("got").len() == 3);
    world.thread(["pause", "--consumer", "nobody"]).fails(1);
}

#[test]
fn unsubscribing_ends_a_wait_at_once() {
    let world = World::with_thread();
    world.subscribe("bot", NOTE, &["--backoff", "1d"]);
    world.push("a");
    world.wait_for_state("bot", "waiting");
    world.thread(["unsubscribe", "--consumer", "bot"]).ok();
    world.wait_until_quiet();
    assert_eq!(times(&world).len(), 1);
}

#[test]
fn resume_starts_an_interrupted_run_afresh() {
    let world = World::with_thread();
    let handler = "echo run >> runs; [ -e go ] && exec cat >> got; kill -9 $PPID";
    world.subscribe("bot", handler, &["--deliver", "stdin", "--backoff", "1d"]);
    world.push("a");
    wait_until("the run", || world.lines("runs").len() == 1);
    world.wait_until_quiet();
    assert_eq!(world.state("bot"), "waiting");
    world.write("go", "");
    world.thread(["resume", "--consumer", "bot"]).quiet();
    wait_until("the event", || world.lines("got").len() == 1);
}
