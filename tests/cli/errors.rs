//! The form of errors and what failed commands leave behind, across all commands.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rusqlite::Connection;
use serde_json::Value;
use thread_testkit::{World, names, quoted, snapshot};

/// Every command that opens a thread, with valid arguments.
const COMMANDS: [&[&str]; 12] = [
    &["push", "--source", "self", "--type", "record", "--content", "x"],
    &["push", "--batch"],
    &["ask", "--source", "self", "--type", "record", "--content", "x"],
    &["reply", "--to", "1", "--source", "self", "--type", "record", "--content", "x"],
    &["pop", "--consumer", "bot", "--last-event-id", "0"],
    &["pop", "--consumer", "bot", "--resume"],
    &["peek", "--last-event-id", "0"],
    &["subscribe", "--consumer", "bot", "--handler", "true"],
    &["unsubscribe", "--consumer", "bot"],
    &["dispatch"],
    &["ack", "--consumer", "bot", "--event-id", "0"],
    &["info"],
];

pub const NAMES: [&str; 39] = [
    "init",
    "push",
    "ask",
    "reply",
    "pop",
    "peek",
    "subscribe",
    "unsubscribe",
    "dispatch",
    "workers",
    "claim",
    "ack",
    "nack",
    "reject",
    "step",
    "sleep",
    "await",
    "seek",
    "redo",
    "ls",
    "info",
    "stop",
    "pause",
    "resume",
    "logs",
    "dead",
    "scheduled",
    "schedule",
    "prune",
    "config",
    "backup",
    "export",
    "import",
    "clone",
    "doctor",
    "session",
    "completions",
    "man",
    "guide",
];

const EVENT: &str = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";

/// Runs every command on `dir`, expects exit 1, and passes each error to `check`.
fn all_refuse(world: &World, dir: &Path, mut check: impl FnMut(&str)) {
    for args in COMMANDS {
        let run = world.thread(args).arg("--thread").arg(dir).stdin(EVENT);
        check(&run.fails(1));
    }
}

#[test]
fn each_kind_of_failure_has_its_exit_code() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    let table: [(&[&str], i32, &str); 20] = [
        (&["info", "--thread", "nowhere"], 1, "is not a thread"),
        (&["init", "inbox"], 1, "is a thread already"),
        (&["subscribe", "--consumer", "bot", "--handler", "true"], 1, "is subscribed already"),
        (&["pop", "--consumer", "nobody", "--resume"], 1, "no consumer 'nobody'"),
        (&["ack", "--consumer", "nobody", "--event-id", "1"], 1, "no consumer 'nobody'"),
        (&["unsubscribe", "--consumer", "nobody"], 1, "no consumer 'nobody'"),
        (&["push", "--source", "self", "--type", "record", "--content-file", "none"], 1, "No such file"),
        (&["frobnicate"], 2, "frobnicate"),
        (&["pusch"], 2, "did you mean"),
        (&["info", "--frobnicate"], 2, "--frobnicate"),
        (&["info", "more"], 1, "no consumer 'more'"),
        (&["pop", "--last-event-id", "0"], 2, "no consumer given"),
        (&["peek", "--last-event-id", "x"], 2, "whole number"),
        (&["peek", "--last-event-id", "0", "--filter", "nosuch = 1"], 2, "nosuch"),
        (&["push", "--source", "self", "--type", "other", "--content", "x"], 2, "'other'"),
        (&["info", "--thread", ""], 2, "--thread"),
        (&["init", ""], 2, "<PATH>"),
        (&["push", "--source", "self", "--type", "record", "--content-file", ""], 2, "--content-file"),
        (&["peek", "--tail", "0"], 2, "it must be a whole number, 1 or more"),
        (&["push", "--batch"], 2, "line 1 of the batch"),
    ];
    for (args, code, says) in table {
        let error = world.thread(args).stdin("{}").fails(code);
        assert!(error.contains(says), "{args:?}: {error}");
        assert!(!error.contains("panic") && !error.contains("RUST_BACKTRACE"), "{error}");

        let run = world.thread(args).arg("--json").stdin("{}");
        let (stdout, stderr) = run.ends_with(code);
        assert_eq!((stdout.as_str(), stderr.lines().count()), ("", 1), "{args:?}: {stderr}");
        let json: Value = serde_json::from_str(&stderr).unwrap();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["error", "suggestion", "code"]);
        assert!(stderr.starts_with("{\"error\":\""), "{stderr}");
        // With arguments, both forms must agree; without any, `--json` itself changes the error.
        if !args.is_empty() {
            let (what, fix) = (json["error"].as_str().unwrap(), json["suggestion"].as_str().unwrap());
            assert_eq!(error, format!("Error: {what} - {fix}"));
        }
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn each_error_has_a_code_for_programs() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    let keyed = ["push", "--idempotency-key", "k"];
    world.off(keyed).arg("one").ok();
    let table: [(&[&str], &str); 12] = [
        (&["frobnicate"], "usage"),
        (&["info", "-t", "nowhere"], "not_a_thread"),
        (&["init", "inbox"], "already_a_thread"),
        (&["info", "-t", "nowhere://x"], "unknown_scheme"),
        (&["unsubscribe", "nobody"], "unknown_consumer"),
        (&["subscribe", "bot", "true"], "already_subscribed"),
        (&["push", "--idempotency-key", "k", "two"], "idempotency_conflict"),
        (&["push", "--reply-to", "7", "x"], "unknown_event"),
        (&["peek", "--filter", "nosuch = 1"], "filter_invalid"),
        (&["push", "--content-file", "none"], "file_not_found"),
        (&["dead", "show", "bot", "1"], "not_a_dead_letter"),
        (&["ask", "x", "--timeout", "10ms"], "timed_out"),
    ];
    for (args, code) in table {
        let run = world.thread(args).arg("--json").output();
        let stderr = String::from_utf8(run.stderr).unwrap();
        let json: Value = serde_json::from_str(&stderr).unwrap();
        assert_eq!(json["code"], code, "{args:?}: {stderr}");
    }
}

