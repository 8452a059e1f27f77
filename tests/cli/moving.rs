//! `export`, `import` and `clone`: a thread is the same in another place, or refused.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::Value;
use thread::model::rows::Tallies;
use thread::model::rows::line::{self, Line};
use thread_testkit::everything::{fill, tables};
use thread_testkit::{Run, Signal, World, ids, long, quoted, send};

/// A command on the thread in this directory.
fn on(world: &World, dir: &str, args: &[&str]) -> Run {
    world.off(args).env("THREAD_DIR", world.path(dir))
}

/// A thread with a row of every kind.
fn with_everything() -> World {
    let world = World::with_thread();
    fill(&|args| match args {
        ["dispatch"] => world.thread(args),
        args => world.off(args),
    });
    world
}

/// What `export` prints, without its header; consumers count as paused.
fn export(world: &World, dir: &str) -> Vec<String> {
    let printed = on(world, dir, &["export"]).quiet();
    printed
        .lines()
        .skip(1)
        .map(|line| line.replace("\"paused\":false,\"reason\"", "\"paused\":true,\"reason\""))
        .collect()
}

fn new(world: &World, dir: &str) {
    world.thread(["init"]).arg(world.path(dir)).quiet();
}

/// Imports a file that has this text.
fn import(world: &World, dir: &str, text: impl AsRef<[u8]>) -> Run {
    world.write("export.ndjson", text);
    on(world, dir, &["import"]).arg(world.path("export.ndjson"))
}

#[test]
fn what_is_exported_is_the_same_where_it_is_imported() {
    let world = with_everything();
    let exported = on(&world, "inbox", &["export"]).quiet();
    for kind in [
        "header",
        "event",
        "thread",
        "setting",
        "consumer",
        "cursor",
        "finished",
        "wait",
        "dead_letter",
        "step",
        "run",
        "scheduled",
        "schedule",
        "end",
    ] {
        let start = format!("{{\"kind\":\"{kind}\"");
        assert!(exported.lines().any(|line| line.starts_with(&start)), "no {kind} in\n{exported}");
    }
    new(&world, "copy");
    let (printed, notes) = import(&world, "copy", &exported).ends_with(0);
    assert!(printed.starts_with("event\t29\t"), "{printed}");
    assert_eq!(
        notes,
        "Note: these consumers are paused and were not before: in-order, pull, ran, steps, taken; `thread resume` releases one\n"
    );
    assert_eq!(tables(&world.path("copy")), tables(&world.inbox()));
    assert_eq!(export(&world, "copy"), export(&world, "inbox"));
    let log = |dir: &str| world.read(format!("{dir}/events.jsonl"));
    assert_eq!(log("copy").lines().collect::<Vec<_>>(), world.table_as_jsonl());
    let claims: Value = serde_json::from_str(&on(&world, "copy", &["info", "--json"]).quiet()).unwrap();
    for one in claims["subscriptions"].as_array().unwrap() {
        assert_eq!(one["state"], "paused", "{one}");
        assert!(one["in_hand"]["in_flight"].as_i64().unwrap_or(0) == 0, "{one}");
    }
    // It is a thread like any other: keys, ids and numbers go on.
    assert_eq!(
        on(&world, "copy", &["push", "--idempotency-key", "later", "x"]).fails(1).matches("s1").count(),
        1
    );
    assert_eq!(on(&world, "copy", &["push", "--in", "1h", "x"]).quiet(), "s4\n");
    assert_eq!(on(&world, "copy", &["push", "x"]).quiet(), "31\n");
    on(&world, "copy", &["schedule", "remove", "daily"]).quiet();
    on(&world, "copy", &["scheduled", "cancel", "s1"]).quiet();
    on(&world, "copy", &["scheduled", "cancel", "s2"]).quiet();
    on(&world, "copy", &["scheduled", "cancel", "s4"]).quiet();
    for name in ["in-order", "ran"] {
        on(&world, "copy", &["unsubscribe", name]).quiet();
    }
    let healthy = world.thread(["doctor"]).arg("--thread").arg(world.path("copy")).output();
    assert!(healthy.status.success(), "{}", String::from_utf8_lossy(&healthy.stdout));
}

