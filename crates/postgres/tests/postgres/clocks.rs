//! Wrong clocks: no code compares the clocks of two machines.

use std::collections::BTreeSet;

use thread_testkit::preload::{self, Clock};
use thread_testkit::{postgres::server, quoted, wait_until};

use crate::machine::Machine;

/// A machine whose clock is wrong by so many seconds.
pub fn machine_at(location: &str, seconds: i64) -> Option<Machine> {
    let library = preload::library()?;
    let mut machine = Machine::new(location);
    let clock = Clock::new(machine.path("clock"));
    clock.step(seconds);
    machine.variables.extend(preload::variables(library));
    machine.variables.push(("STEPPED_CLOCK", clock.path().to_str().unwrap().to_owned()));
    Some(machine)
}

#[test]
fn a_clock_that_is_two_minutes_wrong_takes_no_lease_and_keeps_none() {
    let Some(server) = server() else { return };
    let location = server.location();
    let mut right = Machine::new(&location);
    let (Some(mut ahead), Some(mut behind)) = (machine_at(&location, 120), machine_at(&location, -120))
    else {
        return;
    };
    right.ok(&["init", &location]);
    let out = right.path("out");
    let handler = format!(
        "echo begin $THREAD_EPOCH >>{0}; [ $THREAD_EPOCH = 1 ] && exec sleep 1000; cat >/dev/null; echo end >>{0}",
        quoted(&out)
    );
    right.ok(&["subscribe", "bot", &handler, "--deliver", "stdin", "--cwd", "/"]);
    right.start_worker(&["--lease", "4s"]);
    right.ok(&["push", "x"]);
    let lines = || std::fs::read_to_string(&out).unwrap_or_default();
    wait_until("the first handler", || lines() == "begin 1\n");
    ahead.start_worker(&["--lease", "4s"]);
    behind.start_worker(&["--lease", "4s"]);
    // The lease was renewed several times, and no other machine took it.
    let schema = location.split_once("schema=").unwrap().1.replace("#inbox", "");
    let mut renewals = BTreeSet::new();
    wait_until("ten renewals", || {
        renewals.insert(server.psql(&format!("SELECT renewal FROM {schema}.leases")));
        renewals.len() > 10
    });
    assert_eq!(lines(), "begin 1\n");
    assert_eq!(server.psql(&format!("SELECT epoch FROM {schema}.leases")), "1");
    right.kill();
    wait_until("another machine to take over", || ahead.bot("pending") == 0);
    // A machine may have taken the lease once to record that the run was abandoned.
    let taken = lines();
    assert!(taken.starts_with("begin 1\nbegin ") && taken.ends_with("\nend\n"), "{taken}");
    assert_eq!(taken.lines().count(), 3, "{taken}");

    // Both machines can hold leases: further events are handled in order, once each.
    for n in 0..6 {
        if n % 2 == 0 { &ahead } else { &behind }.ok(&["push", &n.to_string()]);
    }
    wait_until("the rest", || behind.bot("pending") == 0);
    let all = lines();
    assert_eq!(all.matches("begin").count(), all.matches("end").count() + 1, "{all}");
}
