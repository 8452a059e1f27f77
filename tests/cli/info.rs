use serde_json::{Value, json};
use thread_testkit::{World, wait_until};

/// The lines that other programs may parse; other lines may stand between them.
fn lines(world: &World) -> Vec<String> {
    let known = [
        "Thread: ",
        "Events: ",
        "Subscriptions: ",
        "  - ",
        "    handler: ",
        "    filter:  ",
        "    last_acked_id: ",
        "    updated_at: ",
    ];
    let text = world.thread(["info"]).quiet();
    text.lines().filter(|line| known.iter().any(|k| line.starts_with(k))).map(str::to_owned).collect()
}

#[test]
fn info_of_an_empty_thread() {
    let world = World::with_thread();
    let text = format!("Thread: {}\nEvents: 0\nSubscriptions: 0\n", world.inbox().display());
    assert!(world.thread(["info"]).quiet().starts_with(&text));
    let info: Value = serde_json::from_str(&world.thread(["info", "--json"]).quiet()).unwrap();
    assert_eq!((&info["event_count"], &info["subscriptions"]), (&json!(0), &json!([])));
}

#[test]
fn info_lists_each_consumer_with_its_cursor() {
    let world = World::with_thread();
    for _ in 0..3 {
        world.push("x");
    }
    world.idle_consumer("worker-2", "type = 'message'");
    world.idle_consumer("worker-1", "");
    world.thread(["ack", "--consumer", "worker-2", "--event-id", "2"]).quiet();
    let updated_at: String =
        world.db().query_row("SELECT updated_at FROM consumer_progress", [], |row| row.get(0)).unwrap();
    assert_eq!(
        lines(&world),
        [
            format!("Thread: {}", world.inbox().display()).as_str(),
            "Events: 3",
            "Subscriptions: 2",
            "  - worker-1",
            "    handler: true",
            "    filter:  (none)",
            "    last_acked_id: 0",
            "    updated_at: (never)",
            "  - worker-2",
            "    handler: true",
            "    filter:  type = 'message'",
            "    last_acked_id: 2",
            &format!("    updated_at: {updated_at}"),
        ]
    );
    let info: Value = serde_json::from_str(&world.thread(["info", "--json"]).quiet()).unwrap();
    assert_eq!(info["event_count"], 3);
    let fields = ["consumer_id", "handler_cmd", "filter", "last_acked_id", "updated_at"];
    let shown: Vec<Vec<&Value>> = info["subscriptions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| fields.iter().map(|&field| s.get(field).unwrap()).collect())
        .collect();
    assert_eq!(
        json!(shown),
        json!(
            [["worker-1", "true", null, 0, null], ["worker-2", "true", "type = 'message'", 2, updated_at],]
        )
    );
}

#[test]
fn info_counts_events_that_are_there_not_ids() {
    let world = World::with_thread();
    for _ in 0..3 {
        world.push("x");
    }
    world.db().execute("DELETE FROM events WHERE id = 2", []).unwrap();
    assert!(lines(&world).contains(&"Events: 2".to_owned()));
}

#[test]
fn nothing_in_a_subscription_can_forge_a_line_or_colour_the_screen() {
    let world = World::with_thread();
    let evil = "x\n  - forged\n    handler: rm\r\x1b[2J\u{202e}";
    world
        .db()
        .execute("INSERT INTO subscriptions (consumer_id, handler_cmd, filter) VALUES (?1, ?1, ?1)", [evil])
        .unwrap();
    let text = world.thread(["info"]).quiet();
    assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
    let starting = |with: &str| lines(&world).iter().filter(|line| line.starts_with(with)).count();
    assert_eq!((starting("  - "), starting("    handler: "), starting("    filter:  ")), (1, 1, 1));
    // The JSON form has the unescaped text.
    assert_eq!(world.consumer(evil)["handler_cmd"], evil);
    assert_eq!(world.consumer(evil)["filter"], evil);
}

#[test]
fn a_path_cannot_forge_a_line_either() {
    let world = World::new();
    let name = "in\nEvents: 99\x1b[31m";
    world.thread(["init", name]).quiet();
    let text = world.thread(["info", "--thread", name]).quiet();
    assert_eq!(text.lines().filter(|line| line.starts_with("Events: ")).collect::<Vec<_>>(), ["Events: 0"]);
    assert!(!text.contains('\x1b'), "{text:?}");
}

#[test]
fn the_oldest_pending_event_and_the_last_run_are_shown_in_both_forms() {
    let world = World::with_thread();
    world.push("one");
    world.push("two");
    let stored_at: String =
        world.db().query_row("SELECT created_at FROM events WHERE id = 2", [], |row| row.get(0)).unwrap();
    world.idle_consumer("bot", "content = 'two'");
    let before = world.consumer("bot");
    assert_eq!((&before["oldest_pending_id"], &before["oldest_pending_at"]), (&json!(2), &json!(stored_at)));
    let last = ["last_run_started_at", "last_run_ended_at", "last_exit", "last_exit_code"];
    assert!(last.iter().all(|key| before[key] == Value::Null), "{before}");
    assert!(world.thread(["info"]).quiet().ends_with(&format!("    oldest_pending: {stored_at}\n")));

    world.subscribe("failing", "sleep 0.1; kill -9 $$", &["--backoff", "1h"]);
    world.wait_for_state("failing", "waiting");
    let after = world.consumer("failing");
    assert_eq!((&after["last_exit"], &after["last_exit_code"]), (&json!("exit=137 signal=9"), &json!(137)));
    let time = |key: &str| after[key].as_str().unwrap().to_owned();
    assert!(time("last_run_started_at") < time("last_run_ended_at"), "{after}");
    let line = format!("    last_run: {} exit=137 signal=9\n", time("last_run_ended_at"));
    assert!(world.thread(["info"]).quiet().contains(&line));

    // Stopping the backoff is not recorded as a run.
    world.thread(["stop", "--consumer", "failing"]).quiet();
    let stopped = world.consumer("failing");
    assert_eq!(stopped["reason"], "stopped");
    assert_eq!(last.map(|key| &stopped[key]), last.map(|key| &after[key]));
}

#[test]
fn the_threads_own_figures_are_in_the_json() {
    let world = World::with_thread();
    for content in ["one", "two"] {
        world.push(content);
    }
    world.db().execute("DELETE FROM events", []).unwrap();
    let info: Value = serde_json::from_str(&world.thread(["info", "--json"]).quiet()).unwrap();
    assert_eq!((&info["event_count"], &info["last_event_id"]), (&json!(0), &json!(2)));
    assert_eq!(info["thread"], world.inbox().to_str().unwrap());
    let size = |name: &str| std::fs::metadata(world.inbox().join(name)).unwrap().len();
    assert_eq!(info["log_bytes"], size("events.jsonl"));
    assert_eq!(info["database_bytes"], size("events.db"));
    assert_eq!(world.thread(["info", "--format", "json"]).quiet().lines().count(), 1);
}

#[test]
fn pending_is_exact_with_and_without_gaps() {
    let world = World::with_thread();
    world.idle_consumer("all", "");
    for _ in 0..6 {
        world.off(["push", "--source", "self", "--type", "record", "--content", "x"]).quiet();
    }
    let pending = || {
        let all = world.consumer("all");
        (all["pending"].as_u64().unwrap(), all["oldest_pending_id"].as_i64())
    };
    assert_eq!(pending(), (6, Some(1)));
    world.thread(["ack", "--consumer", "all", "--event-id", "2"]).quiet();
    assert_eq!(pending(), (4, Some(3)));
    // Deletes from the beginning, as prune does, but past the cursor.
    world.db().execute("DELETE FROM events WHERE id <= 3", []).unwrap();
    assert_eq!(pending(), (3, Some(4)));
    world.db().execute("DELETE FROM events WHERE id = 5", []).unwrap();
    assert_eq!(pending(), (2, Some(4)));
    world.db().execute("DELETE FROM events", []).unwrap();
    assert_eq!(pending(), (0, None));
}

#[test]
fn a_large_thread_with_many_consumers_is_counted_as_exactly() {
    let world = World::with_thread();
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40) \
               INSERT INTO subscriptions (consumer_id, handler_cmd, filter) \
               SELECT 'c' || i, 'true', iif(i % 2, NULL, 'type = ''message''') FROM n";
    world.db().execute(sql, []).unwrap();
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120000) \
               INSERT INTO events (source, type, content) \
               SELECT 'self', iif(i % 10, 'record', 'message'), '' FROM n";
    world.db().execute(sql, []).unwrap();
    let told = || {
        let json = world.thread(["info", "--exact", "--json"]).quiet();
        let info: Value = serde_json::from_str(&json).unwrap();
        let pending = |s: &Value| (s["filter"].is_null(), s["pending"].as_u64().unwrap());
        let mut pending: Vec<_> = info["subscriptions"].as_array().unwrap().iter().map(pending).collect();
        assert_eq!(pending.len(), 40);
        pending.sort();
        pending.dedup();
        (info["event_count"].as_u64().unwrap(), pending)
    };
    assert_eq!(told(), (120_000, vec![(false, 12_000), (true, 120_000)]));
    world.db().execute("DELETE FROM events WHERE id BETWEEN 91 AND 100", []).unwrap();
    assert_eq!(told(), (119_990, vec![(false, 11_999), (true, 119_990)]));
}

