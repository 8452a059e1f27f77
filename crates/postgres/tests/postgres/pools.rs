//! Pools, on threads that several machines share: everything is killed, and the server too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use thread_testkit::{kill, long, postgres::Server, quoted, wait_until};

use crate::machine::Machine;
use crate::shared::HOLD;

/// Handles one event: locks it and its key, notes that it begins, and fails sometimes.
const HANDLE: &str = r#"handle() {
    id=${1#*:}; id=${id%%,*}; key=${1##*key_}; key=${key%%_*}
    hold "$id" "$key"
    read -r kills <kills
    echo "$key $id $kills" >>begun
    case $id in
    *1) sleep 0.2 ;;
    *3) [ -e "seen$id" ] || { : >"seen$id"; return 75; } ;;
    *5) [ -e "failed$id" ] || { : >"failed$id"; return 1; } ;;
    *7) [ -e "died$id" ] || { : >"died$id"; kill -9 $$; } ;;
    esac
    echo "$id" >>done
    let_go
}
"#;

const ONCE: &str = "read -r line; handle \"$line\"";

const KEPT: &str = r#"while IFS= read -r line; do
    handle "$line"; code=$?
    let_go
    case $code in
    0) echo "{\"ack\":$id}" ;;
    75) echo "{\"nack\":$id,\"delay\":\"20ms\",\"attempt\":false}" ;;
    *) echo "{\"nack\":$id,\"delay\":\"20ms\"}" ;;
    esac
done"#;

/// Takes events by claims. One that cannot be acknowledged, because the server is away, is given again.
const PULLER: &str = r#"while :; do
    line=$(thread pop bot --claim 4s --wait 5s) || { sleep 0.1; continue; }
    [ -n "$line" ] || continue
    handle "$line"; code=$?
    let_go
    token=${line##*\"claim\":\"}; token=${token%%\"*}
    case $code in
    0) thread ack bot "$id" --claim "$token" ;;
    75) thread nack bot "$id" --claim "$token" --delay 20ms --no-attempt ;;
    *) thread nack bot "$id" --claim "$token" --delay 20ms ;;
    esac >/dev/null
done
"#;

const LEASE: &[&str] = &["--lease", "4s"];

/// For so many kills after one of the server, events may be repeated after their successors: the ends of runs are not
/// synced one by one, and who remembered them may have been killed since.
const REPEATS: usize = 6;

/// What works on two machines.
struct Works {
    machines: [Machine; 2],
    /// If nobody else does, these take the events.
    pullers: Vec<Child>,
    pulls: bool,
}

impl Works {
    fn revive(&mut self) {
        if !self.pulls {
            self.machines.iter_mut().for_each(|machine| machine.revive_worker(LEASE));
            return;
        }
        self.pullers.retain_mut(|puller| puller.try_wait().unwrap().is_none());
        while self.pullers.len() < 6 {
            let machine = &self.machines[self.pullers.len() % 2];
            let mut command = machine.program(&self.machines[0].path("puller"));
            let command =
                command.process_group(0).current_dir(self.machines[0].path("")).stderr(Stdio::null());
            self.pullers.push(command.spawn().unwrap());
        }
    }

    /// Kills one process, or a puller with all that it has started: a program that outlives its claim is no failure of
    /// the queue.
    fn kill_one(&mut self, dice: usize) {
        if self.pulls {
            let mut puller = self.pullers.swap_remove(dice % self.pullers.len());
            end_group(&mut puller);
            return;
        }
        let running = self.machines[dice % 2].processes();
        if let Some(pid) = running.get(dice / 2 % running.len().max(1)) {
            kill(*pid);
        }
    }
}

fn end_group(leader: &mut Child) {
    kill_process_group(Pid::from_child(leader), Signal::KILL).ok();
    leader.wait().unwrap();
}

