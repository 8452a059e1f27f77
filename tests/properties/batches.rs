//! Events read and written as JSON, and the atomicity of batches.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use proptest::prelude::*;
use serde_json::{Value, json};
use thread::After;
use thread::model::event::{Defaults, NewEvent};

use crate::world::{Parts, Place, cases};

/// Runs the program in the given thread.
fn thread(place: &Place, args: &[&str], stdin: Stdio) -> std::process::Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thread"));
    command.env_clear().env("THREAD_DIR", place.queue.path()).env("THREAD_NOTIFIER", "off").args(args);
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs `push --batch`, with stdin from a pipe or a file, which take different code paths.
fn push_batch(place: &Place, input: &[u8], piped: bool) -> Output {
    let args = ["push", "--batch", "--json"];
    if piped {
        let mut child = thread(place, &args, Stdio::piped());
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    } else {
        let path = place.path("../batch");
        std::fs::write(&path, input).unwrap();
        let file = std::fs::File::open(path).unwrap();
        thread(place, &args, file.into()).wait_with_output().unwrap()
    }
}

fn ndjson(place: &Place) -> Vec<u8> {
    let child = thread(place, &["peek", "--last-event-id", "0"], Stdio::null());
    child.wait_with_output().unwrap().stdout
}

fn stored(place: &mut Place) -> Vec<(String, String, Option<String>, String)> {
    let events = place.queue.read(After(0), None).unwrap();
    events.into_iter().map(|e| (e.source, e.kind, e.subtype, e.content)).collect()
}

/// Any text, sometimes long, with many characters that JSON must escape.
fn text() -> impl Strategy<Value = String> {
    let hostile = "[\\x00-\\x1f\"\\\\/\\x7f\u{2028}\u{2029}\u{feff}é☃\u{10ffff}a]{0,20}";
    prop_oneof![hostile.prop_map(String::from), any::<String>(), "[a-z]{2000}"]
}

fn a_source() -> impl Strategy<Value = String> {
    prop_oneof![Just("self".to_owned()), "[^\\pC]{1,20}", text()]
        .prop_map(|text| text.chars().filter(|c| !c.is_control()).collect::<String>())
        .prop_filter("a source is not empty", |text| !text.is_empty())
}

fn any_parts() -> impl Strategy<Value = Parts> {
    let kind = prop::sample::select(&["message", "record"][..]);
    (a_source(), kind, prop::option::of(text()), text()).prop_map(|(source, kind, subtype, content)| Parts {
        source,
        kind,
        subtype,
        content,
    })
}

fn line_of(parts: &Parts) -> String {
    let mut line =
        json!({"source": parts.source, "type": parts.kind, "content": parts.content, "extra": [1]});
    if let Some(subtype) = &parts.subtype {
        line["subtype"] = json!(subtype);
    }
    line.to_string()
}

