//! Messages that come later.

use serde_json::{Value, json};
use thread::After;
use thread_testkit::wait_until;

use crate::harness::Root;

#[test]
fn a_reminder_comes_when_it_is_due() {
    let root = Root::new();
    let session = root.session(1);
    let mut client = session.serve(&[]);
    let created = client.call("schedule_create", json!({ "content": "look again", "in": "1s" }));
    assert_eq!(created["id"], "s1");
    let listed = client.call("schedule_list", json!({}));
    let one = &listed["schedules"][0];
    assert_eq!(
        (&one["id"], &one["content"], &one["next"]),
        (&"s1".into(), &"look again".into(), &created["next"])
    );
    assert_eq!(session.queue().newest().unwrap().0, 0);
    wait_until("the reminder", || session.queue().newest().unwrap().0 == 1);
    let event = session.queue().read(After(0), None).unwrap().remove(0);
    assert_eq!((event.kind.as_str(), event.content.as_str()), ("message", "look again"));
    assert_eq!(event.source, "internal:dm:default:mcp");
    assert_eq!(client.call("schedule_list", json!({}))["schedules"], json!([]));
    client.close();
    root.wait_until_quiet();
}

#[test]
fn a_schedule_is_made_listed_and_cancelled() {
    let root = Root::new();
    let session = root.session(1);
    let mut client = session.serve(&[]);
    let daily = json!({ "content": "digest", "cron": "0 9 * * 1-5", "tz": "Europe/Berlin", "name": "daily" });
    let created = client.call("schedule_create", daily.clone());
    assert_eq!(created["id"], "daily");
    assert!(client.refusal("schedule_create", daily).contains("there is a schedule 'daily' already"));
    client.call("schedule_create", json!({ "content": "tick", "every": "1h", "name": "hourly" }));
    client.call("schedule_create", json!({ "content": "far", "at": "2999-01-01T00:00:00Z" }));
    let listed = client.call("schedule_list", json!({}));
    let ids: Vec<&Value> = listed["schedules"].as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert_eq!((ids, &listed["more"]), (vec![&json!("daily"), &json!("hourly"), &json!("s1")], &json!(0)));
    assert_eq!(listed["schedules"][0]["rule"], "0 9 * * 1-5 Europe/Berlin");
    for id in ["daily", "hourly", "s1"] {
        client.call("schedule_cancel", json!({ "id": id }));
        assert!(client.refusal("schedule_cancel", json!({ "id": id })).contains("is to come"));
    }
    assert_eq!(client.call("schedule_list", json!({}))["schedules"], json!([]));
    client.close();
    root.wait_until_quiet();
}

#[test]
fn wrong_times_are_refused_and_nothing_is_stored() {
    let root = Root::new();
    let session = root.session(1);
    let mut client = session.serve(&[]);
    for wrong in [
        json!({ "content": "x" }),
        json!({ "content": "x", "in": "1h", "every": "1h", "name": "n" }),
        json!({ "content": "x", "in": "soon" }),
        json!({ "content": "x", "in": "1h", "name": "n" }),
        json!({ "content": "x", "at": "tomorrow" }),
        json!({ "content": "x", "every": "1s", "name": "n" }),
        json!({ "content": "x", "every": "1h" }),
        json!({ "content": "x", "every": "1h", "name": "s1" }),
        json!({ "content": "x", "every": "1h", "name": "n", "tz": "Europe/Berlin" }),
        json!({ "content": "x", "cron": "0 9 * *", "name": "n" }),
        json!({ "content": "x", "cron": "0 9 * * *", "tz": "Europe/Nowhere", "name": "n" }),
    ] {
        let said = client.refusal("schedule_create", wrong.clone());
        assert!(said.contains("nothing was stored"), "{wrong}: {said}");
    }
    assert_eq!(client.call("schedule_list", json!({}))["schedules"], json!([]));
}
