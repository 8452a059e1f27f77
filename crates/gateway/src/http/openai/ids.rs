//! The ids that clients get. Each says where in which session it stands, so no table of ids is needed, and none can be
//! lost.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use thread_sessions::SessionId;
use uuid::Uuid;

/// The length of a session's id in base64.
const SESSION: usize = 22;

/// An id: a prefix such as `resp_`, then the session, then the event.
pub fn id(prefix: &str, session: SessionId, event: i64) -> String {
    let uuid = Uuid::parse_str(&session.to_string()).unwrap_or_default();
    format!("{prefix}{}{event:x}", URL_SAFE_NO_PAD.encode(uuid))
}

/// The session and event of an id with that prefix; `None` if it is no such id.
pub fn place(prefix: &str, id: &str) -> Option<(SessionId, i64)> {
    let (session, event) = id.strip_prefix(prefix)?.split_at_checked(SESSION)?;
    let session = Uuid::from_slice(&URL_SAFE_NO_PAD.decode(session).ok()?).ok()?;
    let event = i64::from_str_radix(event, 16).ok().filter(|event| *event > 0)?;
    Some((SessionId::parse(&session.hyphenated().to_string())?, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_back_and_others_lead_nowhere() {
        for event in [1, 255, i64::MAX] {
            let session = SessionId::random();
            let id = id("call_", session, event);
            assert!(id.len() <= 48, "{id}");
            assert_eq!(place("call_", &id), Some((session, event)));
            assert_eq!(place("resp_", &id), None);
        }
        for none in ["", "call_", "call_x", "call_é23456789012345678901234", "call_AAAAAAAAAAAAAAAAAAAAAA-1"]
        {
            assert_eq!(place("call_", none), None);
        }
    }
}
