//! File permissions of a thread, and that nothing stored in it can be mistaken for the program's
//! own output.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use thread_testkit::users::{NOBODY, as_user, shared_world};
use thread_testkit::{Run, World, ids, names, snapshot, wait_until};

use crate::disk::on_a_small_disk;
use crate::inject::EARLIER_SCHEMA;

// --- Permissions ---------------------------------------------------------------------------------

/// Collects the permission bits of everything below a directory; files may vanish in the meantime.
fn modes(dir: &Path, found: &mut BTreeMap<PathBuf, u32>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(about) = fs::symlink_metadata(entry.path()) else { continue };
        *found.entry(entry.path()).or_default() |= about.mode() & 0o7777;
        if about.is_dir() {
            modes(&entry.path(), found);
        }
    }
}

#[test]
fn in_its_whole_life_nothing_of_a_thread_is_writable_by_others() {
    for umask in ["000", "002", "022", "077"] {
        let world = World::new();
        let sh = |script: &str| world.sh(&format!("umask {umask}; {script}"));
        let over = AtomicBool::new(false);
        // Every mode that any file ever had, as far as polling can tell.
        let seen = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut seen = BTreeMap::new();
                while !over.load(Ordering::Relaxed) {
                    modes(&world.inbox(), &mut seen);
                    std::thread::sleep(Duration::from_millis(1));
                }
                modes(&world.inbox(), &mut seen);
                seen
            });
            let life = std::panic::catch_unwind(AssertUnwindSafe(|| life(&world, &sh)));
            over.store(true, Ordering::Relaxed);
            let seen = watcher.join().unwrap();
            life.map(|()| seen).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let db = fs::metadata(world.inbox().join("events.db")).unwrap().mode() & 0o777;
        for (path, mode) in seen {
            let path = path.display();
            assert_eq!(mode & 0o002, 0, "umask {umask}: others may write {path} ({mode:o})");
            assert_eq!(mode & 0o7000, 0, "umask {umask}: {path} ({mode:o})");
            // No file is more permissive than the database.
            assert_eq!(mode & 0o666 & !db & 0o077, 0, "umask {umask}: {path} ({mode:o})");
        }
    }
}

/// Commands that together create every kind of file in a thread.
fn life(world: &World, sh: &impl Fn(&str) -> Run) {
    sh("thread init inbox").quiet();
    // Each run writes more than a handler's log may hold, so the next run rotates it.
    let noisy = "cat >/dev/null; head -c 10500000 /dev/zero | tr '\\0' x; echo";
    sh("thread subscribe --consumer fed --deliver stdin --handler \"$0\"").arg(noisy).quiet();
    let bad = "thread subscribe --consumer bad --deliver stdin --max-attempts 1 --backoff 1ms --probe never";
    sh(&format!("{bad} --handler false")).quiet();
    let push = "thread push --source self --type message --content x";
    let ended = |count: usize| {
        let log = world.log();
        log.iter().filter(|line| line.contains("consumer=fed ended")).count() >= count
    };
    sh(push).quiet();
    wait_until("the first run to end", || ended(1));
    sh(push).quiet();
    wait_until("the second run to end", || ended(2));
    sh("thread pause --consumer fed").quiet();
    // Large enough to be spooled to a file, and for the next push to seal the JSONL log.
    let padding = "p".repeat(500);
    let line = format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{padding}\"}}\n");
    sh("thread push --batch").stdin(line.repeat(10_001)).env("THREAD_NOTIFIER", "off").quiet();
    let mut log = world.read("inbox/logs/thread.log");
    log.push_str(&"[2026-01-01T00:00:00.000Z] [INFO] a line like any other\n".repeat(10_001));
    world.write("inbox/logs/thread.log", log);
    sh(push).quiet();
    world.wait_until_quiet();
    let all: Vec<String> = ["", "run", "logs", "logs/handlers"]
        .into_iter()
        .flat_map(|dir| names(&world.inbox().join(dir)))
        .collect();
    for made in ["events-", "thread-", "fed~", "fed.lock", "fed.log", "events.db-wal", "_jsonl", "_commit"] {
        assert!(all.iter().any(|name| name.starts_with(made)), "no {made} in {all:?}");
    }
    sh("thread unsubscribe --consumer bad").quiet();
    sh("thread unsubscribe --consumer fed").quiet();
    world.wait_until_quiet();
}

