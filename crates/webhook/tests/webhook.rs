//! `thread webhook` against a receiver in another language, which checks signatures with a library of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use serde_json::{Value, json};
use thread_testkit::{Dice, World, clients, kill, long, skipped};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OLD_SECRET: &str = "whsec_Q2hhbmdlZCBsYXN0IHllYXIu";

/// A thread, and a receiver of what is posted.
struct Partner {
    world: World,
    port: String,
}

impl Deref for Partner {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Partner {
    /// `None`, with a notice, if the machine has no Python for the receiver.
    fn new(secrets: &[&str]) -> Option<Partner> {
        let python = clients::python().map_err(|needs| skipped(&needs)).ok()?;
        let world = World::with_thread().with_system_path();
        let receiver = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/receiver.py");
        let mut command = world.run(python).arg(receiver).args(["port", "log"]).args(secrets).into_command();
        // Killed with the world.
        drop(command.spawn().unwrap());
        world.wait_for_file("port");
        let port = world.read("port");
        Some(Partner { world, port })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    fn subscribe(&self, more: &str, options: &[&str]) {
        let handler = format!("thread webhook {} --allow-private {more}", self.url());
        self.thread(["subscribe", "partner", &handler, "--deliver", "ndjson"]).args(options).ok();
    }

    fn push(&self, content: Value) {
        self.thread(["push", &content.to_string()]).ok();
    }

    /// What the receiver has heard.
    fn heard(&self) -> Vec<Value> {
        assert_eq!(self.read("log.errors"), "");
        self.lines("log").iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn info(&self) -> Value {
        let text = self.thread(["info", "partner", "--json"]).ok();
        let info: Value = serde_json::from_str(text.trim()).unwrap();
        info["subscriptions"].get(0).cloned().unwrap_or(info)
    }

    fn wait_for(&self, what: &str, mut is_so: impl FnMut(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        self.wait_until(what, || {
            last = self.info();
            is_so(&last)
        });
        last
    }
}

#[test]
fn an_answer_acknowledges_puts_off_or_refuses_an_event() {
    let Some(partner) = Partner::new(&[SECRET]) else { return };
    let options = ["--env", &format!("SECRET={SECRET}"), "--max-attempts", "5", "--backoff", "10ms"];
    partner.subscribe("--secret-env SECRET", &options);
    partner.push(json!({ "answer": [204] }));
    partner.push(json!({ "answer": [503, 500, 200], "say": "busy" }));
    partner.push(json!({ "answer": [429, 200], "headers": { "Retry-After": "1" } }));
    partner.push(json!({ "answer": [404], "say": "no such\n  hook" }));
    partner.push(json!({ "answer": [302], "headers": { "Location": format!("{}/else", partner.url()) } }));
    // The connection is closed without an answer.
    partner.push(json!({ "answer": [0, 200] }));
    let info = partner.wait_for("all to be answered", |info| info["pending"] == 0);
    assert_eq!(info["dead"], 2, "{info}");
    let heard = partner.heard();
    let of = |event: i64| heard.iter().filter(|one| one["event"] == event).collect::<Vec<_>>();
    let count = |event| of(event).len();
    assert_eq!([1, 2, 3, 4, 5, 6].map(count), [1, 3, 2, 1, 1, 2], "{heard:?}");
    // A retry has the same id, which no other event has.
    let ids: BTreeSet<_> = heard.iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 6);
    assert!(heard.iter().all(|one| one["signatures"] == 1));
    let dead = partner.thread(["dead", "list", "partner"]).ok();
    assert!(dead.contains("404 Not Found: no such hook"), "{dead}");
    assert!(dead.contains("302 Found: redirected to") && dead.contains("not followed"), "{dead}");
    // The secret is in none of them.
    let logs = partner.thread(["logs", "partner"]).ok();
    assert!(!logs.contains(SECRET) && !dead.contains(SECRET));
}

#[test]
fn a_receiver_that_is_gone_pauses_the_consumer() {
    let Some(partner) = Partner::new(&[]) else { return };
    partner.subscribe("", &["--concurrency", "2"]);
    partner.push(json!({ "answer": [410, 200] }));
    let info = partner.wait_for("the pause", |info| info["state"] == "paused");
    assert_eq!((&info["pending"], &info["dead"]), (&json!(1), &json!(0)));
    partner.thread(["resume", "partner"]).ok();
    partner.wait_for("the event to be taken", |info| info["pending"] == 0);
    assert_eq!(partner.heard().len(), 2);
    assert!(partner.heard().iter().all(|one| one["signatures"] == 0));
}

#[test]
fn a_secret_is_replaced_while_both_sign() {
    let Some(partner) = Partner::new(&[OLD_SECRET, SECRET]) else { return };
    let (old, new) = (format!("OLD={OLD_SECRET}"), format!("NEW={SECRET}"));
    partner.subscribe("--secret-env OLD --secret-env NEW", &["--env", &old, "--env", &new]);
    partner.push(json!({}));
    partner.wait_for("the event to be taken", |info| info["pending"] == 0);
    assert_eq!(partner.heard()[0]["signatures"], 2);
}

#[test]
fn what_is_private_is_not_posted_to_unless_it_is_allowed() {
    let world = World::with_thread().with_system_path();
    let event =
        r#"{"id":1,"created_at":"2026-01-01T00:00:00.000Z","source":"a","type":"message","content":"x"}"#;
    let post =
        |url: &str| world.run("thread").args(["webhook", url]).stdin(format!("{event}\nnot an event\n"));
    for (url, why) in [
        ("http://127.0.0.1:9/", "127.0.0.1 is no public address"),
        ("http://[::ffff:127.0.0.1]/", "is no public address"),
        ("partner.example", "is not a URL"),
    ] {
        let said = post(url).fails(2);
        assert!(said.contains(why), "{said}");
    }
    let answer = post("http://localhost:9/").output();
    let text = String::from_utf8(answer.stdout).unwrap();
    assert!(text.starts_with(r#"{"nack":1,"error":"no answer: localhost has no public address"#), "{text}");
    assert!(String::from_utf8(answer.stderr).unwrap().contains("is no event"));
    let with_secret = |name: &str| {
        let words = ["webhook", "https://a.example", "--secret-env", name];
        world.run("thread").args(words).env("WRONG", "whsec_!!").fails(2)
    };
    assert!(with_secret("MISSING").contains("MISSING is not set"));
    assert!(with_secret("WRONG").contains("it is not base64"));
}

#[test]
fn a_wrong_setting_stalls_the_consumer_and_uses_up_no_event() {
    let world = World::with_thread().with_system_path();
    let handler = "thread webhook https://partner.example --secret-env MISSING";
    world.thread(["subscribe", "partner", handler, "--deliver", "ndjson", "--max-attempts", "1"]).ok();
    world.thread(["push", "x"]).ok();
    let info = || world.thread(["info", "partner"]).ok();
    world.wait_until("the stall", || info().contains("stalled"));
    let logs = world.thread(["logs", "partner"]).ok();
    assert!(logs.contains("Error: MISSING is not set - "), "{logs}");
    assert_eq!(world.thread(["dead", "list", "partner"]).ok(), "");
}

/// Handlers and supervisors are killed at random while a receiver that fails at random takes the events.
#[test]
fn kills_lose_nothing_and_keep_the_order_of_each_key() {
    let Some(partner) = Partner::new(&[SECRET]) else { return };
    let (events, keys) = if long() { (1000, 20) } else { (150, 6) };
    let secret = format!("SECRET={SECRET}");
    let options = [
        "--env",
        &secret,
        "--max-attempts",
        "never",
        "--backoff",
        "10ms",
        "--concurrency",
        "4",
        "--stall-after",
        "never",
    ];
    partner.subscribe(
        "--secret-env SECRET",
        &[&options[..], &["--key", "json_extract(content, '$.key')"]].concat(),
    );
    let line =
        |n: usize| json!({ "content": json!({ "key": n % keys, "random": true }).to_string() }).to_string();
    let batch: String = (0..events).map(|n| line(n) + "\n").collect();
    partner.thread(["push", "--batch"]).stdin(batch).ok();
    let mut dice = Dice::new();
    let mut kills = 0;
    partner.wait_until("all to be taken", || {
        for _ in 0..10 {
            let victims: Vec<u32> = partner.processes().into_iter().filter(|pid| is_sender(*pid)).collect();
            if !victims.is_empty() {
                kill(victims[dice.up_to(victims.len() as u64 - 1) as usize]);
                kills += 1;
            }
            std::thread::sleep(std::time::Duration::from_millis(dice.up_to(150)));
            partner.thread(["dispatch"]).ok();
        }
        partner.info()["pending"] == 0
    });
    let heard = partner.heard();
    let mut taken: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    let mut first = BTreeSet::new();
    for one in heard.iter().filter(|one| one["status"] == 200) {
        if first.insert(one["event"].as_i64().unwrap()) {
            taken.entry(one["key"].as_i64().unwrap()).or_default().push(one["event"].as_i64().unwrap());
        }
    }
    assert_eq!(first.len(), events, "events are missing after {kills} kills");
    assert!(taken.values().all(|events| events.is_sorted()), "{taken:?}");
    let ids: BTreeSet<(i64, &str)> =
        heard.iter().map(|one| (one["event"].as_i64().unwrap(), one["id"].as_str().unwrap())).collect();
    assert_eq!(ids.len(), events, "an event has two ids");
    println!("{events} events, {} requests, {kills} kills", heard.len());
    partner.thread(["pause", "partner"]).ok();
}

/// Whether a process posts, or supervises one that does.
fn is_sender(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    line.contains("thread-webhook") || line.contains("_supervise")
}
