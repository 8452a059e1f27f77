//! A disk that fails or is full: what commands report must be true.
//!
//! Exit 0 only if the data is stored. Exit 1 only if it is not, or if the message says that this is
//! unknown. In every case nothing hangs or panics, and the next push finds a sound database and
//! repairs the JSONL log.

use std::process::Command;

use thread_testkit::{World, ids, long, skipped};

use crate::inject::{CALLS, Ended, Kind, SYNCS, Scene, Target, assert_sound, quiet_push, strace};

const ERRORS: &[&str] = &["ENOSPC", "EIO"];

/// Makes the calls of the scene's command fail, one after the other (see [`Scene::targets`]): only
/// that call, and that call and all later ones.
fn fail_at_every_call(scene: &Scene, step: (usize, usize)) {
    if strace().is_none() {
        return;
    }
    let (mut faults, mut refused, mut unknown) = (0, 0, 0);
    for calls in CALLS {
        for (at, target) in scene.targets(calls, step).iter().enumerate() {
            for variant in 0..4 {
                // The short form tries one of the four variants for each call.
                if !long() && (variant + at) % 4 != 0 {
                    continue;
                }
                let error = ERRORS[variant / 2];
                let inject =
                    if variant % 2 == 0 { target.fail_once(error) } else { target.fail_from_now_on(error) };
                scene.begin();
                let ended = scene.disturbed(calls, &inject);
                let failed = ended.failed();
                if failed.is_empty() && scene.is_piped() && ended.code == Some(0) {
                    continue;
                }
                assert!(!failed.is_empty(), "{}: {} did not come", scene.name, target.call);
                let how = format!("{}: {inject:?}: {}\n{}", scene.name, failed[0], ended.stderr);
                check_after_failure(scene, &ended, calls, &how);
                faults += 1;
                refused += usize::from(ended.code == Some(1));
                unknown += usize::from(says_unknown(&ended));
            }
        }
    }
    eprintln!(
        "failing disk: {}: {faults} faults, {refused} refused, {unknown} of them of unknown outcome",
        scene.name
    );
    assert!(faults > 8);
}

fn says_unknown(ended: &Ended) -> bool {
    ended.stderr.contains("unknown")
}

fn check_after_failure(scene: &Scene, ended: &Ended, calls: &str, how: &str) {
    assert!(matches!(ended.code, Some(0 | 1)), "{how}: exit {:?}", ended.code);
    assert!(!ended.stderr.contains("a bug in thread"), "{how}");
    let done = ended.code == Some(0);
    let unheard = ended.failed().iter().any(|call| call.contains("write(2<"));
    if !done {
        assert_eq!(ended.stdout, "", "{how}: data, though it failed");
        assert!(unheard || ended.stderr.contains("Error: "), "{how}: failed without a word");
    }
    let stored = match scene.kind {
        Kind::Push(count) => {
            scene.repair_and_check(how);
            let sync_of_wal =
                calls == SYNCS && ended.failed().iter().any(|call| call.contains("events.db-wal"));
            if sync_of_wal && !scene.name.starts_with("large") {
                assert!(!done && says_unknown(ended), "{how}: the WAL was not synced");
            }
            let stored = scene.stored();
            assert!(stored == 0 || stored == count);
            stored == count
        }
        Kind::Pop(id) => {
            let cursor = scene.world.consumer("bot")["last_acked_id"].as_i64().unwrap();
            assert!(cursor == 0 || cursor == id, "{how}: the cursor is at {cursor}");
            let unread = ended.failed().iter().any(|call| call.contains("write(1<"));
            if done {
                assert_eq!(ids(&ended.stdout), [3], "{how}");
            }
            scene.repair_and_check(how);
            // If nothing could be printed, nothing was delivered: the caller pops again with the same id.
            if unread { done } else { cursor == id }
        }
        Kind::Init => {
            let header = std::fs::read(scene.world.inbox().join("events.db"));
            if let Ok(header) = &header {
                // SQLite reports the switch to WAL before it has written the header.
                assert_eq!(header[18..20], [2, 2], "{how}: not in WAL mode");
            }
            let there = header.is_ok();
            let again = scene.world.off(["init", "inbox"]).output();
            let (code, stderr) = (again.status.code(), String::from_utf8_lossy(&again.stderr).into_owned());
            assert_eq!(code, Some(i32::from(there)), "{how}: init again: {stderr}");
            scene.repair_and_check(how);
            let unread = ended.failed().iter().any(|call| call.contains("write(1<"));
            if unread { done } else { there }
        }
    };
    if done {
        assert!(stored, "{how}: said yes, and it is not stored");
    } else {
        assert!(!stored || unheard || says_unknown(ended), "{how}: said no, and it is stored");
    }
    for no in ["nothing was stored", "nothing was changed"] {
        assert!(!(stored && ended.stderr.contains(no)), "{how}: that is not true");
    }
}

