//! Validates the program's output against `docs/schema/thread-event.json` with Python's `jsonschema`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use thread_testkit::{World, clients, missing};

/// Prints for each line of the file whether it conforms to the schema.
const VALIDATE: &str = "
import json, jsonschema, sys
schema = json.load(open(sys.argv[1], encoding='utf-8'))
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
for line in open(sys.argv[2], 'rb'):
    print('fits' if validator.is_valid(json.loads(line)) else 'differs')
";

/// The validator's result for each line. Prints a skip notice and returns `None` if there is no validator.
fn validate(world: &World, lines: &str) -> Option<Vec<String>> {
    world.write("lines.ndjson", lines);
    let python = clients::python().map_err(missing).ok()?;
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/thread-event.json");
    let mut run = Command::new(python);
    run.arg("-c").arg(VALIDATE).arg(schema).arg(world.path("lines.ndjson"));
    let output = run.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn every_event_that_is_printed_fits_the_schema() {
    let world = World::with_thread();
    let push = |args: &[&str]| world.thread(["push"].iter().chain(args)).ok();
    push(&["hello"]);
    push(&["", "--source", "external:Not:its form", "--type", "record", "--subtype", ""]);
    push(&["\"\\\u{1}\n\u{2028}\u{85}☃", "--source", "ärger ☃", "--subtype", "a\nb"]);
    push(&["answer", "--reply-to", "1", "--metadata", r#"{"n":1e400,"deep":{"a":[null]}}"#]);
    push(&["answer", "--meta", "reply_to=1"]);
    let lines = world.thread(["peek", "--last-event-id", "0"]).quiet();
    assert_eq!(lines, world.jsonl().join("\n") + "\n");
    let Some(said) = validate(&world, &lines) else { return };
    assert_eq!(said, ["fits"; 5], "{lines}");
}

#[test]
fn invalid_events_do_not_conform_to_the_schema() {
    let world = World::with_thread();
    let event = json!({"id": 1, "created_at": "2026-03-18T10:30:00.123Z", "source": "self", "type": "record",
        "subtype": null, "content": "x"});
    let mut lines = format!("{event}\n");
    let mut but = |key: &str, value: Option<Value>| {
        let mut other = event.as_object().unwrap().clone();
        match value {
            Some(value) => drop(other.insert(key.into(), value)),
            None => drop(other.shift_remove(key)),
        }
        writeln!(lines, "{}", Value::Object(other)).unwrap();
    };
    for key in ["id", "created_at", "source", "type", "subtype", "content"] {
        but(key, None);
    }
    but("id", Some(0.into()));
    but("created_at", Some("2026-03-18 10:30:00".into()));
    but("source", Some("".into()));
    but("source", Some("a\tb".into()));
    but("type", Some("log".into()));
    but("subtype", Some(1.into()));
    but("content", Some(json!({"a": 1})));
    but("metadata", Some("{}".into()));
    but("metadata", Some(json!({"reply_to": [1]})));
    but("idempotency_key", Some("k".into()));
    let Some(said) = validate(&world, &lines) else { return };
    assert_eq!(said[0], "fits");
    assert_eq!(said[1..], ["differs"; 16], "{lines}");
}