#[test]
fn an_event_on_which_a_filter_fails_is_logged_once_by_whichever_command() {
    for first in ["info", "prune", "subscribe"] {
        let world = World::with_thread();
        let push = ["push", "--source", "self", "--type", "record", "--content", "no json"];
        let subscribe =
            || world.idle_consumer("bot", "CASE content WHEN 'no json' THEN json_extract('{}', content) END");
        if first == "subscribe" {
            world.off(push).quiet();
            subscribe();
        } else {
            subscribe();
            world.off(push).quiet();
            let options: &[&str] = if first == "prune" { &["prune", "--before-id", "1"] } else { &[first] };
            world.off(options).ok();
        }
        let logged = world.log().iter().filter(|line| line.contains("filter: consumer=bot id=1")).count();
        assert_eq!(logged, 1, "{first}: {:?}", world.log());
        assert_eq!(world.consumer("bot")["filter_errors"], 1);
        world.off(["dispatch"]).quiet();
        let logged = world.log().iter().filter(|line| line.contains("filter: consumer=bot id=1")).count();
        assert_eq!(logged, 1, "{first}: {:?}", world.log());
    }
}

#[test]
fn a_backoff_whose_supervisor_was_killed_is_reported() {
    let world = World::with_thread();
    world.subscribe("bot", "exit 1", &["--backoff", "1h"]);
    world.push("x");
    world.wait_for_state("bot", "waiting");
    let before = world.consumer("bot");
    assert_eq!((before.get("reason"), &before["unattended"]), (None, &false.into()), "{before}");
    world.kill_supervisor("bot");
    let after = world.consumer("bot");
    assert_eq!((&after["state"], &after["reason"]), (&"waiting".into(), &"interrupted".into()), "{after}");
    assert_eq!((&after["next_try"], &after["unattended"]), (&before["next_try"], &true.into()));
    // No "next try" in the past is shown where no supervisor runs.
    world.set_run_state("bot", "$.next_try", "2026-01-01T00:00:00Z");
    assert_eq!(world.consumer("bot").get("next_try"), None);
    let text = world.thread(["info"]).quiet();
    assert!(
        text.contains("    note: nothing is waiting to retry it: run `thread dispatch`, or keep a worker\n"),
        "{text}"
    );
    world.thread(["dispatch"]).quiet();
    wait_until("a supervisor to wait again", || world.consumer("bot").get("reason").is_none());
}