/// Lets everyone read the thread, and only its owner write it.
fn open_for_reading(world: &World) {
    for (path, (mode, _)) in snapshot(&world.inbox()) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode & !0o022 | 0o044)).unwrap();
    }
}

#[test]
fn a_reader_can_hold_no_lock() {
    let Some(world) = shared_world() else { return };
    world.thread(["init", "inbox"]).quiet();
    world.thread(["subscribe", "bot", "cat >>got", "--deliver", "stdin"]).quiet();
    world.push("x");
    world.wait_until_quiet();
    let locks = || {
        let names = names(&world.inbox().join("run"));
        names
            .into_iter()
            .filter(|name| name.ends_with(".lock") || name == "_jsonl")
            .map(|name| format!("run/{name}"))
    };
    assert!(locks().count() >= 2, "{:?}", locks().collect::<Vec<_>>());
    let can_lock = |name: &str| {
        let script = format!("exec 9<inbox/{name} && flock --nonblock 9");
        as_user(&world, NOBODY, &script).output().status.success()
    };
    for name in locks() {
        assert!(!can_lock(&name), "{name}");
    }
    // Lock files that anybody could open are closed when they are used next.
    for name in locks() {
        fs::set_permissions(world.inbox().join(name), fs::Permissions::from_mode(0o644)).unwrap();
    }
    assert!(can_lock("run/bot.lock"));
    world.push("y");
    world.wait_until_quiet();
    for name in locks() {
        assert!(!can_lock(&name), "{name}");
    }
    // Readers need no lock.
    for words in ["peek", "info", "doctor", "peek --wait 10ms --last-event-id 2", "pop bot --resume"] {
        as_user(&world, NOBODY, &format!("thread {words}")).ok();
    }
}

#[test]
fn a_user_with_read_permission_can_read_and_gets_a_clear_error_for_writes() {
    let Some(world) = shared_world() else { return };
    world.thread(["init", "inbox"]).quiet();
    world.idle_consumer("bot", "type = 'message'");
    for content in ["one", "two"] {
        world.off(["push", "--source", "self", "--type", "message", "--content", content]).quiet();
    }
    open_for_reading(&world);
    let run = |words: &str| as_user(&world, NOBODY, &format!("thread {words}"));
    let before = snapshot(&world.inbox());
    let expected = |doing: &str| {
        format!(
            "Error: no permission for the database while {doing}; nothing was changed - \
             check who owns the thread's directory and events.db, and their permissions"
        )
    };
    let push = "push --source self --type message --content x";
    assert_eq!(run(push).fails(1), expected("storing"));
    assert_eq!(
        run("push --batch").stdin(r#"{"source":"s","type":"record","content":"x"}"#).fails(1),
        expected("storing")
    );
    assert_eq!(run("subscribe --consumer c --handler true").fails(1), expected("subscribing"));
    assert_eq!(run("ack --consumer bot --event-id 1").fails(1), expected("recording the cursor"));
    // Reading commands print the same as for the owner.
    for look in [
        "peek --last-event-id 0",
        "peek --last-event-id 0 --filter \"content = 'two'\"",
        "info",
        "info --json",
        "pop --consumer bot --resume",
    ] {
        assert_eq!(run(look).quiet(), world.sh(&format!("thread {look}")).quiet(), "{look}");
    }
    let after = snapshot(&world.inbox());
    let index = world.inbox().join("events.db-shm");
    let changed: Vec<_> =
        after.iter().filter(|(path, what)| **path != index && before.get(*path) != Some(what)).collect();
    assert!(
        changed.is_empty() && after.len() == before.len(),
        "{:?}",
        changed.iter().map(|c| c.0).collect::<Vec<_>>()
    );
    assert_eq!(world.query("SELECT count(*) FROM events"), 2);
}

#[test]
fn a_user_with_read_permission_can_read_though_no_watermark_can_be_stored() {
    let Some(world) = shared_world() else { return };
    world.thread(["init", "inbox"]).quiet();
    world.idle_consumer("bot", "content = 'none'");
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n";
    // Enough events that the owner's command would store a watermark for the filter.
    world.off(["push", "--batch"]).stdin(line.repeat(600)).quiet();
    open_for_reading(&world);
    let info = as_user(&world, NOBODY, "thread info --json").quiet();
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["event_count"], &info["subscriptions"][0]["pending"]), (&600.into(), &0.into()));
    let marks = "SELECT count(*) FROM consumers WHERE scanned_upto IS NOT NULL";
    assert_eq!(world.query(marks), 0);
    world.thread(["info"]).quiet();
    assert_eq!(world.query(marks), 1);
}