fn loses_nothing(deliver: Option<(&str, &str, &str)>) {
    let Some(server) = Server::start() else { return };
    let text = server.location();
    let machines = [Machine::new(&text), Machine::new(&text)];
    let one = Machine::new(&text);
    one.ok(&["init", &text]);
    let patient = ["--concurrency", "4", "--key", "content", "--backoff", "50ms", "--max-attempts", "never"];
    let home = machines[0].path("");
    match deliver {
        Some((deliver, rest, batch)) => {
            let handler = format!("cd {}; {HOLD}{HANDLE}{rest}", quoted(&home));
            let options = ["--deliver", deliver, "--batch-size", batch];
            one.ok(&[&["subscribe", "bot", &handler][..], &options, &patient].concat());
        }
        None => {
            let puller = home.join("puller");
            fs::write(&puller, format!("#!/bin/sh\n{HOLD}{HANDLE}{PULLER}")).unwrap();
            fs::set_permissions(&puller, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            one.ok(&[&["subscribe", "bot", "--no-handler"][..], &patient].concat());
        }
    }
    let mut works = Works { machines, pullers: Vec::new(), pulls: deliver.is_none() };
    let until = Instant::now() + if long() { Duration::from_secs(300) } else { Duration::from_secs(8) };
    let (mut pushed, mut kills, mut crashes) = (0_i64, 0, Vec::new());
    fs::write(home.join("kills"), "0\n").unwrap();
    // For as long as it takes until two machines were at work at once.
    let give_up = until + Duration::from_secs(120);
    let is_done = || Instant::now() >= until && home.join("both").exists();
    while Instant::now() < give_up && (crashes.is_empty() || !is_done()) {
        works.revive();
        let acked = one.bot("last_acked_id").as_i64().unwrap();
        if pushed - acked < 100 {
            let lines: String = (0..10).map(|n| format!("key_{}_\n", (pushed + n) % 6)).collect();
            one.ok_with_stdin(&["push", "--lines"], &lines);
            pushed += 10;
        }
        kills += 1;
        fs::write(home.join("kills.new"), format!("{kills}\n")).unwrap();
        fs::rename(home.join("kills.new"), home.join("kills")).unwrap();
        if kills % 12 == 6 {
            server.order("kill");
            server.order("start");
            crashes.push(kills);
        } else {
            works.kill_one(kills * 7);
        }
        // At random, but so that something gets done.
        std::thread::sleep(Duration::from_millis(50 + kills as u64 * 37 % 300));
    }
    wait_until("all to be handled", || {
        works.revive();
        one.bot("last_acked_id") == pushed
    });
    works.pullers.iter_mut().for_each(end_group);
    let lines = |name: &str| fs::read_to_string(home.join(name)).unwrap_or_default();
    let overlaps = lines("overlaps");
    if !overlaps.is_empty() {
        let logs = works.machines.each_ref().map(Machine::log).join("\n--\n");
        panic!("after {kills} kills, crashes at {crashes:?}:\n{overlaps}\n{}\n{logs}", lines("begun"));
    }
    let done: BTreeSet<i64> = lines("done").lines().map(|id| id.parse().unwrap()).collect();
    assert_eq!(done, (1..=pushed).collect(), "after {kills} kills");
    let mut newest = BTreeMap::new();
    for line in lines("begun").lines() {
        let [key, id, kills] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (id, kills): (i64, usize) = (id.parse().unwrap(), kills.parse().unwrap());
        let before = newest.insert(key.to_owned(), id).unwrap_or(0);
        let may_repeat = crashes.iter().any(|crash| (*crash..=crash + REPEATS).contains(&kills));
        assert!(
            before <= id || may_repeat,
            "of key {key}, {id} began after {before}, crashes at {crashes:?}: {line}"
        );
    }
    assert_eq!(one.bot("dead"), 0);
    assert!(home.join("both").exists(), "no two machines were at work at once");
    let how = deliver.map_or("claims", |(deliver, ..)| deliver);
    println!("{how}: {pushed} events, {kills} kills, of which {} of the server", crashes.len());
    drop(one.run(&["stop", "bot"]));
}

#[test]
fn a_pool_of_runs_loses_nothing_and_keeps_the_order_of_keys_whoever_is_killed() {
    loses_nothing(Some(("stdin", ONCE, "1")));
}

#[test]
fn a_pool_of_kept_handlers_loses_nothing_and_keeps_the_order_of_keys_whoever_is_killed() {
    loses_nothing(Some(("ndjson", KEPT, "3")));
}

#[test]
fn claims_lose_nothing_and_keep_the_order_of_keys_whoever_is_killed() {
    loses_nothing(None);
}
