//! Everything at once: pushes, re-subscriptions, rewinds, stops, prunes, repairs and backups, while
//! processes are stopped, terminated and killed, the notifier works or fails, and the clock is
//! stepped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use thread_testkit::preload::{self, Clock};
use thread_testkit::{Dice, Run, World, long};

use crate::weight::{self, Weight};

/// Records its pid while it works, and checks whether another run is active. Only shell built-ins
/// touch that file, so a surviving child of a killed handler is never mistaken for it.
const GUARD: &str = "\
me=$$; owner=owner-$THREAD_CONSUMER; old=\n\
[ -e $owner ] && read old <$owner\n\
if [ -n \"$old\" ] && [ -e /proc/$old/stat ] && read pid name state rest </proc/$old/stat && [ \"$state\" != Z ]\n\
then echo \"$THREAD_CONSUMER: $me began while $old ran\" >>overlaps; fi\n\
echo $me >$owner\n";

const WORK: &str = "\
sleep 0.0$(($$ % 5)); now=; read now <$owner\n\
[ \"$now\" = $me ] || echo \"$THREAD_CONSUMER: $now began while $me ran\" >>overlaps\n";

/// Consumers that must not lose events. A further one, `fickle`, is only subscribed and unsubscribed.
const CONSUMERS: &[&str] = &["fed", "popping", "picky", "judging"];

const FILTER: &str = "content LIKE '%7'";

/// Reports an event that ends with 13 as bad if it is alone in its batch, and fails once in a while.
const JUDGE: &str = "\
cat >in-judging || exit\n\
[ $(($$ % 9)) = 0 ] && exit 3\n\
if grep -q '13\"' in-judging; then\n\
  [ $(grep -c . in-judging) = 1 ] && { echo; cat in-judging; } >>got-judging; exit 65\n\
fi\n";

struct Chaos {
    world: World,
    clock: Clock,
    end: Instant,
    /// The number of times each action was done.
    done: Mutex<BTreeMap<&'static str, usize>>,
    pushed: AtomicUsize,
}

impl Chaos {
    fn begin(time: Duration) -> Chaos {
        let world = World::with_thread();
        symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/notifier"), world.bin().join("notifier"))
            .unwrap();
        fs::create_dir(world.path("tasks")).unwrap();
        // A child such as `cat` may be killed alone; the handler must fail then.
        let fed = format!(
            "{GUARD}cat >in-$THREAD_CONSUMER || exit\n{WORK}echo >>got-$THREAD_CONSUMER\n\
             cat in-$THREAD_CONSUMER >>got-$THREAD_CONSUMER || exit\n: >$owner\n"
        );
        world.script("fed", &fed);
        let popping = format!(
            "{GUARD}thread pop --resume >in-popping\n{WORK}echo >>got-popping\n\
             cat in-popping >>got-popping || exit\n\
             last=$(tail -n 1 in-popping | sed 's/^{{\"id\":\\([0-9]*\\),.*/\\1/')\n\
             : >$owner\n[ -n \"$last\" ] && thread ack --event-id $last >/dev/null\n"
        );
        world.script("popping", &popping);
        let judging = format!(
            "{GUARD}{JUDGE}{WORK}echo >>got-judging\ncat in-judging >>got-judging || exit\n: >$owner\n"
        );
        world.script("judging", &judging);
        let patient = ["--backoff", "50ms", "--max-attempts", "1000000"];
        let stdin = [&["--deliver", "stdin"][..], &patient].concat();
        world.subscribe("fed", "exec ./fed", &stdin);
        world.subscribe("picky", "exec ./fed", &[&stdin[..], &["--filter", FILTER]].concat());
        world.subscribe("popping", "exec ./popping", &patient);
        world.subscribe("judging", "exec ./judging", &stdin);
        let clock = Clock::new(world.path("clock"));
        Chaos {
            world,
            clock,
            end: Instant::now() + time,
            done: Mutex::default(),
            pushed: AtomicUsize::new(0),
        }
    }

    fn goes_on(&self) -> bool {
        Instant::now() < self.end
    }

    fn count(&self, what: &'static str) {
        *self.done.lock().unwrap().entry(what).or_default() += 1;
    }

    /// A command with the stepped clock, and with a notifier that works, loses or swallows tasks, or none.
    fn command(&self, args: &[&str], dice: &mut Dice) -> Run {
        self.moody(self.world.thread(args), dice)
    }

    fn moody(&self, mut run: Run, dice: &mut Dice) -> Run {
        let moods = ["works", "loses", "swallows"];
        match dice.up_to(5) as usize {
            mood if mood < moods.len() => run = run.env("NOTIFIER_MOOD", moods[mood]),
            _ => run = run.env("THREAD_NOTIFIER", "embedded"),
        }
        if let Some(library) = preload::library() {
            run = run.envs(preload::variables(library)).env("STEPPED_CLOCK", self.clock.path());
        }
        run.env("NOTIFIER_HOME", self.world.path("tasks"))
    }

