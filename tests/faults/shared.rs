//! A thread shared by two users, each with a group of their own and one in common, in directories
//! without the setgid bit: neither is ever locked out by files that the other's commands created.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use thread_testkit::users::{User, as_user, share_with, shared_world};
use thread_testkit::{World, long, snapshot};

const GROUP: u32 = 4710;
const OWNER: User = User { id: 4711, also: Some(GROUP) };
const COLLEAGUE: User = User { id: 4712, also: Some(GROUP) };

/// A world whose folder the thread's owner may write.
fn world() -> Option<World> {
    let world = shared_world()?;
    chown(world.root(), Some(OWNER.id), Some(OWNER.id)).unwrap();
    Some(world)
}

/// The group-writable directory exists before the thread.
fn made_in_a_shared_directory(world: &World) {
    fs::create_dir(world.inbox()).unwrap();
    chown(world.inbox(), Some(OWNER.id), Some(GROUP)).unwrap();
    fs::set_permissions(world.inbox(), Permissions::from_mode(0o775)).unwrap();
    as_user(world, OWNER, "umask 002; thread init inbox").quiet();
}

/// An existing thread is given to the group.
fn shared_afterwards(world: &World) {
    as_user(world, OWNER, "umask 022; thread init inbox").quiet();
    share_with(&world.inbox(), GROUP);
}

const LEFT_TO_OWNER: &str =
    "Note: the thread is another user's, whose next push or dispatch starts the handlers\n";

#[test]
fn two_users_with_a_group_each_take_turns_and_neither_is_locked_out() {
    let turns = if long() { 500 } else { 30 };
    for share in [made_in_a_shared_directory, shared_afterwards] {
        let Some(world) = world() else { return };
        share(&world);
        let run = |user, words: &str| as_user(&world, user, &format!("umask 077; thread {words}"));
        let push = "push --source self --type message --content x";
        let lines = "{\"source\":\"self\",\"type\":\"record\",\"content\":\"x\"}\n".repeat(10_001);
        let filtered =
            "subscribe --consumer bot --deliver stdin --filter \"type = 'message'\" --handler 'cat >>seen'";
        run(OWNER, filtered).quiet();
        for turn in 0..turns {
            // The first user creates files that the second one needs.
            let [first, second] = if turn % 2 == 0 { [OWNER, COLLEAGUE] } else { [COLLEAGUE, OWNER] };
            for user in [first, second] {
                let (_, said) = run(user, push).ends_with(0);
                // Only the colleague gets the note that the owner's commands start the handlers.
                assert_eq!(said, if user == OWNER { "" } else { LEFT_TO_OWNER });
            }
            run(OWNER, "dispatch").quiet();
            let refused = run(COLLEAGUE, "dispatch").fails(1);
            assert!(refused.contains("belongs to another user"), "{refused}");
            if turn % 5 == 4 {
                // A plain SQLite connection removes the WAL when it is the last to close.
                let conn = world.db();
                conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
                drop(conn);
            }
            if turn == 8 || turn == 15 {
                let (_, said) = run(first, "push --batch").stdin(lines.clone()).ends_with(0);
                assert_eq!(said, if first == OWNER { "" } else { LEFT_TO_OWNER });
            }
        }
        run(COLLEAGUE, "prune --keep 20000 --subtype none").quiet();
        run(OWNER, "dispatch").quiet();
        world.wait_until_quiet();
        world.assert_log_is_exact();
        assert_eq!(world.lines("seen").len(), 2 * turns, "{:#?}", world.log());
        for user in [OWNER, COLLEAGUE] {
            assert_eq!(run(user, "doctor").quiet(), "healthy\n");
        }
        let sealed = fs::read_dir(world.inbox()).unwrap().flatten();
        assert!(sealed.filter(|e| e.file_name().to_string_lossy().starts_with("events-")).count() >= 2);
        for path in snapshot(&world.inbox()).into_keys() {
            let about = fs::metadata(&path).unwrap();
            let is_shared = about.gid() == GROUP && about.mode() & 0o060 == 0o060;
            assert!(is_shared, "{}: group {}, mode {:o}", path.display(), about.gid(), about.mode());
        }
    }
}

#[test]
fn files_that_root_makes_in_a_users_thread_are_the_users() {
    let Some(world) = world() else { return };
    shared_afterwards(&world);
    fs::remove_dir_all(world.inbox().join("logs")).unwrap();
    world.off(["push", "--source", "self", "--type", "message", "--content", "x"]).quiet();
    world.off(["doctor", "--fix"]).ok();
    world.off(["push", "--source", "self", "--type", "message", "--content", "x"]).quiet();
    for path in snapshot(&world.inbox()).into_keys() {
        let about = fs::metadata(&path).unwrap();
        assert_eq!((about.uid(), about.gid()), (OWNER.id, GROUP), "{}", path.display());
    }
    as_user(&world, OWNER, "thread push --source self --type message --content x").quiet();
    as_user(&world, COLLEAGUE, "thread push --source self --type message --content x").quiet();
    world.assert_log_is_exact();
}

#[test]
fn a_directory_that_only_its_owner_may_write_gives_the_thread_no_group() {
    let Some(world) = world() else { return };
    fs::create_dir(world.inbox()).unwrap();
    chown(world.inbox(), Some(OWNER.id), Some(GROUP)).unwrap();
    fs::set_permissions(world.inbox(), Permissions::from_mode(0o755)).unwrap();
    as_user(&world, OWNER, "umask 002; thread init inbox").quiet();
    for path in snapshot(&world.inbox()).into_keys() {
        assert_eq!(fs::metadata(&path).unwrap().gid(), OWNER.id, "{}", path.display());
    }
}
