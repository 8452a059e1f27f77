//! The lines of an export: JSON objects, each with its `kind`.
//!
//! The first is a header, the last has the counts of all rows, and between them is one for each row, with its columns by
//! name. A column without a value is left out. JSON that is stored as text is written as JSON, if it then can be read
//! back as the same text; bytes that are no UTF-8 are an array with their hexadecimal digits.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{Column, Is, Table, Tallies, Tally, Value, Values};
use crate::model::json::write_string;

/// The version of the format.
pub const VERSION: u64 = 1;

/// The longest line, in bytes.
pub const MAX_LINE: usize = 2_000_000_000;

const HEADER: &str = "header";
const END: &str = "end";

/// A line.
#[derive(Debug, PartialEq)]
pub enum Line {
    /// With what distinguishes this export from others.
    Header {
        id: String,
    },
    Row(&'static Table, Values),
    End(Tallies),
}

/// The header of an export that was begun at this time.
pub fn header(id: &str, at: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let header = serde_json::json!({ "kind": HEADER, "format": VERSION, "id": id, "at": at, "by": version });
    format!("{header}\n")
}

pub fn end(tallies: &Tallies) -> String {
    let rows: serde_json::Map<_, _> =
        tallies.iter().map(|(table, tally)| (table.kind.to_owned(), serde_json::json!(tally))).collect();
    format!("{}\n", serde_json::json!({ "kind": END, "rows": rows }))
}

/// Appends a row, with a newline.
pub fn write(table: &Table, row: &[Value], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"kind\":\"");
    out.extend_from_slice(table.kind.as_bytes());
    out.push(b'"');
    for (column, value) in table.columns.iter().zip(row) {
        if *value == Value::Null {
            continue;
        }
        out.extend_from_slice(b",\"");
        out.extend_from_slice(column.name.as_bytes());
        out.extend_from_slice(b"\":");
        write_value(column, value, out);
    }
    out.extend_from_slice(b"}\n");
}

fn write_value(column: &Column, value: &Value, out: &mut Vec<u8>) {
    match (column.is, value) {
        (_, Value::Null) => out.extend_from_slice(b"null"),
        (Is::Flag, Value::Number(flag)) => {
            out.extend_from_slice(if *flag == 0 { b"false" } else { b"true" });
        }
        (_, Value::Number(number)) => out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes()),
        (Is::Json, Value::Text(text)) if is_object(text) => out.extend_from_slice(text.as_bytes()),
        (_, Value::Text(text)) => write_string(out, text.as_bytes()),
        (_, Value::Bytes(bytes)) => {
            out.extend_from_slice(b"[\"");
            out.extend(bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
            out.extend_from_slice(b"\"]");
        }
    }
}

/// Whether a text can be written as it is, and read back as the same.
fn is_object(text: &str) -> bool {
    text.starts_with('{')
        && text.ends_with('}')
        && !text.bytes().any(|byte| byte.is_ascii_control())
        && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The keys of a line and their values, unparsed.
struct Object<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Object<'a>, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
                let mut found: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some(key) = map.next_key::<Key<'de>>()? {
                    if found.len() > 64 {
                        return Err(A::Error::custom("it has too many keys"));
                    }
                    if found.iter().any(|(other, _)| *other == key.0) {
                        return Err(A::Error::custom(format_args!(
                            "it has the key '{}' twice",
                            key.0.escape_debug()
                        )));
                    }
                    found.push((key.0, map.next_value()?));
                }
                Ok(Object(found))
            }
        }

        from.deserialize_map(Keys)
    }
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Object<'a> {
    fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.swap_remove(at).1.get())
    }

    fn parse<T: Deserialize<'a>>(&mut self, key: &str) -> Result<T, String> {
        let text = self.take(key).ok_or_else(|| format!("lacks the key '{key}'"))?;
        serde_json::from_str(text).map_err(|e| format!("has a wrong '{key}': {}", without_place(&e)))
    }

    fn must_be_empty(&self) -> Result<(), String> {
        match self.0.first() {
            Some((key, _)) => Err(format!("has the key '{}', which means nothing here", key.escape_debug())),
            None => Ok(()),
        }
    }
}

/// serde_json's message without the line number, which is always 1.
fn without_place(error: &serde_json::Error) -> String {
    error.to_string().split(" at line ").next().unwrap_or_default().to_owned()
}

