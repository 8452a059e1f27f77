//! Messages about wrong or unusual usage: each says what to do instead.

use thread_testkit::World;

#[test]
fn a_pop_without_a_starting_point_names_both_options() {
    let world = World::with_thread();
    let error = world.thread(["pop", "--consumer", "bot"]).fails(2);
    assert_eq!(
        error,
        "Error: no starting point given - give --last-event-id <id>, or --resume to continue from the stored cursor"
    );
}

#[test]
fn one_odd_source_in_a_batch_is_reported_in_the_singular() {
    let world = World::with_thread();
    let line = |source: &str| format!("{{\"source\":\"{source}\",\"type\":\"record\",\"content\":\"c\"}}\n");
    let warning = |batch: String| world.thread(["push", "--batch"]).stdin(batch).warns();
    let form = "internal:<session_type>:<session_id>:<agent_id>";
    assert_eq!(
        warning(line("self") + &line("internal:x")),
        format!("Warning: the source on line 2 does not fit the form {form}; stored as it is\n")
    );
    assert_eq!(
        warning(line("internal:x") + &line("internal:y")),
        format!("Warning: 2 sources do not fit their form, first on line 1: {form}; stored as they are\n")
    );
}

#[test]
fn an_events_db_that_is_no_database_is_refused_and_left_as_it_was() {
    let world = World::new();
    std::fs::create_dir(world.inbox()).unwrap();
    let garbage = "this was never a database\n".repeat(100);
    world.write("inbox/events.db", &garbage);
    let db = world.inbox().join("events.db");
    assert_eq!(
        world.thread(["info"]).fails(1),
        format!(
            "Error: {} is not a thread's database - name a directory made by `thread init <path>`; nothing was changed",
            db.display()
        )
    );
    assert_eq!(world.read("inbox/events.db"), garbage);
    assert_eq!(std::fs::read_dir(world.inbox()).unwrap().count(), 1, "nothing was made beside it");
}
