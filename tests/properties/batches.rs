//! Events on their way in and out as JSON, and batches that are stored whole or not at all.

use proptest::prelude::*;
use serde_json::{Value, json};
use thread::batch::{Batch, stream};
use thread::error::Result;
use thread::event::NewEvent;
use thread::store::{Reading, Stored};

use crate::world::{Parts, Place, cases, parts};

const ALL: Reading<'static> = Reading { after: 0, left: None, filter: None };

/// What `push --batch` does with its stdin.
fn push_batch(place: &mut Place, input: &[u8]) -> Result<Stored> {
    let batch = Batch::read(input, &place.dir())?;
    place.thread.store.append(|inserter| batch.for_each(|event| inserter.insert(event).map(drop)))
}

fn ndjson(place: &mut Place) -> Vec<u8> {
    let (mut page, mut reading) = (Vec::new(), ALL);
    while place.thread.store.read_page(&mut reading, &mut page).unwrap() {}
    page
}

fn stored(place: &mut Place) -> Vec<(String, String, Option<String>, String)> {
    let events = place.thread.store.read_all(ALL).unwrap();
    events.into_iter().map(|e| (e.source, e.kind, e.subtype, e.content)).collect()
}

/// Any text at all, now and then long, and rich in what JSON must escape.
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

/// A line that is no event.
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
        parts().prop_map(|parts| {
            let line = line_of(&parts);
            line[..line.len() - 1].to_owned()
        }),
    ]
}

