//! Events that programs take by themselves, each for a time: `pop --claim`, `claim`, and how claims end.

use serde_json::{Value, json};
use thread_testkit::{World, ids, wait_until};

const KEY: [&str; 2] = ["--key", "content ->> '$.key'"];

/// A consumer of whose events three may be taken at once, and events with these keys.
fn world(keys: &[&str], options: &[&str]) -> World {
    let world = World::with_thread();
    push(&world, keys);
    let options = [&["subscribe", "team", "--no-handler", "--concurrency", "3"], options].concat();
    world.thread(options).quiet();
    world
}

fn push(world: &World, keys: &[&str]) {
    let lines: String = keys.iter().map(|key| format!("{}\n", json!({"content": {"key": key}}))).collect();
    world.thread(["push", "--batch"]).stdin(lines).ok();
}

/// What is taken: ids and tokens.
fn take(world: &World, options: &[&str]) -> Vec<(i64, String)> {
    let printed = world.thread([&["pop", "team", "--claim"], options].concat()).quiet();
    let line = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        (event["id"].as_i64().unwrap(), event["claim"].as_str().unwrap().to_owned())
    };
    printed.lines().map(line).collect()
}

fn ids_of(taken: &[(i64, String)]) -> Vec<i64> {
    taken.iter().map(|(id, _)| *id).collect()
}

fn cursor(world: &World) -> i64 {
    world.consumer("team")["last_acked_id"].as_i64().unwrap()
}

/// As if all claims had ended by themselves.
fn end_claims(world: &World) {
    world.db().execute("UPDATE claims SET until = 0", []).unwrap();
}

#[test]
fn an_event_is_taken_by_one_program_at_a_time() {
    let world = world(&["a"; 5], &[]);
    let first = take(&world, &["1h"]);
    assert_eq!(ids_of(&first), [1]);
    assert_eq!(ids_of(&take(&world, &["1h"])), [2]);
    // No more than three over all, whatever the limit.
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "10"])), [3]);
    assert_eq!(take(&world, &["1h"]), []);
    assert_eq!(world.consumer("team")["in_hand"]["in_flight"], 3);
    world.thread(["ack", "team", "2"]).quiet();
    assert_eq!(cursor(&world), 0);
    let (_, token) = take(&world, &["1h", "--limit", "10"]).remove(0);
    world.thread(["ack", "team", "4", "--claim", &token]).quiet();
    world.thread(["ack", "team", "1", "3", "--claim", &token]).fails(2);
    let (_, note) = world.thread(["pop", "team"]).ends_with(0);
    assert!(note.contains("nothing is taken without --claim"), "{note}");
    world.thread(["ack", "team", "1", "3"]).quiet();
    assert_eq!(cursor(&world), 4);
    assert_eq!(ids_of(&take(&world, &["1h"])), [5]);
    world.thread(["ack", "team", "5"]).quiet();
    assert_eq!(world.consumer("team")["pending"], 0);
    for table in ["finished", "waits", "claims"] {
        assert_eq!(world.query(&format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
}

#[test]
fn a_line_is_that_of_the_log_and_the_claim() {
    let world = world(&["a"], &[]);
    let printed = world.thread(["pop", "team", "--claim", "1h"]).quiet();
    let log = world.jsonl().remove(0);
    let (before, claim) = printed.trim_end().rsplit_once(",\"claim\":\"").unwrap();
    assert_eq!(format!("{before}}}"), log);
    assert!(claim.len() == 18 && claim.ends_with("\"}"), "{claim}");
}

#[test]
fn of_events_with_the_same_key_only_the_oldest_is_taken() {
    let world = world(&["a", "a", "b", "a", "b"], &KEY);
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "3"])), [1, 3]);
    world.thread(["nack", "team", "1", "--delay", "1h"]).quiet();
    assert_eq!(take(&world, &["1h"]), []);
    world.thread(["ack", "team", "3"]).quiet();
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "3"])), [5]);
    world.thread(["resume", "team", "--event", "1"]).quiet();
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "3"])), [1]);
}

