use serde_json::Value;
use thread_testkit::{World, ids, take_all_script, wait_until};

fn subscribe<'a>(world: &World, name: &'a str, handler: &'a str) -> thread_testkit::Run {
    world.off(["subscribe", "--consumer", name, "--handler", handler])
}

fn subscriptions(world: &World) -> i64 {
    world.query("SELECT count(*) FROM subscriptions")
}

#[test]
fn subscribe_registers_and_prints_the_name() {
    let world = World::with_thread();
    assert_eq!(subscribe(&world, "bot", "./agent.sh").quiet(), "bot\n");
    let consumer = world.consumer("bot");
    assert_eq!(consumer["handler_cmd"], "./agent.sh");
    assert_eq!(consumer["filter"], Value::Null);
    assert_eq!(consumer["last_acked_id"], 0);
}

#[test]
fn json_is_the_subscription() {
    let world = World::with_thread();
    let args = ["subscribe", "--consumer", "bot", "--handler", "a \"b\"", "--filter", "id > 0", "--json"];
    let answer: Value = serde_json::from_str(&world.thread(args).quiet()).unwrap();
    assert_eq!(answer["consumer_id"], "bot");
    assert_eq!(answer["handler_cmd"], "a \"b\"");
    assert_eq!(answer["filter"], "id > 0");
    let answer: Value =
        serde_json::from_str(&subscribe(&world, "two", "true").arg("--json").quiet()).unwrap();
    assert_eq!(answer["filter"], Value::Null);
}

#[test]
fn consumer_ids_are_plain_and_short() {
    let world = World::with_thread();
    let longest = "x".repeat(128);
    for fine in ["a", "9", "Agent-7", "a.b_c-d:e@f", "worker..", &longest] {
        assert_eq!(subscribe(&world, fine, "true").quiet(), format!("{fine}\n"));
    }
    assert_eq!(subscriptions(&world), 6);
    let too_long = "x".repeat(129);
    for bad in [
        "",
        ".",
        "..",
        ".a",
        "_a",
        "-a",
        "--",
        ":a",
        "@a",
        "a b",
        " a",
        "a/b",
        "../a",
        "a\\b",
        "a\nb",
        "a%b",
        "ü",
        "é",
        "a\u{202e}b",
        &too_long,
    ] {
        let run = world.thread(["subscribe", "--handler", "true"]).arg(format!("--consumer={bad}"));
        let error = run.fails(2);
        assert!(!error.chars().any(|c| c.is_control() || c == '\u{202e}'), "{error:?}");
    }
    assert_eq!(subscriptions(&world), 6);
}

#[test]
fn a_consumer_that_exists_is_refused_and_left_as_it_is() {
    let world = World::with_thread();
    subscribe(&world, "bot", "first").quiet();
    let error = subscribe(&world, "bot", "second").fails(1);
    assert!(error.contains("subscribed already"), "{error}");
    assert!(
        error.ends_with(" - `thread unsubscribe` it first, or change it with --replace; its cursor stays"),
        "{error}"
    );
    assert_eq!(world.consumer("bot")["handler_cmd"], "first");
}

#[test]
fn of_eight_subscribes_at_once_exactly_one_wins() {
    let world = World::with_thread();
    let started: Vec<_> = (0..8).map(|n| subscribe(&world, "bot", &format!("handler {n}")).spawn()).collect();
    let codes = started.into_iter().map(|child| child.wait_with_output().unwrap().status.code().unwrap());
    let mut codes: Vec<_> = codes.collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(subscriptions(&world), 1);
}

#[test]
fn subscribing_again_continues_from_the_old_cursor() {
    let world = World::with_thread();
    for n in 1..=3 {
        world.push(&format!("event {n}"));
    }
    subscribe(&world, "bot", "true").quiet();
    world.thread(["ack", "--consumer", "bot", "--event-id", "2"]).quiet();
    world.thread(["unsubscribe", "--consumer", "bot"]).quiet();
    subscribe(&world, "bot", "true").quiet();
    assert_eq!(world.consumer("bot")["last_acked_id"], 2);
    assert_eq!(ids(&world.thread(["pop", "--consumer", "bot", "--resume"]).quiet()), [3]);
}

