//! Which thread a command uses: `--thread`, else `THREAD_DIR`, else the one around the current directory.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use thread_testkit::{Run, World, skipped};

/// The uid of the user `nobody`.
const SOMEBODY_ELSE: u32 = 65534;

/// `info` in that directory, without naming a thread.
fn info_in(world: &World, dir: impl AsRef<Path>) -> Run {
    world.thread(["info"]).env_remove("THREAD_DIR").dir(world.path(dir))
}

#[track_caller]
fn assert_found(run: Run, thread: &Path) {
    let text = run.quiet();
    assert_eq!(text.lines().next(), Some(format!("Thread: {}", thread.display()).as_str()));
}

#[track_caller]
fn assert_none_found(run: Run) {
    let error = run.fails(2);
    assert!(error.starts_with("Error: no thread given, and the current directory is not inside one - "));
    assert!(error.contains("--thread <path>") && error.contains("THREAD_DIR"), "{error}");
}

#[test]
fn the_current_directory_or_the_nearest_parent_is_found() {
    let world = World::with_thread();
    world.thread(["init", "inbox/agents/kid"]).quiet();
    fs::create_dir_all(world.path("inbox/agents/kid/work/deep")).unwrap();
    for dir in ["inbox", "inbox/run", "inbox/logs", "inbox/agents"] {
        assert_found(info_in(&world, dir), &world.inbox());
    }
    for dir in ["inbox/agents/kid", "inbox/agents/kid/work/deep"] {
        assert_found(info_in(&world, dir), &world.path("inbox/agents/kid"));
    }
    let push = world.thread(["push", "--source", "self", "--type", "record", "--content", "x"]);
    assert_eq!(push.env_remove("THREAD_DIR").dir(world.path("inbox/agents/kid/work")).quiet(), "1\n");
    assert!(world.read("inbox/agents/kid/events.jsonl").contains("\"content\":\"x\""));
    assert_eq!(world.query("SELECT count(*) FROM events"), 0);
}

#[test]
fn outside_of_a_thread_none_is_found() {
    let world = World::with_thread();
    assert_none_found(info_in(&world, ""));
    assert_none_found(info_in(&world, "bin"));
    assert_none_found(info_in(&world, "").env("THREAD_DIR", ""));
}

#[test]
fn the_option_takes_precedence_over_the_variable_and_that_over_the_current_directory() {
    let world = World::with_thread();
    for name in ["named", "set"] {
        world.thread(["init", name]).quiet();
    }
    let here = || info_in(&world, "inbox");
    assert_found(here().env("THREAD_DIR", ""), &world.inbox());
    assert_found(here().env("THREAD_DIR", "../set"), &world.path("set"));
    assert_found(here().env("THREAD_DIR", "../set").arg("-t").arg("../named"), &world.path("named"));
    // The current directory is no fallback for a named thread that does not exist.
    here().env("THREAD_DIR", "../gone").fails(1);
}

#[test]
fn a_folder_given_first_is_where_the_command_works() {
    let world = World::with_thread();
    world.thread(["init", "other"]).quiet();
    let info = |words: &[&str]| world.thread(words).env_remove("THREAD_DIR");
    assert_found(info(&["-C", "inbox/run", "info"]), &world.inbox());
    assert_found(info(&["-C", "inbox", "-C", "run", "status"]), &world.inbox());
    assert_found(info(&["-Cinbox", "info", "-t", "../other"]), &world.path("other"));
    assert_found(info(&["-C", "inbox", "info"]).env("THREAD_DIR", "../other"), &world.path("other"));
    let subscribe = ["-C", "other", "--json", "subscribe", "--consumer", "bot", "--handler", "true"];
    let cwd = format!("\"cwd\":\"{}\"", world.path("other").display());
    let subscribed = world.thread(subscribe).quiet();
    assert!(subscribed.contains(&cwd), "{subscribed}");
    let gone = info(&["-C", "gone", "info"]).fails(1);
    assert!(gone.starts_with("Error: cannot work in gone: "), "{gone}");
}

#[test]
fn a_thread_of_another_user_is_not_found() {
    if !rustix::process::geteuid().is_root() {
        skipped("root, to give a thread to another user");
        return;
    }
    for given in [&["inbox", "inbox/events.db"][..], &["inbox"], &["inbox/events.db"]] {
        let world = World::with_thread();
        for name in given {
            chown(world.path(name), Some(SOMEBODY_ELSE), None).unwrap();
        }
        fs::create_dir(world.path("inbox/work")).unwrap();
        for dir in ["inbox", "inbox/work"] {
            assert_none_found(info_in(&world, dir));
        }
        // The search continues upwards and finds the caller's own thread.
        world.thread(["init", "."]).quiet();
        assert_found(info_in(&world, "inbox/work"), world.root());
        // Another user's thread is used if it is named.
        assert_found(info_in(&world, "").arg("-t").arg("inbox"), &world.inbox());
    }
}

#[test]
fn a_thread_on_another_file_system_is_not_found() {
    let world = World::with_thread();
    fs::create_dir(world.path("inbox/mounted")).unwrap();
    let script = "mount -t tmpfs none inbox/mounted 2>refused || exit 77; cd inbox/mounted; \
                  PATH=$OLD_PATH; unset THREAD_DIR; exec thread info";
    let run = world.sh("exec unshare -m /bin/sh -c \"$0\"").arg(script);
    let output = run.env("PATH", "/usr/bin:/bin").env("OLD_PATH", world.bin()).output();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if stderr.contains("unshare") || output.status.code() == Some(77) {
        skipped(format_args!("the right to mount: {stderr}{}", world.read("refused")));
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("Error: no thread given"), "{stderr}");
}
