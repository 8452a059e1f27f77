//! `thread man`.

use std::path::Path;

use thread_testkit::{World, skipped};

use crate::errors::NAMES;

/// The command words of every manual page.
fn pages() -> Vec<Vec<&'static str>> {
    let nested = ["list", "show", "retry", "discard"].map(|word| vec!["dead", word]);
    [vec![]].into_iter().chain(NAMES.map(|name| vec![name])).chain(nested).collect()
}

fn page(world: &World, words: &[&str]) -> String {
    world.thread(["man"].iter().chain(words)).env_remove("THREAD_DIR").quiet()
}

#[test]
fn each_page_has_every_option_of_the_help_and_its_examples() {
    let world = World::new();
    for words in pages() {
        let roff = page(&world, &words).replace("\\-", "-").replace("\\*(Aq", "'").replace("\\\\", "\\");
        let help = world.thread(words.iter().chain(&["--help"])).quiet();
        let options = help.split_once("\nOptions:\n").unwrap().1.split_once("\nExample").unwrap();
        for option in options.0.lines().filter(|line| line.starts_with("  -") || line.starts_with("      -"))
        {
            let names = option.split([' ', '[', '=']).map(|word| word.trim_end_matches(','));
            for name in names.filter(|word| word.starts_with('-')) {
                assert!(roff.contains(&format!("\\fB{name}\\fR")), "{words:?}: {name} in\n{roff}");
            }
        }
        let examples = options.1.split_once('\n').unwrap().1;
        for example in examples.split("\n\n").next().unwrap().lines() {
            let line = example.strip_prefix("  ").unwrap();
            assert!(roff.lines().any(|found| found == line), "{words:?}: {line} in\n{roff}");
        }
        for hidden in ["supervise", "_wake", "lock-fd", "verbose"] {
            assert!(!roff.contains(hidden), "{words:?}: {hidden}");
        }
    }
}

#[test]
fn pages_name_each_other() {
    let world = World::new();
    let top = page(&world, &[]);
    for name in NAMES {
        assert!(top.contains(&format!("thread\\-{name}(1)")), "{name}");
    }
    let nested = page(&world, &["dead", "list"]);
    assert!(nested.contains(".TH THREAD-DEAD-LIST 1 "), "{nested}");
    assert!(nested.ends_with(".SH \"SEE ALSO\"\nthread(1), thread\\-dead(1)\n"), "{nested}");
    assert_eq!(page(&world, &["dlq", "list"]), nested);
}

#[test]
fn a_page_for_an_unknown_command_is_exit_2() {
    let world = World::new();
    let error = world.thread(["man", "dead", "lst"]).fails(2);
    assert!(error.contains("there is no command 'thread dead lst'"), "{error}");
    for words in [&["psuh"][..], &["init", "inbox"], &["_supervise"], &["_wake"], &["_guard"]] {
        world.thread(["man"].iter().chain(words)).fails(2);
    }
    assert!(!world.inbox().exists());
}

#[test]
fn groff_formats_each_page_without_a_warning() {
    if !Path::new("/usr/bin/groff").exists() {
        skipped("groff");
        return;
    }
    let world = World::new();
    for words in pages() {
        let format = world.sh("exec /usr/bin/groff -man -ww -Tutf8 -P-cbou").env("PATH", "/usr/bin:/bin");
        let text = format.stdin(page(&world, &words)).quiet();
        assert!(text.contains("NAME") && text.contains("EXAMPLE"), "{words:?}:\n{text}");
    }
}