#[test]
fn an_invalid_filter_is_exit_2_and_registers_no_consumer() {
    let world = World::with_thread();
    let long = format!("source = '{}'", "x".repeat(70_000));
    for bad in [
        "type =",
        "type = \"message\"",
        "nosuch = 1",
        "1) OR (1",
        "1) --",
        "1 /*",
        "--",
        "1; DROP TABLE events",
        "1 ORDER BY id",
        "1 LIMIT 1",
        "1 UNION SELECT 1",
        "(SELECT 1)",
        "EXISTS (SELECT 1 FROM subscriptions)",
        "id IN (WITH r AS (SELECT 1) SELECT * FROM r)",
        "id IN subscriptions",
        "id = ?",
        "id = :id",
        "count(*) > 0",
        "1, 2",
        "random() > 0",
        "created_at > datetime('now')",
        "CURRENT_TIMESTAMP > created_at",
        "randomblob(9) > 0",
        "load_extension('x')",
        "last_insert_rowid() = 0",
        &long,
    ] {
        let error = subscribe(&world, "bot", "true").arg("--filter").arg(bad).fails(2);
        assert!(error.contains("the filter "), "{bad}: {error}");
    }
    assert_eq!(subscriptions(&world), 0);
    let tables = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    assert_eq!(world.query(tables), 6);
}

#[test]
fn filters_are_kept_as_they_were_given() {
    let world = World::with_thread();
    for (name, filter) in [("a", "type = 'message' -- why"), ("b", "-id < 0"), ("c", "  1\n AND 1 ")] {
        subscribe(&world, name, "true").arg("--filter").arg(filter).quiet();
        assert_eq!(world.consumer(name)["filter"], filter);
    }
    for (name, blank) in [("d", ""), ("e", " \t ")] {
        subscribe(&world, name, "true").arg("--filter").arg(blank).quiet();
        assert_eq!(world.consumer(name)["filter"], Value::Null);
    }
}

#[test]
fn a_handler_may_begin_with_a_hyphen_but_not_be_empty() {
    let world = World::with_thread();
    subscribe(&world, "bot", "-x --json").quiet();
    assert_eq!(world.consumer("bot")["handler_cmd"], "-x --json");
    for empty in ["", " ", "\n\t"] {
        let error = subscribe(&world, "other", empty).fails(2);
        assert!(error.contains("handler"), "{error}");
    }
    world.thread(["subscribe", "--consumer", "other"]).fails(2);
    world.thread(["subscribe", "--handler", "true"]).fails(2);
    assert_eq!(subscriptions(&world), 1);
}

#[test]
fn a_backlog_wakes_a_new_consumer_at_once() {
    let world = World::with_thread();
    world.push("waiting");
    let handler = "thread pop --resume >got && thread ack --event-id 1";
    world.thread(["subscribe", "--consumer", "bot", "--handler", handler]).quiet();
    wait_until("the handler to acknowledge", || world.consumer("bot")["last_acked_id"] == 1);
    assert_eq!(ids(&world.read("got")), [1]);
    world.wait_until_quiet();
}

#[test]
fn without_a_matching_backlog_no_handler_is_started_and_no_notifier_called() {
    let world = World::with_thread();
    world.push("not for you");
    let notifier = world.script("asked", "touch was-asked");
    let args = ["subscribe", "--consumer", "bot", "--handler", "true", "--filter", "type = 'record'"];
    world.thread(args).env("THREAD_NOTIFIER", notifier).quiet();
    assert!(!world.path("was-asked").exists());
    assert!(!world.path("inbox/run/bot.lock").exists());
}

#[test]
fn a_consumer_without_a_handler_reads_for_itself() {
    let world = World::with_thread();
    world.push("before");
    let subscribed = world.thread(["subscribe", "reader", "--no-handler", "--json"]).quiet();
    assert!(subscribed.contains("\"handler_cmd\":\":\""), "{subscribed}");
    let pushed: Value = serde_json::from_str(&world.thread(["push", "x", "--json"]).quiet()).unwrap();
    assert_eq!(pushed["dispatch"], "embedded");
    let dispatched = world.thread(["dispatch", "--json"]).quiet();
    assert!(dispatched.contains("\"outcome\":\"idle\""), "{dispatched}");
    world.wait_until_quiet();
    let info = world.thread(["info"]).quiet();
    assert!(info.contains("    handler: (none)\n") && info.contains("    pending: 2\n"), "{info}");
    assert_eq!(world.consumer("reader")["state"], "idle");
    assert!(!world.inbox().join("logs/handlers").exists());
    assert_eq!(world.thread(["doctor"]).quiet(), "healthy\n");
    assert_eq!(ids(&world.thread(["pop", "reader", "--last-event-id", "1"]).quiet()), [2]);
    world.thread(["subscribe", "other", "--no-handler", "--deliver", "stdin"]).fails(2);
    world.thread(["subscribe", "other", "true", "--no-handler"]).fails(2);
}

