//! No consumer ever has two runs at a time, and nothing is lost, whichever process is killed when.

use std::fs::File;
use std::time::{Duration, Instant};

use thread_testkit::{World, is_running, kill_and_wait, skipped, wait_until};

/// Records its pid while it works, in a file of its consumer, and checks whether another run is
/// active. Only shell built-ins touch that file, so a surviving child of a killed handler is never
/// mistaken for it.
const GUARD: &str = "\
me=$$
owner=owner-$THREAD_CONSUMER
old=
[ -e $owner ] && read old < $owner
if [ -n \"$old\" ] && [ -e /proc/$old/stat ] && read pid name state rest < /proc/$old/stat && [ \"$state\" != Z ]
then echo \"$THREAD_CONSUMER: $me began while $old ran\" >> overlaps
fi
echo $me > $owner
";

const WORK: &str = "\
sleep 0.0$(($$ % 9))
now=
read now < $owner
[ \"$now\" = $me ] || echo \"$THREAD_CONSUMER: $now began while $me ran\" >> overlaps
";

/// A small seeded generator: runs differ, but can be repeated from their seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn number_from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The events that a consumer's handler has finished. A torn line belongs to a killed run.
fn got(world: &World, consumer: &str) -> Vec<i64> {
    let lines = world.lines(format!("got-{consumer}"));
    let parsed = lines.iter().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut ids: Vec<i64> = parsed.filter_map(|event| event["id"].as_i64()).collect();
    ids.sort();
    ids.dedup();
    ids
}

#[test]
fn kills_at_any_moment_neither_double_a_run_nor_lose_an_event() {
    let rounds = number_from_environment("THREAD_TEST_ROUNDS", 40);
    let seed = u64::from(std::process::id()) << 16 | rounds;
    let mut random = Random(seed | 1);
    let world = World::with_thread();
    let patient = ["--backoff", "50ms", "--max-attempts", "1000000"];
    let fed = format!("{GUARD}cat > in-fed\n{WORK}echo >> got-fed\ncat in-fed >> got-fed\n: > $owner\n");
    world.script("fed", &fed);
    let popping = format!(
        "{GUARD}thread pop --resume > in-popping\n{WORK}echo >> got-popping\ncat in-popping >> got-popping\n\
         last=$(tail -n 1 in-popping | sed 's/^{{\"id\":\\([0-9]*\\),.*/\\1/')\n\
         : > $owner\n[ -n \"$last\" ] && thread ack --event-id $last > /dev/null\n"
    );
    world.script("popping", &popping);
    world.subscribe("fed", "exec ./fed", &[&["--deliver", "stdin"][..], &patient].concat());
    world.subscribe("popping", "exec ./popping", &patient);

    let (mut pushed, mut kills) = (0, 0);
    for _ in 0..rounds {
        for _ in 0..=random.below(2) {
            world.push("x");
            pushed += 1;
        }
        std::thread::sleep(Duration::from_millis(random.below(60)));
        let process = ["$.supervisor.pid", "$.handler.pid"][random.below(2) as usize];
        let consumer = ["fed", "popping"][random.below(2) as usize];
        let recorded = world.run_state(consumer, process).as_u64().unwrap_or(0) as u32;
        // Kill only processes of this world: a recorded pid may have been reused.
        if recorded != 0 && world.processes().contains(&recorded) {
            kill_and_wait(recorded);
            kills += 1;
        }
    }
    let began = Instant::now();
    world.wait_until_quiet();
    world.thread(["dispatch"]).quiet();
    world.wait_until_quiet();
    let lost: Vec<(&str, i64)> = ["fed", "popping"]
        .iter()
        .flat_map(|consumer| {
            let got = got(&world, consumer);
            (1..=pushed).filter(move |id| !got.contains(id)).map(move |id| (*consumer, id))
        })
        .collect();
    let overlaps = world.lines("overlaps");
    eprintln!(
        "rounds={rounds} seed={seed} events={pushed} kills={kills} overlaps={} lost={} settled in {:.1?}",
        overlaps.len(),
        lost.len(),
        began.elapsed()
    );
    assert_eq!(overlaps, Vec::<String>::new());
    assert_eq!(lost, []);
    for consumer in ["fed", "popping"] {
        let info = world.consumer(consumer);
        assert_eq!((&info["state"], &info["pending"], &info["dead"]), (&"idle".into(), &0.into(), &0.into()));
    }
    assert!(kills > 0, "nothing was killed, so nothing was shown");
    world.assert_log_is_exact();
}

/// Two consumers whose names differ only in case. Each handler waits until the other one runs too.
const TWO_CASES: &str = "\
thread init inbox >/dev/null || exit
for consumer in bot Bot; do
    thread subscribe --consumer $consumer --timeout 60s --max-attempts 1 --deliver stdin --handler \
        'cat; : >$THREAD_CONSUMER-began; until [ -e bot-began ] && [ -e Bot-began ]; do sleep 0.01; done' >/dev/null
done
thread push --source self --type message --content x >/dev/null
until [ \"$(thread info | grep -c 'pending: 0')\" = 2 ]; do
    thread info | grep -q stalled && break
    sleep 0.05
done
thread logs --consumer bot >bot-log; thread logs --consumer Bot >Bot-log
thread info";

fn assert_both_ran(world: &World, info: &str) {
    assert_eq!(info.matches("pending: 0").count(), 2, "{info}\n{:#?}", world.log());
    for log in ["bot-log", "Bot-log"] {
        assert_eq!(world.read(log).matches(" begins ").count(), 1, "{log}: {}", world.read(log));
    }
}

#[test]
fn consumers_whose_names_differ_in_case_run_at_the_same_time() {
    let world = World::new();
    let info = world.sh(TWO_CASES).quiet();
    assert_both_ran(&world, &info);
}

#[test]
fn consumers_whose_names_differ_in_case_work_on_a_case_insensitive_file_system() {
    let world = World::new();
    // Exit code 77: such a file system is not available here.
    let mount = "exec 2>refused; truncate -s 64m image && mkfs.ext4 -q -O casefold image && \
                 mkdir disk && mount -o loop image disk && mkdir disk/inbox && chattr +F disk/inbox || exit 77\n\
                 exec 2>&1; ln -s disk/inbox inbox; export THREAD_DIR=\"$PWD/disk/inbox\"\n";
    let script = format!("{mount}{TWO_CASES}").replace("thread init inbox", "thread init \"$THREAD_DIR\"");
    let run = world.sh("exec unshare -m /bin/sh -c \"$0\"").arg(script);
    let path = format!("{}:/usr/sbin:/sbin:/usr/bin:/bin", world.bin().display());
    let output = run.env("PATH", path).output();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        let why = world.lines("refused").join(" ") + &said;
        skipped(format_args!("a file system that ignores case: {why}"));
        return;
    }
    assert_both_ran(&world, &said);
}

#[test]
fn during_a_backlog_the_lock_is_never_free_and_background_processes_do_not_hold_it() {
    const EVENTS: usize = 40;
    let world = World::with_thread();
    let line = r#"{"source":"self","type":"message","content":"x"}"#.to_owned() + "\n";
    world.off(["push", "--batch"]).stdin(line.repeat(EVENTS)).quiet();
    // The background processes that the runs leave end with this test.
    world.write("guard", "");
    let handler = "while [ -e guard ]; do sleep 0.1; done & echo $! >>left";
    world.off(["subscribe", "bot", handler, "--deliver", "stdin", "--batch-size", "1"]).ok();
    world.thread(["dispatch"]).quiet();
    let log = || world.read("inbox/logs/thread.log");
    wait_until("the first run", || log().contains(" spawned "));
    let last = format!("acked={EVENTS}\n");
    // Until the last run has ended, nobody can take the lock. Then it is free, though all background processes still
    // run.
    wait_until("a free lock", || {
        let lock = File::open(world.path("inbox/run/bot.lock")).unwrap();
        // Often enough to notice any gap.
        (0..1000).any(|_| lock.try_lock().is_ok())
    });
    assert!(log().contains(&last), "free before the last run had ended: {}", log());
    let left = world.read("left");
    assert_eq!(left.lines().count(), EVENTS);
    assert!(left.lines().all(|pid| is_running(pid.parse().unwrap())), "{left}");
    std::fs::remove_file(world.path("guard")).unwrap();
    wait_until("the end of what was left", || !left.lines().any(|pid| is_running(pid.parse().unwrap())));
}