#[test]
fn the_specification_lists_the_codes_of_errors() {
    let spec = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("SPEC.md")).unwrap();
    let section = spec.split_once("\n### Error codes\n").unwrap().1.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
    let mut listed: Vec<&str> =
        rows.flat_map(|(words, _)| words.split(", ")).map(|w| w.trim_matches('`')).collect();
    listed.retain(|word| *word != "code");
    let mut known: Vec<&str> = thread::error::Code::ALL.iter().map(|code| code.as_str()).collect();
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known);
}

#[test]
fn an_error_is_one_line_whatever_it_quotes() {
    let world = World::with_thread();
    let evil = "a\nError: forged - line\r\x1b[31m\u{202e}";
    for args in [
        &["pop", "--resume", "--consumer", evil][..],
        &["info", "--thread", evil],
        &["peek", "--last-event-id", evil],
        &["peek", "--last-event-id", "0", "--filter", evil],
        &["push", "--source", "self", "--type", evil, "--content", "x"],
        &["push", "--source", "self", "--type", "record", "--content-file", evil],
        &["subscribe", "--handler", "true", "--consumer", evil],
        &["init", "inbox", evil],
        &[evil],
        &["info", "--a\nb"],
    ] {
        let (stdout, stderr) = world.thread(args).ends_with(if stderr_code_is_1(args) { 1 } else { 2 });
        assert_eq!(stdout, "");
        let line = stderr.strip_suffix('\n').unwrap();
        assert!(!line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{args:?}: {line:?}");
        assert!(line.starts_with("Error: "), "{line}");
    }
}

/// Whether the command line above is valid but names something that does not exist.
fn stderr_code_is_1(args: &[&str]) -> bool {
    args[0] == "pop" || args[..args.len().min(2)] == ["info", "--thread"] || args.contains(&"--content-file")
}

#[test]
fn a_directory_that_is_no_thread_is_never_written_to() {
    let world = World::new();
    fs::create_dir(world.path("plain")).unwrap();
    fs::create_dir_all(world.path("similar/run")).unwrap();
    fs::create_dir_all(world.path("similar/logs")).unwrap();
    world.write("similar/events.jsonl", "");
    fs::create_dir_all(world.path("folder/events.db")).unwrap();
    fs::create_dir_all(world.path("leftover")).unwrap();
    world.write("leftover/events.db-wal", "the log of a database that is gone");
    world.write("file", "text");
    let before = snapshot(world.root());
    for dir in ["plain", "similar", "folder", "leftover", "file", "file/below", "nowhere", "nowhere/deep"] {
        let dir = world.path(dir);
        all_refuse(&world, &dir, |error| {
            assert!(error.contains("is not a thread"), "{error}");
            let fix = error.split_once(" - ").unwrap().1;
            assert!(fix.contains(&format!("thread init {}", quoted(&dir))), "{error}");
        });
    }
    assert_eq!(snapshot(world.root()), before);
}

#[test]
fn a_database_that_is_not_a_threads_is_left_as_it_is() {
    let world = World::new();
    let make = |name: &str, sql: Option<&str>| {
        fs::create_dir(world.path(name)).unwrap();
        sql.map(|sql| {
            let conn = Connection::open(world.path(name).join("events.db")).unwrap();
            conn.execute_batch(sql).unwrap();
            conn
        })
    };
    make("empty", None);
    world.write("empty/events.db", "");
    make("text", None);
    world.write("text/events.db", "dear diary\n".repeat(500));
    make("short", None);
    world.write("short/events.db", "SQLite format 3\0");
    drop(make("other", Some("CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('mine')")));
    let other_wal = "PRAGMA journal_mode = WAL; CREATE TABLE events (id INTEGER PRIMARY KEY, name TEXT); \
                     CREATE TABLE subscriptions (name TEXT)";
    drop(make("other-wal", Some(other_wal)));
    let versioned = "PRAGMA user_version = 7; PRAGMA application_id = 42; CREATE TABLE t (x)";
    drop(make("versioned", Some(versioned)));
    for name in ["newer", "newer-open"] {
        world.thread(["init", name]).quiet();
    }
    let newer = |name: &str| {
        let conn = Connection::open(world.path(name).join("events.db")).unwrap();
        conn.execute_batch("PRAGMA user_version = 99").unwrap();
        conn
    };
    drop(newer("newer"));
    // The newer program is running: its WAL must be neither checkpointed nor removed.
    let at_work = newer("newer-open");
    at_work
        .execute("INSERT INTO events (source, type, content) VALUES ('self', 'new-type', 'x')", [])
        .unwrap();

    let before = snapshot(world.root());
    for name in ["empty", "text", "short", "other", "other-wal", "versioned", "newer", "newer-open"] {
        all_refuse(&world, &world.path(name), |error| {
            let says = match name {
                "newer" | "newer-open" => "schema version 99",
                // A file that is no SQLite database at all.
                "text" | "short" => "not a thread's database",
                _ => "not a thread's database",
            };
            assert!(error.contains(says), "{name}: {error}");
        });
        let after = snapshot(&world.path(name));
        for (path, found) in before.iter().filter(|(path, _)| path.parent() == Some(&world.path(name))) {
            // The index of a WAL in use records readers.
            let same = path.extension().is_some_and(|e| e == "db-shm") || after.get(path) == Some(found);
            assert!(same, "{} changed", path.display());
        }
    }
    let listing = |all: &std::collections::BTreeMap<_, _>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(listing(&snapshot(world.root())), listing(&before));
    // `init` does not take them over either.
    for name in ["empty", "text", "other", "newer"] {
        world.thread(["init", name]).fails(1);
    }
    assert_eq!(listing(&snapshot(world.root())), listing(&before));
}

#[test]
fn a_wal_that_a_foreign_program_left_stays_for_it() {
    let world = World::new();
    fs::create_dir(world.inbox()).unwrap();
    let db = world.inbox().join("events.db");
    let conn = Connection::open(&db).unwrap();
    conn.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    conn.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE notes (x); INSERT INTO notes VALUES (1)")
        .unwrap();
    drop(conn);
    let wal = world.inbox().join("events.db-wal");
    let before = (fs::read(&db).unwrap(), fs::read(&wal).unwrap(), names(&world.inbox()));
    all_refuse(&world, &world.inbox(), |error| {
        assert!(error.contains("not a thread's database"), "{error}");
    });
    assert_eq!((fs::read(&db).unwrap(), fs::read(&wal).unwrap(), names(&world.inbox())), before);
    let notes: i64 =
        Connection::open(&db).unwrap().query_row("SELECT x FROM notes", [], |r| r.get(0)).unwrap();
    assert_eq!(notes, 1);
}

#[test]
fn numbers_are_plain_decimal_integers() {
    let world = World::with_thread();
    world.push("x");
    world.idle_consumer("bot", "");
    let options: [(&[&str], &str); 5] = [
        (&["pop", "--consumer", "bot"], "--last-event-id"),
        (&["pop", "--consumer", "bot", "--resume"], "--limit"),
        (&["peek"], "--last-event-id"),
        (&["peek", "--last-event-id", "0"], "--limit"),
        (&["ack", "--consumer", "bot"], "--event-id"),
    ];
    for (args, option) in options {
        let bad = [
            "12abc",
            "1.5",
            "",
            " ",
            "1 ",
            "+1",
            "-1",
            "-0",
            "1e3",
            "0x1",
            "1_000",
            "٣",
            "9223372036854775808",
            "99999999999999999999999999",
            "NaN",
        ];
        for number in bad.iter().chain((option == "--limit").then_some(&"0")) {
            let error = world.thread(args).arg(option).arg(number).fails(2);
            assert!(error.contains(option), "{error}");
            world.thread(args).arg(format!("{option}={number}")).fails(2);
        }
        world.thread(args).arg(option).fails(2);
        world.thread(args).arg(option).arg("0001").quiet();
    }
}

#[test]
fn the_environment_stands_in_for_thread_and_consumer() {
    let world = World::with_thread();
    world.thread(["init", "other"]).quiet();
    world.push("x");
    let events = |run: thread_testkit::Run| {
        let info: Value = serde_json::from_str(&run.arg("--json").quiet()).unwrap();
        info["event_count"].as_i64().unwrap()
    };
    assert_eq!(events(world.thread(["info"])), 1);
    assert_eq!(events(world.thread(["info"]).env("THREAD_DIR", "other")), 0);
    assert_eq!(events(world.thread(["info", "--thread", "inbox"]).env("THREAD_DIR", "other")), 1);
    for (run, value) in [
        (world.thread(["info"]).env_remove("THREAD_DIR"), "unset"),
        (world.thread(["info"]).env("THREAD_DIR", ""), "empty"),
    ] {
        let error = run.dir(world.root()).fails(2);
        assert!(error.contains("no thread given") && error.contains("THREAD_DIR"), "{value}: {error}");
    }

    let with = |args: &[&str]| world.off(args).env("THREAD_CONSUMER", "bot");
    with(&["subscribe", "--handler", "true"]).quiet();
    assert_eq!(with(&["ack", "--event-id", "1"]).quiet(), "1\n");
    assert_eq!(with(&["pop", "--last-event-id", "0"]).quiet().lines().count(), 1);
    let error = with(&["pop", "--resume", "--consumer", "named"]).fails(1);
    assert!(error.contains("'named'"), "{error}");
    for args in [
        &["pop", "--resume"][..],
        &["ack", "--event-id", "1"],
        &["subscribe", "--handler", "x"],
        &["unsubscribe"],
    ] {
        for run in [world.thread(args), world.thread(args).env("THREAD_CONSUMER", "")] {
            let error = run.fails(2);
            assert!(error.contains("no consumer given") && error.contains("THREAD_CONSUMER"), "{error}");
        }
        let not_text = OsStr::from_bytes(b"b\xff");
        world.thread(args).env("THREAD_CONSUMER", not_text).fails(2);
    }
    assert_eq!(with(&["unsubscribe"]).quiet(), "bot\n");
}

#[test]
fn arguments_that_are_not_utf8_are_exit_2() {
    let world = World::with_thread();
    let bad = OsStr::from_bytes(b"x\xffy");
    for args in [
        &["push", "--source", "self", "--type", "record", "--content"][..],
        &["push", "--type", "record", "--content", "x", "--source"],
        &["push", "--source", "self", "--content", "x", "--type"],
        &["pop", "--resume", "--consumer"],
        &["peek", "--last-event-id"],
        &["peek", "--last-event-id", "0", "--filter"],
        &["subscribe", "--consumer", "bot", "--handler"],
        &["info"],
        &[],
    ] {
        world.thread(args).arg(bad).fails(2);
        let (_, stderr) = world.thread(args).arg(bad).arg("--json").ends_with(2);
        assert!(serde_json::from_str::<Value>(&stderr).unwrap()["error"].is_string(), "{stderr}");
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn paths_need_not_be_utf8() {
    let world = World::new();
    let name = OsStr::from_bytes(b"in\xffbox");
    world.thread(["init"]).arg(name).quiet();
    assert!(world.path(name).join("events.db").exists());
    let file = OsStr::from_bytes(b"con\xfetent");
    world.write(file, "from a file");
    let handler = "printf %s \"$THREAD_DIR\" >where; thread pop --resume >got; thread ack --event-id 1";
    world.thread(["subscribe", "--consumer", "bot", "--handler", handler, "--thread"]).arg(name).quiet();
    let push = world.thread(["push", "--source", "self", "--type", "record", "--content-file"]).arg(file);
    assert_eq!(push.arg("--thread").arg(name).quiet(), "1\n");
    world.wait_until_quiet();
    assert_eq!(fs::read(world.path("where")).unwrap(), world.path(name).as_os_str().as_bytes());
    assert!(world.read("got").contains("\"content\":\"from a file\""));
    let info = world.thread(["info", "--json"]).env("THREAD_DIR", name).quiet();
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["subscriptions"][0]["last_acked_id"], 1);
}

#[test]
fn the_path_of_a_thread_is_taken_literally() {
    let world = World::new();
    for name in [
        "with space",
        "uni cødé 🦀",
        "quote'\"s",
        "file:x?mode=memory",
        "100%25",
        "a;b&c",
        "-hyphen",
        ":memory:",
    ] {
        let path = format!("./{name}");
        world.thread(["init", &path]).quiet();
        let push = world.thread([
            "push",
            "--source",
            "self",
            "--type",
            "record",
            "--content",
            "x",
            "--thread",
            &path,
        ]);
        assert_eq!(push.quiet(), "1\n");
        assert!(world.path(name).join("events.db").is_file());
        assert_eq!(
            world.thread(["peek", "--last-event-id", "0", "--thread", &path]).quiet().lines().count(),
            1
        );
    }
}

#[test]
fn help_works_everywhere_and_shows_an_example() {
    let world = World::new();
    for name in NAMES {
        let help = |flags: &[&str]| world.thread([name].iter().chain(flags)).env_remove("THREAD_DIR").quiet();
        let (short, long) = (help(&["-h"]), help(&["--help"]));
        assert_eq!(help(&["--help", "--verbose"]), long);
        assert_eq!(help(&["--verbose", "--help"]), long);
        for text in [&short, &long] {
            let example = text.split("Example").nth(1).unwrap_or_else(|| panic!("no example in\n{text}"));
            assert!(example.contains(&format!("thread {name} ")), "{text}");
        }
        assert!(short.len() < long.len(), "{name}: -h is not shorter than --help");
        assert!(!long.contains('\x1b'));
    }
    let long = world.thread(["--help"]).quiet();
    for name in NAMES {
        assert!(
            long.lines().any(|line| line.trim_start().starts_with(&format!("{name} "))),
            "{name} is not listed"
        );
    }
    assert_eq!(world.thread(["--help", "--verbose"]).quiet(), long);
    assert!(world.thread(["-h"]).quiet().len() < long.len());
    assert!(world.thread(["--version"]).quiet().starts_with("thread "));
    assert!(!long.contains("_supervise"), "{long}");
}

#[test]
fn examples_fit_a_narrow_terminal_and_can_be_pasted() {
    let world = World::new();
    let examples = |name: Option<&str>, columns: &str| {
        let run = world.thread(name.iter().copied().chain(["-h"]));
        let text = run.env("COLUMNS", columns).quiet();
        let examples = text.split_once("Example").unwrap().1;
        examples.split("\n\nEnvironment").next().unwrap().to_owned()
    };
    for name in NAMES.into_iter().map(Some).chain([None]) {
        let text = examples(name, "80");
        assert_eq!(text, examples(name, "1000"), "wrapped where 80 columns end");
        // Each suggested command is complete: the shell neither waits for more nor runs only half of it.
        let commands = text.split_once('\n').unwrap().1.replace("* * * * * ", "");
        let script = format!("f() {{\n{commands}\n}}");
        assert_eq!(world.sh(&script).quiet(), "", "{commands}");
        for line in commands.lines() {
            let start =
                ["thread ", "git ", "jq ", "tail "].iter().any(|word| line.trim_start().starts_with(word));
            assert!(start || line.trim_start().starts_with("--"), "{line:?} belongs to no command");
        }
    }
}

#[test]
fn verbose_does_no_harm_to_a_command() {
    let world = World::with_thread();
    let args = ["push", "--verbose", "--source", "self", "--type", "record", "--content", "x"];
    assert_eq!(world.thread(args).quiet(), "1\n");
}

#[test]
fn a_stderr_that_cannot_be_written_changes_no_exit_code() {
    let world = World::with_thread();
    for stderr in ["2>&-", "2>/dev/full"] {
        for (command, code) in [
            ("thread info", 0),
            ("thread push --source external:odd --type record --content x", 0),
            ("thread info --thread nowhere", 1),
            ("thread info --thread nowhere --json", 1),
            ("thread frobnicate", 2),
            ("thread push --source self --type record --content x >/dev/full", 0),
            ("thread info >/dev/full", 1),
            ("thread --help >/dev/full", 1),
        ] {
            world.sh(&format!("{command} {stderr}")).ends_with(code);
        }
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 4);
}

#[test]
fn a_reader_that_is_gone_is_no_error() {
    let world = World::with_thread();
    world.push("x");
    world.idle_consumer("bot", "");
    for command in [
        "info",
        "info --json",
        "peek --last-event-id 0",
        "pop --consumer bot --resume",
        "--help",
        "push --help",
        "ack --consumer bot --event-id 1",
        "dispatch --json",
        "init another",
    ] {
        let script = format!("rm -f gone; mkfifo gone; true <gone & exec >gone; wait; thread {command}");
        assert_eq!(world.sh(&script).quiet(), "", "{command}");
    }
}

#[test]
fn a_database_that_cannot_grow_stores_nothing_and_says_so() {
    let world = World::with_thread();
    assert_eq!(world.push("before"), 1);
    world.write("content", "x".repeat(3_000_000));
    let push = "thread push --source self --type record --content-file content";
    let error = world.sh(&format!("trap '' XFSZ; ulimit -f 1000; {push}")).fails(1);
    assert!(error.contains("while storing"), "{error}");
    assert_eq!(world.query("SELECT count(*) FROM events"), 1);
    assert_eq!(world.sh(push).quiet(), "2\n");
    assert_eq!(world.query("SELECT count(*) FROM events"), 2);
    world.assert_log_is_exact();
}

#[test]
fn too_many_open_files_are_reported_as_that() {
    let world = World::with_thread();
    for command in ["peek --last-event-id 0", "info", "push --source self --type record --content x"] {
        let mut refused = 0;
        for files in 3.. {
            let done = world.sh(&format!("ulimit -n {files}; exec thread {command}")).output();
            if done.status.success() {
                break;
            }
            let told = String::from_utf8(done.stderr).unwrap();
            // With fewer files, the program's libraries cannot be loaded.
            if told.starts_with("Error: ") {
                refused += 1;
                let is_said = told.contains("too many open files (") && told.contains("raise the limit");
                assert!(is_said, "{files} files, {command}: {told}");
            }
        }
        assert!(refused > 0, "{command}");
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 1);
}
