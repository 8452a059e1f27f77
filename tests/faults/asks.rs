//! Many concurrent questions, and one agent in each language of `thread guide --handler`: every
//! asker gets the answer to its own question.

use std::time::Instant;

use thread_testkit::{World, long};

const PROCESSES: usize = 8;

/// Asks `$1` questions, one after the other, and compares each answer with its question.
const ASKER: &str = r#"n=0
while [ "$n" -lt "$1" ]; do
    n=$((n + 1))
    question="question $n of asker $2"
    answer=$(thread ask --timeout 10m "$question") || exit 1
    [ "$answer" = "You said: $question" ] || { echo "asked '$question', was told '$answer'"; exit 1; }
done"#;

fn every_asker_gets_its_own_answer(language: &str) {
    let world = World::with_thread();
    if !world.agent_of_the_guide(language) {
        return;
    }
    let each = if long() { 125 } else { 13 };
    let begun = Instant::now();
    let askers: Vec<_> =
        (0..PROCESSES).map(|asker| world.sh(&format!("set -- {each} {asker}\n{ASKER}")).spawn()).collect();
    for asker in askers {
        let output = asker.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{language}: {said}");
    }
    let (count, took) = (each * PROCESSES, begun.elapsed());
    eprintln!("{language}: {count} questions from {PROCESSES} processes in {took:.1?}");

    world.wait_until_quiet();
    let answered = "SELECT count(*) FROM events q JOIN events a ON a.metadata ->> 'reply_to' = q.id
        WHERE q.metadata IS NULL AND a.content = 'You said: ' || q.content";
    assert_eq!(world.query(answered), count as i64, "{language}");
    assert_eq!(
        world.query("SELECT count(*) FROM events"),
        2 * count as i64,
        "{language}: there are other events"
    );
    assert_eq!(world.consumer("agent")["dead"], 0);
    world.assert_log_is_exact();
}

#[test]
fn every_asker_gets_its_own_answer_from_bash() {
    every_asker_gets_its_own_answer("bash");
}

#[test]
fn every_asker_gets_its_own_answer_from_python() {
    every_asker_gets_its_own_answer("python");
}

#[test]
fn every_asker_gets_its_own_answer_from_node() {
    every_asker_gets_its_own_answer("node");
}
