//! Killed with SIGKILL: at random moments, and at every call that changes the disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use thread_testkit::{Dice, World, ids, long, wait_until};

use crate::inject::{CALLS, Ended, Kind, Scene, assert_sound, quiet_push, strace};

/// Kills the scene's command at its calls, one after the other; see [`Scene::targets`].
fn kill_at_every_call(scene: &Scene, step: (usize, usize)) {
    if strace().is_none() {
        return;
    }
    let mut kills = 0;
    for calls in CALLS {
        let targets = scene.targets(calls, step);
        for target in &targets {
            scene.begin();
            let ended = scene.disturbed(calls, &target.kill());
            let how = format!("{} killed at {}", scene.name, target.call);
            let missed = scene.is_piped() && ended.code == Some(0);
            assert!(ended.killed || missed, "{how}: it was not; exit {:?} {}", ended.code, ended.stderr);
            // In half of the cases another program opens the remains first.
            if kills % 2 == 0 && scene.kind != Kind::Init {
                assert_sound(&scene.world.db(), &how);
            }
            check_after_kill(scene, &ended, &how);
            kills += usize::from(ended.killed);
        }
    }
    eprintln!("killed at a call: {}: {kills} kills", scene.name);
    assert!(kills > 8);
}

fn check_after_kill(scene: &Scene, ended: &Ended, how: &str) {
    let world = &scene.world;
    match scene.kind {
        Kind::Push(count) => {
            scene.repair_and_check(how);
            if !ended.stdout.is_empty() {
                assert_eq!(scene.stored(), count, "{how}: acknowledged, and lost");
            }
        }
        Kind::Pop(id) => {
            let cursor = world.consumer("bot")["last_acked_id"].as_i64().unwrap();
            assert!(cursor == 0 || cursor == id, "{how}: the cursor is at {cursor}");
            if !ended.stdout.is_empty() {
                assert_eq!((cursor, ids(&ended.stdout)), (id, vec![3]), "{how}");
            }
            scene.repair_and_check(how);
        }
        Kind::Init => {
            let again = world.off(["init", "inbox"]).output();
            // Only its last step turns the directory into a thread.
            if again.status.code() != Some(0) {
                let stderr = String::from_utf8_lossy(&again.stderr).into_owned();
                assert!(stderr.contains("is a thread already"), "{how}: not again: {stderr}");
            }
            scene.repair_and_check(how);
            let mut left = thread_testkit::names(&world.path("inbox/run"));
            // It stays if the process was killed just before removing it, and does no harm.
            left.retain(|name| name != "_init.lock");
            assert_eq!(left, ["_commit", "_jsonl"], "{how}: left in run/");
        }
    }
}

#[test]
fn a_push_killed_at_any_call_loses_and_tears_nothing() {
    kill_at_every_call(&Scene::push(), (3, 1));
    kill_at_every_call(&Scene::first_push(), (3, 1));
}

#[test]
fn a_batch_killed_at_any_call_is_stored_whole_or_not() {
    kill_at_every_call(&Scene::batch(), (5, 1));
}

#[test]
fn a_large_batch_killed_at_any_call_is_stored_whole_or_not() {
    kill_at_every_call(&Scene::large_batch(), (400, 80));
}

#[test]
fn a_large_batch_from_a_pipe_killed_at_any_call_is_stored_whole_or_not() {
    kill_at_every_call(&Scene::large_batch().piped("large batch from a pipe"), (400, 80));
}

#[test]
fn a_checkpoint_can_be_killed_at_any_call() {
    kill_at_every_call(&Scene::large_push(), (300, 5));
}

#[test]
fn a_rotation_killed_at_any_call_neither_loses_nor_doubles_a_line() {
    kill_at_every_call(&Scene::rotation(), (9, 1));
}

