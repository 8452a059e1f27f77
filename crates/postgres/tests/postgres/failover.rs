//! A primary that dies, and a standby that takes its place; commits that perhaps only one of them has.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thread::model::location::Location;
use thread_postgres::SCHEME;
use thread_testkit::postgres::{Options, Server};
use thread_testkit::{preload, wait_until};

use crate::kills::push;
use crate::machine::Machine;

const LIMIT: Duration = Duration::from_secs(60);

/// The clock of the standby is two minutes behind, so that times go back with the failover.
#[test]
fn what_a_synchronous_standby_acknowledged_survives_the_death_of_the_primary() {
    let Some(primary) = Server::start() else { return };
    let clock = preload::library().map(|library| (library, -120));
    let standby =
        Server::start_with(&Options { primary: Some(&primary), clock, ..Options::default() }).unwrap();
    primary.psql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.order("reload");
    let synced = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    wait_until("the standby to be synchronous", || primary.psql(synced) == "1");
    let text = format!(
        "postgres:///postgres?host={},{}&port={},{}&user=postgres&schema=failover&target_session_attrs=read-write#inbox",
        primary.dir.display(),
        standby.dir.display(),
        primary.port,
        standby.port
    );
    let location = Location::from(&text);
    let mut machines = [Machine::new(&text), Machine::new(&text)];
    machines[0].ok(&["init", &text]);
    machines[0].subscribe_bot();
    let done = AtomicBool::new(false);
    let acknowledged: Vec<(i64, String)> = std::thread::scope(|scope| {
        let (location, done) = (&location, &done);
        let pushers: Vec<_> = (0..4).map(|name| scope.spawn(move || push(location, name, done))).collect();
        machines.iter_mut().for_each(|machine| machine.start_worker(&["--lease", "4s"]));
        wait_until("some events to be handled", || machines[0].bot("last_acked_id").as_i64() > Some(20));
        let newest = "SELECT newest FROM failover.counters";
        primary.order("kill");
        standby.order("promote");
        let before: i64 = standby.psql(newest).parse().unwrap();
        wait_until("pushes after the failover", || {
            standby.psql(newest).parse::<i64>().unwrap() > before + 50
        });
        done.store(true, Ordering::SeqCst);
        pushers.into_iter().flat_map(|pusher| pusher.join().unwrap()).collect()
    });
    let mut stored = Vec::new();
    let mut store = (SCHEME.open)(&location, LIMIT).unwrap();
    store
        .read(0, i64::MAX, usize::MAX, &mut |row| {
            stored.push((row.id, row.to_event().content, row.to_event().created_at));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(stored.iter().map(|(id, ..)| *id).eq(1..=stored.len() as i64), "no gap");
    let is_stored = |(id, content): &(i64, String)| stored[*id as usize - 1].1 == *content;
    assert!(acknowledged.len() > 50 && acknowledged.iter().all(is_stored));
    if clock.is_some() {
        assert!(!stored.iter().map(|(.., time)| time).is_sorted(), "the clock went back");
    }
    wait_until("all to be delivered", || {
        machines.iter_mut().for_each(|machine| machine.revive_worker(&["--lease", "4s"]));
        machines[0].bot("pending") == 0
    });
    let out = fs::read_to_string(machines[0].path("out")).unwrap();
    assert!(!out.contains("overlap"));
    let id = |part: &str| part.split_once(",\"created_at\"")?.0.parse::<i64>().ok();
    let delivered: BTreeSet<i64> = out.split("{\"id\":").filter_map(id).collect();
    assert!(stored.iter().all(|(id, ..)| delivered.contains(id)));
}

#[test]
fn a_commit_that_perhaps_no_standby_has_is_of_unknown_outcome() {
    let Some(server) = Server::start() else { return };
    let location = server.location();
    let machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    server.psql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.order("reload");
    wait_until("the setting", || server.psql("SHOW synchronous_standby_names") == "nobody");
    let push = machine.command(&["push", "x"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // An administrator cancels the wait for a standby.
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    wait_until("the push to wait for a standby", || server.psql(cancel) == "1");
    let output = push.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]), "{said}");
    assert!(said.contains("perhaps no standby") && said.contains("before trying again"), "{said}");
    assert_eq!(machine.ok(&["peek"]).lines().count(), 1);
}
