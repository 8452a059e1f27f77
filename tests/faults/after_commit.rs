//! After its commit, a push finishes its work or reports what it could not do. It never fails, so a
//! caller that pushes again after a failure stores nothing twice.

use std::os::unix::process::ExitStatusExt;

use thread_testkit::{World, long, preload, wait_until};

use crate::inject::{Kind, Scene, Target, assert_sound, quiet_push, strace};

/// A fault at a system call, in strace's syntax.
struct Trouble {
    what: &'static str,
    /// The calls it can be injected at; empty means all.
    calls: &'static [&'static str],
    /// Whether the fault excuses a missing wake-up, which must then be reported. A signal excuses nothing.
    is_excuse: bool,
}

const WRITES: &[&str] = &["write", "pwrite64", "writev", "ftruncate"];

const TROUBLES: &[Trouble] = &[
    Trouble { what: "signal=TERM", calls: &[], is_excuse: false },
    Trouble { what: "signal=INT", calls: &[], is_excuse: false },
    Trouble { what: "signal=HUP", calls: &[], is_excuse: false },
    Trouble { what: "error=EFBIG:signal=XFSZ", calls: WRITES, is_excuse: true },
    Trouble { what: "error=ENOSPC", calls: WRITES, is_excuse: true },
    Trouble { what: "error=EAGAIN", calls: &["clone", "clone3", "fork", "vfork"], is_excuse: true },
    Trouble {
        what: "error=ENOMEM",
        calls: &["mmap", "mremap", "clone", "clone3", "vfork", "socketpair", "openat", "flock"],
        is_excuse: true,
    },
    Trouble {
        what: "error=EMFILE",
        calls: &["open", "openat", "socketpair", "pipe2", "dup", "inotify_init1", "pidfd_open"],
        is_excuse: true,
    },
];

/// Injects each fault at every call (or one in `step`) after the commit of the scene's push.
fn trouble_at_every_call(scene: &Scene, step: usize) {
    if strace().is_none() {
        return;
    }
    let world = &scene.world;
    let calls = scene.undisturbed("all").calls;
    world.wait_until_quiet();
    let is_sync = |call: &String| call.starts_with("fsync") || call.starts_with("fdatasync");
    let commit = calls.iter().rposition(|call| is_sync(call) && call.contains("events.db-wal")).unwrap();
    // The first commit into a new WAL also syncs the directory.
    let commit = (commit..calls.len()).rfind(|&at| is_sync(&calls[at])).unwrap();
    let (mut struck, mut warned) = (0, 0);
    for (number, trouble) in TROUBLES.iter().enumerate() {
        let possible = (commit + 1..calls.len()).map(|at| Target::new(&calls, at));
        let possible = possible.filter(|target| match trouble.calls {
            // The exit itself cannot be prevented.
            [] => target.name() != "exit_group",
            names => names.contains(&target.name()),
        });
        let step = if trouble.calls.is_empty() { step } else { step.div_ceil(4) };
        let offset = (std::process::id() as usize + number) % step;
        for target in possible.skip(offset).step_by(step) {
            let from_now_on = target.inject_from_now_on(trouble.what, trouble.calls);
            let once = target.inject(trouble.what);
            let ways = if trouble.is_excuse && long() { vec![once, from_now_on] } else { vec![once] };
            for inject in ways {
                scene.begin();
                world.write("got", "");
                let ended = scene.disturbed("all", &inject);
                world.wait_until_quiet();
                let hit = ended.calls.iter().any(|call| call.contains("(INJECTED)"));
                if !hit && trouble.is_excuse {
                    continue;
                }
                struck += 1;
                let how = format!("{}: {inject:?} at {}\n{}", scene.name, target.call, ended.stderr);
                assert_eq!(ended.code, Some(0), "{how}");
                assert!(!ended.stderr.contains("Error: "), "{how}");
                let Kind::Push(count) = scene.kind else { unreachable!() };
                assert_eq!(scene.stored(), count, "{how}");
                let told = ended.stderr.contains("Warning: ");
                warned += usize::from(told);
                let unheard = ended
                    .calls
                    .iter()
                    .any(|call| call.starts_with("write(2<") && call.contains("(INJECTED)"));
                let woken = world.lines("got").iter().any(|line| line.contains("victim"));
                assert!(woken || trouble.is_excuse, "{how}: the consumer was not woken");
                assert!(
                    woken || told || unheard,
                    "{how}: the consumer was not woken, and no warning was printed"
                );
                scene.repair_and_check(&how);
                assert_sound(&world.db(), &how);
            }
        }
    }
    eprintln!("after the commit: {}: {struck} faults, {warned} warnings", scene.name);
    assert!(struck > 3);
}

