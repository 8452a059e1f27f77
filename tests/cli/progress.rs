//! Progress of long operations: shown on a terminal's stderr after half a second, and cleared at the end.

use std::io::Read;

use thread_testkit::{Run, World};

/// This many events take well over half a second.
const MANY: u32 = if cfg!(debug_assertions) { 300_000 } else { 3_000_000 };

const LINE: &str = r#"{"source":"self","type":"record","content":"some words"}"#;

/// The sequence that clears the line.
const CLEARED: &str = "\r\x1b[K";

/// A shell loop that feeds a batch until the file `seen` exists.
const FEED: &str = "cat line; while ! [ -e seen ]; do cat line; sleep 0.02; done";

/// Runs the command in its terminal and creates the file `seen` once `wanted` was printed. Returns
/// all output.
fn shown(world: &World, run: Run, wanted: &str) -> String {
    let mut child = run.spawn();
    let mut stdout = child.stdout.take().unwrap();
    let (mut all, mut some) = (Vec::new(), [0; 4096]);
    loop {
        let read = stdout.read(&mut some).unwrap();
        if read == 0 {
            break;
        }
        all.extend_from_slice(&some[..read]);
        if String::from_utf8_lossy(&all).contains(wanted) {
            world.write("seen", "");
        }
    }
    child.wait().unwrap();
    String::from_utf8(all).unwrap()
}

fn with_line() -> World {
    let world = World::with_thread();
    world.write("line", format!("{LINE}\n"));
    world
}

/// A thread with three times [`MANY`] events and their JSONL log.
fn with_many() -> World {
    let world = World::with_thread();
    insert(&world, 3 * MANY);
    world.push("the last");
    world
}

/// Inserts `count` events that are not in the JSONL log yet.
fn insert(world: &World, count: u32) {
    world
        .db()
        .execute(
            "INSERT INTO events (created_at, source, type, content) \
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
             SELECT '2026-01-01T00:00:00.000Z', 'self', 'record', 'words ' || i FROM n",
            [count],
        )
        .unwrap();
}

/// Fails unless these texts are drawn one after the other, and only `end` follows the last clearing.
#[track_caller]
fn assert_drawn(shown: &str, stages: &[&str], end: &str) {
    let mut rest = shown;
    for stage in stages {
        let at = rest.find(stage).unwrap_or_else(|| panic!("no {stage:?} in {rest:?}"));
        rest = &rest[at..];
    }
    assert_eq!(rest.rsplit_once(CLEARED).map(|(_, end)| end), Some(end), "{shown:?}");
}

#[test]
fn a_batch_from_a_slow_pipe_shows_how_many_events_it_has() {
    let world = with_line();
    let feed = format!("({FEED}) | thread push --batch");
    let Some(run) = world.terminal(80, &feed) else { return };
    let shown = shown(&world, run, "reading the batch: ");
    let count = world.query("SELECT count(*) FROM events");
    assert_drawn(&shown, &["reading the batch: "], &format!("{count}\n"));
    let colours = shown.replace("\x1b[K", "");
    assert!(!colours.contains('\x1b'), "{colours:?}");
}

#[test]
fn a_batch_from_a_file_shows_the_share_done_and_the_time_left() {
    let world = World::with_thread();
    world.write("big", format!("{LINE}\n").repeat(MANY as usize));
    let Some(run) = world.terminal(80, "thread push --batch <big") else { return };
    let shown = shown(&world, run, "%");
    assert_drawn(&shown, &["storing the batch: ", "%, ", "s left"], &format!("{MANY}\n"));
}

#[test]
fn a_long_addition_to_the_jsonl_log_shows_how_far_it_is() {
    let world = with_line();
    insert(&world, 4 * MANY);
    let Some(run) = world.terminal(80, "thread push --batch <line") else { return };
    let shown = shown(&world, run, "writing");
    assert_drawn(&shown, &["writing events.jsonl: "], "1\n");
}

