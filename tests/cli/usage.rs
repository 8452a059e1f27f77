//! Runs the examples of the user documentation and compares the program's output with what the pages show.

use std::path::Path;

use serde_json::Value;
use thread_testkit::World;

/// The home directory in the pages' examples.
const HOME: &str = "/home/ada";

#[test]
fn every_example_of_the_usage_page_prints_what_the_page_says() {
    play(&World::new(), "USAGE.md", &page("USAGE.md"));
}

#[test]
fn every_example_of_the_page_about_steps_prints_what_it_says() {
    play(&World::new(), "docs/STEPS.md", &page("docs/STEPS.md"));
}

#[test]
fn every_example_for_those_who_come_from_another_queue_prints_what_the_page_says() {
    play(&World::new(), "docs/MIGRATING.md", &page("docs/MIGRATING.md"));
}

#[test]
fn the_readme_begins_with_the_demo_and_the_tests_one_line_each() {
    let readme = page("README.md");
    let commands: Vec<String> =
        blocks(&readme).into_iter().filter(|b| b.language == "sh").take(2).map(|b| b.text).collect();
    assert_eq!(commands, ["sh fixtures/demo.sh\n", "cargo test --workspace --locked --no-fail-fast\n"]);
}

#[test]
fn every_command_has_a_section_in_both_pages() {
    let help = World::new().thread(["--help"]).quiet();
    let listed = help.split_once("\nCommands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let commands: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.strip_prefix("  "))
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|&command| command != "help")
        .collect();
    assert!(commands.contains(&"init") && commands.len() >= 9, "{commands:?}");
    for name in ["USAGE.md", "SPEC.md"] {
        let page = page(name);
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with('#')).collect();
        for command in &commands {
            let heading = format!("`thread {command}`");
            assert!(headings.iter().any(|line| line.contains(&heading)), "{name} has no section {heading}");
        }
    }
}

pub fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// A fenced code block.
pub struct Block {
    pub language: String,
    pub text: String,
    /// The line of its opening fence, from 1.
    line: usize,
    /// Whether only blank lines separate it from the previous block.
    follows: bool,
}

pub fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let mut follows = false;
    for (number, line) in markdown.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                let language = language.trim().to_owned();
                open = Some(Block { language, text: String::new(), line: number + 1, follows });
            }
            (Some(_), Some(_)) => {
                blocks.extend(open.take());
                follows = true;
            }
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => follows = follows && line.is_empty(),
        }
    }
    assert!(open.is_none(), "a block has no end");
    blocks
}

/// Runs the `sh` blocks in order, in the world's folder, and compares the output (stdout and stderr
/// together) of each with the block directly after it; without one, it must print nothing. Handlers
/// that a block starts end before the next block runs.
pub fn play(world: &World, name: &str, markdown: &str) {
    let mut blocks = blocks(markdown).into_iter().peekable();
    let mut played = 0;
    while let Some(block) = blocks.next() {
        if block.language != "sh" {
            continue;
        }
        let output = blocks.next_if(|next| next.follows && next.language != "sh");
        let expected = output.map_or(String::new(), |block| block.text);
        let (printed, stderr) =
            world.sh(&format!("set -e\nexec 2>&1\n{}", block.text)).env("HOME", world.root()).ends_with(0);
        world.wait_until_quiet();
        assert_eq!(stderr, "");
        let printed = printed.replace(&*world.root().to_string_lossy(), HOME);
        assert_eq!(
            comparable(&printed),
            comparable(&expected),
            "{name}, the block at line {} of what was played:\n{}\nprinted:\n{printed}",
            block.line,
            block.text
        );
        played += 1;
    }
    assert!(played > 0, "nothing to play in {name}");
}

/// The lines of the text without timestamps. The order of keys in JSON other than events is
/// unspecified, so it is normalized.
fn comparable(text: &str) -> Vec<String> {
    let line = |line: &str| match serde_json::from_str::<Value>(line) {
        Ok(answer @ Value::Object(_)) if !line.starts_with(r#"{"id":"#) => answer.to_string(),
        _ => line.to_owned(),
    };
    timeless(text).lines().map(line).collect()
}

/// The text with every timestamp, duration and file size replaced by a fixed value.
fn timeless(text: &str) -> String {
    const TIME: &str = "0000-00-00T00:00:00.000Z";
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_time = rest.len() >= TIME.len()
            && TIME.bytes().zip(rest.bytes()).all(|(want, found)| match want {
                b'0' => found.is_ascii_digit(),
                _ => found == want,
            });
        if is_time {
            out.push_str("<time>");
            rest = &rest[TIME.len()..];
        } else if let Some(after) = rest.strip_prefix("after=") {
            out.push_str("after=<time>");
            rest = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        } else if let Some(after) = rest.strip_prefix("_bytes\":") {
            out.push_str("_bytes\":0");
            rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}
