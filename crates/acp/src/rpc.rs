//! JSON-RPC, one message per line: what an editor sends, as far as every message has it.

use std::io::{self, BufRead, Read};
use std::thread;

use agent_client_protocol_schema::v1::Error;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

/// The longest line that is read, in bytes. The gateway takes messages of up to 1 MiB.
const LONGEST: u64 = 8 * 1024 * 1024;

/// A line of stdin.
#[derive(Debug)]
pub enum Line {
    Whole(Vec<u8>),
    /// It had more than [`LONGEST`] bytes, and was skipped.
    TooLong,
}

/// A message.
#[derive(Debug, PartialEq)]
pub enum Incoming {
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    Response {
        id: Value,
        outcome: Result<Value, Value>,
    },
    /// None of these. The id is that of the request, if it can be known, else null.
    Malformed {
        id: Value,
        error: Error,
    },
}

/// Reads stdin in a thread of its own, a line ahead. The channel closes at the end of stdin.
///
/// # Errors
///
/// There can be no more threads.
pub fn read_lines() -> io::Result<mpsc::Receiver<Line>> {
    let (found, lines) = mpsc::channel(1);
    thread::Builder::new().spawn(move || {
        let mut stdin = io::stdin().lock();
        while let Ok(Some(line)) = next_line(&mut stdin) {
            if found.blocking_send(line).is_err() {
                break;
            }
        }
    })?;
    Ok(lines)
}

fn next_line(from: &mut impl BufRead) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    if from.take(LONGEST).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') || (line.len() as u64) < LONGEST {
        return Ok(Some(Line::Whole(line)));
    }
    drop(line);
    from.skip_until(b'\n')?;
    Ok(Some(Line::TooLong))
}

impl Incoming {
    /// Reads a line; `None` if it is blank.
    pub fn parse(line: &Line) -> Option<Incoming> {
        let line = match line {
            Line::Whole(line) => line.trim_ascii(),
            Line::TooLong => {
                let error = Error::parse_error().data(format!("a line has more than {LONGEST} bytes"));
                return Some(Incoming::Malformed { id: Value::Null, error });
            }
        };
        if line.is_empty() {
            return None;
        }
        Some(match serde_json::from_slice::<Value>(line) {
            Ok(Value::Object(message)) => Incoming::of(message),
            Ok(_) => invalid(Value::Null, "a message is an object"),
            Err(e) => {
                Incoming::Malformed { id: Value::Null, error: Error::parse_error().data(e.to_string()) }
            }
        })
    }

    fn of(mut message: Map<String, Value>) -> Incoming {
        let id = message.shift_remove("id");
        let params = message.shift_remove("params").unwrap_or(Value::Null);
        let is_id = matches!(&id, None | Some(Value::Null | Value::String(_) | Value::Number(_)));
        match (message.shift_remove("method"), id) {
            (_, Some(_)) if !is_id => invalid(Value::Null, "an id is a text, a number or null"),
            (Some(Value::String(method)), Some(id)) => Incoming::Request { id, method, params },
            (Some(Value::String(method)), None) => Incoming::Notification { method, params },
            (Some(_), id) => invalid(id.unwrap_or_default(), "a method is a text"),
            (None, Some(id)) => match (message.shift_remove("result"), message.shift_remove("error")) {
                (_, Some(error)) if !error.is_null() => Incoming::Response { id, outcome: Err(error) },
                (Some(result), _) => Incoming::Response { id, outcome: Ok(result) },
                _ => invalid(id, "a message has a method, a result or an error"),
            },
            (None, None) => invalid(Value::Null, "a message has a method, a result or an error"),
        }
    }
}

fn invalid(id: Value, why: &str) -> Incoming {
    Incoming::Malformed { id, error: Error::invalid_request().data(why) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(text: &str) -> Incoming {
        Incoming::parse(&Line::Whole(text.into())).unwrap()
    }

    #[test]
    fn messages_are_told_apart() {
        let (method, params) = ("m".to_owned(), json!({ "a": 1 }));
        assert_eq!(
            parsed(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}"#),
            Incoming::Request { id: json!(1), method: method.clone(), params: params.clone() }
        );
        assert_eq!(parsed(r#"{"method":"m","params":{"a":1}}"#), Incoming::Notification { method, params });
        for (text, outcome) in [
            (r#"{"id":"x","result":null}"#, Ok(Value::Null)),
            (r#"{"id":"x","result":2,"error":null}"#, Ok(json!(2))),
            (r#"{"id":"x","error":{"code":1}}"#, Err(json!({ "code": 1 }))),
        ] {
            assert_eq!(parsed(text), Incoming::Response { id: json!("x"), outcome });
        }
        assert!(Incoming::parse(&Line::Whole(b" \r\n".to_vec())).is_none());
    }

    #[test]
    fn what_is_no_message_is_an_error_with_the_id_that_can_be_known() {
        for (text, id, code) in [
            ("{", Value::Null, -32700),
            ("\u{1}", Value::Null, -32700),
            (&"[".repeat(100_000), Value::Null, -32700),
            ("[]", Value::Null, -32600),
            ("7", Value::Null, -32600),
            ("{}", Value::Null, -32600),
            (r#"{"id":3}"#, json!(3), -32600),
            (r#"{"id":3,"method":4}"#, json!(3), -32600),
            (r#"{"id":[3],"method":"m"}"#, Value::Null, -32600),
        ] {
            let Incoming::Malformed { id: told, error } = parsed(text) else { panic!("{text:.80}") };
            assert_eq!((told, i32::from(error.code)), (id, code), "{text:.80}");
        }
        let too_long = Incoming::parse(&Line::TooLong).unwrap();
        assert!(matches!(too_long, Incoming::Malformed { error, .. } if i32::from(error.code) == -32700));
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_read() {
        let long = vec![b'x'; LONGEST as usize + 5];
        let text = [b"one\n".as_slice(), &long, b"\ntwo"].concat();
        let mut from = text.as_slice();
        let mut next = || next_line(&mut from).unwrap();
        assert!(matches!(next(), Some(Line::Whole(line)) if line == b"one\n"));
        assert!(matches!(next(), Some(Line::TooLong)));
        assert!(matches!(next(), Some(Line::Whole(line)) if line == b"two"));
        assert!(next().is_none());
    }
}
