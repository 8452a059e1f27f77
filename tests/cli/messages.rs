//! Messages about wrong or unusual usage: each says what to do instead.

use thread_testkit::World;

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