#[test]
fn an_export_goes_through_a_pipe() {
    let world = with_everything();
    new(&world, "copy");
    let copy = quoted(world.path("copy"));
    world.sh(&format!("thread export | thread import -t {copy}")).ok();
    assert_eq!(tables(&world.path("copy")), tables(&world.inbox()));
    world
        .sh(&format!("thread export -t {copy} >f && thread init other >&2 && thread import -t other <f"))
        .ends_with(0);
    assert_eq!(tables(&world.path("other")), tables(&world.inbox()));
    // A reader that goes is no error.
    assert_eq!(world.sh("thread export | head -n 1 | cut -c 1-16").quiet(), "{\"kind\":\"header\"\n");
}

#[test]
fn a_thread_is_imported_only_into_an_empty_one() {
    let world = with_everything();
    let exported = on(&world, "inbox", &["export"]).quiet();
    for (dir, change) in [
        ("a", &["push", "x"][..]),
        ("b", &["config", "retention.age", "1d"]),
        ("c", &["subscribe", "bot", "--no-handler"]),
        ("d", &["push", "--in", "1h", "x"]),
    ] {
        new(&world, dir);
        on(&world, dir, change).quiet();
        let before = tables(&world.path(dir));
        let error = import(&world, dir, &exported).fails(1);
        assert!(error.contains("is not empty; nothing was changed"), "{error}");
        assert_eq!(tables(&world.path(dir)), before);
        on(&world, dir, &["push", "y"]).quiet();
    }
}

#[test]
fn a_file_that_is_torn_or_changed_is_refused_by_its_line_and_nothing_is_stored() {
    let world = with_everything();
    let exported = on(&world, "inbox", &["export"]).quiet();
    let lines: Vec<&str> = exported.lines().collect();
    let at =
        |kind: &str| lines.iter().position(|line| line.contains(&format!("{{\"kind\":\"{kind}\""))).unwrap();
    let without = |line: usize| [&lines[..line], &lines[line + 1..]].concat().join("\n") + "\n";
    let with =
        |line: usize, text: &str| [&lines[..line], &[text], &lines[line + 1..]].concat().join("\n") + "\n";
    let changed = |kind: &str, from: &str, to: &str| {
        let line = lines[at(kind)];
        assert!(line.contains(from), "{line}");
        (with(at(kind), &line.replacen(from, to, 1)), at(kind) + 1)
    };
    let end = lines.len();
    let swapped = with(2, lines[3])
        .lines()
        .enumerate()
        .map(|(n, line)| if n == 3 { lines[2] } else { line })
        .collect::<Vec<_>>()
        .join("\n")
        + "\n";
    let huge = lines[1].replace("\"content\":\"", &format!("\"content\":\"{}", "x".repeat(5_000_000)));
    for ((text, line), problem) in [
        ((String::new(), 1), "is not the header"),
        (("{}\n".into(), 1), "lacks the key 'kind'"),
        (("\u{0}\u{1}\n".into(), 1), "is not a row of an export"),
        ((without(0), 1), "is not the header"),
        ((without(1), end - 1), "says that there are 29 rows of the kind event, and there are 28"),
        ((without(end - 1), end), "is missing: the export was cut off"),
        ((exported[..exported.len() - 1].to_owned(), end), "ends in the middle"),
        (
            (exported[..exported.len() / 2].to_owned(), exported[..exported.len() / 2].lines().count()),
            "ends in the middle",
        ),
        ((exported.clone() + lines[1] + "\n", end + 1), "comes after the end"),
        ((swapped, 4), "is a event that is not after the one before it"),
        ((with(2, lines[1]), 3), "is not after the one before it"),
        ((with(at("cursor"), lines[1]), at("cursor") + 1), "is a event after a consumer"),
        ((with(3, lines[0]), 4), "is a second header"),
        ((with(3, "[1]"), 4), "is not a row of an export"),
        ((with(3, "{\"kind\":\"event\",\"kind\":\"event\"}"), 4), "has the key 'kind' twice"),
        ((with(3, "{\"kind\":\"spaceship\"}"), 4), "is of the kind 'spaceship', which is not known here"),
        ((with(3, &huge), 4), "is not after the one before it"),
        ((with(3, &"[".repeat(100_000)), 4), "is not a row of an export"),
        (changed("header", "\"format\":1", "\"format\":2"), "export in format 2"),
        (changed("event", "\"id\":2,", "\"id\":-2,"), "has the number -2"),
        (changed("event", "\"id\":2,", "\"id\":9223372036854775807,"), "has the number 9223372036854775807"),
        (changed("event", "\"id\":2,", "\"id\":2.5,"), "has a wrong 'id'"),
        (changed("event", "\"id\":2,", "\"id\":2,\"x\":1,"), "has the key 'x', which means nothing here"),
        (changed("event", "\"type\":\"message\"", "\"type\":\"other\""), "has the type 'other'"),
        (changed("event", "\"source\":\"self\",", ""), "lacks the key 'source'"),
        (changed("event", "\"source\":\"self\"", "\"source\":\"\\ud800\""), "has a wrong 'source'"),
        ((changed("event", "\"content\":\"nul", "\"content\":\"Nul").0, end), "has another digest"),
        (changed("thread", "\"newest\":30", "\"newest\":29"), "a larger one came before it"),
        (
            changed("cursor", "\"last_acked_id\":9,", "\"last_acked_id\":31,"),
            "is about the event 31, which does not exist",
        ),
        (
            changed("consumer", "\"options\":{", "\"options\":{\"deliver\":\"pigeon\",\"x\":{"),
            "is not a row of an export",
        ),
        (changed("consumer", "\"deliver\":\"stdin\"", "\"deliver\":\"pigeon\""), "has a wrong options"),
        (changed("schedule", "\"timing\":", "\"Timing\":"), "has a wrong schedule"),
        (
            changed("setting", "\"name\":\"retention.events\"", "\"name\":\"_closed\""),
            "the name of a private one",
        ),
        (changed("wait", "\"until\":\"2", "\"until\":\"x"), "which is not a time"),
    ] {
        new(&world, "copy");
        let before = tables(&world.path("copy"));
        let error = import(&world, "copy", &text).fails(1);
        assert!(
            error.starts_with(&format!("Error: line {line} of the export")) && error.contains(problem),
            "{error}\nexpected line {line}: {problem}"
        );
        assert_eq!(tables(&world.path("copy")), before);
        assert_eq!(on(&world, "copy", &["push", "x"]).quiet(), "1\n");
        std::fs::remove_dir_all(world.path("copy")).unwrap();
    }
}