/// A line of a batch: its text, and the event it is, if it is one.
fn a_line() -> impl Strategy<Value = (String, Option<Parts>)> {
    prop_oneof![
        12 => any_parts().prop_map(|parts| (line_of(&parts), Some(parts))),
        2 => prop::sample::select(&["", "  ", "\t", "\r"][..]).prop_map(|blank| (blank.to_owned(), None)),
    ]
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn any_text_survives_being_pushed_printed_and_pushed_again(events in prop::collection::vec(any_parts(), 0..12)) {
        let (mut first, mut second) = (Place::new(), Place::new());
        let input: String = events.iter().map(|parts| line_of(parts) + "\n").collect();
        let count = push_batch(&mut first, input.as_bytes()).unwrap().count;
        prop_assert_eq!(count, events.len() as u64);
        let expected: Vec<_> =
            events.into_iter().map(|p| (p.source, p.kind.to_owned(), p.subtype, p.content)).collect();
        prop_assert_eq!(&stored(&mut first), &expected);
        let printed = ndjson(&mut first);
        for line in printed.split_inclusive(|&b| b == b'\n') {
            let value: Value = serde_json::from_slice(line).unwrap();
            prop_assert_eq!(value.as_object().unwrap().len(), 6);
        }
        push_batch(&mut second, &printed).unwrap();
        prop_assert_eq!(stored(&mut second), expected);
    }

    #[test]
    fn a_batch_is_stored_whole_or_not_at_all(
        before in prop::collection::vec(a_line(), 0..6),
        bad in prop::option::of(bad_line()),
        after in prop::collection::vec(a_line(), 0..6),
        crlf: bool,
        last_newline: bool,
    ) {
        let mut place = Place::new();
        place.push(&[Parts { source: "old".into(), kind: "record", subtype: None, content: "old".into() }]);
        let ending = if crlf { "\r\n" } else { "\n" };
        let mut lines: Vec<String> = before.iter().map(|(line, _)| line.clone()).collect();
        lines.extend(bad.clone());
        lines.extend(after.iter().map(|(line, _)| line.clone()));
        let mut input = lines.join(ending);
        if last_newline {
            input.push_str(ending);
        }
        let pushed = push_batch(&mut place, input.as_bytes());
        let contents = |place: &mut Place| stored(place).into_iter().map(|e| e.3).collect::<Vec<_>>();
        match bad {
            Some(_) => {
                let failure = pushed.unwrap_err();
                prop_assert_eq!(failure.code, 2);
                let named = format!("line {} of the batch ", before.len() + 1);
                prop_assert!(failure.what.starts_with(&named), "{failure}");
                prop_assert_eq!(contents(&mut place), ["old"]);
            }
            None => {
                let events = before.into_iter().chain(after).filter_map(|(_, parts)| parts);
                let expected: Vec<_> = std::iter::once("old".into()).chain(events.map(|p| p.content)).collect();
                let answer = pushed.unwrap();
                prop_assert_eq!(answer.count, expected.len() as u64 - 1);
                prop_assert_eq!(answer.first_id, (answer.count > 0).then_some(2));
                prop_assert_eq!(answer.last_id, (answer.count > 0).then_some(expected.len() as i64));
                prop_assert_eq!(contents(&mut place), expected);
            }
        }
    }

    #[test]
    fn a_transaction_that_fails_half_way_stores_nothing_and_uses_no_id(
        sizes in prop::collection::vec((0..5usize, any::<bool>()), 1..8)
    ) {
        let mut place = Place::new();
        let one = Parts { source: "s".into(), kind: "record", subtype: None, content: "c".into() };
        let mut stored = 0;
        for (size, fails) in sizes {
            let answer = place.thread.store.append(|inserter| {
                for _ in 0..size {
                    inserter.insert(&one.event())?;
                }
                if fails { Err(thread::error::Failure::could_not("on purpose", "-")) } else { Ok(()) }
            });
            prop_assert_eq!(answer.is_err(), fails);
            stored += if fails { 0 } else { size as i64 };
            prop_assert_eq!(place.read(ALL), (1..=stored).collect::<Vec<_>>());
        }
    }
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn no_bytes_make_the_reading_of_an_event_panic(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "[{}\\[\\]\":,a-z\\\\u0-9 .-]{0,60}".prop_map(String::into_bytes),
            (any_parts(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(parts, at, byte)| {
                let mut line = line_of(&parts).into_bytes();
                let at = at.index(line.len());
                line[at] = byte;
                line
            }),
        ]
    ) {
        if let Ok(event) = NewEvent::from_json(&bytes) {
            prop_assert!(!event.source.is_empty() && !event.source.contains(char::is_control));
            let value: Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert_eq!(&value["source"], event.source.as_ref());
            prop_assert_eq!(&value["type"], event.kind.as_str());
        }
        let folder = std::env::temp_dir();
        if let Ok(batch) = Batch::read(&bytes[..], &folder) {
            let (mut events, mut streamed, mut seen) = (Vec::new(), Vec::new(), Vec::new());
            let last_source = batch.about.last_source.clone();
            batch.for_each(|event| { events.push(format!("{event:?}")); Ok(()) }).unwrap();
            prop_assert_eq!(last_source.is_none(), events.is_empty());
            let see = |event: &NewEvent<'_>| seen.push(format!("{event:?}"));
            let about =
                stream(&bytes[..], see, |event| { streamed.push(format!("{event:?}")); Ok(()) }).unwrap();
            prop_assert_eq!(about.last_source, last_source);
            prop_assert_eq!(&streamed, &events);
            prop_assert_eq!(seen, events);
        } else {
            prop_assert!(stream(&bytes[..], |_| (), |_| Ok(())).is_err());
        }
    }
}

#[test]
fn a_batch_larger_than_memory_is_stored_whole_or_not_at_all() {
    let mut place = Place::new();
    let line = |n: usize| {
        json!({"source": "s", "type": "record", "content": format!("{n}{}", "é\n".repeat(60_000))})
            .to_string()
    };
    let mut input: String = (1..=60).map(|n| line(n) + "\n").collect();
    let whole = input.len();
    input.push_str("{\"source\":");
    assert!(push_batch(&mut place, input.as_bytes()).unwrap_err().what.starts_with("line 61 of the batch"));
    assert_eq!(place.read(ALL), [0i64; 0]);
    push_batch(&mut place, &input.as_bytes()[..whole]).unwrap();
    for (n, event) in (1..).zip(place.thread.store.read_all(ALL).unwrap()) {
        assert!(event.id == n && event.content.starts_with(&n.to_string()));
    }
    // The spool was never a file that anybody could find.
    let names: Vec<_> = std::fs::read_dir(place.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("tmp")), "{names:?}");
}