#[test]
fn one_form_is_asked_for_at_a_time() {
    let world = World::with_thread();
    for args in [&["info", "--json", "--format", "text"][..], &["info", "--format", "yaml"]] {
        let (stdout, stderr) = world.thread(args).ends_with(2);
        assert_eq!((stdout.as_str(), stderr.lines().count()), ("", 1), "{args:?}");
    }
    // Errors follow the requested format.
    for args in [&["info", "--format", "json"][..], &["info", "--format=json"]] {
        let (_, stderr) = world.thread(args).arg("--thread").arg("nowhere").ends_with(1);
        assert!(stderr.starts_with("{\"error\":\""), "{stderr}");
    }
}

/// A thread with many events, one of which matches the filter of `few`, and a filter that takes long.
fn world_with_a_backlog() -> World {
    let world = World::with_thread();
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000) \
               INSERT INTO events (source, type, content) SELECT 'self', 'message', printf('%.20000c', 'x') FROM n";
    world.db().execute(sql, []).unwrap();
    world.idle_consumer("slow", "content LIKE '%x%x%x%x%x%xy%' OR id % 2");
    world
}

#[test]
fn a_backlog_that_takes_long_to_count_is_counted_in_part() {
    let world = world_with_a_backlog();
    let began = std::time::Instant::now();
    let text = world.thread(["info"]).quiet();
    let took = began.elapsed();
    let pending = text.lines().find_map(|line| line.strip_prefix("    pending: ")).unwrap();
    let counted: u64 =
        pending.strip_prefix("at least ").unwrap_or_else(|| panic!("{pending}")).parse().unwrap();
    assert!((1..20_000).contains(&counted), "{counted}");
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    let bot = world.consumer("slow");
    assert_eq!(bot["pending"], Value::Null);
    assert!(bot["pending_at_least"].as_u64().unwrap() >= 1, "{bot}");
    // A check counts no further than its limit, without a limit on time.
    let (said, _) = world.thread(["info", "--check", "--max-pending", "5"]).ends_with(1);
    assert!(said.contains("pending, more than 5"), "{said}");
}

#[test]
fn json_on_a_terminal_cannot_control_it() {
    let world = World::with_thread();
    let evil = "a\u{7f}\u{9b}2Jb";
    world.off(["push", evil]).quiet();
    world.off(["subscribe", "bot", &format!("printf '{evil}'; exit 65"), "--deliver", "stdin"]).quiet();
    world.thread(["dispatch"]).quiet();
    wait_until("the dead letter", || world.consumer("bot")["dead"] == 1);
    world.wait_until_quiet();
    for command in
        ["peek", "pop bot --last-event-id 0", "info --json", "dead list --json", "dead show bot --all"]
    {
        // A file gets the text as it is.
        assert!(world.sh(&format!("thread {command}")).ok().contains(evil), "{command}");
        let Some(run) = world.terminal(200, &format!("thread {command}")) else { return };
        let shown = run.ok();
        assert!(shown.contains("a\\u007f\\u009b2Jb"), "{command}: {shown:?}");
        assert!(!shown.chars().any(|c| matches!(c, '\u{7f}'..='\u{9f}')), "{command}: {shown:?}");
    }
}
