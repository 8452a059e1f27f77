//! A pool whose places two machines share.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use thread_testkit::{names, postgres::Server, quoted, wait_until};

use crate::machine::{Machine, Proxy};

/// What `hold ID KEY` makes of a handler: it locks its event, its key and one of four places, and notes when both machines
/// are at work. `flock` may be killed, too, which says nothing about the lock.
pub const HOLD: &str = r#"lock() { until flock "$@"; do [ $? = 137 ] || return 1; done; }
hold() {
    exec 8>"lock-$1" 9>"lock-key$2"
    lock -n 8 || echo "two of event $1" >>overlaps
    lock -n 9 || echo "two of key $2" >>overlaps
    for place in 1 2 3 4 none; do
        [ $place = none ] && echo "more than four at once, with $1" >>overlaps && break
        exec 7>"place-$place"
        lock -n 7 && break
    done
    exec 6>"machine-$(echo "$XDG_STATE_HOME" | tr / _)"
    lock -s 6
    at_work=0
    for machine in machine-*; do lock -n -x "$machine" true 6>&- 7>&- 8>&- 9>&- || at_work=$((at_work + 1)); done
    [ $at_work -lt 2 ] || : >both
}
let_go() { exec 6>&- 7>&- 8>&- 9>&-; }
"#;

const HANDLE: &str = r#"handle() {
    id=${1#*:}; id=${id%%,*}; key=${1##*key_}; key=${key%%_*}
    hold "$id" "$key"
    case $id in
    *5)
        if [ "$XDG_STATE_HOME" = "$(cat slow)" ] && ! grep -qx "$id" slept; then
            echo "$id" >>slept
            exec sleep 60
        fi
        ;;
    esac
    sleep 0.1
    echo "$id" >>done
    let_go
}
"#;

const ONCE: &str = "while IFS= read -r line; do handle \"$line\"; done";

const KEPT: &str = r#"while IFS= read -r line; do handle "$line"; echo "{\"ack\":$id}"; done"#;

const LEASE: &[&str] = &["--lease", "12s"];

/// Machines that share a pool of four, the first one over a link that can be cut.
struct Shared {
    machines: [Machine; 2],
    one: Machine,
    proxy: Proxy,
    pushed: i64,
    server: Server,
}

impl Shared {
    fn new() -> Option<Shared> {
        let server = Server::start()?;
        server.psql("CREATE ROLE cutoff SUPERUSER LOGIN PASSWORD 'secret'");
        let direct = server.location_of("cutoff", "inbox");
        let proxy = Proxy::to(server.port);
        let mut machines = [Machine::new(&direct), Machine::new(&direct)];
        let one = Machine::new(&direct);
        let port = proxy.port;
        machines[0].location =
            format!("postgres://cutoff@127.0.0.1:{port}/postgres?schema=cutoff&sslmode=disable#inbox");
        machines[0].variables.push(("PGPASSWORD", "secret".to_owned()));
        one.ok(&["init", &direct]);
        for name in ["slow", "slept"] {
            fs::write(one.path(name), "").unwrap();
        }
        Some(Shared { machines, one, proxy, pushed: 0, server })
    }

    fn home(&self) -> PathBuf {
        self.one.path("")
    }

    fn subscribe(&self, deliver: &str, concurrency: &str, comment: &str, more: &[&str]) {
        let rest = if deliver == "stdin" { ONCE } else { KEPT };
        let handler = format!("cd {}; {HOLD}{HANDLE}{rest} # {comment}", quoted(self.home()));
        let options = ["--deliver", deliver, "--concurrency", concurrency, "--key", "content"];
        let patient = ["--backoff", "50ms", "--max-attempts", "never", "--batch-size", "2"];
        self.one.ok(&[&["subscribe", "bot", &handler][..], &options, &patient, more].concat());
    }

    fn push(&mut self, count: i64) {
        let lines: String = (0..count).map(|n| format!("key_{}_\n", (self.pushed + n) % 16)).collect();
        self.one.ok_with_stdin(&["push", "--lines"], &lines);
        self.pushed += count;
    }

    /// So that there is always something to do.
    fn refill(&mut self) {
        if self.pushed - self.one.bot("last_acked_id").as_i64().unwrap() < 40 {
            self.push(8);
        }
    }

    fn wait_for_both(&mut self) {
        drop(fs::remove_file(self.home().join("both")));
        wait_until("both machines to be at work at once", || {
            self.refill();
            self.home().join("both").exists()
        });
    }

    fn wait_for_all(&mut self) {
        wait_until("all to be handled", || {
            self.machines.iter_mut().for_each(|machine| machine.revive_worker(LEASE));
            self.one.bot("last_acked_id") == self.pushed
        });
        assert_eq!(self.ids("done"), (1..=self.pushed).collect());
        assert_eq!(self.lines("overlaps"), "");
    }

    fn ids(&self, name: &str) -> BTreeSet<i64> {
        self.lines(name).lines().map(|id| id.parse().unwrap()).collect()
    }

    fn lines(&self, name: &str) -> String {
        fs::read_to_string(self.home().join(name)).unwrap_or_default()
    }

    /// On how many machines handlers are at work. Not by their places: one that is looked at seems to be taken.
    fn at_work(&self) -> usize {
        let names = names(&self.home()).into_iter().filter(|name| name.starts_with("machine-"));
        let is_held = |name: &String| {
            let file = self.home().join(name);
            !Command::new("flock").arg("-n").arg(file).arg("true").status().unwrap().success()
        };
        names.filter(is_held).count()
    }

    fn start(&mut self) {
        self.machines.iter_mut().for_each(|machine| machine.start_worker(LEASE));
    }
}