/// Seventy events are held back by one with the same key, and noted as such by the one who has taken the next.
fn with_many_held_back(first: &[&str]) -> World {
    let world = world(&[first, &["k"; 70], &["other"]].concat(), &KEY);
    assert_eq!(ids_of(&take(&world, &["1h"])), [1]);
    world
}

#[test]
fn an_event_that_was_deleted_holds_back_nothing() {
    let world = with_many_held_back(&["k"]);
    world.thread(["nack", "team", "1", "--delay", "1h"]).quiet();
    assert_eq!(ids_of(&take(&world, &["1h"])), [72]);
    world.thread(["prune", "--before-id", "2", "--force"]).ok();
    assert_eq!(ids_of(&take(&world, &["1h"])), [2]);
}

#[test]
fn what_waits_among_those_that_are_held_back_is_given_once_it_waits_no_more() {
    let world = with_many_held_back(&["k", "j"]);
    assert_eq!(ids_of(&take(&world, &["1h"])), [2]);
    world.thread(["nack", "team", "2", "--delay", "1h"]).quiet();
    assert_eq!(ids_of(&take(&world, &["1h"])), [73]);
    let options =
        [&["subscribe", "team", "--replace", "--no-handler", "--concurrency", "9"], &KEY[..]].concat();
    world.thread(options).ok();
    assert_eq!(ids_of(&take(&world, &["1h"])), [2]);
}

#[test]
fn a_claim_that_ends_by_itself_is_an_attempt() {
    let world = world(&["a", "b"], &["--backoff", "0s", "--max-attempts", "2"]);
    let (_, old) = take(&world, &["1ms"]).remove(0);
    let mut again = Vec::new();
    wait_until("its end", || {
        again = take(&world, &["1h"]);
        !again.is_empty()
    });
    assert_eq!(ids_of(&again), [1]);
    assert_ne!(again[0].1, old);
    let runs = world.thread(["info", "team", "--runs", "--json"]).quiet();
    let run: Value = serde_json::from_str::<Value>(&runs).unwrap()["runs"][0].take();
    assert_eq!((&run["result"], &run["attempt"]), (&json!("failed"), &json!(1)), "{runs}");
    end_claims(&world);
    assert_eq!(ids_of(&take(&world, &["1h"])), [2]);
    let dead = world.thread(["dead", "list", "team"]).quiet();
    assert!(dead.starts_with("1  attempts=2 exit=124 "), "{dead}");
    assert!(dead.ends_with("the claim ended without an answer\n"), "{dead}");
}

#[test]
fn after_a_reboot_all_claims_are_over() {
    let world = world(&["a"], &["--backoff", "0s"]);
    take(&world, &["1h"]);
    assert_eq!(take(&world, &["1h"]), []);
    world.db().execute("UPDATE claims SET clock = 'before'", []).unwrap();
    assert_eq!(world.consumer("team")["in_hand"]["in_flight"], 0);
    assert_eq!(ids_of(&take(&world, &["1h"])), [1]);
}

#[test]
fn a_claim_is_prolonged() {
    let world = world(&["a"], &[]);
    let (_, token) = take(&world, &["1h"]).remove(0);
    let until = || world.query("SELECT until FROM claims");
    let before = until();
    world.thread(["claim", "team", "1", "2h", "--claim", &token]).quiet();
    assert!((before + 3_500_000..before + 3_700_000).contains(&until()));
    world.thread(["claim", "1", "5m"]).env("THREAD_CONSUMER", "team").quiet();
    assert!(until() < before);
    assert_eq!(world.query("SELECT count(*) FROM claims"), 1);
    for words in
        [&["team", "1"][..], &["team"], &["team", "x", "5m"], &["team", "1", "soon"], &["team", "1", "0s"]]
    {
        world.thread([&["claim"], words].concat()).fails(2);
    }
    assert_eq!(take(&world, &["1h"]), []);
}

