//! Kills at random under load: of the server, of workers, supervisors and handlers.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thread::model::location::Location;
use thread::store::Stored;
use thread_postgres::SCHEME;
use thread_testkit::store::conformance::{message, put};
use thread_testkit::{kill, postgres::Server, wait_until};

use crate::machine::Machine;

const LIMIT: Duration = Duration::from_secs(60);

const LEASE: &[&str] = &["--lease", "4s"];

fn rounds() -> usize {
    if thread_testkit::long() { 200 } else { 8 }
}

/// A number below `end`.
fn dice(state: &mut u64, end: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % end
}

/// Pushes until it is asked to stop, and returns the acknowledged events. Others may be stored or not.
pub fn push(location: &Location, name: usize, done: &AtomicBool) -> Vec<(i64, String)> {
    let (mut acknowledged, mut store, mut n) = (Vec::new(), None, 0);
    while !done.load(Ordering::SeqCst) {
        n += 1;
        let content = format!("{name}-{n}");
        let pushed =
            store.take().map_or_else(|| (SCHEME.open)(location, LIMIT), Ok).and_then(|mut opened| {
                let pushed = put(&mut *opened, &message(&content));
                store = Some(opened);
                pushed
            });
        match pushed {
            Ok(Stored::New(id)) => acknowledged.push((id, content)),
            Ok(other) => panic!("{other:?}"),
            Err(e) => assert!(e.may_pass(), "{e}"),
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    acknowledged
}

/// Pushes by processes, of which some are killed. What they printed was acknowledged.
fn push_by_processes(machine: &Machine, name: usize, seed: u64, done: &AtomicBool) -> Pushed {
    let (mut pushed, mut state) = (Pushed::default(), seed);
    while !done.load(Ordering::SeqCst) {
        pushed.tries += 1;
        let content = format!("p{name}-{}", pushed.tries);
        let mut push = machine.command(&["push", &content]);
        let mut push = push.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        if dice(&mut state, 2) == 0 {
            std::thread::sleep(Duration::from_millis(dice(&mut state, 120)));
            pushed.killed += usize::from(push.try_wait().unwrap().is_none());
            push.kill().unwrap();
        }
        let output = push.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        if let Some(id) = printed.strip_suffix('\n') {
            pushed.acknowledged.push((id.parse().unwrap(), content));
        }
    }
    pushed
}

#[derive(Default)]
struct Pushed {
    tries: usize,
    killed: usize,
    acknowledged: Vec<(i64, String)>,
}

#[test]
fn what_was_acknowledged_survives_and_is_delivered_and_runs_do_not_overlap() {
    let Some(server) = Server::start() else { return };
    let text = server.location();
    let location = Location::from(&text);
    let mut machines = [Machine::new(&text), Machine::new(&text)];
    machines[0].ok(&["init", &text]);
    machines[0].subscribe_bot();
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    let (mut state, done) = (seed, AtomicBool::new(false));
    let outside = Machine::new(&text);
    let (mut kills, mut crashes, mut killed_pushers) = (0, 0, 0);
    let acknowledged: Vec<(i64, String)> = std::thread::scope(|scope| {
        let (location, done, outside) = (&location, &done, &outside);
        let pushers: Vec<_> = (0..3).map(|name| scope.spawn(move || push(location, name, done))).collect();
        let processes: Vec<_> = (0..2)
            .map(|name| scope.spawn(move || push_by_processes(outside, name, seed + name as u64, done)))
            .collect();
        for _ in 0..rounds() {
            machines.iter_mut().for_each(|machine| machine.revive_worker(LEASE));
            std::thread::sleep(Duration::from_millis(200 + dice(&mut state, 800)));
            if dice(&mut state, 3) == 0 {
                server.order("kill");
                server.order("start");
                crashes += 1;
                continue;
            }
            let machine = &machines[dice(&mut state, 2) as usize];
            let running = machine.processes();
            if let Some(pid) = running.get(dice(&mut state, running.len().max(1) as u64) as usize) {
                kill(*pid);
                kills += 1;
            }
        }
        // At least once.
        server.order("kill");
        server.order("start");
        done.store(true, Ordering::SeqCst);
        let mut all: Vec<_> = pushers.into_iter().flat_map(|pusher| pusher.join().unwrap()).collect();
        for process in processes {
            let pushed = process.join().unwrap();
            killed_pushers += pushed.killed;
            all.extend(pushed.acknowledged);
        }
        all
    });
    let mut stored = Vec::new();
    let mut store = (SCHEME.open)(&location, LIMIT).unwrap();
    store
        .read(0, i64::MAX, usize::MAX, &mut |row| {
            stored.push((row.id, row.to_event().content));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(acknowledged.len() > 50, "{}", acknowledged.len());
    // Ids are without gaps, so they are positions.
    let is_stored =
        |(id, content): &&(i64, String)| stored.get(*id as usize - 1) == Some(&(*id, content.clone()));
    let lost = acknowledged.iter().filter(|one| !is_stored(one)).count();
    assert_eq!(lost, 0, "seed {seed}");
    assert!(stored.iter().map(|(id, _)| *id).eq(1..=stored.len() as i64), "no gap");
    wait_until("all to be delivered", || {
        machines.iter_mut().for_each(|machine| machine.revive_worker(LEASE));
        machines[0].bot("pending") == 0
    });
    let out = fs::read_to_string(machines[0].path("out")).unwrap();
    assert!(!out.contains("overlap"), "seed {seed}");
    // A line may be cut off where its handler was killed.
    let id = |part: &str| part.split_once(",\"created_at\"")?.0.parse::<i64>().ok();
    let delivered: BTreeSet<i64> = out.split("{\"id\":").filter_map(id).collect();
    assert!(stored.iter().all(|(id, _)| delivered.contains(id)), "seed {seed}");
    println!(
        "{} events stored, {} acknowledged; killed: {killed_pushers} pushers, {kills} other processes, {} times the \
         server; {} deliveries",
        stored.len(),
        acknowledged.len(),
        crashes + 1,
        out.matches("{\"id\":").count()
    );
}