/// An export with these lines between its header and its end, which has the right counts.
fn export_of(lines: &[&str]) -> String {
    let mut tallies = Tallies::default();
    for text in lines {
        match line::parse(text.as_bytes()).unwrap() {
            Line::Row(table, row) => tallies.add(table, &row),
            other => panic!("{other:?}"),
        }
    }
    line::header("a-1", "2026-03-18T10:30:00.000Z") + &lines.join("\n") + "\n" + &line::end(&tallies)
}

#[test]
fn rows_that_contradict_each_other_leave_a_thread_that_can_only_be_read() {
    let world = World::new();
    let event = |id: i64, key: &str| {
        format!(
            r#"{{"kind":"event","id":{id},"created_at":"x","source":"a","type":"record","content":"","idempotency_key":"{key}"}}"#
        )
    };
    let thread = r#"{"kind":"thread","newest":2,"scheduled":0}"#;
    let right = export_of(&[&event(1, "a"), &event(2, "b"), thread]);
    let wrong = export_of(&[&event(1, "a"), &event(2, "a"), thread]);
    new(&world, "copy");
    let error = import(&world, "copy", &wrong).fails(1);
    assert!(error.contains("UNIQUE constraint failed: events.idempotency_key"), "{error}");
    let error = on(&world, "copy", &["push", "x"]).fails(1);
    assert!(error.contains("an import into this thread is not complete"), "{error}");
    // What distinguishes the export is the same, so it goes on with that which is right.
    import(&world, "copy", &right).ok();
    assert_eq!(on(&world, "copy", &["push", "x"]).quiet(), "3\n");
}