#[test]
fn an_old_claim_is_refused_and_changes_nothing() {
    let world = world(&["a"], &["--backoff", "0s"]);
    let (_, old) = take(&world, &["1h"]).remove(0);
    end_claims(&world);
    // Over, though nobody has taken the event since.
    let is_refused = || {
        for words in [&["nack", "team", "1"][..], &["reject", "team", "1"], &["claim", "team", "1", "1h"]] {
            let error = world.thread([words, &["--claim", &old]].concat()).fails(1);
            assert!(
                error.starts_with("Error: that claim of event 1 is over; nothing was changed - "),
                "{error}"
            );
        }
    };
    is_refused();
    let (_, new) = take(&world, &["1h"]).remove(0);
    is_refused();
    assert_eq!(world.query("SELECT count(*) FROM claims"), 1);
    world.thread(["nack", "team", "1", "--claim", &new, "--no-attempt", "--delay", "1h"]).quiet();
    assert_eq!(world.query("SELECT count(*) FROM claims"), 0);
    assert_eq!(world.consumer("team")["in_hand"]["waiting"], 1);
    let error = world.thread(["claim", "team", "1", "1h"]).fails(1);
    assert!(error.contains("is over"), "{error}");
    let error = world.thread(["ack", "team", "1", "--claim", &new]).fails(1);
    assert!(error.contains("is over"), "{error}");
    // Whoever did it has done it.
    world.thread(["ack", "team", "1"]).quiet();
    assert_eq!(world.consumer("team")["pending"], 0);
}

#[test]
fn a_rejected_event_is_a_dead_letter_and_its_retry_is_taken_first() {
    let world = world(&["a", "b", "a"], &KEY);
    let taken = take(&world, &["1h", "--limit", "2"]);
    assert_eq!(ids_of(&taken), [1, 2]);
    world.thread(["reject", "team", "1", "--claim", &taken[0].1, "--error", "no address"]).quiet();
    world.thread(["ack", "team", "2"]).quiet();
    assert_eq!(cursor(&world), 2);
    // Its key is free.
    assert_eq!(ids_of(&take(&world, &["1h"])), [3]);
    world.thread(["dead", "retry", "team", "1"]).quiet();
    assert_eq!(take(&world, &["1h"]), []);
    world.thread(["nack", "team", "3", "--delay", "0s"]).quiet();
    let again = take(&world, &["1h", "--limit", "3"]);
    assert_eq!(ids_of(&again), [1]);
    assert_eq!(world.consumer("team")["in_hand"]["in_flight"], 1);
    // It fails once more, and stays.
    world.thread(["nack", "team", "1", "--claim", &again[0].1, "--error", "still none"]).quiet();
    let dead = world.thread(["dead", "list", "team"]).quiet();
    assert!(dead.starts_with("1  attempts=2 exit=1 ") && dead.ends_with("  still none\n"), "{dead}");
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "3"])), [3]);
    world.thread(["ack", "team", "3"]).quiet();
    world.thread(["dead", "retry", "team", "1"]).quiet();
    take(&world, &["1h"]);
    end_claims(&world);
    assert_eq!(take(&world, &["1h"]), []);
    assert_eq!(world.query("SELECT attempts * 10 + retry FROM dead_letters"), 30);
    world.thread(["dead", "retry", "team", "1"]).quiet();
    take(&world, &["1h"]);
    world.thread(["ack", "team", "1"]).quiet();
    assert_eq!(world.consumer("team")["dead"], 0);
    assert_eq!(world.query("SELECT count(*) FROM claims"), 0);
}

