//! Whatever is killed, at any moment: each message ends once, in order, and no process is left.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use thread_conversation::{Entry, Priority};
use thread_testkit::{Dice, PATIENCE, long};

use crate::harness::{ADA, Talk, fixture};

/// The number of rounds: few in the suite, many in the long form.
fn rounds() -> u64 {
    if long() { 300 } else { 15 }
}

/// Installs an agent whose consumer has a short backoff and a high limit of attempts.
fn impatient(talk: &Talk) {
    talk.install(&["--protocol", "ndjson", "--idle", "300ms"], &[&fixture(), "README"]);
    let info: serde_json::Value = serde_json::from_str(&talk.thread(&["info", "--json"]).ok()).unwrap();
    let subscription = &info["subscriptions"][0];
    let word = |key: &str| subscription[key].as_str().unwrap().to_owned();
    talk.thread(&["unsubscribe", "--consumer", "agent"]).ok();
    let (handler, filter) = (word("handler_cmd"), word("filter"));
    let options =
        ["--handler", &handler, "--filter", &filter, "--backoff", "50ms", "--max-attempts", "100000"];
    talk.thread(&[&["subscribe", "--consumer", "agent"], &options[..]].concat()).ok();
}

fn push(talk: &Talk, dice: &mut Dice, number: u64) -> Child {
    let text = ["find lock", "hello", "who", "slowly one two three"][dice.up_to(3) as usize];
    let priority = ["now", "next", "next", "later"][dice.up_to(3) as usize];
    let metadata =
        format!(r#"{{"priority":"{priority}","run_id":"r{number}","resume":{}}}"#, dice.up_to(3) == 0);
    let key = format!("k{number}");
    let words = ["push", "--source", ADA, "--type", "message", "--content", text, "--metadata", &metadata];
    let mut command = talk.command("thread");
    command.args(words).args(["--idempotency-key", &key]).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
    }
}

#[test]
fn each_message_ends_once_whatever_is_killed() {
    let talk = Talk::new();
    talk.write("README", "a lock\n");
    impatient(&talk);
    let mut dice = Dice::new();
    let (mut number, mut kills) = (0, [0; 4]);
    for _ in 0..rounds() {
        for _ in 0..=dice.up_to(2) {
            number += 1;
            let mut pusher = push(&talk, &mut dice, number);
            if dice.up_to(3) == 0 {
                std::thread::sleep(Duration::from_millis(dice.up_to(11)));
                drop(pusher.kill());
                kills[0] += 1;
            }
            pusher.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(dice.up_to(149)));
        match dice.up_to(7) {
            0 => drop(talk.cancel(&format!("r{}", 1 + dice.up_to(number - 1)))),
            1 => drop(talk.thread(&["seek", "--consumer", "agent", "--to", "earliest"]).ok()),
            _ => {}
        }
        let everything = talk.everything();
        let kind = dice.up_to(2);
        let victims: Vec<u32> = match kind {
            0 => talk.processes(),
            1 => everything
                .iter()
                .filter(|(_, line)| line.contains("/thread-agent\0"))
                .map(|(pid, _)| *pid)
                .collect(),
            _ => everything
                .iter()
                .filter(|(_, line)| line.contains("\0_supervise\0"))
                .map(|(pid, _)| *pid)
                .collect(),
        };
        kills[1 + kind as usize] += victims.len();
        victims.into_iter().for_each(kill);
    }
    eprintln!(
        "{number} messages, {} of their pushers and {} other processes were killed",
        kills[0],
        kills[1..].iter().sum::<usize>()
    );
    let end = Instant::now() + PATIENCE + Duration::from_secs(rounds());
    while let Err(why) = talk.is_settled() {
        assert!(Instant::now() < end, "{why}\n{}", talk.log());
        // The next dispatch continues what a killed supervisor or pusher left.
        talk.thread(&["dispatch"]).ok();
        std::thread::sleep(Duration::from_millis(200));
    }
    let mut begun: Vec<(Priority, i64)> = Vec::new();
    let entries = talk.entries();
    let priority_of = |of: i64| {
        entries.iter().find_map(|(id, _, entry)| match entry {
            Entry::Message(message) if *id == of => Some(message.priority),
            _ => None,
        })
    };
    for (.., entry) in &entries {
        if let Entry::RunStarted { reply_to: Some(reply_to), .. } = entry
            && !begun.iter().any(|(_, id)| id == reply_to)
        {
            begun.push((priority_of(*reply_to).unwrap(), *reply_to));
        }
    }
    for priority in [Priority::Now, Priority::Next, Priority::Later] {
        let order: Vec<i64> = begun.iter().filter(|(of, _)| *of == priority).map(|(_, id)| *id).collect();
        assert!(order.is_sorted(), "{priority:?}: {order:?}");
    }
    talk.thread(&["dispatch"]).ok();
    while !talk.everything().is_empty() {
        assert!(Instant::now() < end, "still running: {:?}", talk.everything());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(talk.is_settled(), Ok(()));
}
