//! Messages for invalid lines of a batch.

use thread::NewEvent;
use thread::model::event::Defaults;

const NO_DEFAULTS: Defaults =
    Defaults { source: None, kind: None, subtype: None, due: None, expires: None, zone: None };

fn invalid(line: &str) -> String {
    NewEvent::from_json(line.as_bytes(), &NO_DEFAULTS, &mut |_| {}).unwrap_err().0
}

#[test]
fn every_kind_of_bad_line_says_what_is_wrong() {
    assert_eq!(invalid("[1]"), "is not a JSON object");
    assert_eq!(invalid("nonsense"), "is not a JSON object");
    assert!(invalid(r#"{"source":"#).starts_with("is not valid JSON"));
    assert_eq!(invalid(r#"{"type":"record","content":"c"}"#), "has no 'source'");
    assert_eq!(invalid(r#"{"source":"s","content":"c"}"#), "has no 'type'");
    assert_eq!(invalid(r#"{"source":"s","type":"record"}"#), "has no 'content'");
    assert_eq!(invalid(r#"{"source":"s","type":"record","content":null}"#), "has 'content' null");
    assert!(invalid(r#"{"source":1,"type":"record","content":"c"}"#).starts_with("has a wrong value"));
    assert!(invalid(r#"{"source":"s","type":"x","content":"c"}"#).contains("neither 'message' nor 'record'"));
    assert_eq!(invalid(r#"{"source":"","type":"record","content":"c"}"#), "has an empty source");
    assert!(invalid("{\"source\":\"a\\nb\",\"type\":\"record\",\"content\":\"c\"}").contains("control"));
    assert!(invalid(r#"{"source":"a","source":"b","type":"record","content":"c"}"#).contains("duplicate"));
}