/// Reads a line.
///
/// # Errors
///
/// What is wrong with it; completes "line 3 …".
pub fn parse(line: &[u8]) -> Result<Line, String> {
    let text = std::str::from_utf8(line).map_err(|_| "is not valid UTF-8".to_owned())?;
    let object = serde_json::from_str::<Object<'_>>(text);
    let mut object = object.map_err(|e| format!("is not a row of an export: {}", without_place(&e)))?;
    let kind: Cow<'_, str> = object.parse::<String>("kind")?.into();
    match &*kind {
        HEADER => {
            let format: u64 = object.parse("format")?;
            if format != VERSION {
                return Err(format!(
                    "says that this is an export in format {format}, and only {VERSION} is known here"
                ));
            }
            let id: String = object.parse("id")?;
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
            if id.is_empty() || id.len() > 64 || !id.chars().all(is_plain) {
                return Err("has a wrong 'id'".to_owned());
            }
            Ok(Line::Header { id })
        }
        END => {
            let rows: &RawValue = object.parse("rows")?;
            let wrong = |e| format!("has wrong counts: {}", without_place(&e));
            let mut rows = serde_json::from_str::<Object<'_>>(rows.get()).map_err(wrong)?;
            object.must_be_empty()?;
            let mut tallies = Tallies::default();
            for table in super::TABLES {
                *tallies.of_mut(table) = match rows.take(table.kind) {
                    Some(text) => serde_json::from_str::<Tally>(text).map_err(wrong)?,
                    // An older program, which knew no such rows.
                    None => Tally::default(),
                };
            }
            rows.must_be_empty()?;
            Ok(Line::End(tallies))
        }
        kind => {
            let table = Table::of(kind).ok_or_else(|| {
                format!("is of the kind '{}', which is not known here", kind.escape_debug())
            })?;
            let row = table.columns.iter().map(|column| read_value(column, object.take(column.name)));
            let row = row.collect::<Result<Values, String>>()?;
            object.must_be_empty()?;
            Ok(Line::Row(table, row))
        }
    }
}

fn read_value(column: &Column, text: Option<&str>) -> Result<Value, String> {
    let name = column.name;
    let Some(text) = text.filter(|text| *text != "null") else {
        return match column.may_be_null {
            true => Ok(Value::Null),
            false => Err(format!("lacks the key '{name}'")),
        };
    };
    let wrong = |e: serde_json::Error| format!("has a wrong '{name}': {}", without_place(&e));
    match column.is {
        Is::Number => serde_json::from_str(text).map(Value::Number).map_err(wrong),
        Is::Flag => serde_json::from_str::<bool>(text).map(|flag| Value::Number(flag.into())).map_err(wrong),
        Is::Json if text.starts_with('{') => Ok(Value::Text(text.to_owned())),
        Is::Text | Is::Json | Is::Bytes | Is::Blob if text.starts_with('"') => {
            serde_json::from_str(text).map(Value::Text).map_err(wrong)
        }
        Is::Text | Is::Json | Is::Bytes | Is::Blob => {
            serde_json::from_str::<[String; 1]>(text).map_err(wrong).and_then(|[hex]| of_hex(name, &hex))
        }
    }
}

fn of_hex(name: &str, hex: &str) -> Result<Value, String> {
    let wrong = || format!("has a wrong '{name}': it is not in hexadecimal digits");
    if !hex.len().is_multiple_of(2) || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let pairs = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
    let bytes: Vec<u8> = pairs.collect::<Result<_, _>>().map_err(|_| wrong())?;
    match std::str::from_utf8(&bytes) {
        Ok(_) => Err(format!("has a wrong '{name}': it is text, written in hexadecimal digits")),
        Err(_) => Ok(Value::Bytes(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::rows::TABLES;

    fn value(column: &Column) -> BoxedStrategy<Value> {
        let text = prop_oneof![
            "\\PC*",
            ".*",
            Just("{\"a\":1}".to_owned()),
            Just("{\n}".to_owned()),
            Just("[\"ff\"]".to_owned())
        ];
        let some = match column.is {
            Is::Number => any::<i64>().prop_map(Value::Number).boxed(),
            Is::Flag => (0..2_i64).prop_map(Value::Number).boxed(),
            Is::Text | Is::Json | Is::Bytes | Is::Blob => prop_oneof![
                4 => text.prop_map(Value::Text),
                1 => prop::collection::vec(any::<u8>(), 0..9).prop_map(|bytes| Value::of_bytes(&bytes)),
            ]
            .boxed(),
        };
        if column.may_be_null { prop_oneof![Just(Value::Null), some].boxed() } else { some }
    }

    fn row() -> impl Strategy<Value = (&'static Table, Values)> {
        (0..TABLES.len()).prop_flat_map(|index| {
            let table = &TABLES[index];
            let values: Vec<_> = table.columns.iter().map(value).collect();
            values.prop_map(move |row| (table, row))
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back((table, row) in row()) {
            let mut text = Vec::new();
            write(table, &row, &mut text);
            prop_assert_eq!(memchr::memchr_iter(b'\n', &text).count(), 1);
            let read = parse(text.strip_suffix(b"\n").unwrap());
            prop_assert_eq!(read, Ok(Line::Row(table, row)));
        }

        #[test]
        fn nothing_makes_it_panic(text in ".*", bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            drop(parse(text.as_bytes()));
            drop(parse(&bytes));
            drop(parse(format!("{{\"kind\":\"event\",\"id\":{text}}}").as_bytes()));
        }
    }

    #[test]
    fn header_and_end_are_read_back() {
        let header = header("1-a", "2026-03-18T10:30:00.123Z");
        assert_eq!(parse(header.trim_end().as_bytes()), Ok(Line::Header { id: "1-a".into() }));
        let mut tallies = Tallies::default();
        tallies.add(&TABLES[1], &[Value::Number(1), Value::Number(2)]);
        assert_eq!(parse(end(&tallies).trim_end().as_bytes()), Ok(Line::End(tallies)));
    }
}
