//! How many connections the runs of a machine take, and that nothing depends on the process that renews their leases.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use thread_testkit::{Signal, kill, names, postgres::Server, send, wait_for, wait_until};

use crate::machine::Machine;

const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity \
                           WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// What handlers of `count` consumers do; each notes when it begins and ends, and if it is not alone.
fn subscribe(machine: &Machine, count: usize, seconds: u32) {
    let handler = format!(
        "exec 9>lock-$THREAD_CONSUMER; flock -n 9 || echo $THREAD_CONSUMER >>overlaps; \
         echo $THREAD_CONSUMER >>began; sleep {seconds}; echo $THREAD_CONSUMER >>ended"
    );
    for at in 0..count {
        let name = format!("c{at}");
        let options = ["--deliver", "stdin", "--max-attempts", "never", "--backoff", "10ms"];
        machine.ok(&[&["subscribe", &name, &handler][..], &options].concat());
    }
}

fn lines(machine: &Machine, name: &str) -> Vec<String> {
    fs::read_to_string(machine.path(name)).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The process that renews the leases of the machine, and when it gave its last sign.
pub fn elected(machine: &Machine) -> Option<(u32, u64)> {
    let dir = machine.path("state/thread");
    let dir = names(&dir).into_iter().map(|name| dir.join(name)).find(|path| path.ends_with_leases())?;
    let sign = fs::read_to_string(dir.join("elected")).ok()?;
    let mut words = sign.split_whitespace().skip(1);
    let at = words.next()?.parse().ok()?;
    Some((words.next()?.parse().ok()?, at))
}

trait EndsWithLeases {
    fn ends_with_leases(&self) -> bool;
}

impl EndsWithLeases for std::path::Path {
    fn ends_with_leases(&self) -> bool {
        self.extension().is_some_and(|extension| extension == "leases")
    }
}

#[test]
fn sixty_runs_at_once_take_at_most_twenty_connections() {
    let Some(server) = Server::start() else { return };
    let location = server.location();
    let mut machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    subscribe(&machine, 60, 8);
    machine.ok(&["push", "x"]);
    machine.start_worker(&["--lease", "16s"]);
    let (mut most, mut at_once) = (0, 0);
    wait_until("all to be handled", || {
        most = most.max(server.psql(CONNECTIONS).parse().unwrap());
        let (began, ended) = (lines(&machine, "began").len(), lines(&machine, "ended").len());
        at_once = at_once.max(began - ended.min(began));
        ended >= 60
    });
    println!("{at_once} runs at once had at most {most} connections");
    assert!(elected(&machine).is_some());
    assert!(most <= 20, "{most} connections");
    let began: BTreeSet<String> = lines(&machine, "began").into_iter().collect();
    assert_eq!((began.len(), lines(&machine, "began").len(), lines(&machine, "ended").len()), (60, 60, 60));
    assert!(lines(&machine, "overlaps").is_empty());
    wait_until("the files of their leases to be gone", || {
        let dir = machine.path("state/thread");
        let dirs = names(&dir).into_iter().map(|name| dir.join(name)).filter(|path| path.ends_with_leases());
        let mut files = dirs.flat_map(|dir| names(&dir));
        !files.any(|name| name.ends_with(".lease"))
    });
    // The worker, and who listens.
    wait_until("their connections to be closed", || server.psql(CONNECTIONS).parse::<i32>().unwrap() <= 3);
}

#[test]
fn whoever_renews_the_leases_of_a_machine_may_be_killed_or_suspended() {
    let Some(server) = Server::start() else { return };
    let location = server.location();
    let mut machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    subscribe(&machine, 6, 24);
    machine.ok(&["push", "x"]);
    machine.start_worker(&["--lease", "4s"]);
    wait_until("all to run", || lines(&machine, "began").len() == 6);
    let supervisors = || crate::guards::running(&machine, "\0_supervise\0");
    let consumer_of = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<String> =
            line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        words.into_iter().find(|word| word.len() == 2 && word.starts_with('c')).unwrap()
    };
    let mut disturbed = BTreeSet::new();
    let (first, _) = wait_for("one that renews", || elected(&machine));
    assert!(supervisors().contains(&first));
    disturbed.insert(consumer_of(first));
    kill(first);
    let another = |not: u32| {
        let before = elected(&machine).map(|(_, at)| at);
        wait_for("another that renews", || {
            elected(&machine).filter(|(pid, at)| *pid != not && Some(*at) != before)
        })
        .0
    };
    let second = another(first);
    disturbed.insert(consumer_of(second));
    send(second, Signal::STOP);
    let third = another(second);
    assert_ne!(third, second);
    // Longer than a lease, so that those of all others were renewed.
    std::thread::sleep(Duration::from_secs(6));
    send(second, Signal::CONT);
    wait_until("all to be handled", || {
        lines(&machine, "ended").into_iter().collect::<BTreeSet<_>>().len() == 6
    });
    let mut began: BTreeMap<String, usize> = BTreeMap::new();
    lines(&machine, "began").into_iter().for_each(|name| *began.entry(name).or_default() += 1);
    println!("{began:?}, disturbed were {disturbed:?}");
    for (name, count) in began {
        assert!(count == 1 || disturbed.contains(&name), "{name} was ended without need");
    }
    assert!(lines(&machine, "overlaps").is_empty());
}
