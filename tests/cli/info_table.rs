//! `info` for people: the table printed on a terminal, its width and its colours.

use thread_testkit::World;

/// A thread with a consumer that failed, one that is paused, and one with a wide name.
fn troubled() -> World {
    let world = World::with_thread();
    world.push("x");
    world.subscribe("failing", "exit 3", &["--backoff", "1h"]);
    world.wait_for_state("failing", "waiting");
    world.idle_consumer("held", "content = 'x'");
    world.thread(["pause", "--consumer", "held"]).quiet();
    // Nothing is to be started for it, as the timer would, which attends to the wait.
    let sql = "BEGIN; INSERT INTO subscriptions (consumer_id, handler_cmd) VALUES ('漢字-🚀', ':'); \
               UPDATE consumers SET options = '{\"no_handler\":true}' WHERE consumer_id = '漢字-🚀'; COMMIT";
    world.db().execute_batch(sql).unwrap();
    world
}

/// The table without the text above it, with all ages made equal.
fn table(text: &str) -> Vec<String> {
    let (_, table) = text.split_once("\n\n").unwrap_or_else(|| panic!("no table in {text}"));
    let ageless = |word: &str| {
        let age = word.strip_suffix(['s', 'm']).is_some_and(|n| n.parse::<u32>().is_ok());
        if age { "AGE".to_owned() } else { word.to_owned() }
    };
    table.lines().map(|line| line.split_whitespace().map(ageless).collect::<Vec<_>>().join(" ")).collect()
}

/// The terminal column at which a word begins.
fn column_of(line: &str, word: &str) -> usize {
    use unicode_width::UnicodeWidthStr;
    line[..line.find(word).unwrap_or_else(|| panic!("no {word} in {line}"))].width()
}

#[test]
fn a_terminal_gets_one_line_for_each_consumer() {
    let world = troubled();
    let Some(run) = world.terminal(200, "NO_COLOR=1 thread info") else { return };
    let text = run.quiet();
    let head = format!("Thread: {}\nEvents: 1\nSubscriptions: 3\nLast event: 1\n", world.inbox().display());
    assert!(text.starts_with(&format!("{head}Disk: ")), "{text}");
    assert_eq!(
        table(&text),
        [
            "CONSUMER STATE PENDING OLDEST DEAD LAST RUN",
            "failing waiting 1 AGE 0 AGE ago, exit=3",
            "held paused 1 AGE 0 -",
            "漢字-🚀 idle 1 AGE 0 -",
            "",
            "failing: next try in AGE",
        ]
    );
    // The same table is available in a pipe, without colours, truncation or trailing blanks.
    let piped = world.thread(["info", "--format", "table"]).quiet();
    assert_eq!(table(&piped), table(&text));
    assert!(!piped.lines().any(|line| line.ends_with(' ')), "{piped:?}");
    let rows = text.lines().skip_while(|line| !line.starts_with("CONSUMER"));
    let states = rows.zip(["STATE", "waiting", "paused", "idle"]).map(|(row, word)| column_of(row, word));
    assert_eq!(states.collect::<Vec<_>>(), ["CONSUMER  ".len(); 4], "{text}");
}

#[test]
fn without_a_terminal_and_on_request_the_lines_for_scripts_come() {
    let world = troubled();
    let piped = world.thread(["info"]).quiet();
    assert!(piped.contains("\n  - held\n    handler: true\n    filter:  content = 'x'\n"), "{piped}");
    assert_eq!(world.thread(["info"]).env("CLICOLOR_FORCE", "1").quiet(), piped);
    let Some(run) = world.terminal(40, "thread info --format text") else { return };
    assert_eq!(run.quiet(), piped);
}

#[test]
fn the_table_fits_the_terminal() {
    let world = World::with_thread();
    let long = "a-consumer-with-quite-a-long-name-that-says-what-it-is-for";
    world.idle_consumer(long, "type = 'message' AND source LIKE 'external:%' AND content <> ''");
    world.idle_consumer("short", "");
    world
        .db()
        .execute("INSERT INTO subscriptions (consumer_id, handler_cmd) VALUES (?1, ?1)", ["漢".repeat(50)])
        .unwrap();
    for width in [200, 120, 100, 80, 70] {
        let Some(run) = world.terminal(width, "NO_COLOR=1 thread info") else { return };
        let text = run.quiet();
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("CONSUMER")).collect();
        assert_eq!(lines.len(), 4, "{text}");
        for line in &lines {
            use unicode_width::UnicodeWidthStr;
            assert!(line.width() <= width as usize, "{width}: {line}");
        }
        assert!(lines[0].ends_with("LAST RUN"), "{text}");
        assert_eq!(text.contains('…'), width < 200, "{text}");
    }
    // In a pipe nothing is truncated.
    let piped = world.thread(["info", "--format", "table"]).quiet();
    assert!(piped.contains(long) && piped.contains(&"漢".repeat(50)) && !piped.contains('…'), "{piped}");
}