#[test]
fn a_subscription_is_replaced_where_it_stands() {
    let world = World::with_thread();
    for content in ["one", "two"] {
        world.push(content);
    }
    world.subscribe("bot", "exit 3", &["--deliver", "stdin", "--max-attempts", "1", "--stall-after", "1"]);
    world.wait_for_state("bot", "stalled");
    world.wait_until_quiet();
    assert_eq!(world.consumer("bot")["last_acked_id"], 1);
    let error = world.thread(["subscribe", "bot", "cat"]).fails(1);
    assert!(error.contains("or change it with --replace"), "{error}");
    let (_, told) = world.thread(["subscribe", "bot", "cat >>taken", "--replace"]).ends_with(0);
    assert_eq!(told, "Note: handler was exit 3 and is cat >>taken\n");
    world.wait_until_quiet();
    let bot = world.consumer("bot");
    assert_eq!((&bot["handler_cmd"], &bot["last_acked_id"]), (&"cat >>taken".into(), &2.into()));
    assert_eq!((&bot["dead"], &bot["state"]), (&1.into(), &"idle".into()));
    assert_eq!(ids(&world.read("taken")), [2]);
    // Also when the consumer becomes a reader without a handler while it is paused.
    world.thread(["pause", "bot"]).quiet();
    world.thread(["subscribe", "bot", "--no-handler", "--deliver", "wake", "--replace"]).ok();
    assert_eq!(world.consumer("bot")["state"], "paused");
    assert_eq!(subscriptions(&world), 1);
}

#[test]
fn replacing_ends_a_wait_of_the_former_subscription() {
    let world = World::with_thread();
    world.subscribe("bot", "exit 3", &["--backoff", "1h"]);
    world.push("x");
    world.wait_for_state("bot", "waiting");
    take_all_script(&world);
    world.thread(["subscribe", "bot", "take", "--replace"]).ok();
    wait_until("the new handler", || world.lines("seen.bot") == ["1"]);
    world.wait_until_quiet();
}

#[test]
fn a_run_under_way_survives_a_replacement_by_the_same() {
    let world = World::with_thread();
    let handler = "touch began; until [ -e go ]; do sleep 0.01; done; cat >>taken";
    let subscribe = || world.thread(["subscribe", "bot", handler, "--deliver", "stdin", "--replace"]);
    subscribe().quiet();
    world.push("x");
    world.wait_for_file("began");
    subscribe().quiet();
    world.write("go", "");
    world.wait_until_quiet();
    assert_eq!(ids(&world.read("taken")), [1]);
    assert_eq!(world.consumer("bot")["last_acked_id"], 1);
}

#[test]
fn replacing_keeps_what_is_not_named_and_says_what_changed() {
    let world = World::with_thread();
    let given = [
        ["--filter", "type = 'message'"],
        ["--deliver", "stdin"],
        ["--batch-size", "7"],
        ["--max-attempts", "3"],
        ["--stall-after", "2"],
        ["--backoff", "1s,2s"],
        ["--timeout", "1m"],
        ["--env", "KEY=value"],
    ];
    world.off(["subscribe", "bot", "cat", "--clear-env"].into_iter().chain(given.concat())).quiet();
    let replace = |words: &[&str]| {
        let (stdout, stderr) = world.off(["subscribe", "bot", "--replace"].iter().chain(words)).ends_with(0);
        assert_eq!(stdout, "bot\n");
        stderr
    };
    let shown = || world.off(["info", "bot"]).quiet();
    let before = shown();
    assert_eq!(replace(&[]), "");
    assert_eq!(shown(), before);
    assert_eq!(replace(&["cat -n"]), "Note: handler was cat and is cat -n\n");
    assert_eq!(
        replace(&["--filter", "", "--timeout", "none", "--stall-after", "never", "--clear-env=false"]),
        "Note: filter was type = 'message' and is (none); stall_after was 2 and is never; timeout was 1m and is (none); \
         clear_env was true and is false\n"
    );
    let consumer = world.consumer("bot");
    assert_eq!((&consumer["deliver"], &consumer["batch_size"]), (&"stdin".into(), &7.into()));
    assert_eq!((&consumer["max_attempts"], &consumer["backoff"]), (&3.into(), &"1s,2s".into()));
    assert_eq!((&consumer["stall_after"], &consumer["env"]["KEY"]), (&Value::Null, &"value".into()));
    // The working directory is kept too, although this command runs elsewhere.
    world.off(["subscribe", "bot", "--replace"]).dir("/").quiet();
    assert_eq!(world.consumer("bot")["cwd"], consumer["cwd"]);
    // With --defaults, nothing is kept but what has no default: the cursor, and a handler has to be given.
    world.off(["subscribe", "bot", "--replace", "--defaults"]).fails(2);
    world.off(["subscribe", "bot", "true", "--defaults"]).fails(2);
    world
        .off(["subscribe", "bot", "true", "--replace", "--defaults", "--max-attempts", "2"])
        .dir("/")
        .ends_with(0);
    world.off(["subscribe", "plain", "true", "--max-attempts", "2"]).dir("/").ends_with(0);
    let mut plain = world.consumer("plain");
    plain["consumer_id"] = "bot".into();
    assert_eq!(world.consumer("bot"), plain);
    world.off(["unsubscribe", "plain"]).quiet();
    // No handler counts as named here; otherwise `--deliver stdin` would be refused.
    world.off(["subscribe", "reader", "--no-handler"]).quiet();
    world.off(["subscribe", "reader", "--replace", "--deliver", "stdin"]).fails(2);
    world.off(["subscribe", "reader", "--replace", "--max-attempts", "2"]).ends_with(0);
    assert_eq!(world.thread(["info"]).quiet().matches("    handler: (none)\n").count(), 1);
    // A consumer that does not exist gets the defaults, and needs a handler.
    world.off(["subscribe", "other", "--replace"]).fails(2);
    world.off(["subscribe", "other", "true", "--replace"]).quiet();
    assert_eq!(world.consumer("other")["stall_after"], 10);
}