#[test]
fn as_long_as_an_import_is_not_complete_the_thread_can_only_be_read() {
    let world = with_everything();
    world.thread(["clone"]).args([world.inbox(), world.path("copy")]).ends_with(0);
    let db = rusqlite::Connection::open(world.path("copy/events.db")).unwrap();
    let closed =
        r#"{"importing":{"origin":"x","events":{"count":29,"digest":"00000000000000000000000000000000"}}}"#;
    db.execute("INSERT INTO config VALUES ('_closed', ?)", [closed]).unwrap();
    let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    db.pragma_update(None, "user_version", version | 1 << 20).unwrap();
    drop(db);
    for words in [
        &["push", "x"][..],
        &["resume", "ran"],
        &["seek", "in-order", "beginning"],
        &["export"],
        &["config", "--unset", "retention.events"],
    ] {
        let error = on(&world, "copy", words).fails(1);
        assert!(error.contains("an import into this thread is not complete"), "{error}");
    }
    let other = world.thread(["clone"]).args([world.inbox(), world.path("copy")]).fails(1);
    assert!(other.contains("an import into this thread is not complete"), "{other}");
    assert_eq!(ids(&on(&world, "copy", &["peek", "--tail", "1"]).quiet()), [30]);
    let info = on(&world, "copy", &["info"]).quiet();
    assert!(info.contains("Note: an import into this thread is not complete"), "{info}");
    let doctor = on(&world, "copy", &["doctor"]).output();
    assert!(
        String::from_utf8_lossy(&doctor.stdout).contains("error: an import into this thread is not complete")
    );
    assert_eq!(on(&world, "copy", &["config"]).quiet(), "retention.events=1000000\n");
}

/// A clone of `inbox` into this directory.
fn clone(world: &World, from: &str, to: &str, options: &[&str]) -> Run {
    world.off(["clone"]).args([world.path(from), world.path(to)]).args(options)
}

#[test]
fn a_clone_is_the_same_and_both_can_be_used() {
    let world = with_everything();
    let before = tables(&world.inbox());
    let (printed, _) = clone(&world, "inbox", "deep/in/copy", &[]).ends_with(0);
    let kinds: Vec<&str> = printed.lines().map(|line| line.split('\t').next().unwrap()).collect();
    let all = "event setting consumer cursor finished wait dead_letter step run scheduled schedule";
    assert_eq!(kinds.join(" "), all);
    assert_eq!((&tables(&world.path("deep/in/copy")), &tables(&world.inbox())), (&before, &before));
    let error = clone(&world, "inbox", "deep/in/copy", &[]).fails(1);
    assert!(error.contains("is not empty; nothing was changed"), "{error}");
    for dir in ["inbox", "deep/in/copy"] {
        assert_eq!(on(&world, dir, &["push", "x"]).quiet(), "31\n");
    }
    let printed = clone(&world, "inbox", "other", &["--json"]).output().stdout;
    let printed: Value = serde_json::from_slice(&printed).unwrap();
    assert_eq!((&printed["rows"]["event"]["count"], &printed["moved"]), (&30.into(), &false.into()));
    assert_eq!(printed["paused"], serde_json::json!(["in-order", "pull", "ran", "steps", "taken"]));
    assert_eq!(printed["to"], world.path("other").to_str().unwrap());
    for same in ["inbox", "../inbox"] {
        let run = world.off(["clone", "inbox", same]).dir(world.root().join("bin"));
        run.fails(1);
    }
    let link = world.path("link");
    std::os::unix::fs::symlink(world.inbox(), link).unwrap();
    let error = clone(&world, "inbox", "link", &[]).fails(2);
    assert!(error.contains("both are the same thread"), "{error}");
    let error = clone(&world, "inbox", "inbox/run/copy", &[]).fails(1);
    assert!(error.contains("is inside the thread"), "{error}");
    clone(&world, "nowhere", "new", &[]).fails(1);
    assert!(!world.path("new").exists());
}