#[test]
fn on_a_read_only_file_system_the_owner_can_read_and_is_warned_that_nothing_is_started() {
    let world = World::new();
    let script = "export THREAD_DIR=\"$PWD/inbox\"; chmod 755 inbox\n\
         thread init inbox >/dev/null\n\
         thread subscribe bot cat --deliver stdin >/dev/null\n\
         thread push one >/dev/null\n\
         PATH=/usr/bin:/bin mount -o remount,ro inbox || exit 1\n\
         thread doctor >found 2>&1; echo $? >code\n\
         thread peek >peeked 2>&1; thread backup copy >made 2>&1; thread dispatch >dispatched 2>&1";
    if !on_a_small_disk(&world, script) {
        return;
    }
    let found = world.lines("found");
    assert!(found.len() == 1 && found[0].starts_with("warning: 'bot' has events pending"), "{found:?}");
    assert_eq!(world.read("code"), "0\n");
    assert_eq!(ids(&world.read("peeked")), [1]);
    let dispatched = world.read("dispatched");
    assert!(
        dispatched.starts_with("Warning: the consumer 'bot' was not started: cannot lock "),
        "{dispatched}"
    );
    assert!(world.read("made").ends_with("/copy\n"), "{}", world.read("made"));
}

#[test]
fn an_older_read_only_thread_can_be_read() {
    let Some(world) = shared_world() else { return };
    fs::create_dir_all(world.inbox().join("run")).unwrap();
    fs::create_dir_all(world.inbox().join("logs")).unwrap();
    let db = world.db();
    db.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; {EARLIER_SCHEMA} \
         INSERT INTO events (source, type, content) VALUES ('self', 'message', 'one'), ('self', 'record', 'two'); \
         INSERT INTO subscriptions VALUES ('bot', 'true', 'type = ''message''');",
    ))
    .unwrap();
    // `db` stays open to keep the WAL, which SQLite cannot create without write permission.
    open_for_reading(&world);
    let run = |words: &str| as_user(&world, NOBODY, &format!("thread {words}"));
    let peeked = run("peek --last-event-id 0").quiet();
    let contents: Vec<Value> = peeked.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (contents[0]["content"].as_str(), contents[1]["content"].as_str()),
        (Some("one"), Some("two"))
    );
    let info: Value = serde_json::from_str(&run("info --json").quiet()).unwrap();
    assert_eq!(info["event_count"], 2);
    let bot = &info["subscriptions"][0];
    assert_eq!(
        (&bot["consumer_id"], &bot["state"], &bot["pending"]),
        (&"bot".into(), &"idle".into(), &1.into())
    );
    assert!(run("info").quiet().contains("    filter:  type = 'message'\n"));
    let refused = run("push --source self --type message --content x").fails(1);
    assert!(refused.contains("no permission for the database"), "{refused}");
    run("subscribe --consumer c --handler true").fails(1);
    // The schema was not upgraded; the owner's next push does that.
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'consumers'";
    assert_eq!(world.query(tables), 0);
    world.off(["push", "--source", "self", "--type", "message", "--content", "x"]).quiet();
    assert_eq!(world.query(tables), 1);
    drop(db);
}

// --- Forgery -------------------------------------------------------------------------------------

/// Forged lines of the log and of `info`, colours, reversed text, and line separators that only
/// some programs recognize.
const EVIL: &str = "x\n[2026-01-01T00:00:00.000Z] [INFO] push: source=forged type=message id=1\r\n\
    Events: 99\n  - forged\n    handler: forged\n\u{1b}[31m\u{1b}]0;title\u{7}\u{8}\u{85}\u{9b}2J\u{2028}forged\u{2029}\u{202e}\u{2066}\u{feff}\0";

/// Fails if human-readable output contains anything but complete, visible lines.
fn assert_safe(what: &str, text: &str) {
    let unsafe_one = text.chars().find(|&c| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    });
    assert_eq!(unsafe_one, None, "{what}: {text:?}");
}

fn assert_log_is_safe(world: &World) {
    let log = world.read("inbox/logs/thread.log");
    assert_safe("the log", &log);
    for line in log.lines() {
        let stamp = line.get(..27).unwrap_or_default();
        assert!(stamp.starts_with("[20") && stamp.ends_with("Z] "), "not a line of the log: {line:?}");
        assert!(!line.starts_with("[2026-01-01T00:00:00.000Z]"), "forged: {line:?}");
    }
}

