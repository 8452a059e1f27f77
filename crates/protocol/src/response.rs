//! Responses: `{"type":"res","id":S,"ok":true,"payload":{…}}` or `{"type":"res","id":S,"ok":false,"error":S,"code":C}`.

use serde::Serialize;
use serde_json::json;

use crate::method::Method;

/// The response to a request that succeeded. For a payload whose method is known, [`payload`] is stricter.
pub fn ok(id: &str, payload: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Whole<'a, P> {
        r#type: &'static str,
        id: &'a str,
        ok: bool,
        payload: &'a P,
    }
    crate::to_text(&Whole { r#type: "res", id, ok: true, payload })
}

/// The response to a request for `M` that succeeded.
pub fn payload<M: Method>(id: &str, payload: &M::Payload) -> String {
    ok(id, payload)
}

/// The response to a request that failed. `code` is a word of [`code`](crate::code) or one of `thread`.
pub fn error(id: &str, error: &str, code: &str) -> String {
    json!({ "type": "res", "id": id, "ok": false, "error": error, "code": code }).to_string()
}