#[test]
fn a_thread_that_was_moved_can_only_be_read() {
    let world = with_everything();
    let before = export(&world, "inbox");
    clone(&world, "inbox", "new", &["--move"]).ends_with(0);
    let (new, moved) =
        (world.path("new"), format!("this thread was moved to {}", world.path("new").display()));
    assert_eq!(tables(&new), tables(&world.inbox()));
    for words in [
        &["push", "x"][..],
        &["push", "--in", "1h", "x"],
        &["push", "--idempotency-key", "key-1", "x"],
        &["ask", "x", "--timeout", "1s"],
        &["ack", "pull", "8"],
        &["nack", "pull", "7"],
        &["seek", "in-order", "beginning"],
        &["pause", "in-order"],
        &["resume", "in-order"],
        &["subscribe", "new", "cat", "--deliver", "stdin"],
        &["unsubscribe", "in-order"],
        &["dead", "discard", "pull", "3"],
        &["dead", "retry", "pull", "3"],
        &["config", "retention.age", "1d"],
        &["schedule", "add", "more", "--every", "1h", "x"],
        &["schedule", "pause", "daily"],
        &["scheduled", "cancel", "s1"],
        &["scheduled", "now", "s1"],
        &["prune", "--keep", "1", "--force"],
    ] {
        let error = world.thread(words).stdin("").fails(1);
        assert!(error.contains(&moved), "{words:?}: {error}");
    }
    for batch in
        [&["push", "--batch"][..], &["push", "--batch", "--follow"], &["push", "--lines", "--follow"]]
    {
        let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
        let (_, error) = world.thread(batch).stdin(line).ends_with(1);
        assert!(error.contains(&moved), "{batch:?}: {error}");
    }
    // Another program, which does not look.
    let insert = "INSERT INTO events (source, type, content) VALUES ('a', 'record', '')";
    let error = world.db().execute(insert, []).unwrap_err().to_string();
    assert!(error.contains("this thread was moved"), "{error}");
    world.thread(["dispatch"]).quiet();
    assert_eq!(export(&world, "inbox"), before);
    // Reading.
    assert_eq!(ids(&world.thread(["peek", "--tail", "2"]).quiet()), [29, 30]);
    assert_eq!(ids(&world.thread(["pop", "taken", "--limit", "1"]).ends_with(0).0), [5]);
    assert!(world.thread(["info"]).quiet().contains(&format!("\nMoved to: {}\n", new.display())));
    let info: Value = serde_json::from_str(&world.thread(["info", "--json"]).quiet()).unwrap();
    assert_eq!(info["moved_to"], new.to_str().unwrap());
    assert!(world.thread(["doctor"]).quiet().contains(&format!("warning: {moved}")));
    let backup = world.path("backup");
    world.thread(["backup"]).arg(&backup).quiet();
    assert_eq!(tables(&backup), tables(&world.inbox()));
    // Moved once.
    let error = clone(&world, "inbox", "new", &["--move"]).fails(1);
    assert!(error.contains(&moved), "{error}");
    let error = clone(&world, "inbox", "elsewhere", &["--move"]).fails(1);
    assert!(error.contains(&moved), "{error}");
    clone(&world, "inbox", "copy", &[]).ends_with(0);
    assert_eq!(tables(&world.path("copy")), tables(&world.inbox()));
    assert_eq!(on(&world, "copy", &["push", "x"]).quiet(), "31\n");
}

#[test]
fn if_the_rest_cannot_be_copied_the_source_is_open_again() {
    let world = with_everything();
    new(&world, "new");
    let sql = |sql: &str| {
        let db = rusqlite::Connection::open(world.path("new/events.db")).unwrap();
        db.execute_batch(sql).unwrap();
    };
    sql("CREATE TRIGGER broken BEFORE INSERT ON consumer_progress BEGIN SELECT raise(ABORT, 'broken'); END");
    let (_, error) = clone(&world, "inbox", "new", &["--move"]).ends_with(1);
    assert!(error.contains("Note: paused in") && error.contains("broken"), "{error}");
    assert_eq!(world.thread(["push", "x"]).ok(), "31\n");
    assert!(!world.thread(["info"]).quiet().contains("Moved to"));
    let error = on(&world, "new", &["push", "x"]).fails(1);
    assert!(error.contains("an import into this thread is not complete"), "{error}");
    // Another thread is refused meanwhile, and the same command goes on.
    world.sh("cp -R inbox other").quiet();
    let error = clone(&world, "other", "new", &["--move"]).fails(1);
    assert!(error.contains("an import into this thread is not complete"), "{error}");
    on(&world, "other", &["push", "x"]).ok();
    sql("DROP TRIGGER broken");
    clone(&world, "inbox", "new", &["--move"]).ends_with(0);
    assert_eq!(tables(&world.path("new")), tables(&world.inbox()));
    assert_eq!(on(&world, "new", &["push", "x"]).quiet(), "32\n");
}

#[test]
fn a_thread_without_events_is_moved_once() {
    let world = World::with_thread();
    world.thread(["subscribe", "bot", "cat", "--deliver", "stdin"]).quiet();
    clone(&world, "inbox", "new", &["--move"]).ends_with(0);
    assert_eq!(tables(&world.path("new")), tables(&world.inbox()));
    on(&world, "new", &["resume", "bot"]).quiet();
    let error = clone(&world, "inbox", "new", &["--move"]).fails(1);
    assert!(error.contains("this thread was moved to"), "{error}");
    world.thread(["push", "x"]).fails(1);
    // The new place was removed before anything was stored there: it can be moved again.
    let world = World::with_thread();
    clone(&world, "inbox", "new", &["--move"]).ends_with(0);
    std::fs::remove_dir_all(world.path("new")).unwrap();
    clone(&world, "inbox", "new", &["--move"]).ends_with(0);
    assert_eq!(on(&world, "new", &["push", "x"]).quiet(), "1\n");
}