    /// Runs the command. It may be killed or fail cleanly, but must not report a bug or exit with
    /// another code.
    fn run(&self, run: Run) -> Output {
        let output = run.output();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("a bug in thread"), "{stderr}");
        assert!(matches!(output.status.code(), None | Some(0 | 1 | 129 | 130 | 143)), "{output:?}");
        output
    }

    /// Pushes until time is up. A push that failed or was killed is repeated with the same keys.
    fn push(&self, name: usize) {
        let mut dice = Dice::new();
        while self.goes_on() {
            let many = dice.up_to(9) == 0;
            let first = self.pushed.fetch_add(if many { 5 } else { 1 }, Ordering::SeqCst);
            loop {
                let run = if many {
                    let line = |n: usize| {
                        format!(
                            "{{\"source\":\"s{name}\",\"type\":\"record\",\"content\":\"{n}\",\"idempotency_key\":\"{n}\"}}\n"
                        )
                    };
                    let lines: String = (first..first + 5).map(line).collect();
                    self.command(&["push", "--batch"], &mut dice).stdin(lines)
                } else {
                    let content = first.to_string();
                    let event = ["push", "--source", "self", "--type", "message", "--content", &content];
                    self.command(&event, &mut dice).arg("--idempotency-key").arg(&content)
                };
                if self.run(run).status.success() {
                    break;
                }
                self.count("pushes that were cut short");
            }
            self.count(if many { "batches" } else { "pushes" });
            std::thread::sleep(Duration::from_millis(dice.up_to(40)));
        }
    }

    /// The administrative commands that users run on a thread.
    fn meddle(&self) {
        let mut dice = Dice::new();
        let mut backups = 0;
        while self.goes_on() {
            let consumer = CONSUMERS[dice.up_to(3) as usize];
            match dice.up_to(9) {
                0 => {
                    self.run(
                        self.command(&["stop", "--kill-after", "1s", "--consumer", consumer], &mut dice),
                    );
                    self.run(self.command(&["resume", "--consumer", consumer], &mut dice));
                    self.count("stops");
                }
                1 => {
                    self.run(self.command(&["pause", "--consumer", consumer], &mut dice));
                    self.run(self.command(&["resume", "--consumer", consumer], &mut dice));
                    self.count("pauses");
                }
                2 | 3 => {
                    let newest = self.world.query("SELECT coalesce(max(id), 0) FROM events");
                    let to = (newest - dice.up_to(30) as i64).max(0);
                    // Only backwards: moving forward would skip events that were not delivered yet.
                    let sql = "SELECT last_acked_id FROM consumer_progress WHERE consumer_id = ?";
                    let cursor: i64 =
                        self.world.db().query_row(sql, [consumer], |row| row.get(0)).unwrap_or(0);
                    let to = to.min(cursor).to_string();
                    self.run(self.command(&["seek", "--consumer", consumer, "--to", &to], &mut dice));
                    self.count("rewinds");
                }
                4 => {
                    self.run(self.command(&["prune", "--keep", "100"], &mut dice));
                    self.count("prunes");
                }
                5 => {
                    self.run(self.command(&["doctor", "--fix"], &mut dice));
                    self.count("repairs");
                }
                6 => {
                    backups += 1;
                    let place = format!("backup-{backups}");
                    if self.run(self.command(&["backup", &place], &mut dice)).status.success() {
                        let found = self.world.thread(["doctor", "--thread", &place]).output();
                        assert!(found.status.code() != Some(1), "a bad backup: {found:?}");
                        self.count("backups");
                    }
                    fs::remove_dir_all(self.world.path(place)).ok();
                }
                7 => drop(self.run(self.command(&["dispatch"], &mut dice))),
                _ => {
                    let subscribe = ["subscribe", "--consumer", "fickle", "--handler", "true"];
                    self.run(self.command(&subscribe, &mut dice));
                    std::thread::sleep(Duration::from_millis(dice.up_to(50)));
                    self.run(self.command(&["unsubscribe", "--consumer", "fickle"], &mut dice));
                    self.count("re-subscriptions");
                }
            }
            std::thread::sleep(Duration::from_millis(dice.up_to(60)));
        }
    }

    /// Kills, terminates or temporarily stops random processes of this world.
    fn strike(&self) {
        let mut dice = Dice::new();
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(10 + dice.up_to(60)));
            let all = self.world.processes();
            if all.is_empty() {
                continue;
            }
            let pid = all[dice.up_to(all.len() as u64 - 1) as usize];
            let Some(pid) = Pid::from_raw(pid as i32) else { continue };
            match dice.up_to(9) {
                0..=3 => {
                    kill_process(pid, Signal::KILL).ok();
                    self.count("KILL");
                }
                4..=5 => {
                    kill_process(pid, Signal::TERM).ok();
                    self.count("TERM");
                }
                _ => {
                    kill_process(pid, Signal::STOP).ok();
                    std::thread::sleep(Duration::from_millis(dice.up_to(300)));
                    kill_process(pid, Signal::CONT).ok();
                    self.count("STOP");
                }
            }
        }
    }

    /// Steps the clock, and keeps the notifier's daemon running.
    fn step(&self) {
        let mut dice = Dice::new();
        while self.goes_on() {
            let daemon = self.world.sh("exec notifier daemon").env("NOTIFIER_HOME", self.world.path("tasks"));
            let daemon = self.moody(daemon, &mut dice).env("NOTIFIER_MOOD", "works");
            let mut daemon = daemon.spawn();
            while self.goes_on() && daemon.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(100 + dice.up_to(400)));
                self.clock.step(dice.up_to(7_200) as i64 - 3_600);
                self.count("clock steps");
            }
            daemon.kill().ok();
            daemon.wait().unwrap();
        }
    }

    /// Records how much space and memory the thread takes, and checks whether that still grows.
    fn weigh(&self) -> Vec<Weight> {
        let mut all = Vec::new();
        while self.goes_on() {
            std::thread::sleep(Duration::from_millis(500));
            all.push(Weight::of(&self.world));
        }
        all
    }

    /// The ids that a consumer's handler has finished. A torn line belongs to a killed run.
    fn got(&self, consumer: &str) -> BTreeSet<i64> {
        let lines = self.world.lines(format!("got-{consumer}"));
        let parsed = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        parsed.filter_map(|event| event["id"].as_i64()).collect()
    }
}

