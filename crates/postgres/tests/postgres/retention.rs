//! Retention, which workers apply on each machine.

use thread_testkit::postgres::server;
use thread_testkit::wait_until;

use crate::machine::Machine;

#[test]
fn a_worker_deletes_what_is_too_old_and_no_more() {
    let Some(server) = server() else { return };
    let location = server.location_of("retention", "inbox");
    let mut machine = Machine::new(&location);
    machine.ok(&["init", &location]);
    // Another thread of the schema, which keeps everything.
    let other = server.location_of("retention", "other");
    machine.ok(&["init", &other]);
    machine.ok(&["push", "-t", &other, "x"]);
    for (consumer, cursor) in [("ahead", "9"), ("behind", "4")] {
        machine.ok(&["subscribe", consumer, "--no-handler"]);
        for _ in 0..5 {
            machine.ok(&["push", "x"]);
        }
        if consumer == "behind" {
            machine.ok(&["ack", "ahead", "9"]);
            machine.ok(&["ack", consumer, cursor]);
        }
    }
    machine.ok(&["config", "retention.events", "3"]);
    machine.start_worker(&[]);
    let stored = |thread: i64| -> String {
        let sql = format!(
            "SELECT string_agg(id::text, ' ' ORDER BY id) FROM retention.events WHERE thread = {thread}"
        );
        server.psql(&sql)
    };
    wait_until("the pass", || stored(1) == "5 6 7 8 9 10");
    machine.ok(&["unsubscribe", "behind"]);
    // A changed setting is applied at once.
    machine.ok(&["config", "retention.events", "2"]);
    wait_until("the next pass", || stored(1) == "9 10");
    machine.ok(&["config", "retention.events", "1"]);
    wait_until("the last pass", || stored(1) == "10");
    assert_eq!(stored(2), "1");
    assert_eq!(machine.ok(&["config"]), "retention.events=1\n");
    assert_eq!(machine.ok(&["config", "-t", &other]), "");
}
