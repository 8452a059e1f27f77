//! Using another user's thread safely. Its owner puts something else in the place of a thread's
//! file or directory: links, FIFOs, devices, files of a third user. Users of that thread must not
//! change anything outside it, must not block, and must be told the path.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use thread_testkit::users::{User, as_user, share_with, shared_world};
use thread_testkit::{World, long, quoted};

const GROUP: u32 = 4710;
const OWNER: User = User { id: 4711, also: Some(GROUP) };
const COLLEAGUE: User = User { id: 4712, also: Some(GROUP) };
const THIRD: u32 = 4713;

/// The user who runs the commands. Root may do anything, so only the program's own checks protect it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Actor {
    Root,
    Colleague,
    Owner,
}

const FILES: &[&str] = &[
    "events.db",
    "events.db-wal",
    "events.db-shm",
    "events.db-journal",
    "events.jsonl",
    "events-20260318-103000.jsonl",
    "run/_commit",
    "run/_control",
    "run/_jsonl",
    "run/_log",
    "run/_wake.lock",
    "run/bot.lock",
    "logs/thread.log",
    "logs/thread-20260318-103000.log",
    "logs/handlers/bot.log",
];

const DIRS: &[&str] = &["run", "logs", "logs/handlers", "agents"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trap {
    LinkToFile,
    LinkToDir,
    /// To a name that does not exist yet, in a directory that root may write.
    DanglingLink,
    HardLink,
    Fifo,
    Directory,
    /// One that can be read without end.
    Device,
    ThirdUsersFile,
}

const TRAPS: &[Trap] = &[
    Trap::LinkToFile,
    Trap::LinkToDir,
    Trap::DanglingLink,
    Trap::HardLink,
    Trap::Fifo,
    Trap::Directory,
    Trap::Device,
    Trap::ThirdUsersFile,
];

/// Commands that other users may run on a thread.
const COMMANDS: &[&str] = &[
    "push --source self --type message --content x",
    "peek --last-event-id 0 --wait 1ms",
    "info",
    "logs --consumer bot --tail 3",
    "prune --before-id 2",
    "backup ../backups/copy",
    "doctor",
    "doctor --fix",
];
const MORE_COMMANDS: &[&str] = &[
    "push --batch --source self --type record <../lines",
    "pop --consumer bot --resume",
    "pop --consumer bot --last-event-id 0",
    "ack --consumer bot --event-id 1",
    "seek --consumer bot --to earliest",
    "subscribe --consumer other --handler true",
    "pause --consumer other",
    "unsubscribe --consumer other",
    "dead list",
    "info --json",
    "prune --before-id 3 --force --compact",
    "init .",
    "dispatch",
    "stop --consumer bot",
];
/// Commands that only the owner and its supervisors may run.
const OWNERS_COMMANDS: &[&str] = &[
    "resume --consumer bot",
    "push --source self --type message --content x",
    "seek --consumer bot --to earliest",
    "dispatch",
    "stop --consumer bot",
    "pause --consumer bot",
    "doctor --fix",
];

/// Messages with other causes, or about the thread as a whole.
const UNRELATED: &[&str] = &[
    " is not a thread (it has no events.db) - ",
    " is a thread already - ",
    " belongs to another user - ",
    "the consumer 'bot' is not running or waiting - ",
    "1 thing wrong with the thread cannot be repaired by --fix",
    "1 thing is wrong with the thread",
];

fn is_complaint(line: &str) -> bool {
    ["Error: ", "Warning: ", "error: ", "warning: "].iter().any(|level| line.starts_with(level))
}

/// The state of everything outside the thread and in a trap's place: all metadata except the access time.
type Seen = BTreeMap<PathBuf, (u32, u32, u32, u64, i64, i64, i64, i64, Vec<u8>)>;

fn look_at(path: &Path, seen: &mut Seen) {
    let about = fs::symlink_metadata(path).unwrap();
    if about.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| look_at(&entry.unwrap().path(), seen));
    }
    let bytes = if about.is_file() { fs::read(path).unwrap() } else { Vec::new() };
    let times = (about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec());
    let facts =
        (about.mode(), about.uid(), about.gid(), about.ino(), times.0, times.1, times.2, times.3, bytes);
    seen.insert(path.to_owned(), facts);
}

