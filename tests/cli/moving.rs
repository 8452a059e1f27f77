//! `export`, `import` and `clone`: a thread is the same in another place, or refused.

use serde_json::Value;
use thread_testkit::everything::{fill, tables};
use thread_testkit::{Run, World, ids, quoted};

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
        "Note: these consumers are paused and were not before: in-order, pull, ran, taken; `thread resume` releases one\n"
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

#[test]
fn a_row_that_contradicts_another_leaves_a_thread_that_says_so() {
    let world = World::with_thread();
    world.push("x");
    world.push("y");
    // The same idempotency key twice, with counts and digests that are right.
    let exported = on(&world, "inbox", &["export"]).quiet();
    let twice = exported.replace("\"content\":\"x\"", "\"content\":\"x\",\"idempotency_key\":\"k\"");
    let twice = twice.replace("\"content\":\"y\"", "\"content\":\"y\",\"idempotency_key\":\"k\"");
    new(&world, "copy");
    let error = import(&world, "copy", &twice).fails(1);
    assert!(error.contains("has another digest"), "{error}");
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