#[test]
fn under_all_faults_at_once_nothing_is_lost_and_no_runs_overlap() {
    // `SOAK` is a number of minutes.
    let soak = std::env::var("SOAK").ok().map(|minutes| minutes.parse::<u64>().unwrap() * 60);
    let time = Duration::from_secs(soak.unwrap_or(if long() { 600 } else { 12 }));
    let chaos = Chaos::begin(time);
    let world = &chaos.world;
    let weights = std::thread::scope(|scope| {
        for name in 0..2 {
            let chaos = &chaos;
            scope.spawn(move || chaos.push(name));
        }
        scope.spawn(|| chaos.meddle());
        scope.spawn(|| chaos.strike());
        scope.spawn(|| chaos.step());
        scope.spawn(|| chaos.weigh()).join().unwrap()
    });
    // One dispatch by the owner afterwards, which runs that were killed may need.
    let began = Instant::now();
    for consumer in CONSUMERS {
        world.thread(["resume", "--consumer", consumer]).quiet();
    }
    world.wait_until_quiet();
    world.thread(["dispatch"]).quiet();
    world.wait_until_quiet();
    let settled = began.elapsed();
    world.thread(["dead", "discard", "judging", "--all"]).ok();

    let overlaps = world.lines("overlaps");
    let log: Vec<Value> = world.jsonl().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: Vec<i64> = log.iter().map(|event| event["id"].as_i64().unwrap()).collect();
    let newest = world.query("SELECT seq FROM sqlite_sequence WHERE name = 'events'");
    let mut contents: Vec<usize> =
        log.iter().map(|event| event["content"].as_str().unwrap().parse().unwrap()).collect();
    contents.sort_unstable();
    let pushed = chaos.pushed.load(Ordering::SeqCst);
    let mut lost = Vec::new();
    for consumer in CONSUMERS {
        let got = chaos.got(consumer);
        let matches =
            |event: &Value| *consumer != "picky" || event["content"].as_str().unwrap().ends_with('7');
        let wanted = log.iter().filter(|event| matches(event)).map(|event| event["id"].as_i64().unwrap());
        lost.extend(wanted.filter(|id| !got.contains(id)).map(|id| (*consumer, id)));
    }
    let done: Vec<String> =
        chaos.done.lock().unwrap().iter().map(|(what, count)| format!("{count} {what}")).collect();
    eprintln!(
        "chaos for {} s: {pushed} events, {}; {} lost, {} overlapping runs; idle {:.1} s after the end",
        time.as_secs(),
        done.join(", "),
        lost.len(),
        overlaps.len(),
        settled.as_secs_f64()
    );
    weight::print_and_check(&weights, soak.is_some());
    assert_eq!(overlaps, Vec::<String>::new());
    assert_eq!(lost, []);
    assert_eq!(ids, (1..=newest).collect::<Vec<_>>(), "the log has each event once, in order");
    assert_eq!(contents, (0..pushed).collect::<Vec<_>>(), "each push was stored once");
    // For events that were not pruned, the log matches the table; those with dead letters were not.
    let log: BTreeSet<String> = world.jsonl().into_iter().collect();
    let strays: Vec<String> = world.table_as_jsonl().into_iter().filter(|line| !log.contains(line)).collect();
    assert_eq!(strays, Vec::<String>::new(), "the log is not the table");
    for consumer in CONSUMERS {
        let info = world.consumer(consumer);
        assert_eq!((&info["state"], &info["pending"], &info["dead"]), (&"idle".into(), &0.into(), &0.into()));
    }
    world.thread(["doctor"]).ok();
    assert_eq!(world.processes(), Vec::<u32>::new());
}