#[test]
fn what_other_programs_stored_cannot_forge_or_colour_the_log_or_info() {
    let world = World::with_thread();
    let db = world.db();
    let insert = "INSERT INTO events (source, type, subtype, content) VALUES (?1, 'message', ?1, ?1)";
    db.execute(insert, [EVIL]).unwrap();
    // Consumers that run, that have an invalid filter, whose filter fails, and that have stalled.
    let add = "INSERT INTO subscriptions (consumer_id, handler_cmd, filter) VALUES (?, ?, ?)";
    let name = |of: &str| format!("{of}{EVIL}").replace('\0', "");
    let handler = format!("printf '%s' ran >>ran\n: '{}'", EVIL.replace('\0', ""));
    db.execute(add, (name("runs"), &handler, None::<&str>)).unwrap();
    db.execute(add, (name("bad"), EVIL, EVIL)).unwrap();
    let fails = format!("json_extract('{{}}', content) = 1 OR source = '{}'", EVIL.replace('\0', ""));
    db.execute(add, (name("fails"), "true", &fails)).unwrap();
    db.execute(add, (name("stalled"), name("stalled"), None::<&str>)).unwrap();
    let stall = "UPDATE consumers SET cwd = ?1, run = json_object('phase', 'stalled', 'reason', ?1) WHERE consumer_id = ?1";
    db.execute(stall, [name("stalled")]).unwrap();
    let letter = "INSERT INTO dead_letters (consumer_id, event_id, attempts, last_exit, last_error, parked_at) \
                  VALUES (?1, 1, 1, 1, ?2, ?2)";
    db.execute(letter, [name("runs").as_str(), EVIL]).unwrap();
    drop(db);
    let (_, stderr) = world
        .thread([
            "push",
            "--source",
            "external:x",
            "--type",
            "message",
            "--content",
            EVIL.trim_end_matches('\0'),
        ])
        .ends_with(0);
    assert_safe("push", &stderr);
    wait_until("the run", || world.path("ran").exists());
    world.thread(["pause", "--consumer", &name("runs")]).ok();
    world.wait_until_quiet();
    assert_log_is_safe(&world);
    let log = world.log();
    for expected in ["spawned", "not started", "filter: consumer=fails"] {
        assert!(log.iter().any(|line| line.contains(expected)), "no {expected} in {log:#?}");
    }

    let info = world.thread(["info"]).quiet();
    assert_safe("info", &info);
    let starting = |with: &str| info.lines().filter(|line| line.starts_with(with)).count();
    assert_eq!((starting("Events: "), starting("  - "), starting("    handler: ")), (1, 4, 4), "{info}");
    // Programs get the unchanged text in JSON, which has no raw control characters.
    let json = world.thread(["info", "--json"]).quiet();
    assert!(!json.trim_end().contains(|c: char| c < ' '), "{json:?}");
    assert_eq!(world.consumer(&name("bad"))["filter"], EVIL);
    assert_eq!(world.consumer(&name("runs"))["handler_cmd"], handler);
    let peeked = world.thread(["peek", "--last-event-id", "0"]).quiet();
    assert_eq!(peeked.lines().count(), 2, "{peeked:?}");
    let event: Value = serde_json::from_str(peeked.lines().next().unwrap()).unwrap();
    for field in ["source", "subtype", "content"] {
        assert_eq!(event[field], EVIL, "{field}");
    }
    assert!(!peeked.contains(|c: char| c < ' ' && c != '\n'), "{peeked:?}");

    // The other commands that print names and reasons.
    let words: [&[&str]; 6] = [
        &["dead", "list", "--consumer", &name("runs")],
        &["dead", "retry", "--all", "--consumer", &name("runs")],
        &["unsubscribe", "--consumer", EVIL.trim_end_matches('\0')],
        &["pop", "--resume", "--consumer", &name("bad")],
        &["stop", "--consumer", &name("runs")],
        &["peek", "--last-event-id", "0", "--filter", EVIL.trim_end_matches('\0')],
    ];
    for words in words {
        let output = world.thread(words).output();
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_safe(&format!("{words:?}"), &(out.clone() + &err));
        assert!(
            out.lines().count() + err.lines().count() <= 1,
            "{words:?} prints more than a line: {out}{err}"
        );
    }
    assert_log_is_safe(&world);
}