/// A thread in use, and next to it the files that must not change.
struct Scene {
    world: World,
}

impl Scene {
    fn new() -> Option<Scene> {
        let world = shared_world()?;
        world.thread(["init", "template", "--json"]).env_remove("THREAD_DIR").ok();
        fs::rename(world.path("template"), world.inbox()).unwrap();
        for dir in ["outside", "outside/dir", "inbox/agents", "backups"] {
            fs::create_dir(world.path(dir)).unwrap();
        }
        world.write("outside/file", "a third user's");
        world.write("outside/dir/file", "a third user's");
        for path in ["outside/file", "outside/dir", "outside/dir/file"] {
            chown(world.path(path), Some(THIRD), Some(THIRD)).unwrap();
            fs::set_permissions(world.path(path), Permissions::from_mode(0o700)).unwrap();
        }
        fs::set_permissions(world.path("backups"), Permissions::from_mode(0o777)).unwrap();
        world.write("lines", "{\"content\":\"x\"}\n");
        chown(world.inbox(), Some(OWNER.id), Some(GROUP)).unwrap();
        share_with(&world.inbox(), GROUP);
        for file in ["events.db", "events.jsonl"] {
            chown(world.inbox().join(file), Some(OWNER.id), Some(GROUP)).unwrap();
        }
        for dir in ["run", "logs", "agents"] {
            chown(world.inbox().join(dir), Some(OWNER.id), Some(GROUP)).unwrap();
        }
        let subscribe = "thread subscribe --consumer bot --cwd / --deliver stdin --handler cat --backoff 1ms";
        as_user(&world, OWNER, subscribe).quiet();
        for _ in 0..3 {
            as_user(&world, OWNER, "thread push --source self --type message --content x").quiet();
        }
        world.wait_until_quiet();
        // Otherwise doctor would wait each time for the owner's supervisors.
        as_user(&world, OWNER, "thread pause --consumer bot").quiet();
        let sealed = world.inbox().join("events-20260318-103000.jsonl");
        fs::copy(world.inbox().join("events.jsonl"), &sealed).unwrap();
        chown(&sealed, Some(OWNER.id), Some(GROUP)).unwrap();
        fs::rename(world.inbox(), world.path("template")).unwrap();
        Some(Scene { world })
    }