#[test]
fn it_waits_for_a_push_for_a_place_and_for_the_end_of_a_claim() {
    let world = world(&[], &["--backoff", "0s"]);
    let wait = || {
        let pop = ["pop", "team", "--claim", "1h", "--wait", "1h"];
        let mut command = world.thread(pop).into_command();
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let printed = |child: std::process::Child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        ids(&String::from_utf8(output.stdout).unwrap())
    };
    let child = wait();
    push(&world, &["a"]);
    assert_eq!(printed(child), [1]);
    push(&world, &["b", "c", "d"]);
    take(&world, &["1h", "--limit", "2"]);
    let child = wait();
    world.thread(["ack", "team", "2"]).quiet();
    assert_eq!(printed(child), [4]);
    let child = wait();
    world.thread(["claim", "team", "3", "1ms"]).quiet();
    assert_eq!(printed(child), [3]);
    // Nobody gives anything back.
    assert_eq!(take(&world, &["1h", "--wait", "20ms"]), []);
    world.thread(["pop", "team", "--claim", "1h", "--wait", "20ms", "--fail-if-none"]).fails(3);
}

#[test]
fn nothing_is_taken_while_the_consumer_is_paused_or_stalled() {
    let world =
        world(&["a", "b", "c", "d"], &["--backoff", "0s", "--max-attempts", "1", "--stall-after", "1"]);
    world.thread(["pause", "team"]).quiet();
    let refused = |why: &str| {
        let (printed, note) = world.thread(["pop", "team", "--claim", "1h"]).ends_with(0);
        assert_eq!(printed, "");
        assert!(note.contains(why), "{note}");
    };
    refused("'team' is paused");
    world.thread(["resume", "team"]).quiet();
    assert_eq!(ids_of(&take(&world, &["1h"])), [1]);
    world.thread(["nack", "team", "1"]).quiet();
    assert_eq!(ids_of(&take(&world, &["1h"])), [2]);
    world.thread(["nack", "team", "2"]).quiet();
    assert_eq!(world.state("team"), "stalled");
    refused("'team' is stalled");
    world.thread(["resume", "team"]).quiet();
    assert_eq!(ids_of(&take(&world, &["1h"])), [2]);
    // Claims that end count, too.
    end_claims(&world);
    assert_eq!(ids_of(&take(&world, &["1h"])), [3]);
    end_claims(&world);
    refused("'team' is stalled");
    // After --probe, one is tried; if that works, the stall is over.
    let replace = ["subscribe", "team", "--replace", "--no-handler", "--probe"];
    world.thread([&replace[..], &["1ms"]].concat()).ok();
    world.thread(["pop", "team", "--claim", "1h", "--limit", "9"]).ok();
}

#[test]
fn a_stalled_consumer_gives_one_event_now_and_then() {
    let options = ["--backoff", "0s", "--max-attempts", "1", "--stall-after", "1", "--probe", "1h"];
    let world = world(&["a", "b", "c", "d"], &options);
    for id in ["1", "2"] {
        take(&world, &["1h"]);
        world.thread(["nack", "team", id]).quiet();
    }
    assert_eq!(world.state("team"), "stalled");
    world.set_run_state("team", "$.ended", "2020-01-01T00:00:00Z");
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "9"])), [2]);
    let (printed, _) = world.thread(["pop", "team", "--claim", "1h"]).ends_with(0);
    assert_eq!(printed, "");
    world.thread(["ack", "team", "2"]).quiet();
    assert_eq!(world.state("team"), "idle");
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "9"])), [3, 4]);
}

#[test]
fn seek_and_replace_end_claims_and_unsubscribe_drops_them() {
    let world = world(&["a", "b", "c"], &[]);
    let taken = take(&world, &["1h", "--limit", "2"]);
    world.thread(["ack", "team", "2"]).quiet();
    world.thread(["seek", "team", "earliest"]).quiet();
    world.thread(["nack", "team", "1", "--claim", &taken[0].1]).fails(1);
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "9"])), [1, 2, 3]);
    // With another number, what is taken stays so.
    world.thread(["subscribe", "team", "--replace", "--concurrency", "4"]).ok();
    push(&world, &["d", "e"]);
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "9"])), [4]);
    world.thread(["unsubscribe", "team"]).quiet();
    assert_eq!(world.query("SELECT count(*) FROM claims"), 0);
    world.thread(["claim", "team", "1", "1h"]).fails(1);
}

