//! A limit on the number of agents, in several threads of one folder.

use thread_conversation::{Entry, Status};
use thread_testkit::wait_until;

use crate::harness::Talk;

/// Another talk in the same world as `talk`, with this agent, of which at most `most` may live.
fn beside(talk: &Talk, name: &str, most: &str, options: &[&str], program: &[&str]) -> Talk {
    let talk = talk.beside(name);
    talk.install(&[&["--max-agents", most][..], options].concat(), program);
    talk
}

#[test]
fn no_more_agents_live_than_allowed_and_all_are_answered() {
    let folder = Talk::new();
    // The first ones wait for each other, however slow the machine is.
    let script = "read x; mkdir -p live; echo >live/$$; \
                  until [ -e met ]; do [ $(ls live | wc -l) -lt 2 ] || : >met; sleep 0.02; done; \
                  ls live | wc -l >>seen; sleep 0.2; rm live/$$; echo $x";
    let talks: Vec<Talk> =
        (0..5).map(|n| beside(&folder, &format!("talk-{n}"), "2", &[], &["sh", "-c", script])).collect();
    let ids: Vec<i64> = talks.iter().map(|talk| talk.say("hello")).collect();
    for (talk, id) in talks.iter().zip(ids) {
        assert_eq!(talk.answer(id), "hello\n");
    }
    let most = folder.read("seen").lines().map(|line| line.trim().parse::<u32>().unwrap()).max();
    assert_eq!(most, Some(2));
}

#[test]
fn waiting_agents_are_reported_served_in_order_and_can_be_cancelled() {
    let folder = Talk::new();
    let script =
        "read x; case $x in first) until [ -e go ]; do sleep 0.01; done;; esac; echo $x >>served; echo $x";
    let [first, second, third, fourth] =
        ["a", "b", "c", "d"].map(|name| beside(&folder, name, "1", &[], &["sh", "-c", script]));
    let begun = first.say("first");
    first.begun(begun);
    let waits = |talk: &Talk| {
        talk.until("it does not say that it waits", |entries| {
            entries.iter().any(|(.., entry)| *entry == Entry::Status(Status::Waiting)).then_some(())
        });
    };
    let ids = [(&fourth, "fourth"), (&third, "third"), (&second, "second")].map(|(talk, text)| {
        let id = talk.say(text);
        waits(talk);
        id
    });
    third.cancel(&format!("run_{}", ids[1]));
    assert!(matches!(third.ending(ids[1]), Entry::Cancelled { .. }));
    folder.write("go", "");
    assert_eq!(first.answer(begun), "first\n");
    assert_eq!([fourth.answer(ids[0]), second.answer(ids[2])], ["fourth\n", "second\n"]);
    assert_eq!(folder.read("served"), "first\nfourth\nsecond\n");
    for talk in [&first, &second, &third, &fourth] {
        assert_eq!(talk.is_settled(), Ok(()));
    }
}

#[test]
fn an_agent_that_is_kept_and_idle_gives_way() {
    let folder = Talk::new();
    let script = r#"while read x; do echo '{"event":"final","content":"done"}'; done"#;
    let options = ["--protocol", "ndjson", "--idle", "1h"];
    let [one, two] = ["a", "b"].map(|name| beside(&folder, name, "1", &options, &["sh", "-c", script]));
    for talk in [&one, &two, &one] {
        let id = talk.say("x");
        assert_eq!(talk.answer(id), "done");
    }
    wait_until("the other one to end", || two.processes().is_empty());
    assert_eq!(one.processes().len(), 1);
}

#[test]
fn a_sub_agent_works_in_the_place_of_its_parent() {
    let folder = Talk::new();
    let program = ["sh", "-c", "read x; echo $x | thread agent run -- cat"];
    let talk = beside(&folder, "parent", "1", &[], &program);
    let id = talk.say("hello");
    assert_eq!(talk.answer(id), "hello\n");
}
