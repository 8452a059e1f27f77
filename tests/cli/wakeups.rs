//! No wake-up is lost: whenever pushes stop, everything is delivered without another push.

use std::time::{Duration, Instant};

use thread_testkit::{PATIENCE, World};

#[test]
fn pushes_around_the_end_of_a_run_are_delivered_without_another_push() {
    let pushes: u64 =
        std::env::var("THREAD_TEST_PUSHES").ok().and_then(|text| text.parse().ok()).unwrap_or(600);
    let world = World::with_thread();
    world.subscribe("fed", ":", &["--deliver", "stdin"]);
    world.subscribe("picky", ":", &["--deliver", "stdin", "--filter", "content <> 'nothing for picky'"]);
    let popping =
        "thread pop --last-event-id $(thread info --json | sed 's/.*\"event_count\":\\([0-9]*\\).*/\\1/')";
    world.subscribe("popping", popping, &["--filter", "id % 20 = 0", "--backoff", "10ms"]);
    let db = world.db();
    let mut cursors = db
        .prepare(
            "SELECT coalesce(min(last_acked_id), 0) FROM consumer_progress WHERE consumer_id <> 'popping'",
        )
        .unwrap();
    let mut wobble = u64::from(std::process::id()) | 1;
    let (mut pushed, mut slowest) = (0, Duration::ZERO);
    while pushed < pushes {
        // Each group of pushes ends around the end of the previous run.
        for _ in 0..3 {
            wobble ^= wobble << 13;
            wobble ^= wobble >> 7;
            wobble ^= wobble << 17;
            std::thread::sleep(Duration::from_micros(wobble % 25_000));
            pushed = world.push("x") as u64;
        }
        let began = Instant::now();
        while cursors.query_row([], |row| row.get::<_, i64>(0)).unwrap() < pushed as i64 {
            assert!(
                began.elapsed() < PATIENCE,
                "event {pushed} was never delivered: {}\n{}",
                world.thread(["info"]).ok(),
                world.log().iter().rev().take(20).cloned().collect::<Vec<_>>().join("\n")
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        slowest = slowest.max(began.elapsed());
    }
    eprintln!("pushes={pushed} slowest delivery={slowest:.1?}");
    world.wait_until_quiet();
    for consumer in ["fed", "picky", "popping"] {
        let info = world.consumer(consumer);
        assert_eq!((&info["pending"], &info["state"]), (&0.into(), &"idle".into()), "{consumer}");
    }
}