#[test]
fn a_push_on_a_failing_disk_is_honest() {
    fail_at_every_call(&Scene::push(), (2, 1));
    fail_at_every_call(&Scene::first_push(), (2, 1));
}

#[test]
fn a_batch_on_a_failing_disk_is_honest() {
    fail_at_every_call(&Scene::batch(), (6, 1));
}

#[test]
fn a_large_batch_on_a_failing_disk_is_honest() {
    fail_at_every_call(&Scene::large_batch(), (400, 200));
}

#[test]
fn a_batch_that_is_kept_in_a_file_on_a_failing_disk_is_honest() {
    fail_at_every_call(&Scene::large_batch().piped("large batch from a pipe"), (400, 200));
}

#[test]
fn a_checkpoint_on_a_failing_disk_is_no_failure_of_the_push() {
    fail_at_every_call(&Scene::large_push(), (300, 15));
}

#[test]
fn a_rotation_on_a_failing_disk_is_honest() {
    fail_at_every_call(&Scene::rotation(), (11, 1));
}

#[test]
fn an_init_on_a_failing_disk_is_honest() {
    fail_at_every_call(&Scene::init(), (6, 1));
}

#[test]
fn a_migration_on_a_failing_disk_is_honest() {
    fail_at_every_call(&Scene::migration(), (6, 1));
}

#[test]
fn a_pop_on_a_failing_disk_is_honest() {
    fail_at_every_call(&Scene::pop(), (4, 1));
}

/// The directory entry of a new WAL must be as durable as its contents. SQLite tries to sync the
/// directory, but ignores a failure.
#[test]
fn a_push_whose_wal_has_no_lasting_name_is_refused() {
    if strace().is_none() {
        return;
    }
    let scene = Scene::first_push();
    let syncs = scene.undisturbed(SYNCS).calls;
    let of_directory = format!("{}>)", scene.world.inbox().display());
    let at = syncs.iter().position(|call| call.contains(&of_directory)).expect("the directory is synced");
    let target = Target::new(&syncs, at);
    for faults in [target.fail_once("EIO"), target.fail_from_now_on("EIO")] {
        scene.begin();
        let ended = scene.disturbed(SYNCS, &faults);
        let told = format!(
            "Error: cannot sync the directory {}: Input/output error (os error 5) - \
             check the path, its permissions and the space on the disk\n",
            scene.world.inbox().canonicalize().unwrap().display()
        );
        assert_eq!((ended.code, &ended.stderr), (Some(1), &told));
        scene.repair_and_check(&told);
        assert_eq!(scene.stored(), 0);
    }
}