/// The command is delayed, not killed: for whatever it does next, it must hold the lock or check again.
#[test]
fn a_rotation_delayed_at_any_call_while_others_push_keeps_the_log_exact() {
    if strace().is_none() {
        return;
    }
    let scene = Scene::rotation();
    let world = &scene.world;
    let stored = || world.query("SELECT count(*) FROM events");
    let mut delays = 0;
    for calls in CALLS {
        for target in scene.targets(calls, (8, 1)) {
            scene.begin();
            let how = format!("held up at {}", target.call);
            let faults = target.hold_up(if calls.contains("rename") { 600 } else { 100 });
            let mut child = scene.start(calls, &faults);
            let mut others = 0;
            // At a call on the log, the delayed push must be the one that seals it, so the others begin later.
            let is_late = target.call.contains("jsonl");
            while is_late && child.try_wait().unwrap().is_none() && stored() == scene.rows() {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The first of these pushes may run before the delayed one, or wait for it.
            while child.try_wait().unwrap().is_none() {
                quiet_push(world, "meanwhile");
                others += 1;
            }
            let ended = scene.end(child, &faults);
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{how}");
            assert_eq!(stored(), scene.rows() + 1 + others, "{how}");
            if world.jsonl() != world.table_as_jsonl() {
                eprintln!("{how}:");
                world.assert_log_is_exact();
            }
            let all = thread_testkit::names(&world.inbox());
            let sealed = all.iter().filter(|name| name.starts_with("events-")).count();
            assert_eq!(sealed, 1, "{how}: {all:?}");
            delays += 1;
        }
    }
    eprintln!("held up at a call: rotation: {delays} times");
}

#[test]
fn an_init_killed_at_any_call_can_be_run_again() {
    kill_at_every_call(&Scene::init(), (5, 1));
}

#[test]
fn a_migration_killed_at_any_call_is_completed() {
    kill_at_every_call(&Scene::migration(), (5, 1));
}

#[test]
fn a_pop_killed_at_any_call_has_moved_the_cursor_or_not() {
    kill_at_every_call(&Scene::pop(), (3, 1));
}

#[test]
fn after_a_push_killed_at_any_call_the_next_one_wakes_the_consumer_for_both() {
    if strace().is_none() {
        return;
    }
    let world = World::with_thread();
    world.off(["subscribe", "--consumer", "bot", "--handler", "take"]).quiet();
    let scene = Scene::new(
        "embedded push",
        world,
        Kind::Push(1),
        &["push", "--source", "self", "--type", "message", "--content", "victim"],
    )
    .embedded();
    let world = &scene.world;
    thread_testkit::take_all_script(world);
    let mut kills = 0;
    // Also at calls that create processes or take locks.
    for calls in CALLS.iter().chain(&["?clone,clone3,?fork,?vfork", "flock"]) {
        let targets = scene.targets(calls, (1, 1));
        world.wait_until_quiet();
        for target in targets.iter().step_by(if long() { 1 } else { 5 }) {
            scene.begin();
            world.write("seen.bot", "");
            let ended = scene.disturbed(calls, &target.kill());
            // A child process may have been killed instead.
            kills += usize::from(ended.killed);
            world.push("after");
            let how = format!("embedded push killed at {}", target.call);
            let all = || world.query("SELECT max(id) FROM events");
            wait_until(&how, || {
                world.query("SELECT coalesce(max(last_acked_id), 0) FROM consumer_progress") == all()
            });
            world.wait_until_quiet();
            let mut seen: Vec<i64> = world.lines("seen.bot").iter().map(|id| id.parse().unwrap()).collect();
            seen.sort();
            seen.dedup();
            assert_eq!(seen, (1..=all()).collect::<Vec<_>>(), "{how}");
            assert_sound(&world.db(), &how);
            world.assert_log_is_exact();
        }
    }
    eprintln!("killed at a call: embedded push: {kills} kills");
    assert!(kills > 0);
}

/// After its commit, a push completes its remaining work: consumers may depend on it alone, and
/// other pushes are turned away at the lock it holds.
#[test]
fn a_signal_after_the_commit_loses_no_wake_up() {
    let Some(strace) = strace() else { return };
    let world = World::with_thread();
    thread_testkit::take_all(&world, "bot");
    let lock = world.path("inbox/run/bot.lock");
    world.push("makes the lock");
    world.wait_until_quiet();
    let inode = format!(":{} ", fs::metadata(&lock).unwrap().ino());
    let is_held = || fs::read_to_string("/proc/locks").unwrap().contains(&inode);
    let newest = || world.query("SELECT max(id) FROM events");
    for (call, file) in [("openat", "inbox/run/_jsonl"), ("flock", "inbox/run/bot.lock")] {
        for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
            let before = newest();
            let mut push = world.sh("exec \"$0\" \"$@\"");
            push.command().arg(strace).args(["-qq", "-o", "/dev/null", "-P"]).arg(world.path(file));
            push.command().arg("-e").arg(format!("inject={call}:delay_exit=1500000"));
            push.command().arg(env!("CARGO_BIN_EXE_thread"));
            push.command().args(["push", "--source", "self", "--type", "message", "--content", "held up"]);
            let push = push.spawn();
            wait_until("the commit", || newest() > before && (call != "flock" || is_held()));
            if call == "flock" {
                world.push("turned away");
            }
            let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", push.id())).unwrap();
            if let Some(pid) =
                children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().unwrap()))
            {
                kill_process(pid, signal).ok();
            }
            let ended = push.wait_with_output().unwrap();
            assert!(ended.status.success(), "{signal:?}: {ended:?}");
            assert_eq!(ended.stdout, format!("{}\n", before + 1).into_bytes());
            let acked = "SELECT max(last_acked_id) FROM consumer_progress";
            wait_until("all to be taken", || world.query(acked) == newest());
            world.wait_until_quiet();
        }
    }
}

