use serde_json::{Value, json};

use crate::harness::World;

/// The lines that other programs read; more may stand between them.
fn lines(world: &World) -> Vec<String> {
    let known = [
        "Thread: ",
        "Events: ",
        "Subscriptions: ",
        "  - ",
        "    handler: ",
        "    filter:  ",
        "    last_acked_id: ",
        "    updated_at: ",
    ];
    let text = world.thread(["info"]).quiet();
    text.lines().filter(|line| known.iter().any(|k| line.starts_with(k))).map(str::to_owned).collect()
}

#[test]
fn info_of_an_empty_thread() {
    let world = World::with_thread();
    let text = format!("Thread: {}\nEvents: 0\nSubscriptions: 0\n", world.inbox().display());
    assert!(world.thread(["info"]).quiet().starts_with(&text));
    let info: Value = serde_json::from_str(&world.thread(["info", "--json"]).quiet()).unwrap();
    assert_eq!((&info["event_count"], &info["subscriptions"]), (&json!(0), &json!([])));
}

#[test]
fn info_lists_each_consumer_with_its_cursor() {
    let world = World::with_thread();
    for _ in 0..3 {
        world.push("x");
    }
    world.idle_consumer("worker-2", "type = 'message'");
    world.idle_consumer("worker-1", "");
    world.thread(["ack", "--consumer", "worker-2", "--event-id", "2"]).quiet();
    let updated_at: String =
        world.db().query_row("SELECT updated_at FROM consumer_progress", [], |row| row.get(0)).unwrap();
    assert_eq!(
        lines(&world),
        [
            format!("Thread: {}", world.inbox().display()).as_str(),
            "Events: 3",
            "Subscriptions: 2",
            "  - worker-1",
            "    handler: true",
            "    filter:  (none)",
            "    last_acked_id: 0",
            "    updated_at: (never)",
            "  - worker-2",
            "    handler: true",
            "    filter:  type = 'message'",
            "    last_acked_id: 2",
            &format!("    updated_at: {updated_at}"),
        ]
    );
    let info: Value = serde_json::from_str(&world.thread(["info", "--json"]).quiet()).unwrap();
    assert_eq!(info["event_count"], 3);
    let fields = ["consumer_id", "handler_cmd", "filter", "last_acked_id", "updated_at"];
    let shown: Vec<Vec<&Value>> = info["subscriptions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| fields.iter().map(|&field| s.get(field).unwrap()).collect())
        .collect();
    assert_eq!(
        json!(shown),
        json!(
            [["worker-1", "true", null, 0, null], ["worker-2", "true", "type = 'message'", 2, updated_at],]
        )
    );
}

#[test]
fn info_counts_events_that_are_there_not_ids() {
    let world = World::with_thread();
    for _ in 0..3 {
        world.push("x");
    }
    world.db().execute("DELETE FROM events WHERE id = 2", []).unwrap();
    assert!(lines(&world).contains(&"Events: 2".to_owned()));
}

#[test]
fn nothing_in_a_subscription_can_forge_a_line_or_colour_the_screen() {
    let world = World::with_thread();
    let evil = "x\n  - forged\n    handler: rm\r\x1b[2J\u{202e}";
    world
        .db()
        .execute("INSERT INTO subscriptions (consumer_id, handler_cmd, filter) VALUES (?1, ?1, ?1)", [evil])
        .unwrap();
    let text = world.thread(["info"]).quiet();
    assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
    let starting = |with: &str| lines(&world).iter().filter(|line| line.starts_with(with)).count();
    assert_eq!((starting("  - "), starting("    handler: "), starting("    filter:  ")), (1, 1, 1));
    // Programs get it as it is.
    assert_eq!(world.consumer(evil)["handler_cmd"], evil);
    assert_eq!(world.consumer(evil)["filter"], evil);
}

#[test]
fn a_path_cannot_forge_a_line_either() {
    let world = World::new();
    let name = "in\nEvents: 99\x1b[31m";
    world.thread(["init", name]).quiet();
    let text = world.thread(["info", "--thread", name]).quiet();
    assert_eq!(text.lines().filter(|line| line.starts_with("Events: ")).collect::<Vec<_>>(), ["Events: 0"]);
    assert!(!text.contains('\x1b'), "{text:?}");
}