#[test]
fn only_a_terminal_is_coloured_and_only_where_that_is_wanted() {
    let world = troubled();
    let coloured = |environment: &[(&str, &str)], options: &str| {
        let mut run = world.terminal(120, &format!("thread info {options}"))?;
        for (name, value) in environment {
            run = run.env(name, value);
        }
        Some(run.quiet().contains("\x1b["))
    };
    for (environment, options, expected) in [
        (&[][..], "", true),
        (&[("TERM", "dumb")], "", false),
        (&[("NO_COLOR", "1")], "", false),
        (&[("NO_COLOR", "")], "", true),
        (&[("CLICOLOR", "0")], "", false),
        (&[], "--format text", false),
        (&[], "--json", false),
        (&[], "--format prometheus", false),
        (&[], "--format table | cat", false),
        (&[("CLICOLOR_FORCE", "1")], "--format table | cat", true),
    ] {
        let Some(found) = coloured(environment, options) else { return };
        assert_eq!(found, expected, "{environment:?} {options}");
    }
}

#[test]
fn the_word_error_is_red_on_a_terminal_only() {
    let world = World::new();
    let plain = world.thread(["info"]).fails(1);
    let Some(run) = world.terminal(80, "thread info") else { return };
    let (shown, _) = run.ends_with(1);
    assert_eq!(shown.trim_end(), plain.replacen("Error:", "\x1b[1m\x1b[31mError:\x1b[0m", 1));
    let (shown, _) = world.terminal(80, "thread info --json").unwrap().ends_with(1);
    assert!(shown.starts_with("{\"error\":"), "{shown:?}");
    let (shown, _) = world.terminal(80, "thread info").unwrap().env("NO_COLOR", "1").ends_with(1);
    assert_eq!(shown.trim_end(), plain);
}

#[test]
fn nothing_in_a_table_comes_from_others_unescaped() {
    let world = World::with_thread();
    let evil = "x\n\x1b[2J\r\u{202e}\u{7}";
    let insert = "INSERT INTO subscriptions (consumer_id, handler_cmd) VALUES (?1, ?1)";
    world.db().execute(insert, [evil]).unwrap();
    world.set_run_state(evil, "$.phase", "stalled");
    world.set_run_state(evil, "$.reason", evil);
    for width in [300, 80] {
        let Some(run) = world.terminal(width, "NO_COLOR=1 thread info") else { return };
        let text = run.quiet();
        assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
        assert_eq!(text.lines().filter(|line| line.starts_with("x\\n\\u{1b}")).count(), 2, "{text}");
    }
}

#[test]
fn a_handler_of_many_lines_makes_nothing_wide_and_what_is_cut_bears_a_mark() {
    let world = World::with_thread();
    let handler = format!("for n in 1 2\ndo\n  {}\ndone", "echo a long command; ".repeat(20));
    let name = "a-consumer-whose-name-is-so-long-that-it-does-not-fit-beside-all-the-other-columns";
    for consumer in ["bot", name] {
        world.off(["subscribe", consumer, &handler]).quiet();
    }
    let Some(run) = world.terminal(80, "NO_COLOR=1 thread info") else { return };
    let text = run.quiet();
    let (_, table) = text.split_once("\n\n").unwrap();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{text}");
    let cut = table.lines().find(|line| line.starts_with("a-consumer")).unwrap();
    assert!(cut.contains('…') && cut.contains(" idle "), "{text}");
    for title in ["CONSUMER", "STATE", "PENDING", "OLDEST", "DEAD", "LAST RUN"] {
        assert!(table.lines().next().unwrap().contains(title), "{text}");
    }
}

#[test]
fn a_handler_that_acknowledges_nothing_is_reported_plainly() {
    let world = World::with_thread();
    world.subscribe("bot", "true", &["--backoff", "1h"]);
    world.subscribe("failing", "exit 3", &["--backoff", "1h"]);
    world.subscribe("fed", "cat", &["--deliver", "stdin"]);
    world.push("x");
    world.wait_for_state("bot", "waiting");
    world.wait_for_state("failing", "waiting");
    world.wait_for_state("fed", "idle");
    let why =
        "exit 0, but nothing was acknowledged: `thread ack` what is done, or subscribe with --deliver stdin";
    let info = world.thread(["info"]).quiet();
    let notes: Vec<&str> = info.lines().filter(|line| line.starts_with("    note: ")).collect();
    assert_eq!(notes.len(), 1, "{info}");
    assert!(notes[0].contains(why), "{info}");
    let table = world.thread(["info", "--format", "table"]).quiet();
    assert!(table.lines().any(|line| line.starts_with("bot: next try in ") && line.contains(why)), "{table}");
    let log = world.log();
    let told: Vec<&String> = log.iter().filter(|line| line.contains(why)).collect();
    assert_eq!(told.len(), 1, "{log:?}");
    assert!(told[0].starts_with("[WARN] dispatch: consumer=bot exit 0, but"), "{told:?}");
    for consumer in ["bot", "failing"] {
        world.thread(["stop", consumer]).quiet();
    }
}