/// How often a schedule makes an event meanwhile.
const TICK: [&str; 6] = ["schedule", "add", "tick", "--every", "50ms", "tick"];

#[test]
fn what_a_push_was_told_is_stored_is_where_the_thread_was_moved_to() {
    let world = World::with_thread();
    world.thread(["subscribe", "bot", "cat >>seen", "--deliver", "stdin", "--batch-size", "3"]).quiet();
    let socket = world.path("socket");
    let mut server =
        world.thread(["dispatch", "--follow", "--socket"]).arg(&socket).into_command().spawn().unwrap();
    world.wait_for_file("socket");
    world.thread(TICK).quiet();
    let (is_over, stored) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
    let moved = format!("this thread was moved to {}", world.path("new").display());
    std::thread::scope(|scope| {
        for pusher in 0..4 {
            let (world, stored, is_over, moved, socket) = (&world, &stored, &is_over, &moved, &socket);
            scope.spawn(move || {
                let mut refused = 0;
                for n in 0.. {
                    let content = format!("{pusher}-{n}");
                    let push = world.thread(["push", "--source", "self", "--content", &content]);
                    let push = if pusher == 3 { push.arg("--socket").arg(socket) } else { push };
                    let output = push.output();
                    let error = String::from_utf8_lossy(&output.stderr).into_owned();
                    match output.status.code() {
                        Some(0) => drop(stored.lock().unwrap().insert(content)),
                        Some(1) => {
                            assert!(error.contains(moved), "{error}");
                            refused += 1;
                        }
                        code => panic!("{code:?}: {error}"),
                    }
                    if refused > 0 && is_over.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
        }
        world.wait_until("some events", || stored.lock().unwrap().len() > 40);
        let cloned = clone(&world, "inbox", "new", &["--move"]).output();
        is_over.store(true, Ordering::SeqCst);
        assert!(cloned.status.success(), "{cloned:?}");
    });
    send(server.id(), Signal::TERM);
    server.wait().unwrap();
    let events = on(&world, "new", &["peek", "--last-event-id", "0", "--limit", "100000"]).quiet();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let there: BTreeSet<String> =
        events.iter().map(|event| event["content"].as_str().unwrap().to_owned()).collect();
    let pushed: BTreeSet<String> = there.iter().filter(|content| *content != "tick").cloned().collect();
    assert_eq!(pushed, stored.into_inner().unwrap());
    assert!(there.contains("tick"));
    // The handler goes on where it was: each event once.
    on(&world, "new", &["schedule", "remove", "tick"]).quiet();
    on(&world, "new", &["resume", "bot"]).quiet();
    world.thread(["dispatch", "--thread"]).arg(world.path("new")).quiet();
    let last = events.last().unwrap()["id"].as_i64().unwrap();
    world.wait_until("the handler", || ids(&world.read("seen")).last() >= Some(&last));
    world.wait_until_quiet();
    let mut seen = ids(&world.read("seen"));
    let all: Vec<i64> = (1..=*seen.last().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, all);
    // Nothing has changed in the old place since.
    assert_eq!(world.query("SELECT max(id) FROM events"), last);
}

#[test]
fn runs_of_the_source_are_awaited_and_count() {
    let world = World::with_thread();
    world
        .thread([
            "subscribe",
            "bot",
            "cat >>seen; touch began; until [ -e go ]; do sleep 0.1; done",
            "--deliver",
            "stdin",
        ])
        .quiet();
    world.push("x");
    world.wait_for_file("began");
    let child = clone(&world, "inbox", "new", &["--move"]).spawn();
    world.wait_until("the pause", || world.run_state("bot", "$.paused") == true);
    // As long as it runs, pushes are stored.
    world.push("y");
    world.write("go", "");
    let output = child.wait_with_output().unwrap();
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        notes.contains("Note: paused in") && notes.contains("Note: waiting for the runs of bot\n"),
        "{notes}"
    );
    assert_eq!(ids(&world.read("seen")), [1]);
    let bot: Value = serde_json::from_str(&on(&world, "new", &["info", "--json"]).quiet()).unwrap();
    let bot = &bot["subscriptions"][0];
    assert_eq!(
        (&bot["last_acked_id"], &bot["pending"], &bot["state"]),
        (&1.into(), &1.into(), &"paused".into())
    );
    assert_eq!(bot["runs_succeeded"], 1);
}

#[test]
fn memory_is_bounded() {
    let (events, bytes, kib) =
        if long() { (1_000_000, 100_000_000, 1_200_000) } else { (12_000, 4_000_000, 250_000) };
    let world = World::with_thread();
    let line = r#"{"source":"self","type":"record","content":"some text that is as long as that of others"}"#;
    world.sh(&format!("seq {events} | sed 's|.*|{line}|' | thread push --batch >/dev/null")).quiet();
    let within = |kib: u64, command: &str| {
        let run = world.sh(&format!("set -e; ulimit -v {kib}; {command}"));
        run.env("THREAD_NOTIFIER", "off").ends_with(0)
    };
    // However many events there are.
    within(120_000, "thread export >export.ndjson");
    within(120_000, "thread init copy; thread import -t copy export.ndjson");
    within(120_000, "thread clone inbox other");
    // However long one is: some times its length.
    world.sh(&format!("head -c {bytes} /dev/zero | tr '\\0' '\\001' | thread push -")).ok();
    within(kib, "thread init piped; thread export | thread import -t piped");
    within(kib, "thread clone inbox large --move");
    let count = "SELECT count(*) + sum(length(content)) FROM events";
    let large = |dir: &str| {
        let db = rusqlite::Connection::open(world.path(dir).join("events.db")).unwrap();
        db.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!((large("large"), large("piped")), (world.query(count), world.query(count)));
}

#[test]
fn a_clone_that_is_killed_at_ten_moments_goes_on() {
    let events: u64 = if long() { 300_000 } else { 12_000 };
    let world = with_everything();
    let lines =
        (0..events).map(|n| format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{n}\"}}\n"));
    world.off(["push", "--batch"]).stdin(lines.collect::<String>()).quiet();
    let expected = tables(&world.inbox());
    let began = Instant::now();
    clone(&world, "inbox", "whole", &[]).ends_with(0);
    let mut whole = began.elapsed();
    assert!(tables(&world.path("whole")) == expected);
    let mut unfinished = 0;
    for moment in 1..=10_u32 {
        let (from, to) = (format!("from{moment}"), format!("to{moment}"));
        world.sh(&format!("cp -R inbox {from}")).quiet();
        let options: &[&str] = if moment % 2 == 0 { &["--move"] } else { &[] };
        let mut child = clone(&world, &from, &to, options).spawn();
        std::thread::sleep(whole * moment / 11);
        child.kill().unwrap();
        child.wait().unwrap();
        let again = clone(&world, &from, &to, options).output();
        let error = String::from_utf8_lossy(&again.stderr).into_owned();
        match again.status.code() {
            Some(0) => unfinished += 1,
            // It was complete before. The machine has less to do than at first.
            _ => {
                assert!(error.contains("is not empty") || error.contains("was moved to"), "{error}");
                whole = whole * 3 / 4;
            }
        }
        assert!(tables(&world.path(&to)) == expected, "after moment {moment}");
        // A part of it may have been sealed.
        let log = on(&world, &to, &["peek", "--last-event-id", "0", "--limit", "10000000"]).quiet();
        assert!(world.sh(&format!("cat {to}/events*.jsonl")).quiet() == log);
        assert_eq!(on(&world, &from, &["push", "x"]).succeeds(), options.is_empty());
        on(&world, &to, &["push", "x"]).quiet();
        std::fs::remove_dir_all(world.path(&from)).unwrap();
        std::fs::remove_dir_all(world.path(&to)).unwrap();
    }
    assert!(unfinished >= 5, "only {unfinished} were killed before their end");
    // An import likewise.
    world.sh("thread export >export.ndjson").quiet();
    for moment in [2, 5, 8] {
        new(&world, "to");
        let import = || on(&world, "to", &["import"]).arg(world.path("export.ndjson"));
        let mut child = import().spawn();
        std::thread::sleep(whole * moment / 8);
        child.kill().unwrap();
        child.wait().unwrap();
        let error = String::from_utf8_lossy(&import().output().stderr).into_owned();
        assert!(error.starts_with("Note: ") || error.contains("is not empty"), "{error}");
        assert!(tables(&world.path("to")) == expected, "after moment {moment}");
        std::fs::remove_dir_all(world.path("to")).unwrap();
    }
}
