//! Who handles events of a thread that several machines share, and who has its leases.

use std::fs;

use serde_json::{Value, json};
use thread_testkit::postgres::{Server, server};
use thread_testkit::wait_until;

use crate::machine::{Machine, schema_of};

fn two() -> Option<(&'static Server, Machine, Machine)> {
    let server = server()?;
    let location = server.location();
    let (one, other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    Some((server, one, other))
}

fn workers(machine: &Machine) -> Vec<Value> {
    machine.ok(&["workers", "--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A handler that works until the file `done` is there.
const SLOW: &str = "echo x >>begun; while ! [ -e done ]; do sleep 0.05; done; cat >/dev/null";

#[test]
fn a_worker_of_one_machine_is_seen_on_another_with_its_runs_and_its_lease() {
    let Some((_, mut one, other)) = two() else { return };
    let said = other.ok(&["workers"]);
    assert_eq!(said, "no worker follows, and nothing is running; `thread dispatch --follow` is a worker\n");
    one.ok(&["subscribe", "bot", SLOW, "--deliver", "stdin"]);
    assert_eq!(other.bot("lease"), json!(null));
    one.start_worker(&["--lease", "4s"]);
    wait_until("the worker", || workers(&other).len() == 1);
    let shown = workers(&other).pop().unwrap();
    assert_eq!(
        (&shown["kind"], &shown["runs"], &shown["lost"]),
        (&json!("worker"), &json!([]), &json!(false))
    );
    assert!(shown["host"].is_string() && shown["age_seconds"].as_f64() < Some(60.0), "{shown}");
    assert!(one.processes().contains(&(shown["pid"].as_u64().unwrap() as u32)), "{shown}");
    one.ok(&["push", "x"]);
    wait_until("the run", || workers(&other)[0]["runs"][0]["consumer_id"] == "bot");
    let run = workers(&other)[0]["runs"][0].clone();
    assert_eq!((&run["attempt"], &run["events"], &run["upto"]), (&json!(1), &json!(1), &json!(1)));
    // It is renewed again and again.
    let renewed = || other.bot("lease")["renewed_at"].as_str().map(str::to_owned);
    wait_until("the lease", || renewed().is_some());
    let before = renewed();
    wait_until("a renewal", || renewed() > before);
    let lease = other.bot("lease");
    assert!(lease["host"] == shown["host"] && lease["age_seconds"].as_f64() < Some(4.0), "{lease}");
    let info = other.ok(&["info"]);
    assert!(
        info.lines().any(|line| line.starts_with("    lease: host=") && line.contains(" renewed=")),
        "{info}"
    );
    fs::write(one.path("done"), "").unwrap();
    wait_until("the end", || other.bot("pending") == 0 && other.bot("lease") == json!(null));
    assert_eq!(one.end_worker(), Some(0));
    assert!(workers(&other).is_empty());
}

#[test]
fn a_run_that_no_worker_started_is_shown_with_its_supervisor() {
    let Some((_, one, other)) = two() else { return };
    one.ok(&["subscribe", "bot", SLOW, "--deliver", "stdin"]);
    one.ok(&["push", "x"]);
    one.ok(&["dispatch"]);
    wait_until("the run", || workers(&other).len() == 1 && one.path("begun").exists());
    for machine in [&one, &other] {
        let shown = workers(machine);
        assert_eq!((shown.len(), &shown[0]["kind"]), (1, &json!("supervisor")), "{shown:?}");
        assert_eq!(shown[0]["runs"][0]["consumer_id"], "bot");
        assert!(one.processes().contains(&(shown[0]["pid"].as_u64().unwrap() as u32)), "{shown:?}");
    }
    fs::write(one.path("done"), "").unwrap();
    wait_until("the end", || workers(&other).is_empty());
}

#[test]
fn an_idle_worker_writes_once_a_minute_and_a_busy_one_no_more() {
    let Some((server, mut one, other)) = two() else { return };
    one.ok(&["subscribe", "bot", "cat >/dev/null", "--deliver", "stdin"]);
    one.start_worker(&[]);
    wait_until("the worker", || workers(&other).len() == 1);
    let schema = schema_of(&one.location).to_owned();
    let row = || server.psql(&format!("SELECT xmin, seen, threads FROM {schema}.workers"));
    let before = row();
    for n in 1..=5 {
        other.ok(&["push", "x"]);
        wait_until("the event", || other.bot("last_acked_id") == n);
    }
    // Unless that took so long that it was due.
    let age = workers(&other)[0]["age_seconds"].as_f64().unwrap();
    assert!(row() == before || age < 30.0, "{before} {}", row());
    assert_eq!(server.psql(&format!("SELECT threads = ARRAY[1::bigint] FROM {schema}.workers")), "t");
}

#[test]
fn a_machine_that_is_gone_is_lost_and_forgotten_by_others_after_a_day() {
    let Some((server, mut one, other)) = two() else { return };
    let schema = schema_of(&one.location).to_owned();
    one.start_worker(&[]);
    wait_until("the worker", || workers(&other).len() == 1);
    one.kill();
    // It is known here that the process is gone.
    assert!(workers(&other).is_empty());
    let change = |set: &str| drop(server.psql(&format!("UPDATE {schema}.workers SET {set}")));
    change(
        "process = replace(process, '\"boot\":\"', '\"boot\":\"f'), host = 'gone', seen = seen - interval '10 minutes'",
    );
    let shown = workers(&other);
    assert_eq!((&shown[0]["host"], &shown[0]["lost"]), (&json!("gone"), &json!(true)), "{shown:?}");
    assert!(shown[0]["age_seconds"].as_f64() >= Some(600.0));
    assert!(other.ok(&["workers"]).contains(" age=10m lost=true\n"));
    change("seen = seen - interval '1 day'");
    one.start_worker(&[]);
    wait_until("another worker", || workers(&other).len() == 1 && workers(&other)[0]["lost"] == json!(false));
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.workers")), "1");
}

#[test]
fn a_worker_of_all_threads_is_one_row_and_makes_the_table_where_it_is_missing() {
    let Some((server, mut one, other)) = two() else { return };
    let schema = schema_of(&one.location).to_owned();
    // As a schema that was made by an older program.
    server.psql(&format!("DROP TABLE {schema}.workers"));
    assert!(workers(&other).is_empty());
    let second = one.location.replace("#inbox", "#second");
    one.ok(&["init", &second]);
    let whole = one.location.replace("#inbox", "");
    one.start_worker(&["--thread", &whole]);
    wait_until("the worker", || workers(&other).len() == 1);
    assert_eq!(
        server.psql(&format!("SELECT count(*), bool_and(threads IS NULL) FROM {schema}.workers")),
        "1|t"
    );
    let shown: Value =
        serde_json::from_str(other.ok(&["workers", "--json", "-t", &whole]).trim_end()).unwrap();
    assert_eq!((&shown["kind"], &shown["threads"]), (&json!("worker"), &json!(2)));
    assert_eq!(one.end_worker(), Some(0));
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.workers")), "0");
}