#[test]
fn the_settings_of_one_consumer_are_shown_in_full() {
    let world = World::with_thread();
    world.off(["subscribe", "bot", "thread pop", "--cwd", "/tmp", "--env", "A=1", "--env", "B=2"]).quiet();
    world.off(["subscribe", "other", "thread pop"]).quiet();
    let text = world.thread(["info", "bot"]).quiet();
    let settings = "    deliver: wake\n    batch_size: 100\n    max_attempts: 5\n    stall_after: 10\n    \
                    probe: 10m\n    backoff: 1s,5s,30s,2m,10m\n    timeout: (none)\n    idle: (none)\n    \
                    concurrency: (none)\n    key: (none)\n    ahead: (none)\n    cwd: /tmp\n    env: A=1 B=2\n    \
                    clear_env: false\n";
    assert!(text.ends_with(settings), "{text}");
    assert!(!text.contains("other"), "{text}");
    let json: Value = serde_json::from_str(&world.thread(["info", "bot", "--json"]).quiet()).unwrap();
    assert_eq!(json["subscriptions"].as_array().unwrap().len(), 1);
    assert_eq!(json["subscriptions"][0]["env"], serde_json::json!({"A": "1", "B": "2"}));
    world.thread(["info", "nobody"]).fails(1);
}

#[test]
fn a_handler_that_seems_to_expect_events_on_stdin_is_noted() {
    let world = World::with_thread();
    let notes = |words: &[&str]| {
        let run = world.off(["subscribe", "bot", "--replace"].iter().chain(words));
        run.ends_with(0).1.contains(thread_testkit::POPS)
    };
    assert!(notes(&["cat >>seen.txt"]));
    assert!(!notes(&["--max-attempts", "3"]));
    assert!(!notes(&["thread pop --resume"]));
    assert!(!notes(&["cat >>seen.txt", "--deliver", "stdin"]));
    assert!(!notes(&["cat", "--deliver", "wake"]));
    assert!(!notes(&["--no-handler"]));
}

#[test]
fn malformed_limits_on_dead_letters_are_refused() {
    let world = World::with_thread();
    for bad in ["0", "-1", "1.5", "x", "", "Never", "4294967296"] {
        let error = world.off(["subscribe", "bot", "cat"]).arg(format!("--stall-after={bad}")).fails(2);
        assert!(error.contains("--stall-after") && error.contains("or never"), "{error}");
    }
}

#[test]
fn words_after_two_hyphens_are_the_handler_and_reach_it_as_they_are() {
    let world = World::with_thread();
    world.script("show", "printf '<%s>' \"$@\" >>got; cat >/dev/null");
    let words = ["subscribe", "bot", "--deliver", "stdin", "--", "./show", "it's", "a $b", "", "--flag", "*"];
    assert_eq!(world.thread(words).quiet(), "bot\n");
    world.push("x");
    world.wait_until("the handler", || world.read("got") == "<it's><a $b><><--flag><*>");
    // A single word is one word, too.
    world.thread(["unsubscribe", "bot"]).quiet();
    world.thread(["subscribe", "bot", "--deliver", "stdin", "--json", "--", "./show me"]).quiet();
    assert_eq!(world.consumer("bot")["handler_cmd"], "'./show me'");
    // $THREAD_CONSUMER names the consumer.
    world.off(["subscribe", "--replace", "--", "true", "x"]).env("THREAD_CONSUMER", "bot").ok();
    assert_eq!(world.consumer("bot")["handler_cmd"], "true x");
    for wrong in [
        &["c", "true", "--", "x"][..],
        &["c", "--handler", "true", "--", "x"],
        &["c", "--no-handler", "--", "x"],
    ] {
        assert_eq!(world.thread(["subscribe"]).args(wrong).output().status.code(), Some(2), "{wrong:?}");
    }
    assert!(world.thread(["subscribe", "c", "--", ""]).fails(2).contains("the handler is empty"));
    assert!(world.thread(["subscribe", "c", "--"]).fails(2).contains("no handler given"));
}
