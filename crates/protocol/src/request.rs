//! Requests: `{"type":"req","id":S,"method":M,"params":{…}}`.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::method::Method;

/// A request whose method has not been parsed yet; [`Call::parse`](crate::Call::parse) does that.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub id: String,
    pub method: String,
    pub params: Map<String, Value>,
}

/// A frame that is not a request.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// The frame of a request.
pub fn text<M: Method>(id: &str, params: &M::Params) -> String {
    #[derive(Serialize)]
    struct Whole<'a, P> {
        r#type: &'static str,
        id: &'a str,
        method: &'static str,
        params: &'a P,
    }
    crate::to_text(&Whole { r#type: "req", id, method: M::NAME, params })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method;

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

    #[test]
    fn the_text_of_a_request_is_what_parse_reads() {
        let params = method::RenameParams { session_id: "s".into(), title: "t \"1\"".into() };
        let text = text::<method::SessionsRename>("7", &params);
        assert_eq!(
            text,
            r#"{"type":"req","id":"7","method":"sessions.rename","params":{"sessionId":"s","title":"t \"1\""}}"#
        );
        let request = Request::parse(&text).unwrap();
        assert_eq!((&*request.id, &*request.method), ("7", "sessions.rename"));
    }
}
