//! External subcommands: `thread hello` runs `thread-hello`.

use std::fs;

use thread_testkit::{Run, World, copy_program};

#[test]
fn a_program_on_path_gets_stdin_and_its_arguments_and_gives_the_exit_code() {
    let world = World::new();
    world.script("bin/thread-hello", "printf '<%s>' \"$@\"; cat; echo aside >&2; exit 42");
    let run = world.thread(["hello", "--help", "-t", "a b", "--", "--json", ""]).stdin("piped\n");
    assert_eq!(
        run.ends_with(42),
        ("<--help><-t><a b><--><--json><>piped\n".to_owned(), "aside\n".to_owned())
    );
}

#[test]
fn the_program_takes_the_place_of_thread() {
    let world = World::new();
    world.script("bin/thread-pid", "echo $$");
    let child = world.thread(["pid"]).spawn();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{pid}\n"));
}

#[test]
fn no_signal_is_ignored_unless_the_caller_ignores_it() {
    let world = World::new();
    world.script("bin/thread-ignored", "sed -n 's/^Sig\\(Blk\\|Ign\\):\\s*//p' /proc/self/status");
    let masks = |run: Run| {
        let printed = run.quiet();
        let masks = printed.lines().map(|mask| u64::from_str_radix(mask, 16).unwrap()).collect::<Vec<_>>();
        <[u64; 2]>::try_from(masks).unwrap()
    };
    let ours = masks(world.thread(["ignored"]));
    let theirs = masks(world.sh("exec thread-ignored"));
    let more = [ours[0] & !theirs[0], ours[1] & !theirs[1]];
    assert_eq!(more, [0, 0], "{ours:x?} {theirs:x?}");
}

#[test]
fn options_before_the_name_are_passed_on() {
    let world = World::with_thread();
    world.script("bin/thread-where", "pwd -P; echo \"${THREAD_DIR-unset} $*\"");
    fs::create_dir_all(world.path("work/deep")).unwrap();
    let root = world.root().canonicalize().unwrap();
    let here = |words: &[&str], dir: &str, rest: &str| {
        let printed = world.thread(words).env_remove("THREAD_DIR").dir(&root).quiet();
        assert_eq!(printed, format!("{}{dir}\n{rest}\n", root.display()), "{words:?}");
    };
    let inbox = root.join("inbox").display().to_string();
    here(&["where"], "", "unset ");
    here(&["-C", "work", "where", "-C", "x"], "/work", "unset -C x");
    here(&["-C", "work", "-C", "deep", "where"], "/work/deep", "unset ");
    here(&["-t", "inbox", "where"], "", &format!("{inbox} "));
    here(&["-C", "work", "--thread=../inbox", "--json", "where", "x"], "/work", &format!("{inbox} --json x"));
    let set = world.thread(["where"]).env("THREAD_DIR", "as-it-is").quiet();
    assert!(set.ends_with("as-it-is \n"), "{set}");
    let gone = world.thread(["-C", "gone", "where"]).fails(1);
    assert!(gone.starts_with("Error: cannot work in gone: "), "{gone}");
}

#[test]
fn programs_next_to_thread_take_precedence_over_path() {
    let world = World::new();
    fs::create_dir(world.path("own")).unwrap();
    let own = world.path("own/thread");
    copy_program(&world, &own);
    world.script("bin/thread-hello", "echo from PATH");
    let hello = || world.sh("exec own/thread hello").quiet();
    assert_eq!(hello(), "from PATH\n");
    world.script("own/thread-hello", "echo from beside");
    assert_eq!(hello(), "from beside\n");
    // If called through a symlink, the directory of the real program counts.
    world.sh("ln -s ../own/thread bin/linked").quiet();
    assert_eq!(world.sh("exec linked hello").quiet(), "from beside\n");
    let help = world.sh("exec own/thread --help").quiet();
    assert!(help.contains("\n  hello\n"), "{help}");
}

#[test]
fn a_location_with_a_scheme_belongs_to_the_program_of_that_scheme() {
    let world = World::new();
    world.script("bin/thread-demo", "printf '<%s>' \"$@\"; cat; exit 42");
    let handed_over = |run: Run, arguments: &str| {
        assert_eq!(run.stdin("in\n").ends_with(42), (format!("{arguments}in\n"), String::new()));
    };
    let place = "demo://host/db#inbox";
    handed_over(world.thread(["push", "-t", place, "-"]), &format!("<push><-t><{place}><->"));
    handed_over(world.thread(["info"]).env("THREAD_DIR", place), "<info>");
    handed_over(world.thread(["init", place, "--json"]), &format!("<init><{place}><--json>"));
    // The program of the scheme does that.
    handed_over(
        world.thread(["-C", "gone", "pop", "bot", "-t", place]),
        &format!("<-C><gone><pop><bot><-t><{place}>"),
    );
    // It also knows directories.
    handed_over(world.thread(["clone", "a", place, "--move"]), &format!("<clone><a><{place}><--move>"));
    handed_over(world.thread(["clone", place, "a"]), &format!("<clone><{place}><a>"));
    let error = world.thread(["info", "-t", "nowhere://x"]).fails(1);
    assert_eq!(
        error,
        "Error: this program does not know locations that begin with nowhere:// - install the program \
         thread-nowhere, or name the thread's directory"
    );
    // External commands get the location unchanged.
    world.script("bin/thread-where", "echo \"$THREAD_DIR\"");
    assert_eq!(world.thread(["-t", place, "where"]).quiet(), format!("{place}\n"));
}