/// A line that is not an event.
fn bad_line() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("nonsense".to_owned()),
        Just("[]".to_owned()),
        Just(r#"{"source":"s","type":"record"}"#.to_owned()),
        Just(r#"{"source":"s","type":"record","content":null}"#.to_owned()),
        Just(r#"{"source":"","type":"record","content":"c"}"#.to_owned()),
        Just(r#"{"source":"a\nb","type":"record","content":"c"}"#.to_owned()),
        Just(r#"{"source":"s","type":"Record","content":"c"}"#.to_owned()),
        Just(r#"{"source":"s","type":"record","content":"c","subtype":1}"#.to_owned()),
        Just(r#"{"source":"s","type":"record","content":"c"} x"#.to_owned()),
        any_parts().prop_map(|parts| {
            let line = line_of(&parts);
            line[..line.len() - 1].to_owned()
        }),
    ]
}

/// A line of a batch: its text, and its event if it is valid.
fn a_line() -> impl Strategy<Value = (String, Option<Parts>)> {
    prop_oneof![
        12 => any_parts().prop_map(|parts| (line_of(&parts), Some(parts))),
        2 => prop::sample::select(&["", "  ", "\t", "\r"][..]).prop_map(|blank| (blank.to_owned(), None)),
    ]
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn any_text_survives_being_pushed_printed_and_pushed_again(
        events in prop::collection::vec(any_parts(), 0..12),
        piped: bool,
    ) {
        let (mut first, mut second) = (Place::new(), Place::new());
        let input: String = events.iter().map(|parts| line_of(parts) + "\n").collect();
        prop_assert!(push_batch(&first, input.as_bytes(), piped).status.success());
        let expected: Vec<_> =
            events.into_iter().map(|p| (p.source, p.kind.to_owned(), p.subtype, p.content)).collect();
        prop_assert_eq!(&stored(&mut first), &expected);
        let printed = ndjson(&first);
        for line in printed.split_inclusive(|&b| b == b'\n') {
            let value: Value = serde_json::from_slice(line).unwrap();
            prop_assert_eq!(value.as_object().unwrap().len(), 6);
        }
        push_batch(&second, &printed, !piped);
        prop_assert_eq!(stored(&mut second), expected);
    }

    #[test]
    fn a_batch_is_stored_whole_or_not_at_all(
        before in prop::collection::vec(a_line(), 0..6),
        bad in prop::option::of(bad_line()),
        after in prop::collection::vec(a_line(), 0..6),
        crlf: bool,
        last_newline: bool,
        piped: bool,
    ) {
        let mut place = Place::new();
        place.store(&[Parts::record("old")]);
        let ending = if crlf { "\r\n" } else { "\n" };
        let mut lines: Vec<String> = before.iter().map(|(line, _)| line.clone()).collect();
        lines.extend(bad.clone());
        lines.extend(after.iter().map(|(line, _)| line.clone()));
        let mut input = lines.join(ending);
        if last_newline {
            input.push_str(ending);
        }
        let output = push_batch(&place, input.as_bytes(), piped);
        let contents = |place: &mut Place| stored(place).into_iter().map(|e| e.3).collect::<Vec<_>>();
        if bad.is_some() {
            prop_assert_eq!(output.status.code(), Some(2));
            let failure: Value = serde_json::from_slice(&output.stderr).unwrap();
            let named = format!("line {} of the batch ", before.len() + 1);
            prop_assert!(failure["error"].as_str().unwrap().starts_with(&named), "{failure}");
            prop_assert_eq!(contents(&mut place), ["old"]);
        } else {
            let events = before.into_iter().chain(after).filter_map(|(_, parts)| parts);
            let expected: Vec<_> = std::iter::once("old".into()).chain(events.map(|p| p.content)).collect();
            let count = expected.len() - 1;
            let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
            let id = |id: usize| if count > 0 { json!(id) } else { Value::Null };
            prop_assert_eq!(answer, json!({"count": count, "first_id": id(2), "last_id": id(count + 1)}));
            prop_assert_eq!(contents(&mut place), expected);
        }
    }
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn parsing_an_event_never_panics(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "[{}\\[\\]\":,a-z\\\\u0-9 .-]{0,60}".prop_map(String::into_bytes),
            (any_parts(), any::<prop::sample::Index>(), prop_oneof![
                any::<u8>().prop_map(|byte| vec![byte]),
                prop::sample::select(&["\\ud800", "\\", "1e999", "[[[[", "null", "\u{feff}", ",\"type\":"][..])
                    .prop_map(|scrap| scrap.as_bytes().to_vec()),
            ]).prop_map(|(parts, at, scrap)| {
                let mut line = line_of(&parts).into_bytes();
                let at = at.index(line.len());
                line.splice(at..at + 1, scrap);
                line
            }),
        ]
    ) {
        if let Ok(event) = NewEvent::from_json(&bytes, &Defaults::default(), &mut |_| {}) {
            prop_assert!(!event.source.is_empty() && !event.source.contains(char::is_control));
            // An event may have numbers that a `Value` cannot hold, in keys that are ignored.
            if let Ok(value) = serde_json::from_slice::<Value>(&bytes) {
                prop_assert_eq!(&value["source"], event.source.as_ref());
                prop_assert_eq!(&value["type"], event.kind.as_str());
            }
        }
    }
}