fn with_consumer() -> World {
    let world = World::with_thread();
    world.off(["subscribe", "--consumer", "bot", "--handler", "cat >>got", "--deliver", "stdin"]).quiet();
    world
}

const PUSH: &[&str] = &["push", "--source", "self", "--type", "message", "--content", "victim"];

#[test]
fn no_survivable_fault_fails_a_push_after_its_commit() {
    let scene = Scene::new("push", with_consumer(), Kind::Push(1), PUSH).embedded();
    trouble_at_every_call(&scene, if long() { 1 } else { 16 });
}

#[test]
fn no_survivable_fault_fails_a_batch_after_its_commit() {
    let world = with_consumer();
    let line = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"victim\"}\n";
    world.write("stdin", line.repeat(20));
    let scene = Scene::new("batch", world, Kind::Push(20), &["push", "--batch", "--json"]).embedded();
    trouble_at_every_call(&scene, if long() { 1 } else { 48 });
}

#[test]
fn no_survivable_fault_fails_a_push_through_a_notifier_after_its_commit() {
    let world = with_consumer();
    world.script("bin/notifier", "exit 0");
    let args = [PUSH, &["--json"]].concat();
    let scene = Scene::new("push through a notifier", world, Kind::Push(1), &args).through("./bin/notifier");
    trouble_at_every_call(&scene, if long() { 4 } else { 64 });
}

/// Allocations fail one after the other: each one alone, or it and all later ones.
#[test]
fn a_push_that_runs_out_of_memory_after_its_commit_has_stored_its_event_once() {
    let Some(library) = preload::library() else { return };
    let world = with_consumer();
    // So many allocations that one in twelve hits the evaluation.
    let hex = format!("{}content{}", "hex(".repeat(12), ")".repeat(12));
    let filter = format!("content LIKE 'victim%' AND {hex} <> ''");
    world
        .off(["subscribe", "--consumer", "picky", "--handler", "cat >>picked", "--deliver", "stdin"])
        .arg("--filter")
        .arg(filter)
        .quiet();
    world.push("one that needs it all");
    let forms: &[&str] =
        if long() { &["", "once:"] } else { &["", "once:"][std::process::id() as usize % 2..][..1] };
    let (mut stored, mut told) = (1, 0);
    for form in forms {
        let (mut at, mut silent) = (0, 0);
        // Past the last allocation nothing fails and nothing is reported.
        while silent < 20 {
            let json = stored % 2 == 0;
            let mut push = world.thread(PUSH).envs(preload::variables(library));
            push = push.env("NO_MEMORY_AFTER_SYNC", format!("{form}{at}"));
            let push = if json { push.arg("--json") } else { push };
            let output = push.output();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            stored += 1;
            let how = format!("{form}{at}: {:?} {stdout}{stderr}", output.status);
            assert_eq!(world.query("SELECT count(*) FROM events"), stored, "{how}");
            if output.status.signal() == Some(libc::SIGABRT) {
                // Some allocations cannot fail otherwise.
                told += 1;
                silent = 0;
                at += if long() { 1 } else { 12 };
                continue;
            }
            assert_eq!(output.status.code(), Some(0), "{how}");
            let id = if json { thread_testkit::ids(&stdout)[0] } else { stdout.trim().parse().unwrap() };
            assert_eq!(id, stored, "{how}");
            if stderr.is_empty() {
                silent += 1;
                wait_until(&how, || world.consumer("bot")["pending"] == 0);
            } else {
                assert!(stderr.contains("Warning: "), "{how}");
                told += 1;
                silent = 0;
            }
            at += if long() { 1 } else { 12 };
        }
    }
    eprintln!("after the commit: out of memory: {stored} pushes, {told} warnings");
    assert!(told > 5);
    quiet_push(&world, "and all is well");
    world.assert_log_is_exact();
    world.push("the last");
    wait_until("all to be handled", || world.consumer("bot")["pending"] == 0);
    world.wait_until_quiet();
    assert_eq!(world.lines("got").len() as i64, stored + 2, "each event once");
    // No failure was attributed to a filter.
    assert_eq!(world.lines("picked").len() as i64, stored - 1);
    assert_eq!(world.consumer("picky")["filter_errors"], 0);
    let log = world.read("inbox/logs/thread.log");
    for blame in ["does not match", "the filter of", "too complex"] {
        assert!(!log.contains(blame), "{}", log.lines().find(|line| line.contains(blame)).unwrap());
    }
}