#[test]
fn a_location_whose_program_is_not_installed_is_refused() {
    let world = World::new();
    // There is one next to the built binary.
    fs::create_dir(world.path("own")).unwrap();
    copy_program(&world, &world.path("own/thread"));
    let place = "postgres://queue@db.example/agents#inbox";
    let commands =
        ["init $PLACE", "push -t $PLACE x", "pop bot --resume -t $PLACE", "dispatch --follow -t $PLACE"];
    for command in commands {
        let run = world.sh(&format!("exec own/thread {command}")).env("PLACE", place);
        assert_eq!(
            run.fails(1),
            "Error: this program does not know locations that begin with postgres:// - install the program \
             thread-postgres, or name the thread's directory",
            "{command}"
        );
    }
    let other_spelling = place.replace("postgres://", "postgresql://");
    let error = world.sh("exec own/thread info -t \"$PLACE\"").env("PLACE", other_spelling).fails(1);
    assert!(error.contains("install the program thread-postgres,"), "{error}");
    let run = world.sh("exec own/thread info --json").env("THREAD_DIR", place).ends_with(1);
    assert!(run.1.contains("thread-postgres"), "{run:?}");
    assert!(!world.path("postgres:").exists());
}

#[test]
fn help_lists_the_programs_that_are_found() {
    let world = World::new();
    let heading = "Further programs, which run as commands of thread:\n";
    // A copy, because the built binary's directory contains other programs of this workspace.
    fs::create_dir(world.path("own")).unwrap();
    copy_program(&world, &world.path("own/thread"));
    let help_by = |words: &[&str]| world.sh(&format!("exec own/thread {}", words.join(" "))).quiet();
    assert!(!help_by(&["--help"]).contains(heading));
    world.script("bin/thread-hello", "echo \"hello $*\"");
    world.script("bin/thread-again", "echo never");
    world.script("bin/thread-push", "echo never");
    world.write("bin/thread-plain", "not executable");
    for words in [&["--help"][..], &["-h"], &["help"]] {
        let help = help_by(words);
        assert!(help.contains(&format!("\n{heading}  again hello\n\nExample:\n")), "{help}");
        assert!(!help.contains("thread-push") && !help.contains("thread-plain"), "{help}");
    }
    assert!(!world.thread(["push", "--help"]).quiet().contains("hello"));
    assert_eq!(world.thread(["help", "hello"]).quiet(), "hello --help\n");
}

#[test]
fn help_is_the_same_wherever_the_programs_are() {
    let world = World::new();
    let help_in = |dir: &str| {
        fs::create_dir_all(world.path(dir)).unwrap();
        copy_program(&world, &world.path(dir).join("thread"));
        for name in ["hello", "again"] {
            world.script(format!("{dir}/thread-{name}"), "echo never");
        }
        let help = |words: &str| {
            world.sh(&format!("exec \"$0\"/thread {words}")).arg(dir).env("COLUMNS", "80").quiet()
        };
        ["-h", "--help", "help"].map(help)
    };
    let near = help_in("own");
    assert_eq!(help_in(&format!("a place/{}", ["far away"; 20].join("/"))), near);
    assert!(near[0].contains("  again hello\n"), "{near:?}");
}

#[test]
fn a_command_of_thread_is_never_a_program() {
    let world = World::with_thread();
    for name in ["push", "info", "status", "help", "dead", "_wake"] {
        world.script(format!("bin/thread-{name}"), "echo never");
    }
    world.thread(["push", "--sourec", "x"]).fails(2);
    world.thread(["status", "--frobnicate"]).fails(2);
    world.thread(["dead", "hello"]).fails(2);
    world.thread(["_wake"]).fails(2);
    assert!(world.thread(["info"]).quiet().starts_with("Thread: "));
}

#[test]
fn an_unknown_name_is_exit_2_with_a_suggestion() {
    let world = World::new();
    world.script("thread-hello", "echo never");
    let error = world.thread(["pussh", "x"]).fails(2);
    assert_eq!(error, "Error: unrecognized subcommand 'pussh' - did you mean 'push'? see `thread --help`");
    for name in ["hello", "/../thread-hello", "", "help/../../thread-hello"] {
        world.thread([name, "x"]).fails(2);
    }
}

#[test]
fn a_program_that_cannot_be_run_is_named() {
    let world = World::new();
    world.sh("printf '#!/no/such/shell\\n' >bin/thread-broken; chmod 755 bin/thread-broken").quiet();
    let error = world.thread(["broken"]).fails(1);
    assert!(error.starts_with("Error: cannot run ") && error.contains("bin/thread-broken: "), "{error}");
}