    /// Puts the trap in that place of a fresh thread.
    fn lay(&self, trap: Trap, place: &str) {
        let world = &self.world;
        world.sh("rm -rf inbox backups/* outside/hard; cp -Rp template inbox").quiet();
        let path = world.inbox().join(place);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(&path).unwrap();
        } else if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        let outside = |name: &str| world.path("outside").join(name);
        let node = |kind, device| mknodat(CWD, &path, kind, Mode::from_raw_mode(0o666), device).unwrap();
        match trap {
            Trap::LinkToFile => symlink(outside("file"), &path).unwrap(),
            Trap::LinkToDir => symlink(outside("dir"), &path).unwrap(),
            Trap::DanglingLink => symlink(outside("new"), &path).unwrap(),
            Trap::HardLink => {
                fs::copy(outside("file"), outside("hard")).unwrap();
                fs::hard_link(outside("hard"), &path).unwrap();
            }
            Trap::Fifo => node(FileType::Fifo, 0),
            Trap::Directory => fs::create_dir(&path).unwrap(),
            Trap::Device => node(FileType::CharacterDevice, makedev(1, 5)),
            Trap::ThirdUsersFile => fs::write(&path, "a third user's").unwrap(),
        }
        let whose = if trap == Trap::ThirdUsersFile { THIRD } else { OWNER.id };
        if trap != Trap::HardLink {
            std::os::unix::fs::lchown(&path, Some(whose), Some(whose)).unwrap();
        }
        if trap == Trap::ThirdUsersFile {
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }
    }

    /// What must not change: everything outside, and the trap itself unless the thread may use it.
    fn seen(&self, trap: Trap, place: &str) -> Seen {
        let mut seen = Seen::new();
        look_at(&self.world.path("outside"), &mut seen);
        if !matches!(trap, Trap::ThirdUsersFile | Trap::Directory) {
            look_at(&self.world.inbox().join(place), &mut seen);
        }
        seen
    }

    /// Runs these commands and fails unless they behave.
    fn check(&self, trap: Trap, place: &str, actor: Actor, commands: &[&str]) {
        self.lay(trap, place);
        let before = self.seen(trap, place);
        let mut script = String::from("cd inbox\n");
        for (at, words) in commands.iter().enumerate() {
            // Waiting for a lock can take a minute; no lock is held here, so 50 s means a hang.
            let said = quoted(self.world.path(format!("said.{at}")));
            script += &format!("timeout -s KILL 50 thread {words} >{said} 2>&1; echo \"== $?\" >>{said}\n");
        }
        let names: Vec<String> = (0..commands.len()).map(|at| format!("said.{at}")).collect();
        for name in &names {
            self.world.write(name, "");
            fs::set_permissions(self.world.path(name), Permissions::from_mode(0o666)).unwrap();
        }
        let run = match actor {
            Actor::Root => self.world.sh(&script),
            Actor::Colleague => as_user(&self.world, COLLEAGUE, &script),
            Actor::Owner => as_user(&self.world, OWNER, &script),
        };
        let path =
            std::env::join_paths([self.world.bin().as_path(), Path::new("/usr/bin"), Path::new("/bin")]);
        run.env("PATH", path.unwrap()).env("THREAD_NOTIFIER", "embedded").ok();
        if actor == Actor::Owner {
            self.world.wait_until_quiet();
        }
        let after = self.seen(trap, place);
        assert!(before == after, "{trap:?} at {place}, {actor:?}: {before:#?}\n{after:#?}");
        for (words, name) in commands.iter().zip(&names) {
            let said = self.world.read(name);
            let what = format!("{trap:?} at {place}, {actor:?}: thread {words}\n{said}");
            assert!(said.ends_with("== 0\n") || said.ends_with("== 1\n"), "{what}");
            assert!(!said.contains("panicked"), "{what}");
            let path = format!("/inbox/{place}");
            let names_it = |line: &str| {
                line.contains(&path)
                    || line.contains(&format!(": {place} cannot be used: "))
                    || UNRELATED.iter().any(|words| line.contains(words))
            };
            let told: Vec<&str> = said.lines().filter(|line| is_complaint(line)).collect();
            assert!(trap == Trap::ThirdUsersFile || told.iter().all(|line| names_it(line)), "{what}");
            let doctor_may_be_silent = trap == Trap::ThirdUsersFile
                || place == "agents"
                || (trap == Trap::Directory && DIRS.contains(&place));
            assert!(*words != "doctor" || doctor_may_be_silent || said.ends_with("== 1\n"), "{what}");
        }
    }
}

#[test]
fn using_a_hostile_thread_changes_nothing_outside_it_and_never_hangs() {
    let Some(scene) = Scene::new() else { return };
    for (row, place) in FILES.iter().chain(DIRS).enumerate() {
        for (column, &trap) in TRAPS.iter().enumerate() {
            let actors = [Actor::Root, Actor::Colleague];
            let all: Vec<&str> = COMMANDS.iter().chain(MORE_COMMANDS).copied().collect();
            for actor in actors.into_iter().filter(|&actor| long() || actor == actors[(row + column) % 2]) {
                scene.check(trap, place, actor, if long() { &all } else { COMMANDS });
            }
            let telling = matches!(trap, Trap::LinkToFile | Trap::Fifo) && !place.starts_with("events");
            if long() || telling {
                scene.check(trap, place, Actor::Owner, OWNERS_COMMANDS);
            }
        }
    }
}