#[test]
fn an_error_does_not_follow_the_progress_on_the_same_line() {
    let world = with_line();
    let feed = format!("({FEED}; echo nonsense) | NO_COLOR=1 thread push --batch");
    let Some(run) = world.terminal(80, &feed) else { return };
    let shown = shown(&world, run, "reading");
    let (_, error) = shown.rsplit_once(CLEARED).unwrap_or_else(|| panic!("{shown:?}"));
    assert!(error.starts_with("Error: line ") && error.ends_with('\n'), "{shown:?}");
    assert_eq!(error.lines().count(), 1);
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn reading_and_pruning_show_how_far_they_are() {
    let world = with_many();
    let commands = "thread peek --last-event-id 0 --limit 9999999 >out; \
                    thread prune --force --before-id 9999999 --compact 2>&1 >/dev/null";
    let Some(run) = world.terminal(80, commands) else { return };
    let shown = shown(&world, run, "%");
    let stages = ["reading events: ", "%, ", "s left", "deleting old events: "];
    assert!(world.read("out").lines().count() == 3 * MANY as usize + 1);
    let (rest, note) = shown.split_once("Note: ").unwrap();
    assert_drawn(rest, &stages, "");
    assert!(note.starts_with("events.db had "), "{note}");
}

#[test]
fn a_signal_leaves_no_line_behind_and_ends_the_command_as_usual() {
    let world = with_many();
    let command = "thread peek --last-event-id 0 --limit 9999999 >out & \
                   while ! [ -e seen ]; do sleep 0.02; done; kill -TERM $!; wait $!; echo ended $?";
    let Some(run) = world.terminal(80, command) else { return };
    let shown = shown(&world, run, "reading");
    let (drawn, left) = shown.rsplit_once(CLEARED).unwrap_or_else(|| panic!("{shown:?}"));
    assert!(drawn.contains("reading") && !left.contains("reading"), "{shown:?}");
    assert!(left.ends_with("ended 143\n"), "{shown:?}");
}

#[test]
fn an_interrupted_batch_replaces_the_progress_by_its_error() {
    let world = with_line();
    let command = "mkfifo pipe; thread push --batch <pipe & exec 3>pipe; \
                   while ! [ -e seen ]; do cat line >&3; sleep 0.02; done; kill -TERM $!; wait $!; echo ended $?";
    let Some(run) = world.terminal(80, command) else { return };
    let shown = shown(&world, run, "reading");
    let (_, left) = shown.rsplit_once(CLEARED).unwrap_or_else(|| panic!("{shown:?}"));
    assert!(left.contains("interrupted, nothing was stored - push the whole batch again"), "{shown:?}");
    assert!(left.ends_with("ended 143\n") && !left.contains("reading"), "{shown:?}");
}

#[test]
fn output_lines_are_not_mixed_with_the_progress() {
    let world = with_many();
    let command = "stty cols 200; thread peek --last-event-id 0 --limit 9999999; \
                   thread peek --last-event-id 0 --limit 9999999 | cat";
    let Some(run) = world.terminal(200, command) else { return };
    let shown = run.quiet();
    assert_eq!(shown.lines().count(), 2 * (3 * MANY as usize + 1));
    assert!(!shown.contains('\x1b'));
}

#[test]
fn nothing_is_shown_of_quick_work_or_where_no_terminal_can_show_it() {
    let world = with_line();
    let slow = "(cat line; sleep 0.8; cat line) | ";
    for (command, shown) in [
        ("thread push --batch <line; cat line | thread push --batch; thread doctor", "1\n1\nhealthy\n"),
        (&format!("{slow} TERM=dumb thread push --batch"), "2\n"),
        (&format!("{slow} env -u TERM thread push --batch"), "2\n"),
        (&format!("{slow} thread push --batch 2>err; cat err"), "2\n"),
    ] {
        let Some(run) = world.terminal(80, command) else { return };
        assert_eq!(run.quiet(), shown, "{command}");
    }
}
