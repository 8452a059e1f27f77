//! `thread completions`.

use std::path::Path;

use thread_testkit::{World, skipped};

use crate::errors::NAMES;

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

#[test]
fn each_script_knows_every_command_and_nothing_that_is_hidden() {
    let world = World::new();
    for shell in SHELLS {
        let script = world.thread(["completions", shell]).env_remove("THREAD_DIR").quiet();
        for name in NAMES.into_iter().chain(["discard", "idempotency-key", "kill-after"]) {
            assert!(script.contains(name), "{shell}: {name}");
        }
        for hidden in ["supervise", "_wake", "lock-fd", "verbose"] {
            assert!(!script.contains(hidden), "{shell}: {hidden}");
        }
    }
}

#[test]
fn each_script_passes_the_syntax_check_of_its_shell() {
    let world = World::new();
    for shell in ["bash", "zsh", "fish"] {
        let found = ["/bin", "/usr/bin", "/usr/local/bin"].map(|dir| Path::new(dir).join(shell));
        let Some(path) = found.iter().find(|path| path.exists()) else {
            skipped(shell);
            continue;
        };
        let script = world.thread(["completions", shell]).quiet();
        world.write(shell, script);
        assert_eq!(world.sh("exec \"$0\" -n \"$1\"").arg(path).arg(shell).quiet(), "");
    }
}

#[test]
fn other_shells_are_exit_2_and_the_known_ones_are_named() {
    let error = World::new().thread(["completions", "tcsh"]).fails(2);
    assert!(SHELLS.iter().all(|shell| error.contains(shell)), "{error}");
}

/// What bash offers for the last of these words: the candidates and the options passed to `compopt`.
fn offered(world: &World, words: &[&str]) -> Vec<String> {
    // `compopt` works only during interactive completion, so the script replaces it with a stub.
    let script = r#"
        . ./completions.bash
        compopt() { echo "compopt $*"; }
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _thread "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut run = world.sh("exec bash --norc -c \"$0\" bash \"$@\"").arg(script);
    for word in words {
        run = run.arg(word);
    }
    run.quiet().lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_words_and_folders() {
    let world = World::new();
    let script = world.thread(["completions", "bash"]).quiet();
    world.write("completions.bash", script);
    world.sh("mkdir folder; touch file; printf x >content.txt").quiet();
    let offered = |words: &[&str]| offered(&world, words);

    assert_eq!(offered(&["thread", "pu"]), ["push"]);
    assert_eq!(offered(&["thread", "help", "pu"]), ["push"]);
    assert_eq!(offered(&["thread", "dead", "re"]), ["retry"]);
    assert_eq!(offered(&["thread", "push", "--con"]), ["--content", "--content-file"]);
    assert_eq!(offered(&["thread", "dead", "list", "--con"]), ["--consumer"]);
    assert_eq!(offered(&["thread", "push", "--type", "m"]), ["message"]);
    assert_eq!(offered(&["thread", "subscribe", "--deliver", ""]), ["wake", "stdin", "ndjson"]);
    assert_eq!(offered(&["thread", "completions", "f"]), ["fish"]);
    // bash itself adds the directories.
    assert_eq!(offered(&["thread", "push", "--thread", ""]), ["compopt -o plusdirs"]);
    assert_eq!(offered(&["thread", "subscribe", "--cwd", "fo"]), ["compopt -o plusdirs"]);
    assert_eq!(
        offered(&["thread", "push", "--content-file", "con"]),
        ["compopt -o filenames", "content.txt"]
    );
    // With no candidates, bash falls back to file and directory names.
    assert_eq!(offered(&["thread", "init", "fo"]), [""; 0]);
    let registered = world.sh("bash -c '. ./completions.bash; complete -p thread'").quiet();
    assert!(registered.contains("-o default"), "{registered}");
}

#[test]
fn zsh_and_fish_complete_folders_for_a_path() {
    let world = World::new();
    let zsh = world.thread(["completions", "zsh"]).quiet();
    assert!(zsh.contains(":path -- The directory to make:_files -/"), "{zsh}");
    let fish = world.thread(["completions", "fish"]).quiet();
    let folders = |line: &str| line.contains("-l thread ") && line.contains("__fish_complete_directories");
    assert!(fish.lines().any(folders), "{fish}");
}