/// The WAL's index grows only after the commit has been written and synced. If that fails, the
/// commit is on the disk although SQLite reports an error.
#[test]
fn a_commit_that_fails_after_its_sync_is_of_unknown_outcome() {
    if strace().is_none() {
        return;
    }
    let world = World::with_thread();
    // Small pages, so that an event of moderate size needs many.
    world
        .db()
        .execute_batch(
            "PRAGMA journal_mode = DELETE; PRAGMA page_size = 4096; VACUUM; PRAGMA journal_mode = WAL",
        )
        .unwrap();
    quiet_push(&world, "before");
    // Enough pages that the index needs its second part while the last of them are committed.
    world.write("stdin", format!("victim{}", "x".repeat(16_900_000)));
    let args = ["push", "--source", "self", "--type", "record", "--content-file", "-"];
    let scene = Scene::new("very large push", world, Kind::Push(1), &args);
    let calls = "pwrite64";
    let writes = scene.undisturbed(calls).calls;
    let grows = (0..writes.len()).filter(|&at| writes[at].contains("events.db-shm")).nth(8).unwrap();
    let target = Target::new(&writes, grows);
    for error in &ERRORS[..if long() { 2 } else { 1 }] {
        scene.begin();
        // All later calls fail too; otherwise the failed command would still checkpoint, and the
        // event would be gone.
        let ended = scene.disturbed(calls, &target.fail_from_now_on(error));
        let how = format!("{error} at {}: {}", target.call, ended.stderr);
        assert_eq!(ended.code, Some(1), "{how}");
        check_after_failure(&scene, &ended, calls, &how);
        assert_eq!(scene.stored(), 1, "{how}: the event must be stored although the push failed");
        let words = "so whether it was stored is unknown";
        assert!(ended.stderr.contains(words), "{how}");
        assert!(scene.world.log().iter().any(|l| l.starts_with("[ERROR] push: ") && l.contains(words)));
    }
}

