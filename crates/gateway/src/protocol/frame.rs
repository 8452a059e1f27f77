//! The three kinds of frames.

use serde_json::{Map, Value, json};

use crate::error::RequestError;

/// A request: `{"type":"req","id":S,"method":M,"params":{…}}`.
#[derive(Debug, PartialEq)]
pub struct Request {
    pub id: String,
    pub method: String,
    pub params: Map<String, Value>,
}

/// A frame that is not a request.
#[derive(Debug, PartialEq)]
pub struct Malformed {
    /// The frame's id, if it has one: then it gets an error response.
    pub id: Option<String>,
    pub why: &'static str,
}

impl Request {
    /// Parses a frame. Other keys than those above are ignored.
    ///
    /// # Errors
    ///
    /// The frame is not a request.
    pub fn parse(text: &str) -> Result<Request, Malformed> {
        let malformed = |id, why| Err(Malformed { id, why });
        let Ok(value) = serde_json::from_str::<Value>(text) else {
            return malformed(None, "the frame is not valid JSON");
        };
        let Value::Object(mut frame) = value else {
            return malformed(None, "the frame is not a JSON object");
        };
        let id = match frame.remove("id") {
            Some(Value::String(id)) => id,
            _ => return malformed(None, "the frame has no 'id', or its 'id' is not a string"),
        };
        if frame.get("type").and_then(Value::as_str) != Some("req") {
            return malformed(Some(id), "the frame's 'type' is not 'req'");
        }
        let Some(Value::String(method)) = frame.remove("method") else {
            return malformed(Some(id), "the request has no 'method', or its 'method' is not a string");
        };
        match frame.remove("params") {
            None | Some(Value::Null) => Ok(Request { id, method, params: Map::new() }),
            Some(Value::Object(params)) => Ok(Request { id, method, params }),
            Some(_) => malformed(Some(id), "the request's 'params' is not an object"),
        }
    }
}

/// The response to a request that succeeded.
pub fn done(id: &str, payload: Value) -> String {
    json!({"type": "res", "id": id, "ok": true, "payload": payload}).to_string()
}

/// The response to a request that failed.
pub fn refused(id: &str, error: &str) -> String {
    json!({"type": "res", "id": id, "ok": false, "error": error}).to_string()
}

/// The response to a request with this outcome.
pub fn response(id: &str, outcome: Result<Value, &RequestError>) -> String {
    match outcome {
        Ok(payload) => done(id, payload),
        Err(e) => refused(id, &e.to_string()),
    }
}

/// An event. `seq` is its id in the thread, if it is stored there.
pub fn event(name: &str, payload: Map<String, Value>, seq: Option<i64>) -> String {
    let mut frame = json!({"type": "event", "event": name, "payload": payload});
    if let Some(seq) = seq {
        frame["seq"] = seq.into();
    }
    frame.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_request_is_told_apart_by_whether_it_can_be_answered() {
        let ok = Request::parse(r#"{"type":"req","id":"1","method":"status","more":1}"#).unwrap();
        assert_eq!((&*ok.id, &*ok.method, ok.params.len()), ("1", "status", 0));
        for (text, id) in [
            ("", None),
            ("[]", None),
            (r#"{"type":"req","id":1,"method":"status"}"#, None),
            (r#"{"type":"res","id":"1","method":"status"}"#, Some("1")),
            (r#"{"type":"req","id":"1"}"#, Some("1")),
            (r#"{"type":"req","id":"1","method":"status","params":[]}"#, Some("1")),
        ] {
            assert_eq!(Request::parse(text).unwrap_err().id.as_deref(), id, "{text}");
        }
    }
}