fn a_link_is_cut(deliver: &str) {
    let Some(mut shared) = Shared::new() else { return };
    shared.subscribe(deliver, "4", "", &[]);
    shared.push(40);
    shared.start();
    shared.wait_for_both();
    wait_until("both to be shown", || {
        shared.refill();
        let leases = shared.one.bot("leases");
        let places = leases.as_array().unwrap().iter().map(|lease| lease["places"].as_u64().unwrap_or(0));
        let workers = shared.one.ok(&["workers", "--json"]);
        let workers = workers.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let runs: usize = workers.map(|worker| worker["runs"].as_array().unwrap().len()).sum();
        (places.clone().count(), places.sum::<u64>() <= 4) == (2, true) && (2..=4).contains(&runs)
    });
    let state = shared.machines[0].path("state");
    fs::write(shared.home().join("slow"), state.to_str().unwrap()).unwrap();
    wait_until("slow handlers", || {
        shared.refill();
        !shared.lines("slept").is_empty()
    });
    shared.proxy.cut();
    fs::write(shared.home().join("slow"), "").unwrap();
    let pushed = shared.pushed;
    wait_until("the machine that was cut off to be gone", || {
        let gone = "SELECT count(*) FROM cutoff.leases WHERE consumer_id LIKE 'bot~%'";
        shared.server.psql(gone) == "1"
    });
    wait_until("the rest to be handled", || {
        let done = shared.ids("done");
        (1..=pushed).all(|id| done.contains(&id))
    });
    shared.proxy.heal();
    shared.wait_for_both();
    shared.one.ok(&["stop", "bot"]);
    wait_until("the handlers to end", || shared.at_work() == 0);
    shared.one.ok(&["resume", "bot"]);
    shared.wait_for_all();
}

#[test]
fn runs_of_two_machines_share_a_pool_and_one_is_cut_off() {
    a_link_is_cut("stdin");
}

#[test]
fn kept_handlers_of_two_machines_share_a_pool_and_one_is_cut_off() {
    a_link_is_cut("ndjson");
}

fn requests_are_followed(deliver: &str) {
    let Some(mut shared) = Shared::new() else { return };
    shared.subscribe(deliver, "4", "", &[]);
    shared.push(60);
    shared.start();
    shared.wait_for_both();
    let until = Instant::now() + Duration::from_secs(12);
    let mut count = 0;
    while Instant::now() < until {
        count += 1;
        match count % 6 {
            0 => {
                shared.one.ok(&["pause", "bot"]);
                wait_until("the handlers to end", || shared.at_work() == 0);
                shared.one.ok(&["resume", "bot"]);
            }
            1 => drop(shared.one.ok(&["seek", "bot", "0"])),
            2 => shared.subscribe(deliver, "2", "", &["--replace"]),
            3 => shared.subscribe(deliver, "4", &count.to_string(), &["--replace"]),
            4 => {
                shared.one.ok(&["unsubscribe", "bot"]);
                shared.subscribe(deliver, "4", "", &["--from", "0"]);
            }
            _ => {
                drop(shared.one.run(&["stop", "bot"]));
                shared.one.ok(&["resume", "bot"]);
            }
        }
        shared.push(4);
        std::thread::sleep(Duration::from_millis(300));
    }
    shared.wait_for_all();
    shared.push(60);
    shared.wait_for_both();
    shared.wait_for_all();
}

#[test]
fn requests_reach_the_runs_of_both_machines() {
    requests_are_followed("stdin");
}

#[test]
fn requests_reach_the_kept_handlers_of_both_machines() {
    requests_are_followed("ndjson");
}

/// The other one changes the row many times before this one has read it and stored something.
#[test]
fn a_machine_with_a_slow_link_gets_its_share() {
    let Some(mut shared) = Shared::new() else { return };
    shared.subscribe("ndjson", "4", "", &[]);
    shared.push(60);
    shared.machines[1].start_worker(LEASE);
    wait_until("one to be at work", || shared.at_work() == 1);
    shared.proxy.delay(Duration::from_millis(10));
    shared.machines[0].start_worker(LEASE);
    shared.wait_for_both();
    // Commands get their turn, too.
    shared.machines[0].ok(&["pause", "bot"]);
    shared.machines[0].ok(&["resume", "bot"]);
    shared.proxy.delay(Duration::ZERO);
    shared.wait_for_all();
}

/// One that is alone stores no claims for handlers that are kept, and says what they have once another one joins.
#[test]
fn a_machine_that_joins_gives_nothing_that_the_other_has_not_said_it_has() {
    let Some(mut shared) = Shared::new() else { return };
    shared.subscribe("ndjson", "4", "", &["--idle", "1s"]);
    let state = shared.machines[0].path("state");
    fs::write(shared.home().join("slow"), state.to_str().unwrap()).unwrap();
    shared.push(5);
    shared.machines[0].start_worker(LEASE);
    // The handler of the last one sleeps for a minute. The others end, so that there is room for those of another machine.
    wait_until("a single handler to be left", || {
        shared.lines("slept") == "5\n" && shared.one.bot("leases")[0]["places"] == 1
    });
    shared.proxy.delay(Duration::from_millis(100));
    shared.machines[1].start_worker(LEASE);
    wait_until("the other machine to be at work", || {
        shared.push(8);
        names(&shared.home()).iter().filter(|name| name.starts_with("machine-")).count() == 2
    });
    wait_until("both to be there", || shared.one.bot("leases").as_array().unwrap().len() == 2);
    assert_eq!(shared.lines("overlaps"), "");
    assert!(!shared.ids("done").contains(&5));
    shared.machines.iter_mut().for_each(Machine::kill);
}
