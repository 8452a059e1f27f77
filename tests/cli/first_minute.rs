//! README's first minute: pasted as a whole into common shells, it prints the same every time.

use thread_testkit::{Run, World, skipped};

use crate::usage::{blocks, page};

/// The block, and the output that README shows for it.
pub fn first_minute() -> (String, String) {
    let readme = page("README.md");
    let (_, section) = readme.split_once("\n## The first minute\n").expect("README has a first minute");
    let mut blocks = blocks(section).into_iter();
    let (block, printed) = (blocks.next().unwrap(), blocks.next().unwrap());
    assert_eq!((block.language.as_str(), printed.language.as_str()), ("sh", "text"));
    (block.text, printed.text)
}

/// Whether the machine has the shell `name`. Prints a skip notice if not.
fn shell(world: &World, name: &str) -> bool {
    let there = world.bin().join(name).exists();
    if !there {
        skipped(name);
    }
    there
}

#[test]
fn it_shows_a_delivery_a_failure_with_its_retries_a_dead_letter_and_its_repair() {
    let (_, printed) = first_minute();
    for line in [
        "tea costs 3",
        "=== begins attempt=3 event id=2",
        "no price for anvil",
        "seller  2  attempts=3 exit=1  no price for anvil",
        "=== begins attempt=0 dead letter id=2",
        "anvil costs 90",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line}");
    }
}

#[test]
fn every_shell_prints_what_the_page_says_each_time() {
    let (block, printed) = first_minute();
    for name in ["sh", "bash", "zsh"] {
        let world = World::new();
        if !shell(&world, name) {
            continue;
        }
        world.write("block", &block);
        for _ in 0..2 {
            let run = world.sh(&format!("exec {name} block")).env_remove("THREAD_DIR");
            assert_eq!(run.quiet(), printed, "{name}");
        }
        world.wait_until_quiet();
    }
}

#[test]
fn pasted_into_an_interactive_shell_it_ends_by_itself() {
    let (block, printed) = first_minute();
    for (name, command) in [("sh", "sh -i"), ("bash", "bash --norc -i"), ("zsh", "zsh -f -i")] {
        let world = World::new();
        let Some(terminal) = world.terminal(200, &format!("exec {command}")) else { return };
        if !shell(&world, name) {
            continue;
        }
        let run: Run = terminal.env_remove("THREAD_DIR").stdin(format!("{block}\nexit\n"));
        let output = run.output();
        let shown = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        // The pasted text is echoed too, in a form that depends on the shell's line editor, and a
        // continuation prompt may precede the first line.
        let mut lines = shown.lines();
        for expected in printed.lines() {
            let after_prompt = format!("> {expected}");
            let found = lines.any(|line| line == expected || line.ends_with(&after_prompt));
            assert!(found, "{name} does not show {expected:?} in its place:\n{shown}");
        }
        assert_eq!(output.status.code(), Some(0), "{name}:\n{shown}");
        world.wait_until_quiet();
    }
}

#[test]
fn the_recording_shows_the_same_commands_and_what_they_print() {
    let (block, printed) = first_minute();
    let picture = page("docs/first-minute.svg");
    let plain = |text: &str| {
        text.replace("&gt;", ">")
            .replace("&lt;", "<")
            .replace("&#x27;", "'")
            .replace("&quot;", "\"")
            .replace("&amp;", "&")
    };
    let mut shown = String::new();
    for line in picture.lines().filter_map(|line| line.strip_prefix("<text ")) {
        let text = line.split_once("\">").unwrap().1.strip_suffix("</text>").unwrap();
        shown.push_str(&plain(text));
    }
    // In the recording, lines wrap at the terminal's width and prompts precede commands.
    for line in block.lines().filter(|line| !line.starts_with(['(', ')'])).chain(printed.lines()) {
        assert!(shown.contains(line), "the recording lacks {line:?}: run docs/record.py");
    }
}