#[test]
fn only_a_consumer_that_was_subscribed_for_it_has_claims() {
    let world = world(&["a"], &[]);
    world.idle_consumer("plain", "");
    world.subscribe("pool", "cat", &["--deliver", "stdin", "--concurrency", "2", "--from", "new"]);
    for consumer in ["plain", "pool"] {
        let error = world.thread(["pop", consumer, "--claim", "1m"]).fails(1);
        let wanted = format!(
            "Error: no events are taken from '{consumer}' by claims - subscribe it with --no-handler --concurrency N"
        );
        assert_eq!(error, wanted);
        world.thread(["claim", consumer, "1", "1m"]).fails(1);
    }
    for other in [&["--resume"][..], &["--follow"], &["--last-event-id", "1"], &["--claim", "0s"]] {
        world.thread([&["pop", "team", "--claim", "1m"], other].concat()).fails(2);
    }
    let error = world.thread(["pop", "team", "--last-event-id", "1"]).fails(1);
    assert!(error.contains("finishes each event by itself"), "{error}");
    world.thread(["subscribe", "x", "--no-handler", "--key", "content"]).fails(2);
    world.thread(["subscribe", "x", "--no-handler", "--deliver", "stdin", "--concurrency", "2"]).fails(2);
}

#[test]
fn a_filter_and_what_others_finished_are_respected() {
    let world = world(&["a", "b", "a", "b", "a", "b", "a"], &["--filter", "content ->> '$.key' = 'a'"]);
    world.thread(["ack", "team", "3"]).quiet();
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "2"])), [1, 5]);
    world.thread(["ack", "team", "1", "5"]).quiet();
    assert_eq!(cursor(&world), 5);
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "2"])), [7]);
    let error = world.thread(["nack", "team", "6"]).fails(1);
    assert!(error.contains("event 6 is not pending for 'team'"), "{error}");
}

#[test]
fn eight_programs_at_once_never_take_the_same_event() {
    let world = World::with_thread();
    world.thread(["push", "--lines"]).stdin("x\n".repeat(160)).ok();
    world.thread(["subscribe", "team", "--no-handler", "--concurrency", "8"]).quiet();
    world.script(
        "worker",
        "#!/bin/sh\nwhile line=$(thread pop team --claim 1h --fail-if-none --wait 50ms 2>>errors); do\n\
         id=${line#*:}; id=${id%%,*}; mkdir \"got-$id\" || echo \"$id\" >>twice; thread ack team \"$id\" >>acked; done\n",
    );
    world.sh("for n in 1 2 3 4 5 6 7 8; do ./worker & done; wait").ok();
    assert_eq!(world.read("twice"), "");
    assert_eq!(cursor(&world), 160);
    assert_eq!(world.lines("acked").len(), 160);
}

/// A time that is stored, in milliseconds.
fn milliseconds(world: &World, time: &str, from: &str) -> i64 {
    world.query(&format!("SELECT CAST(round(unixepoch({time}, 'subsec') * 1000) AS INTEGER) {from}"))
}

#[test]
fn the_wait_after_a_claim_counts_from_when_it_ended() {
    let world = world(&["a"], &["--backoff", "1h"]);
    let before = milliseconds(&world, "'now'", "");
    take(&world, &["1h"]);
    assert!(milliseconds(&world, "since", "FROM claims") >= before);
    // It has ended two seconds ago.
    world.db().execute("UPDATE claims SET until = until - 3602000", []).unwrap();
    let now = milliseconds(&world, "'now'", "");
    assert_eq!(take(&world, &["1h"]), []);
    assert!(milliseconds(&world, "since", "FROM waits") < now - 1000);
    assert_eq!(world.query("SELECT attempts FROM waits"), 1);
    // Nothing was taken.
    assert_eq!(world.log().iter().filter(|line| line.contains("pop: ")).count(), 1);
}