#[test]
fn the_end_of_a_handlers_output_cannot_colour_the_list_of_dead_letters() {
    let world = World::with_thread();
    world.write("evil", EVIL.replace('\0', "") + "the end\u{1b}[0m");
    let handler = "cat evil; exit 3";
    let words =
        ["subscribe", "--deliver", "stdin", "--max-attempts", "1", "--backoff", "1ms", "--consumer", "bot"];
    world.thread(words).arg("--handler").arg(handler).quiet();
    world.push("x");
    wait_until("the dead letter", || world.consumer("bot")["dead"] == 1);
    world.wait_until_quiet();
    let list = world.thread(["dead", "list", "--consumer", "bot"]).quiet();
    assert_safe("dead list", &list);
    assert_eq!(list.lines().count(), 1, "{list:?}");
    assert!(list.contains("the end"), "{list:?}");
    let json = world.thread(["dead", "list", "--consumer", "bot", "--json"]).quiet();
    let letter: Value = serde_json::from_str(json.trim_end()).unwrap();
    assert!(letter["last_error"].as_str().unwrap().contains("forged\n\u{1b}[31m"), "{letter}");
    assert_log_is_safe(&world);
    assert_safe("info", &world.thread(["info"]).quiet());
}

#[test]
fn a_source_with_control_characters_is_refused_and_leaves_no_trace() {
    let world = World::with_thread();
    let log = world.log();
    for evil in ["a\nb", "a\u{1b}[31m", "a\rb", "\u{7f}", "a\u{85}b", "a\u{9b}b"] {
        let words = ["push", "--type", "message", "--content", "x", "--source", evil];
        assert_safe("push", &world.thread(words).fails(2));
        let line = serde_json::json!({"source": evil, "type": "message", "content": "x"}).to_string();
        assert_safe("push --batch", &world.thread(["push", "--batch"]).stdin(line).fails(2));
    }
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
    assert_eq!(world.log(), log);
    // Marks that reverse text are not control characters; the log escapes them.
    world.thread(["push", "--source", "a\u{202e}b", "--type", "message", "--content", "x"]).quiet();
    assert_log_is_safe(&world);
    assert_eq!(world.log().last().unwrap(), "[INFO] push: source=a\\u{202e}b type=message id=1");
}

// --- One thread, many paths ----------------------------------------------------------------------

#[test]
fn all_paths_to_one_thread_share_one_lock() {
    let world = World::with_thread();
    symlink("inbox", world.path("link")).unwrap();
    fs::create_dir(world.path("sub")).unwrap();
    symlink("..", world.path("sub/up")).unwrap();
    // It handles the events that exist when it begins; later ones are left for a second run.
    let handler = "there=$(thread peek --last-event-id 0 | wc -l); echo begin >>runs; \
                   while [ ! -e go ]; do sleep 0.01; done; echo end >>runs; thread ack --event-id $there";
    world.thread(["subscribe", "--consumer", "bot", "--handler", handler]).quiet();
    world.push("x");
    wait_until("the run", || world.lines("runs").len() == 1);
    let paths = ["link", "./inbox", "sub/../link", "sub/up/inbox", "inbox/../sub/up/link/."];
    for path in paths {
        let words = ["push", "--thread", path, "--source", "self", "--type", "message", "--content", "x"];
        world.thread(words).env_remove("THREAD_DIR").quiet();
        world.thread(["dispatch", "--thread", path]).env_remove("THREAD_DIR").quiet();
    }
    // Also from inside the thread.
    world.thread(["dispatch", "--thread", "."]).dir(world.inbox()).quiet();
    let skipped =
        || world.log().iter().filter(|line| line.ends_with("consumer=bot skipped (lock held)")).count();
    assert_eq!(skipped(), 2 * paths.len() + 1, "{:#?}", world.log());
    assert_eq!(world.lines("runs"), ["begin"]);
    world.write("go", "");
    wait_until("all to be handled", || world.consumer("bot")["pending"] == 0);
    world.wait_until_quiet();
    // Never two at once: each run ends before the next one begins.
    let runs = world.lines("runs");
    assert!(runs.len() >= 4, "what was pushed through the other paths was never looked at: {runs:?}");
    assert!(runs.chunks(2).all(|pair| pair == ["begin", "end"]), "{runs:?}");
    world.assert_log_is_exact();
}
