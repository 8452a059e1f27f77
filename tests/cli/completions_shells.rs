//! Completion in real shells in a terminal: the tests send keys and read the screen.

use thread_testkit::{World, skipped, wait_until};

use crate::terminal::Screen;

/// How each shell is started: with the completion script, no other settings, and a known prompt.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "exec bash --noprofile --rcfile rc.bash -i"),
    ("zsh", "ZDOTDIR=$PWD exec zsh -d -i"),
    ("fish", "exec fish --no-config --init-command 'source rc.fish'"),
];

/// A thread with two consumers, another with one, and the completion script of each shell.
fn world() -> World {
    let world = World::with_thread();
    for consumer in ["bottle", "amber:1"] {
        world.idle_consumer(consumer, "");
    }
    world.thread(["init", "other"]).quiet();
    world.off(["subscribe", "-t", "other", "elsewhere", "true"]).quiet();
    for (shell, _) in SHELLS {
        let script = world.thread(["completions", shell]).quiet();
        world.write(format!("completions.{shell}"), script);
    }
    world.write("rc.bash", "PS1='ready> '\n. ./completions.bash\n");
    world.write(".zshrc", "PS1='ready> '\nautoload -U compinit; compinit -u -D\n. ./completions.zsh\n");
    world.write("rc.fish", "source completions.fish\nfunction fish_prompt; echo -n 'ready> '; end\n");
    world
}

/// In a new shell, types `typed`, presses Tab, and waits until the screen shows all of `expected`.
fn completes(world: &World, command: &str, typed: &str, expected: &[&str]) -> Option<()> {
    let screen = Screen::open(world, command)?;
    screen.wait_for("ready>");
    screen.types(typed);
    screen.presses("Tab");
    if expected.len() > 1 {
        // bash lists the candidates at the second press.
        screen.presses("Tab");
    }
    wait_until(&format!("{typed:?} to become {expected:?} by {command:?}"), || {
        let text = screen.text();
        expected.iter().all(|expected| text.contains(expected))
    });
    Some(())
}

#[test]
fn consumers_and_shells_are_completed_at_a_terminal() {
    let world = world();
    for (shell, command) in SHELLS {
        if !world.bin().join(shell).exists() {
            skipped(shell);
            continue;
        }
        for (typed, expected) in [
            ("thread stop bo", &["thread stop bottle"][..]),
            ("thread pause am", &["thread pause amber:1"]),
            ("thread -t other dead retry el", &["retry elsewhere"]),
            ("thread -C other seek --thread . el", &["seek --thread . elsewhere"]),
            ("thread resume ", &["bottle", "amber:1"]),
            ("thread completions zs", &["completions zsh"]),
            ("thread unsu", &["thread unsubscribe"]),
        ] {
            if completes(&world, command, typed, expected).is_none() {
                return;
            }
        }
    }
}

#[test]
fn consumers_are_completed_only_where_a_consumer_is_expected() {
    let world = world();
    let ask = |line: &str| world.thread(["_consumers", line]);
    for (line, names) in [
        ("thread stop ", "amber:1\nbottle\n"),
        ("thread stop b", "bottle\n"),
        ("thread kill b", "bottle\n"),
        ("thread stop z", ""),
        ("x=1; ./thread -tother --json stop ", "elsewhere\n"),
        ("thread stop --signal KILL ", "amber:1\nbottle\n"),
        ("thread ack --event-id=3 am", "amber:1\n"),
        ("thread dead -t other show ", "elsewhere\n"),
        ("thread seek --to latest --consumer ", "amber:1\nbottle\n"),
        ("thread stop 'unfinished", ""),
    ] {
        assert_eq!(ask(line).quiet(), names, "{line}");
    }
    for line in [
        "",
        "thread",
        "thread ",
        "thread st",
        "thread stop bottle ",
        "thread stop --sig",
        "thread stop --signal ",
        "thread stop --consumer bottle ",
        "thread push ",
        "thread dead ",
        "thread -t nowhere stop ",
        "thread -C nowhere stop ",
    ] {
        ask(line).fails(1);
    }
    world.thread(["_consumers"]).fails(2);
}
