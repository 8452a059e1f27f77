use thread_testkit::{World, wait_until};

#[test]
fn unsubscribe_removes_the_consumer_and_keeps_its_cursor() {
    let world = World::with_thread();
    world.push("one");
    world.idle_consumer("bot", "");
    world.thread(["ack", "--consumer", "bot", "--event-id", "1"]).quiet();
    assert_eq!(world.thread(["unsubscribe", "--consumer", "bot"]).quiet(), "bot\n");
    assert_eq!(world.query("SELECT count(*) FROM subscriptions"), 0);
    assert_eq!(world.query("SELECT last_acked_id FROM consumer_progress WHERE consumer_id = 'bot'"), 1);
    world.thread(["pop", "--consumer", "bot", "--resume"]).fails(1);
}

#[test]
fn unsubscribe_answers_in_json_when_asked() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    assert_eq!(
        world.thread(["unsubscribe", "--consumer", "bot", "--json"]).quiet(),
        "{\"consumer_id\":\"bot\"}\n"
    );
}

#[test]
fn an_unknown_consumer_is_exit_1() {
    let world = World::with_thread();
    world.idle_consumer("bot", "");
    for unknown in ["nobody", "Bot", "bot ", "b_t", "%", "../x"] {
        let error = world.thread(["unsubscribe", "--consumer", unknown]).fails(1);
        assert!(error.contains(&format!("'{unknown}'")), "{error}");
    }
    assert_eq!(world.query("SELECT count(*) FROM subscriptions"), 1);
    world.thread(["unsubscribe"]).fails(2);
    world.thread(["unsubscribe", "--consumer", ""]).fails(2);
}

#[test]
fn nothing_is_started_for_an_unsubscribed_consumer() {
    let world = World::with_thread();
    world.idle_consumer("gone", "");
    let handler = "thread pop --resume >>seen; thread ack --event-id 1";
    world.thread(["subscribe", "--consumer", "stays", "--handler", handler]).quiet();
    world.thread(["unsubscribe", "--consumer", "gone"]).quiet();
    world.push("hello");
    wait_until("the other to be served", || world.consumer("stays")["last_acked_id"] == 1);
    world.wait_until_quiet();
    assert!(!world.path("inbox/run/gone.lock").exists());
    assert!(world.path("inbox/run/stays.lock").exists());
}
