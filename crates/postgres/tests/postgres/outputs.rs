//! What runs printed, read on another machine than the one that has the log.

use serde_json::Value;
use thread_testkit::{postgres::server, wait_until};

use crate::machine::Machine;

/// Two machines with the same thread. The first has all runs. `None` without a server.
fn two() -> Option<(Machine, Machine)> {
    let location = server()?.location();
    let (one, other) = (Machine::new(&location), Machine::new(&location));
    one.ok(&["init", &location]);
    Some((one, other))
}

fn runs(machine: &Machine) -> Vec<Value> {
    let shown: Value = serde_json::from_str(&machine.ok(&["info", "bot", "--runs", "--json"])).unwrap();
    shown["runs"].as_array().unwrap().clone()
}

/// Dispatches on a machine until so many runs have ended, and returns the last.
fn run(machine: &Machine, number: usize) -> Value {
    wait_until("the runs", || {
        machine.ok(&["dispatch"]);
        runs(machine).len() >= number && machine.bot("state") != "running"
    });
    runs(machine)[number - 1].clone()
}

#[test]
fn the_end_of_what_a_failed_run_printed_is_shown_on_every_machine() {
    let Some((one, other)) = two() else { return };
    // Longer than what is kept, not UTF-8, and with a NUL.
    let handler = "i=0; while [ $i -lt 1000 ]; do printf 'ééé %s ' $i; i=$((i+1)); done; \
                   printf 'a\\000b \\377 \\033[2J last'; exit 1";
    one.ok(&["subscribe", "bot", handler, "--deliver", "stdin", "--max-attempts", "1"]);
    one.ok(&["push", "x"]);
    let ended = run(&one, 1);
    assert_eq!((&ended["result"], &ended["run"]), (&"dead".into(), &1.into()));
    assert!(ended["host"].is_string(), "{ended}");
    let whole = one.run(&["logs", "bot", "--run", "1"]);
    assert!(whole.status.success() && whole.stderr.is_empty() && whole.stdout.len() > 8000);
    assert!(whole.stdout.starts_with("ééé 0 ".as_bytes()));
    let kept = other.run(&["logs", "bot", "--run", "1"]);
    let (shown, said) = (String::from_utf8(kept.stdout).unwrap(), String::from_utf8(kept.stderr).unwrap());
    assert!(shown.ends_with("999 a\u{fffd}b \u{fffd} \u{1b}[2J last\n"), "{shown}");
    assert!(shown.len() <= 4097 && shown.len() > 4000, "{}", shown.len());
    assert!(
        said.starts_with("Note: this is the end of what it printed") && said.contains("its log is on"),
        "{said}"
    );
    // A dead letter keeps less of it.
    let letters: Value = serde_json::from_str(&other.ok(&["dead", "list", "--json"])).unwrap();
    let error = letters["last_error"].as_str().unwrap();
    assert!(error.ends_with(" last") && error.len() <= 2048 && error.len() > 2000, "{letters}");
}

#[test]
fn what_a_run_that_succeeded_printed_stays_on_its_machine() {
    let Some((one, other)) = two() else { return };
    one.ok(&["subscribe", "bot", "cat >/dev/null; echo secret", "--deliver", "stdin"]);
    one.ok(&["push", "x"]);
    assert_eq!(run(&one, 1)["result"], "succeeded");
    assert_eq!(one.ok(&["logs", "bot", "--run", "1"]), "secret\n");
    let said = other.fails(1, &["logs", "bot", "--run", "1"]);
    assert!(said.contains("the output of run 1 of 'bot' is not kept here - look for it with"), "{said}");
    let schema = one.location.split("schema=").nth(1).unwrap_or_default().split(['&', '#']).next().unwrap();
    let stored = server().unwrap().psql(&format!("SELECT run FROM {schema}.runs"));
    assert!(!stored.contains("secret") && !stored.contains("tail"), "{stored}");
}

#[test]
fn runs_of_each_way_of_delivery_keep_the_end_of_their_output() {
    let Some((one, other)) = two() else { return };
    let mut number = 0;
    for (handler, options, result) in [
        ("echo popped; exit 3", &["--max-attempts", "1"][..], "failed"),
        ("echo slow; exec sleep 100", &["--timeout", "100ms", "--max-attempts", "1"], "timed_out"),
        (
            "echo not now; exit 75",
            &["--deliver", "stdin", "--backoff", "1h", "--timeout", "none"],
            "deferred",
        ),
        (
            "cat >/dev/null; echo pool; exit 1",
            &["--deliver", "stdin", "--concurrency", "2", "--backoff", "1h", "--timeout", "none"],
            "dead",
        ),
    ] {
        one.ok(&[&["subscribe", "bot", handler, "--replace"][..], options].concat());
        one.ok(&["push", "x"]);
        number += 1;
        assert_eq!(run(&one, number)["result"], result, "{handler}");
        let printed = other.ok(&["logs", "bot", "--run", &number.to_string()]);
        assert_eq!(printed.trim_end(), handler.split("echo ").nth(1).unwrap().split(';').next().unwrap());
    }
}

#[test]
fn an_event_that_a_kept_handler_put_off_has_its_words_and_the_handler_its_end() {
    let Some((one, other)) = two() else { return };
    let handler = "read -r line; echo '{\"nack\":1,\"error\":\"try later\",\"delay\":\"1h\"}'; echo broken >&2; sleep 0.3; exit 4";
    one.ok(&["subscribe", "bot", handler, "--deliver", "ndjson"]);
    one.ok(&["push", "x"]);
    run(&one, 2);
    let shown = ["1", "2"].map(|number| other.ok(&["logs", "bot", "--run", number]));
    assert_eq!(shown[0], "try later\n");
    assert!(shown[1].trim_end().ends_with("broken"), "{shown:?}");
}
