//! Finding one's way: the orientation, the help, what is suggested for a mistake, the version.

use serde_json::Value;

use crate::errors::NAMES;
use crate::harness::World;

#[test]
fn the_program_alone_shows_where_to_begin() {
    let world = World::new();
    let (stdout, stderr) = world.thread([""; 0]).ends_with(2);
    assert_eq!(stdout, "");
    assert!(stderr.starts_with("thread keeps durable event queues"), "{stderr}");
    let commands: Vec<&str> = stderr.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert_eq!(commands.len(), 5, "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("Error: no command is given - "), "{stderr}");
    assert!(stderr.lines().all(|line| line.len() <= 100) && stderr.lines().count() <= 20, "{stderr}");
    let (stdout, stderr) = world.thread(["--json"]).ends_with(2);
    assert_eq!((stdout.as_str(), stderr.lines().count()), ("", 1));
    assert_eq!(serde_json::from_str::<Value>(&stderr).unwrap()["error"], "no command is given");

    // They do what they promise, in that order.
    for command in &commands {
        world.sh(command).env_remove("THREAD_DIR").quiet();
        world.wait_until_quiet();
    }
    let log = world.thread(["logs", "--consumer", "bot"]).quiet();
    assert!(log.contains("\"content\":\"Hello\""), "{log}");
}

#[test]
fn half_a_command_names_the_other_half() {
    let world = World::new();
    let error = world.thread(["dead"]).fails(2);
    assert!(error.contains("list, show, retry, discard"), "{error}");
}

#[test]
fn the_short_help_fits_a_screen() {
    let world = World::new();
    let nested = ["list", "show", "retry", "discard"].map(|word| vec!["dead", word]);
    for words in [vec![]].into_iter().chain(NAMES.map(|name| vec![name])).chain(nested) {
        let help = world.thread(words.iter().chain(&["-h"])).env("COLUMNS", "80").quiet();
        assert!(help.lines().count() <= 40, "{words:?} has {} lines:\n{help}", help.lines().count());
    }
}

#[test]
fn help_as_a_command_is_the_long_help() {
    let world = World::new();
    assert_eq!(world.thread(["help"]).quiet(), world.thread(["--help"]).quiet());
    for name in NAMES {
        let help = world.thread(["help", name]).quiet();
        assert_eq!(help, world.thread([name, "--help"]).quiet());
    }
    let nested = world.thread(["help", "dead", "list"]).quiet();
    assert_eq!(nested, world.thread(["dead", "list", "--help"]).quiet());
    let long = world.thread(["--help"]).quiet();
    assert!(long.contains("\nEnvironment:\n") && long.contains("thread guide"), "{long}");
}

/// Runs a mistake, expects exit 2, and answers with what is suggested.
fn suggested(world: &World, words: &[&str]) -> String {
    let error = world.thread(words).fails(2);
    let fix = error.split_once(" - ").unwrap().1;
    let meant = fix.strip_prefix("did you mean '").and_then(|rest| rest.split_once("'? see `"));
    meant.unwrap_or_else(|| panic!("{words:?} suggests nothing: {error}")).0.to_owned()
}

#[test]
fn mistyped_words_suggest_the_right_ones() {
    let world = World::new();
    for (words, meant) in [
        (&["psuh"][..], "push"),
        (&["help", "psuh"], "push"),
        (&["subscrbe"], "subscribe"),
        (&["dead", "lst"], "list"),
        (&["help", "dead", "lst"], "list"),
        (&["push", "--sourec", "self"], "--source"),
        (&["pop", "--consumr=x"], "--consumer"),
        (&["dead", "list", "--evnt-id", "1"], "--event-id"),
    ] {
        assert_eq!(suggested(&world, words), meant, "{words:?}");
    }
}

#[test]
fn words_of_other_tools_suggest_ours() {
    let world = World::new();
    for (theirs, ours) in [
        ("publish", "push"),
        ("send", "push"),
        ("consume", "pop"),
        ("tail", "peek"),
        ("list", "info"),
        ("status", "info"),
        ("acknowledge", "ack"),
        ("create", "init"),
        ("kill", "stop"),
        ("dlq", "dead"),
    ] {
        assert_eq!(suggested(&world, &[theirs]), ours, "{theirs}");
    }
    for (words, ours) in [
        (&["push", "--message", "x"][..], "--content"),
        (&["push", "--data=x"], "--content"),
        (&["push", "--from", "self"], "--source"),
        (&["peek", "--from", "3"], "--last-event-id"),
        (&["pop", "--name", "bot"], "--consumer"),
        (&["ack", "--id", "3"], "--event-id"),
        (&["ack", "--last-event-id", "3"], "--event-id"),
        (&["subscribe", "--exec", "x"], "--handler"),
        (&["peek", "--where", "1"], "--filter"),
    ] {
        assert_eq!(suggested(&world, words), ours, "{words:?}");
    }
    // They are not commands of their own.
    let error = world.thread(["help", "publish"]).fails(2);
    assert!(error.contains("did you mean 'push'"), "{error}");
}

#[test]
fn a_thread_named_without_or_before_its_place_is_told_where_it_belongs() {
    let world = World::with_thread();
    assert_eq!(suggested(&world, &["info", "inbox"]), "--thread inbox");
    assert_eq!(suggested(&world, &["dead", "list", "inbox"]), "--thread inbox");
    assert_eq!(suggested(&world, &["--thread", "inbox", "info"]), "thread <COMMAND> --thread");
    assert_eq!(suggested(&world, &["--thread=inbox", "info"]), "thread info --thread");
    assert_eq!(suggested(&world, &["dead", "--consumer", "bot"]), "thread dead <COMMAND> --consumer");
    let error = world.thread(["info", "outbox"]).fails(2);
    assert!(!error.contains("did you mean"), "{error}");
}

#[test]
fn a_mistake_names_the_help_of_its_command() {
    let world = World::new();
    for (words, help) in [
        (&["frobnicate"][..], "`thread --help`"),
        (&["peek", "--last-event-id", "x"], "`thread peek --help`"),
        (&["--verbose", "dead", "list", "--frobnicate"], "`thread dead list --help`"),
        (&["push", "--source", "dead", "--frobnicate"], "`thread push --help`"),
    ] {
        let error = world.thread(words).fails(2);
        assert!(error.ends_with(&format!("see {help}")), "{error}");
    }
}

#[test]
fn the_version_comes_from_one_place() {
    let world = World::new();
    let line = format!("thread {}\n", env!("CARGO_PKG_VERSION"));
    for flag in ["--version", "-V"] {
        assert_eq!(world.thread([flag]).env_remove("THREAD_DIR").quiet(), line);
    }
    for flags in [["--version", "--json"], ["--json", "--version"], ["-V", "--json"]] {
        let answer = world.thread(flags).quiet();
        assert_eq!(answer.lines().count(), 1);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["version", "sqlite", "schema"]);
        assert_eq!(answer["version"], env!("CARGO_PKG_VERSION"));
        let (major, rest) = answer["sqlite"].as_str().unwrap().split_once('.').unwrap();
        assert!(major == "3" && rest.split_once('.').is_some(), "{answer}");
    }
}

#[test]
fn the_schemas_number_counts_what_was_added() {
    let world = World::with_thread();
    let answer: Value = serde_json::from_str(&world.thread(["--version", "--json"]).quiet()).unwrap();
    let base = "'events', 'subscriptions', 'consumer_progress'";
    let columns = format!(
        "SELECT count(*) - 12 FROM sqlite_schema s, pragma_table_info(s.name) WHERE s.name IN ({base})"
    );
    let tables = format!(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT IN ({base})"
    );
    assert_eq!(answer["schema"], world.query(&columns) + world.query(&tables));
}

#[test]
fn json_may_stand_before_the_command() {
    let world = World::with_thread();
    let answer: Value = serde_json::from_str(&world.thread(["--json", "info"]).quiet()).unwrap();
    assert_eq!(answer["event_count"], 0);
    let (_, stderr) = world.thread(["--json", "guide", "--for", "x"]).ends_with(2);
    assert!(serde_json::from_str::<Value>(&stderr).unwrap()["error"].is_string());
    for command in [&["completions", "bash"][..], &["man"], &["guide"]] {
        let plain = world.thread(command).quiet();
        assert_eq!(world.thread(command).arg("--json").quiet(), plain);
    }
}