#[test]
fn a_place_is_free_for_what_comes_after_those_that_were_finished_among_the_held_back() {
    let world = world(&[&["k"; 71][..], &["other"]].concat(), &[&KEY[..], &["--ahead", "80"]].concat());
    assert_eq!(ids_of(&take(&world, &["1h"])), [1]);
    assert_eq!(ids_of(&take(&world, &["1h"])), [72]);
    let ids: Vec<String> = (2..=40).map(|id| id.to_string()).collect();
    world
        .thread([&["ack", "team"], &ids.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat())
        .quiet();
    // With seventy that are held back, these would be too many.
    push(&world, &[&["k"; 20][..], &["free"]].concat());
    assert_eq!(ids_of(&take(&world, &["1h"])), [93]);
}

#[test]
fn nothing_past_so_many_unfinished_events_is_taken() {
    let world = world(&["k", "k", "other"], &[&KEY[..], &["--ahead", "2"]].concat());
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "3"])), [1]);
    assert_eq!(take(&world, &["1h"]), []);
    world.thread(["ack", "team", "2"]).quiet();
    assert_eq!(ids_of(&take(&world, &["1h"])), [3]);
}

#[test]
fn what_is_taken_at_once_has_8_mib_of_lines_or_one_line_more() {
    const MOST: usize = 8 * 1024 * 1024;
    let world = world(&[], &[]);
    let push = |length: usize| {
        let line = format!("{}\n", "x".repeat(length));
        world.thread(["push", "--lines"]).stdin(line).ok();
    };
    push(1);
    let of_one = world.thread(["pop", "team", "--claim", "1h"]).quiet().len();
    world.thread(["ack", "team", "1"]).quiet();
    for (length, taken) in [(MOST, 1), (MOST - 1, 2)] {
        let first = world.query("SELECT max(id) FROM events") + 1;
        push(length - of_one + 1);
        push(1);
        let ids: Vec<i64> = (first..first + taken).collect();
        assert_eq!(ids_of(&take(&world, &["1h", "--limit", "2"])), ids);
        world.thread(["ack", "team", &first.to_string(), &(first + 1).to_string()]).quiet();
    }
}

#[test]
fn no_more_dead_letters_are_taken_than_are_asked_for() {
    let world = world(&["a", "b"], &[]);
    world.thread(["reject", "team", "1"]).quiet();
    world.thread(["reject", "team", "2"]).quiet();
    world.thread(["dead", "retry", "team", "--all"]).quiet();
    assert_eq!(ids_of(&take(&world, &["1h"])), [1]);
    assert_eq!(ids_of(&take(&world, &["1h"])), [2]);
}

#[test]
fn what_is_taken_is_logged() {
    let world = world(&["a", "b"], &[]);
    let logged = || world.log().iter().filter(|line| line.contains("pop: ")).cloned().collect::<Vec<_>>();
    take(&world, &["1h", "--limit", "2"]);
    assert_eq!(logged(), ["[INFO] pop: consumer=team claims=2"]);
    assert_eq!(take(&world, &["1h"]), []);
    assert_eq!(logged().len(), 1);
}

#[test]
fn a_success_ends_a_row_of_dead_letters() {
    let world = world(&["a", "b", "c"], &["--max-attempts", "1", "--stall-after", "1"]);
    world.thread(["nack", "team", "1"]).quiet();
    world.thread(["ack", "team", "2"]).quiet();
    world.thread(["nack", "team", "3"]).quiet();
    assert_eq!((world.consumer("team")["dead"].clone(), world.state("team")), (json!(2), "idle".to_owned()));
}

