//! A handler's environment and working directory, whichever process dispatches.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::json;
use thread_testkit::{World, wait_until};

/// Subscribes a handler with these options, starts it by a push with only these variables, and
/// returns the handler's environment.
fn environment(options: &[&str], pushers: &[(&str, &str)]) -> (World, BTreeMap<String, String>) {
    let world = World::with_thread();
    let handler = "/usr/bin/env -0 >seen.new; /bin/mv seen.new seen";
    let words = ["subscribe", "--consumer", "bot", "--deliver", "stdin", "--handler", handler];
    world.off(words.iter().chain(options)).quiet();
    let mut push = world.thread(["push", "--source", "self", "--type", "message", "--content", "x"]);
    push.command().env_clear().env("THREAD_DIR", world.inbox()).envs(pushers.iter().copied());
    push.quiet();
    world.wait_for_file("seen");
    let seen = world.read("seen");
    let pairs = seen.split_terminator('\0').filter_map(|pair| pair.split_once('='));
    let seen = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    world.wait_until_quiet();
    (world, seen)
}

fn own_folder() -> String {
    Path::new(env!("CARGO_BIN_EXE_thread")).canonicalize().unwrap().parent().unwrap().display().to_string()
}

#[test]
fn this_program_is_found_last_on_the_path() {
    let own = own_folder();
    let (_world, seen) = environment(&[], &[("PATH", "/usr/bin:/bin"), ("SECRET", "x")]);
    assert_eq!(
        (seen["PATH"].as_str(), seen["SECRET"].as_str()),
        (format!("/usr/bin:/bin:{own}").as_str(), "x")
    );
    // It is not added twice; and the dispatcher may have no PATH at all.
    let (_world, seen) = environment(&[], &[("PATH", &format!("{own}:/bin"))]);
    assert_eq!(seen["PATH"], format!("{own}:/bin"));
    let (_world, seen) = environment(&[], &[]);
    assert_eq!(seen["PATH"], format!("/usr/local/bin:/usr/bin:/bin:{own}"));
}

#[test]
fn variables_that_were_subscribed_with_stand_above_the_dispatchers() {
    let options =
        ["--env", "MODEL=large", "--env", "TZ=UTC", "--env=EMPTY=", "--env", "PATH=/bin", "--env", "URL=a=b"];
    let (world, seen) = environment(&options, &[("TZ", "Europe/Rome"), ("OTHER", "1")]);
    let path = format!("/bin:{}", own_folder());
    for (name, value) in
        [("MODEL", "large"), ("TZ", "UTC"), ("EMPTY", ""), ("URL", "a=b"), ("PATH", &path), ("OTHER", "1")]
    {
        assert_eq!(seen[name], value, "{name}");
    }
    assert_eq!(seen["THREAD_CONSUMER"], "bot");
    world.thread(["backup", "copy"]).quiet();
    let kept = "SELECT options -> '$.env' FROM consumers";
    let copy = rusqlite::Connection::open(world.path("copy/events.db")).unwrap();
    let kept: String = copy.query_row(kept, [], |row| row.get(0)).unwrap();
    assert!(kept.contains("\"MODEL\":\"large\""), "{kept}");
}

#[test]
fn a_cleared_environment_keeps_secrets_out() {
    let pushers = [
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("NOTIFY_SOCKET", "/x"),
        ("HOME", "/home/ada"),
        ("LC_ALL", "C.UTF-8"),
        ("PATH", "/bin"),
        ("THREAD_NOTIFIER", "embedded"),
        ("THREAD_OTHER", "x"),
    ];
    let (_world, seen) = environment(&["--clear-env", "--env", "KEY=1"], &pushers);
    // Variables that a shell sets itself.
    let shells = ["OLDPWD", "PWD", "SHLVL", "_"];
    let names: Vec<&str> = seen.keys().map(String::as_str).filter(|name| !shells.contains(name)).collect();
    let told = ["THREAD_CONSUMER", "THREAD_DIR", "THREAD_LAST_ACKED_ID", "THREAD_NOTIFIER"];
    assert_eq!(names, [&["HOME", "KEY", "LC_ALL", "PATH"], &told[..]].concat());
}

#[test]
fn a_malformed_variable_is_refused() {
    let world = World::with_thread();
    for bad in ["KEY", "=x", "", "1A=x", "A-B=x", "THREAD_DIR=x", "A B=x"] {
        let words = ["subscribe", "--consumer", "bot", "--handler", "true", "--env", bad];
        assert!(world.thread(words).fails(2).contains("--env"), "{bad}");
    }
    let twice = ["subscribe", "--consumer", "bot", "--handler", "true", "--env", "A=1", "--env", "A=2"];
    world.thread(twice).fails(2);
    assert_eq!(world.query("SELECT count(*) FROM subscriptions"), 0);
}

#[test]
fn a_relative_directory_moves_along_with_the_thread() {
    let world = World::new();
    fs::create_dir_all(world.path("project/work")).unwrap();
    world.thread(["init", "project/inbox"]).quiet();
    let run = |words: &[&str], dir: &str| world.off(words).dir(world.path(dir)).env_remove("THREAD_DIR");
    let subscribe = ["subscribe", "-t", "../inbox", "bot", "pwd >>../went", "--cwd", "../work", "--json"];
    let said = run(&subscribe, "project/work").quiet();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["cwd"], json!(world.path("project/work")));
    let subscribe = ["subscribe", "-t", "inbox", "fixed", "pwd >>../went", "--cwd"];
    let fixed = world.path("project/work");
    run(&subscribe, "project").arg(&fixed).quiet();
    fs::rename(world.path("project"), world.path("moved")).unwrap();
    let push = ["push", "-t", "inbox", "--source", "self", "--type", "message", "--content", "x"];
    run(&push, "moved").env("THREAD_NOTIFIER", "embedded").quiet();
    wait_until("a run", || world.read("moved/went").ends_with('\n'));
    assert_eq!(
        world.lines("moved/went"),
        [world.path("moved/work").canonicalize().unwrap().to_str().unwrap()]
    );
    let info: serde_json::Value =
        serde_json::from_str(&run(&["info", "-t", "inbox", "--json"], "moved").quiet()).unwrap();
    assert_eq!(info["subscriptions"][1]["state"], "stalled");
    // A missing directory does not hide the backlog.
    assert_eq!(info["subscriptions"][1]["pending"], 1);
    let reason = info["subscriptions"][1]["reason"].as_str().unwrap();
    assert!(reason.contains("the working directory of 'fixed'"), "{reason}");
}
