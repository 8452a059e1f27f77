//! A transaction of another client that stays open, so that the server can remove no old version of a row.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use thread::model::location::Location;
use thread::store::{Move, Store};
use thread_postgres::SCHEME;
use thread_testkit::postgres::{Options, Server};
use thread_testkit::store::conformance::{message, name, new_subscription, put};
use thread_testkit::wait_until;

/// Pushes and acknowledges, one after the other.
fn push(store: &mut dyn Store, count: i64) -> Duration {
    let began = Instant::now();
    for _ in 0..count {
        let thread::store::Stored::New(id) = put(store, &message("x")).unwrap() else {
            panic!("no key was given")
        };
        store.move_cursor(&name("bot"), id, Move::Acknowledge).unwrap();
    }
    began.elapsed()
}

#[test]
fn a_transaction_of_somebody_else_blocks_nobody_and_tables_stay_bounded_after_it() {
    let Some(server) =
        Server::start_with(&Options { settings: &["autovacuum_naptime=1s"], ..Options::default() })
    else {
        return;
    };
    let location = Location::from(server.location_of("held", "inbox"));
    (SCHEME.init)(&location).unwrap();
    let mut store = (SCHEME.open)(&location, Duration::from_secs(10)).unwrap();
    store.subscribe(&new_subscription("bot")).unwrap();
    let count: i64 = if thread_testkit::long() { 3000 } else { 200 };
    let before = push(&mut *store, count);
    let size = |table: &str| -> i64 {
        server.psql(&format!("SELECT pg_table_size('held.{table}')")).parse().unwrap()
    };
    let sizes = || [size("counters"), size("cursors")];
    let free = sizes();

    let mut psql = Command::new(server.bin.join("psql"));
    psql.args(["-XqAt", "-U", "postgres", "-d", "postgres", "-h"]).arg(&server.dir);
    psql.arg("-p").arg(server.port.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut psql = psql.spawn().unwrap();
    let mut stdin = psql.stdin.take().unwrap();
    stdin.write_all(b"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM held.events;\n").unwrap();
    let mut line = String::new();
    BufReader::new(psql.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), count.to_string());

    let (mut rounds, mut during) = (0, Duration::ZERO);
    let end = Instant::now() + Duration::from_secs(if thread_testkit::long() { 600 } else { 0 });
    while rounds == 0 || Instant::now() < end {
        during = push(&mut *store, count);
        rounds += 1;
    }
    if !thread_testkit::long() {
        // As further pushes would do.
        server
            .psql("DO 'BEGIN FOR i IN 1..3000 LOOP UPDATE held.counters SET newest = newest; END LOOP; END'");
    }
    let held = sizes();
    assert!(held[0] > free[0], "old versions of rows are there: {free:?} {held:?}");
    drop(stdin);
    psql.wait().unwrap();

    // Pushes remove the old versions on the pages that they use, and autovacuum the others; after that, new rows fit
    // into the same pages.
    let dead = "SELECT coalesce(sum(n_dead_tup), 0) < 2000 FROM pg_stat_user_tables \
                WHERE schemaname = 'held' AND relname = 'counters'";
    let after = push(&mut *store, count);
    wait_until("old versions to be removed", || server.psql(dead) == "t");
    let settled = sizes();
    for _ in 0..3 {
        push(&mut *store, count);
    }
    let grown = sizes();
    println!(
        "{} events with a transaction open: {count} took {before:?} before it, {during:?} at its end, {after:?} after it; \
         counters and cursors had {free:?} bytes before it, {held:?} at its end, {settled:?} and {grown:?} after it",
        rounds * count
    );
    // About ten pages are added between two runs of autovacuum.
    let is_bounded = |at: usize| grown[at] <= settled[at].max(held[at]) + 10 * 8192;
    assert!(is_bounded(0) && is_bounded(1), "{held:?} {settled:?} {grown:?}");
}
