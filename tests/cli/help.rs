//! Orientation for newcomers: the start page, help, aliases, suggestions for mistyped words, the version.

use serde_json::Value;
use thread_testkit::{World, copy_program, wait_until};

use crate::errors::NAMES;

#[test]
fn the_program_alone_shows_where_to_begin() {
    let world = World::new();
    let (stdout, stderr) = world.thread([""; 0]).ends_with(2);
    assert_eq!(stdout, "");
    assert!(stderr.starts_with("thread keeps durable event queues"), "{stderr}");
    let commands: Vec<&str> = stderr.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert_eq!(commands.len(), 5, "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("Error: no command given - "), "{stderr}");
    assert!(stderr.lines().all(|line| line.len() <= 100) && stderr.lines().count() <= 20, "{stderr}");
    let (stdout, stderr) = world.thread(["--json"]).ends_with(2);
    assert_eq!((stdout.as_str(), stderr.lines().count()), ("", 1));
    assert_eq!(serde_json::from_str::<Value>(&stderr).unwrap()["error"], "no command given");

    // The commands succeed when run in that order.
    for command in &commands {
        world.sh(command).env_remove("THREAD_DIR").quiet();
        world.wait_until_quiet();
    }
    let log = world.thread(["logs", "--consumer", "bot"]).quiet();
    assert!(log.contains("\"content\":\"Hello\""), "{log}");
}

#[test]
fn an_incomplete_command_names_its_help() {
    let world = World::new();
    let error = world.thread(["dead"]).fails(2);
    assert_eq!(error, "Error: no command given - see `thread dead --help`");
}

#[test]
fn the_short_help_fits_a_screen() {
    let world = World::new();
    // A copy without further programs, whose number varies.
    std::fs::create_dir(world.path("own")).unwrap();
    copy_program(&world, &world.path("own/thread"));
    let nested = ["list", "show", "retry", "discard"].map(|word| vec!["dead", word]);
    for words in [vec![]].into_iter().chain(NAMES.map(|name| vec![name])).chain(nested) {
        let help = world.sh(&format!("exec own/thread {} -h", words.join(" "))).env("COLUMNS", "80").quiet();
        // The list of the commands has a line for each.
        let most = if words.is_empty() { 60 } else { 44 };
        assert!(help.lines().count() <= most, "{words:?} has {} lines:\n{help}", help.lines().count());
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

/// Runs a mistyped command line, expects exit 2, and returns the suggested command.
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
        (&["subscrbe"], "subscribe"),
        (&["dead", "lst"], "list"),
        (&["push", "--sourec", "self"], "--source"),
        (&["pop", "--consumr=x"], "--consumer"),
        (&["dead", "list", "--evnt-id", "1"], "--event-id"),
    ] {
        assert_eq!(suggested(&world, words), meant, "{words:?}");
    }
}

#[test]
fn words_of_other_tools_suggest_what_they_mean_and_not_what_looks_alike() {
    let world = World::new();
    for (word, meant) in [
        ("tail", "thread peek --follow"),
        ("replay", "thread seek <consumer> beginning"),
        ("rename", "mv <thread> <new path>"),
        ("consumers", "thread info"),
        ("publish", "thread push <text>"),
        ("queues", "thread ls"),
        ("purge", "thread prune"),
    ] {
        assert_eq!(suggested(&world, &[word]), meant);
    }
    // In a command that has commands of its own, they mean nothing.
    assert!(!world.thread(["dead", "tail"]).fails(2).contains("peek"));
}

/// Words known from other tools, and the commands they are aliases for.
const ALIASES: [(&str, &str); 9] = [
    ("sub", "subscribe"),
    ("unsub", "unsubscribe"),
    ("status", "info"),
    ("list", "ls"),
    ("kill", "stop"),
    ("cancel", "stop"),
    ("log", "logs"),
    ("dlq", "dead"),
    ("dead-letters", "dead"),
];

#[test]
fn words_of_other_tools_are_commands_too() {
    let world = World::with_thread();
    world.push("x");
    assert_eq!(world.thread(["status"]).quiet(), world.thread(["info"]).quiet());
    world
        .thread(["sub", "--consumer", "bot", "--handler", "exit 7", "--max-attempts", "1"])
        .arg("--deliver")
        .arg("stdin")
        .quiet();
    wait_until("the dead letter", || world.consumer("bot")["dead"] == 1);
    world.wait_until_quiet();
    let letters = world.thread(["dead", "list", "--json"]).quiet();
    assert!(letters.contains("\"event_id\":1,"), "{letters}");
    assert_eq!(world.thread(["dlq", "list", "--json"]).quiet(), letters);
    let nothing = world.thread(["kill", "--consumer", "bot"]).fails(1);
    assert!(nothing.contains("is not running or waiting"), "{nothing}");
    world.thread(["unsub", "--consumer", "bot"]).quiet();
    for (alias, command) in ALIASES {
        let help = world.thread([command, "--help"]).quiet();
        assert_eq!(world.thread([alias, "--help"]).quiet(), help, "{alias}");
        let mistake = world.thread([alias, "--frobnicate"]).fails(2);
        assert!(mistake.ends_with(&format!("see `thread {command} --help`")), "{mistake}");
    }
}

#[test]
fn help_manual_and_completions_have_one_name_for_each_command() {
    let world = World::new();
    let mut pages = vec![world.thread(["--help"]).quiet(), world.thread(["man"]).quiet()];
    for shell in ["bash", "zsh", "fish"] {
        pages.push(world.thread(["completions", shell]).quiet());
    }
    for page in pages {
        let words: Vec<&str> =
            page.split(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c)).collect();
        for alias in ["unsub", "dlq", "dead-letters"] {
            assert!(!words.contains(&alias), "{alias} in\n{page}");
        }
    }
}

#[test]
fn the_thread_may_be_named_before_or_after_the_command() {
    let world = World::with_thread();
    world.push("x");
    for words in [
        &["--thread", "inbox", "info"][..],
        &["--thread=inbox", "info"],
        &["-t", "inbox", "info"],
        &["-tinbox", "info"],
        &["info", "--thread", "inbox"],
        &["info", "-t", "inbox"],
        &["-t", "inbox", "dead", "list"],
        &["dead", "-t", "inbox", "list"],
        &["dead", "list", "-t", "inbox"],
        &["-t", "inbox", "peek", "--tail", "1"],
        &["--json", "-t", "inbox", "push", "--source", "self", "--type", "record", "--content", "-t"],
    ] {
        world.thread(words).env("THREAD_DIR", "nowhere").quiet();
    }
    let nowhere = world.thread(["-t", "elsewhere", "info"]).fails(1);
    assert!(nowhere.contains("elsewhere is not a thread"), "{nowhere}");
}

#[test]
fn a_thread_named_without_its_option_is_a_usage_error() {
    let world = World::with_thread();
    let error = world.thread(["doctor", "inbox"]).fails(2);
    assert!(error.contains("unexpected argument 'inbox' found"), "{error}");
    let error = world.thread(["info", "inbox"]).fails(2);
    assert_eq!(error, "Error: 'inbox' is a thread, not a consumer - give the thread with --thread");
}

#[test]
fn a_usage_error_names_the_help_of_its_command() {
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
        assert_eq!(keys, ["version", "sqlite"]);
        assert_eq!(answer["version"], env!("CARGO_PKG_VERSION"));
        let (major, rest) = answer["sqlite"].as_str().unwrap().split_once('.').unwrap();
        assert!(major == "3" && rest.split_once('.').is_some(), "{answer}");
    }
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