/// One of the processes that are killed at random.
struct Victim {
    child: Child,
    /// The content of its events, or the id that it pops after.
    tag: String,
    what: Kind,
    due: Instant,
}

#[test]
fn pushers_and_poppers_killed_at_random_lose_and_tear_nothing() {
    let wanted = if long() { 2_000 } else { 150 };
    let mut dice = Dice::new();
    let mut kills = 0;
    let mut worlds = 0;
    while kills < wanted {
        // A new world after some kills, because the checks slow down as the thread grows.
        worlds += 1;
        kills += a_round_of_random_kills(&mut dice, (wanted - kills).min(50));
    }
    eprintln!("killed at random: {kills} kills in {worlds} threads");
}

fn a_round_of_random_kills(dice: &mut Dice, wanted: usize) -> usize {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    let began = Instant::now();
    quiet_push(&world, "how long does a push take?");
    let mut usual = began.elapsed();
    let (mut kills, mut number, mut cursor) = (0, 0, 0);
    while kills < wanted && number < 400 {
        let mut killed = 0;
        let mut victims = Vec::new();
        // At most one pop, so that the cursor has only two possible values.
        for what in [Kind::Push(1), Kind::Push(20), Kind::Push(1), Kind::Pop(0)] {
            number += 1;
            victims.push(start(&world, what, number, dice, usual));
        }
        let mut acknowledged = Vec::new();
        for mut victim in victims {
            std::thread::sleep(victim.due.saturating_duration_since(Instant::now()));
            victim.child.kill().unwrap();
            let output = victim.child.wait_with_output().unwrap();
            let was_killed = output.status.signal() == Some(9);
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(was_killed || output.status.success(), "{stderr}");
            killed += usize::from(was_killed);
            acknowledged.push((
                victim.what,
                victim.tag,
                String::from_utf8_lossy(&output.stdout).into_owned(),
            ));
        }
        kills += killed;
        // The first push may have been slow, because other tests started at the same time, or fast.
        usual = match killed {
            0 => usual * 3 / 4,
            4 => usual * 5 / 4,
            _ => usual,
        };
        quiet_push(&world, "next");
        let conn = world.db();
        assert_sound(&conn, "killed at random");
        world.assert_log_is_exact();
        for (what, tag, stdout) in acknowledged {
            match what {
                Kind::Push(count) => {
                    let stored = world.query(&format!("SELECT count(*) FROM events WHERE content = '{tag}'"));
                    assert!(stored == 0 || stored == count, "{stored} of {count} of {tag}; {dice:?}");
                    if !stdout.is_empty() {
                        assert_eq!(stored, count, "{tag} was acknowledged with {stdout:?}; {dice:?}");
                    }
                    if count == 1 && !stdout.is_empty() {
                        let id = world.query(&format!("SELECT id FROM events WHERE content = '{tag}'"));
                        assert_eq!(stdout, format!("{id}\n"));
                    }
                }
                _ => {
                    let asked: i64 = tag.parse().unwrap();
                    let now = world
                        .query("SELECT coalesce(max(last_acked_id), 0) FROM consumer_progress WHERE consumer_id = 'bot'");
                    assert!(now == cursor || now == asked, "{now}, not {cursor} or {asked}; {dice:?}");
                    if !stdout.is_empty() {
                        assert_eq!(now, asked, "popped, but the cursor did not move; {dice:?}");
                        let whole = stdout.rfind('\n').map_or("", |end| &stdout[..=end]);
                        let shown = ids(whole);
                        let from = asked + 1;
                        assert_eq!(shown, (from..from + shown.len() as i64).collect::<Vec<_>>());
                    }
                    cursor = now;
                }
            }
        }
    }
    kills
}

fn start(world: &World, what: Kind, number: usize, dice: &mut Dice, usual: Duration) -> Victim {
    let (tag, run) = match what {
        Kind::Push(1) => {
            let tag = format!("one {number}");
            let run = world.off(["push", "--source", "self", "--type", "message", "--content", &tag]);
            (tag, run)
        }
        Kind::Push(count) => {
            let tag = format!("many {number}");
            let line = format!("{{\"source\":\"self\",\"type\":\"record\",\"content\":\"{tag}\"}}\n");
            world.write("batch", line.repeat(count as usize));
            // The shell execs the program, so that the program itself is killed.
            (tag, world.sh("exec thread push --batch <batch").env("THREAD_NOTIFIER", "off"))
        }
        _ => {
            let newest = world.query("SELECT max(id) FROM events");
            let tag = dice.up_to(newest as u64).to_string();
            let run = world.off(["pop", "--consumer", "bot", "--last-event-id", &tag]);
            (tag, run)
        }
    };
    let child = run.spawn();
    let delay = Duration::from_micros(dice.up_to(usual.as_micros() as u64 * 3 / 2));
    Victim { child, tag, what, due: Instant::now() + delay }
}
