use thread_testkit::World;

fn world() -> World {
    let world = World::with_thread();
    for n in 1..=3 {
        world.push(&format!("event {n}"));
    }
    world.idle_consumer("bot", "");
    world
}

fn ack(world: &World, id: &str) -> thread_testkit::Run {
    world.thread(["ack", "--consumer", "bot", "--event-id", id])
}

#[test]
fn ack_moves_the_cursor_forward_and_prints_its_position() {
    let world = world();
    assert_eq!(ack(&world, "1").quiet(), "1\n");
    assert_eq!(ack(&world, "3").arg("--json").quiet(), "{\"consumer_id\":\"bot\",\"last_acked_id\":3}\n");
    assert_eq!(world.consumer("bot")["last_acked_id"], 3);
}

#[test]
fn ack_never_moves_backwards() {
    let world = world();
    ack(&world, "2").quiet();
    world.db().execute("UPDATE consumer_progress SET updated_at = 'marked'", []).unwrap();
    for older in ["0", "1"] {
        let (stdout, stderr) = ack(&world, older).ends_with(0);
        assert_eq!(stdout, "2\n");
        assert!(stderr.starts_with("Warning: ") && stderr.contains("is at 2"), "{stderr}");
    }
    assert_eq!(ack(&world, "2").quiet(), "2\n");
    assert_eq!(world.consumer("bot")["last_acked_id"], 2);
    assert_eq!(world.consumer("bot")["updated_at"], "marked");
}

#[test]
fn an_event_that_does_not_exist_yet_cannot_be_acknowledged() {
    let world = world();
    let error = ack(&world, "4").fails(1);
    assert!(error.contains("event 4 does not exist yet: the newest one is 3"), "{error}");
    assert_eq!(world.consumer("bot")["last_acked_id"], 0);
    let (stdout, stderr) = ack(&world, "4").arg("--force").ends_with(0);
    assert_eq!(stdout, "3\n");
    assert!(stderr.starts_with("Warning: event 4 does not exist yet"), "{stderr}");
    assert_eq!(world.consumer("bot")["last_acked_id"], 3);
}

#[test]
fn an_unknown_consumer_is_exit_1_and_records_nothing() {
    let world = world();
    let error = world.thread(["ack", "--consumer", "nobody", "--event-id", "1"]).fails(1);
    assert!(error.contains("'nobody'"), "{error}");
    assert_eq!(world.query("SELECT count(*) FROM consumer_progress"), 0);
    world.thread(["ack", "--consumer", "bot"]).fails(2);
    world.thread(["ack", "--event-id", "1"]).fails(2);
}