/// Runs a script in its own mount namespace, with a file system of 1 MiB as `inbox`. What the
/// script leaves there is copied to `after` for the test to inspect. Returns false if that is not
/// permitted here.
pub fn on_a_small_disk(world: &World, script: &str) -> bool {
    let unshare = ["/usr/bin/unshare", "/bin/unshare"].into_iter().find(|path| {
        let trial = Command::new(path).args(["-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
        trial.is_ok_and(|output| output.status.success())
    });
    let Some(unshare) = unshare else {
        skipped("a mount namespace");
        return false;
    };
    std::fs::create_dir(world.inbox()).unwrap();
    let mount = "PATH=/usr/bin:/bin mount -t tmpfs -o size=1m tmpfs inbox || exit 1";
    let all = format!("{mount}\n{script}\ncp -R inbox after");
    let mut run = world.sh("exec \"$0\" \"$@\"").arg(unshare).arg("-rm").env("THREAD_NOTIFIER", "off");
    run = run.arg("/bin/sh").arg("-c").arg(all);
    run.ok();
    std::fs::remove_dir(world.inbox()).unwrap();
    std::fs::rename(world.path("after"), world.inbox()).unwrap();
    true
}

pub const FILL: &str = "dd if=/dev/zero of=inbox/filler bs=1k 2>/dev/null\n\
                    dd if=/dev/zero of=inbox/filler2 bs=1 count=4096 2>/dev/null";
const PUSH: &str = "thread push --source self --type message --content";

#[test]
fn a_push_on_a_full_disk_is_refused_and_works_again_when_there_is_space() {
    let world = World::new();
    let script = format!(
        "thread init inbox >/dev/null; {PUSH} one; {PUSH} two\n\
         {FILL}\n\
         {PUSH} \"$(printf %9000s x)\" >pushed 2>told; echo $? >code\n\
         printf '{{\"source\":\"s\",\"type\":\"record\",\"content\":\"%9000s\"}}\\n' a b c >lines\n\
         thread push --batch <lines >>pushed 2>>told; echo $? >>code\n\
         thread peek --last-event-id 0 >peeked 2>&1; echo $? >>code\n\
         thread info >informed 2>&1; echo $? >>code\n\
         rm inbox/filler inbox/filler2\n\
         {PUSH} three >later 2>&1; echo $? >>code"
    );
    if !on_a_small_disk(&world, &script) {
        return;
    }
    assert_eq!(world.read("pushed"), "");
    let told =
        "Error: the disk is full while storing; nothing was changed - free some space, then try again\n";
    assert_eq!(world.read("told"), told.repeat(2));
    assert_eq!(world.lines("code"), ["1", "1", "0", "0", "0"], "{}", world.read("peeked"));
    assert_eq!(ids(&world.read("peeked")), [1, 2]);
    assert!(world.lines("informed").contains(&"Events: 2".to_owned()));
    assert_eq!(world.read("later"), "3\n");
    assert_sound(&world.db(), "after a full disk");
    world.assert_log_is_exact();
}

#[test]
fn pushing_until_the_disk_is_full_loses_nothing_that_was_acknowledged() {
    let world = World::new();
    let script = format!(
        "thread init inbox >/dev/null; n=0; refused=0\n\
         while [ $refused -lt 3 ]; do\n\
             n=$((n + 1))\n\
             {PUSH} \"$n $(printf %5000s x)\" >answer 2>told; code=$?\n\
             case $code in\n\
                 0) echo $n >>acknowledged ;;\n\
                 1) refused=$((refused + 1)); echo $n >>refused; cat told >>all-told ;;\n\
                 *) echo $code >>strange ;;\n\
             esac\n\
         done\n\
         thread peek --last-event-id 0 --limit 1000 >peeked\n\
         PATH=/usr/bin:/bin mount -o remount,size=4m inbox\n\
         {PUSH} last >later 2>&1"
    );
    if !on_a_small_disk(&world, &script) {
        return;
    }
    assert_eq!(world.read("strange"), "");
    assert_eq!(world.lines("refused").len(), 3);
    for told in world.lines("all-told") {
        assert!(told.starts_with("Error: the disk is full while "), "{told}");
        assert!(told.contains("nothing was changed"), "{told}");
    }
    let acknowledged = world.lines("acknowledged");
    assert!(acknowledged.len() > 20, "{acknowledged:?}");
    assert_eq!(ids(&world.read("peeked")).len(), acknowledged.len());
    let conn = world.db();
    assert_sound(&conn, "after a full disk");
    let sql =
        "SELECT substr(content, 1, instr(content, ' ') - 1) FROM events WHERE content <> 'last' ORDER BY id";
    let mut statement = conn.prepare(sql).unwrap();
    let there: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(there, acknowledged, "exactly what was acknowledged is there");
    drop(statement);
    drop(conn);
    world.assert_log_is_exact();
    quiet_push(&world, "and it goes on");
}

#[test]
fn a_backup_on_a_full_disk_leaves_nothing_and_the_thread_alone() {
    let world = World::new();
    // A table and a JSONL log of some 600 KiB each: first the table does not fit, then the log.
    let line = "{\"source\":\"s\",\"type\":\"record\",\"content\":\"%1000s\"}";
    let script = format!(
        "thread init source >/dev/null\n\
         seq 600 | while read -r n; do printf '{line}\\n'; done >lines\n\
         thread push --thread source --batch <lines >/dev/null\n\
         dd if=/dev/zero of=inbox/filler bs=1k count=700 2>/dev/null\n\
         thread backup --thread source inbox/copy >made 2>told; echo $? >code\n\
         rm inbox/filler\n\
         thread backup --thread source inbox/copy >>made 2>>told; echo $? >>code\n\
         ls -A inbox >left\n\
         thread doctor --thread source >found 2>&1"
    );
    if !on_a_small_disk(&world, &script) {
        return;
    }
    assert_eq!(world.read("made"), "");
    assert_eq!(world.lines("code"), ["1", "1"]);
    let told = world.lines("told");
    assert_eq!(
        told[0],
        "Error: the disk is full while copying the database; nothing was changed - free some space, then try again"
    );
    assert!(told[1].contains("events.jsonl") && told[1].contains("No space left"), "{}", told[1]);
    assert_eq!(world.read("left"), "");
    assert_eq!(world.read("found"), "healthy\n");
}
