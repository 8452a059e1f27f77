//! `thread config`: showing, setting and removing settings, and what is refused.

use serde_json::{Value, json};
use thread_testkit::{World, names};

#[test]
fn what_is_set_is_printed_until_it_is_removed() {
    let world = World::with_thread();
    assert_eq!(world.thread(["config"]).quiet(), "");
    assert_eq!(world.thread(["config", "--json"]).quiet(), "{}\n");
    world.thread(["config", "retention.events", "0100"]).quiet();
    world.thread(["config", "retention.age", "1w"]).quiet();
    world.thread(["config", "retention.age", "36h"]).quiet();
    assert_eq!(world.thread(["config"]).quiet(), "retention.age=1d12h\nretention.events=100\n");
    assert_eq!(world.thread(["config", "retention.age"]).quiet(), "1d12h\n");
    let json = |words: &[&str]| -> Value {
        serde_json::from_str(&world.thread(["config", "--json"].iter().chain(words)).quiet()).unwrap()
    };
    assert_eq!(json(&[]), json!({ "retention.age": "1d12h", "retention.events": 100 }));
    assert_eq!(json(&["retention.events"]), json!({ "retention.events": 100 }));
    assert_eq!(json(&["retention.logs", "90d"]), json!({ "retention.logs": "90d" }));
    assert_eq!(json(&["--unset", "retention.logs"]), json!({}));
    world.thread(["config", "--unset", "retention.age"]).quiet();
    assert_eq!(world.thread(["config"]).quiet(), "retention.events=100\n");
}

#[test]
fn a_hold_is_a_setting_of_any_name() {
    let world = World::with_thread();
    world.thread(["config", "hold.my.report", "007"]).quiet();
    assert_eq!(world.thread(["config"]).quiet(), "hold.my.report=7\n");
    let json = world.thread(["config", "--json", "hold.my.report"]).quiet();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), json!({ "hold.my.report": 7 }));
    for (words, said) in [
        (&["config", "hold.a", "0"][..], "--unset to hold none"),
        (&["config", "hold.a", "x"], "'x' is not a whole number"),
        (&["config", "hold.a b", "1"], "there is no setting 'hold.a b'"),
        (&["config", "hold.", "1"], "hold.NAME"),
    ] {
        let error = world.thread(words).fails(2);
        assert!(error.contains(said), "{words:?}: {error}");
    }
    world.thread(["config", "--unset", "hold.my.report"]).quiet();
    assert_eq!(world.thread(["config"]).quiet(), "");
}

#[test]
fn what_is_not_set_is_exit_1() {
    let world = World::with_thread();
    let not_set = "Error: retention.age is not set - set it with `thread config retention.age <value>`";
    assert_eq!(world.thread(["config", "retention.age"]).fails(1), not_set);
    assert_eq!(world.thread(["config", "--unset", "retention.age"]).fails(1), not_set);
    let (stdout, stderr) = world.thread(["config", "retention.age", "--json"]).ends_with(1);
    assert_eq!(stdout, "");
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!(error["code"], "not_set", "{error}");
}

#[test]
fn what_is_no_setting_or_no_value_is_refused_and_changes_nothing() {
    let world = World::with_thread();
    world.thread(["config", "retention.age", "7d"]).quiet();
    for (words, said) in [
        (&["config", "retention.agee", "7d"][..], "did you mean 'retention.age'?"),
        (&["config", "retention-events"], "did you mean 'retention.events'?"),
        (&["config", "--unset", "logs"], "did you mean 'retention.logs'?"),
        (
            &["config", "retention.runs", "7d"],
            "The settings are retention.age, retention.events, retention.logs, retention.steps",
        ),
        (&["config", "retention.age", "0"], "'0' is zero"),
        (&["config", "retention.age", "7"], "'7' has no unit; give one, as in 7d"),
        (&["config", "retention.age", "-1d"], "'-1'"),
        (&["config", "retention.age", "a week"], "'a week' is not a duration"),
        (&["config", "retention.events", "0"], "--unset to keep all events"),
        (&["config", "retention.events", "-5"], "'-5' is not a whole number"),
        (&["config", "retention.events", "1e3"], "'1e3' is not a whole number"),
        (&["config", "retention.logs", ""], "is not a duration"),
        (&["config", "--unset"], "<KEY>"),
        (&["config", "--unset", "retention.age", "7d"], "--unset"),
        (&["config", "retention.age", "7", "d"], "'d'"),
    ] {
        let error = world.thread(words).fails(2);
        assert!(error.contains(said), "{words:?}: {error}");
    }
    assert_eq!(world.thread(["config"]).quiet(), "retention.age=7d\n");
}

#[test]
fn settings_are_in_a_backup() {
    let world = World::with_thread();
    world.thread(["config", "retention.logs", "90d"]).quiet();
    world.thread(["backup", "copy"]).ok();
    assert_eq!(world.run("thread").args(["config", "--thread", "copy"]).quiet(), "retention.logs=90d\n");
}

/// Older programs know no such table and do not miss it.
#[test]
fn a_thread_without_settings_has_nothing_of_them() {
    let world = World::with_thread();
    world.push("x");
    let files = || names(&world.inbox().join("run"));
    let before = files();
    assert_eq!(world.thread(["config"]).quiet(), "");
    world.thread(["config", "--unset", "retention.age"]).fails(1);
    world.push("y");
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'config'";
    assert_eq!(world.query(tables), 0);
    assert_eq!(files(), before);
    world.thread(["config", "retention.age", "7d"]).quiet();
    assert_eq!((world.query(tables), world.query("PRAGMA user_version")), (1, 0));
    assert_eq!(world.thread(["doctor"]).quiet(), "healthy\n");
}
