//! Measures the latency from a program's output to its event, the throughput, and how soon a run is interrupted: `cargo
//! bench -p thread-agent`. The figures hold for this machine only; none is a promise.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use thread::{After, Queue};
use thread_agent::install::{Install, install};
use thread_agent::launcher;
use thread_conversation::{Entry, Message, Priority};
use thread_testkit::bench::{figure, quantile, sync_time, time};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("tick") => tick(200, Duration::from_millis(20)),
        Some("stream") => tick(10_000, Duration::from_micros(500)),
        // Added by `cargo bench`, but not by `cargo test`.
        Some("--bench") => measure(),
        _ => println!("run by `cargo bench -p thread-agent`"),
    }
}

/// The agent program: prints the time, this many times and this far apart.
fn tick(times: u32, pause: Duration) {
    let began = Instant::now();
    for n in 1..=times {
        println!("{}", nanos());
        std::io::stdout().flush().expect("stdout");
        std::thread::sleep((pause * n).saturating_sub(began.elapsed()));
    }
}

fn nanos() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_nanos()
}

fn measure() {
    let programs = thread_testkit::program("thread");
    let programs = programs.parent().expect("a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&path)));
    // SAFETY: there is no other thread yet.
    unsafe { std::env::set_var("PATH", path.expect("a path")) };
    let root = tempfile::tempdir_in(".").expect("a folder");
    let sync = sync_time(root.path());
    figure("one sync", &time(sync), "", "");
    let own = std::env::current_exe().expect("own file").display().to_string();

    let talk = Talk::new(root.path().join("tick"), &[&own, "tick"]);
    talk.say("x", Priority::Next);
    let late = talk.delays();
    let of = |share: f64| time(quantile(&late, share));
    figure("from print to event: the median", &of(0.5), "", &format!("<= {}", time(2.0 * sync + 0.001)));
    figure("  90 %, and the worst", &of(0.9), &of(1.0), "");

    let talk = Talk::new(root.path().join("stream"), &[&own, "stream"]);
    let began = Instant::now();
    talk.say("x", Priority::Next);
    let late = talk.delays();
    let took = began.elapsed().as_secs_f64();
    figure("10,000 tokens, 2,000 a second: all stored after", &time(took), "", "");
    figure("  in so many events, the last late by", &late.len().to_string(), &time(late[late.len() - 1]), "");

    for (what, script) in [
        ("listens", "read x; case $x in long) echo begun; sleep 1000 & wait;; esac"),
        (
            "ignores everything",
            "trap '' INT TERM; read x; case $x in long) echo begun; while :; do sleep 1; done;; esac",
        ),
    ] {
        let times: Vec<f64> = (0..3)
            .map(|n| talk_interrupted(&root.path().join(format!("{}{n}", what.len())), script).as_secs_f64())
            .collect();
        figure(&format!("`now` interrupts a program that {what}"), &time(quantile(&times, 0.5)), "", "");
    }
}

fn talk_interrupted(dir: &Path, script: &str) -> Duration {
    let talk = Talk::new(dir.to_owned(), &["sh", "-c", script]);
    let long = talk.say("long", Priority::Next);
    talk.until(|entry| matches!(entry, Entry::Token { .. }));
    let began = Instant::now();
    talk.say("now", Priority::Now);
    talk.until(|entry| entry.ends() == Some(long));
    began.elapsed()
}

struct Talk(PathBuf);

impl Talk {
    fn new(dir: PathBuf, program: &[&str]) -> Talk {
        Queue::init(&dir).expect("a thread");
        let program = program.iter().map(|word| word.to_string()).collect();
        let cwd = std::env::current_dir().expect("a folder");
        let options = ["--idle", "0s"].map(str::to_owned).to_vec();
        let agent = Install { options, ..Install::new(program, cwd) };
        let mut queue = Queue::open(&dir).expect("a thread");
        install(&mut queue, &launcher::launcher().expect("thread"), &agent).expect("an agent");
        Talk(dir)
    }

    fn say(&self, text: &str, priority: Priority) -> i64 {
        let mut queue = Queue::open(&self.0).expect("a thread");
        let event = Message { priority, ..Message::text(text) }.event("bench").expect("an event");
        thread::run::push(&mut queue, &launcher::launcher().expect("thread"), &event).expect("a push").id
    }

    /// Returns by how many seconds each token was late, measured from the last time in it, until there is an answer.
    fn delays(&self) -> Vec<f64> {
        let mut late = Vec::new();
        self.each(|entry| {
            if let Entry::Token { text, .. } = entry {
                let told: u128 = text.lines().last().and_then(|line| line.parse().ok()).expect("a time");
                late.push(nanos().saturating_sub(told) as f64 / 1e9);
            }
            matches!(entry, Entry::Answer { .. })
        });
        late
    }

    fn until(&self, is_it: impl Fn(&Entry) -> bool) {
        self.each(|entry| is_it(entry));
    }

    /// Polls, so that the time it takes to be notified is not measured.
    fn each(&self, mut is_last: impl FnMut(&Entry) -> bool) {
        let mut queue = Queue::open(&self.0).expect("a thread");
        let mut after = After(0);
        loop {
            for event in queue.read(after, None).expect("events") {
                after = After(event.id);
                if is_last(&Entry::of(&event)) {
                    return;
                }
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let stop = Command::new(launcher::program("thread-agent").expect("thread-agent"))
            .args(["stop", "--thread"])
            .arg(&self.0)
            .output();
        drop(stop);
    }
}