#[test]
fn after_an_attempt_an_event_is_put_off_as_if_for_the_first_time() {
    let world = world(&["a"], &["--backoff", "1h"]);
    for (options, stored) in [(&["--no-attempt"][..], 1), (&[], 10), (&["--no-attempt"], 11)] {
        world.thread([&["nack", "team", "1"], options].concat()).quiet();
        assert_eq!(world.query("SELECT attempts * 10 + deferred FROM waits"), stored);
    }
}

#[test]
fn when_a_consumer_stalled_is_stored() {
    let options = ["--backoff", "0s", "--max-attempts", "1", "--stall-after", "1"];
    for by_hand in [false, true] {
        let world = world(&["a", "b", "c"], &options);
        let before = milliseconds(&world, "'now'", "");
        for _ in 0..2 {
            let taken = take(&world, &["1h"]);
            match by_hand {
                true => _ = world.thread(["nack", "team", &taken[0].0.to_string()]).quiet(),
                false => end_claims(&world),
            }
        }
        assert_eq!(world.thread(["pop", "team", "--claim", "1h"]).ends_with(0).0, "");
        assert_eq!(world.state("team"), "stalled");
        let ended = milliseconds(&world, "json_extract(run, '$.ended')", "FROM consumers");
        assert!(ended >= before, "by_hand={by_hand}");
        if by_hand {
            assert_eq!(world.query("SELECT json_extract(run, '$.start_newest') FROM consumers"), 3);
        }
    }
}

#[test]
fn of_many_that_wait_among_those_that_are_held_back_none_is_forgotten() {
    let keys: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    let keys: Vec<&str> =
        [&["k"; 71][..], &keys.iter().map(String::as_str).collect::<Vec<_>>(), &["other"]].concat();
    let world = world(&keys, &KEY);
    assert_eq!(ids_of(&take(&world, &["1h"])), [1]);
    let put_off = "INSERT INTO waits (consumer_id, event_id, attempts, deferred, since, until) \
                   SELECT 'team', id, 0, 1, '2020-01-01T00:00:00.000Z', '2999-01-01T00:00:00.000Z' \
                   FROM events WHERE id BETWEEN 72 AND 371";
    world.db().execute(put_off, []).unwrap();
    assert_eq!(ids_of(&take(&world, &["1h"])), [372]);
    world.db().execute("UPDATE waits SET until = since WHERE event_id = 371", []).unwrap();
    assert_eq!(ids_of(&take(&world, &["1h"])), [371]);
}

#[test]
fn how_many_are_held_back_is_noted_and_those_that_came_since_are_added() {
    let world = world(&[&["k"; 71][..], &["other"]].concat(), &KEY);
    let noted =
        |name: &str| world.query(&format!("SELECT json_extract(run, '$.held.{name}') FROM consumers"));
    take(&world, &["1h"]);
    assert_eq!(ids_of(&take(&world, &["1h"])), [72]);
    assert_eq!((noted("upto"), noted("count")), (72, 70));
    push(&world, &[&["k"; 20][..], &["free"]].concat());
    assert_eq!(ids_of(&take(&world, &["1h"])), [93]);
    assert_eq!((noted("upto"), noted("count")), (93, 90));
}

#[test]
fn those_that_are_taken_do_not_count_among_the_held_back() {
    let world = world(&[&["other"][..], &["k"; 71], &["last"]].concat(), &KEY);
    let noted =
        |name: &str| world.query(&format!("SELECT json_extract(run, '$.held.{name}') FROM consumers"));
    assert_eq!(ids_of(&take(&world, &["1h"])), [1]);
    assert_eq!(ids_of(&take(&world, &["1h"])), [2]);
    assert_eq!(ids_of(&take(&world, &["1h"])), [73]);
    assert_eq!((noted("upto"), noted("count")), (73, 70));
    world.thread(["ack", "team", "2", "73"]).quiet();
    push(&world, &["free"]);
    // The first two are looked at before the others can be passed over.
    assert_eq!(ids_of(&take(&world, &["1h", "--limit", "2"])), [3, 74]);
    assert_eq!((noted("upto"), noted("count")), (74, 69));
}
