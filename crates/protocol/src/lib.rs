//! Protocol v1 of the gateway `thread serve`, as types: requests, responses and events.
//!
//! docs/PROTOCOL.md explains it; the JSON Schemas in docs/schema are generated from these types by a test.
//! Each method's name and each event's name is written once, in the tables of [`method`] and [`event`].
//!
//! Readers ignore unknown keys. A client also ignores unknown events, and keeps unknown words (a new `status`, say)
//! as text: [`incoming`] distinguishes these from a broken frame, which is an error to show.

#[macro_use]
mod payloads;
#[macro_use]
mod words;

#[cfg(feature = "client")]
pub mod client;
pub mod code;
pub mod content;
pub mod event;
pub mod incoming;
pub mod method;
pub mod request;
pub mod response;
mod xdg;

#[cfg(test)]
mod schema;

pub use content::Content;
pub use event::{Event, Frame};
pub use incoming::{Incoming, Refusal, Unreadable};
pub use method::{Call, CallError, METHODS, Method};
pub use request::{Malformed, Request};
pub use xdg::base_directory;

/// The version that clients name in `connect`.
pub const VERSION: &str = "1";

/// The longest frame that a client may send, in bytes.
pub const MAX_FRAME: usize = 1024 * 1024;

/// The longest frame that a client may send before it has shown a token, in bytes.
pub const MAX_FRAME_BEFORE_CONNECT: usize = 16 * 1024;

/// How many requests of one client may be unanswered.
pub const MAX_UNANSWERED: usize = 64;

/// How deep content parts may be nested; deeper ones are shown as the text that they are stored as.
pub const MAX_NESTING: usize = 32;

/// The first words of messages that the gateway answers itself, behind a `/`. Any other text is a message,
/// even if it begins with a `/`.
pub const COMMANDS: &[&str] = &["new", "sessions", "session", "history", "status", "cancel", "clear", "help"];

/// Why the gateway ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    GoingAway,
    Malformed,
    NotText,
    Unauthorized,
    NotConnected,
    Version,
    TooManyRequests,
    Silent,
    FrameTooBig,
    Full,
}

impl Close {
    /// The WebSocket close code, and the reason for people.
    fn told(self) -> (u16, &'static str) {
        match self {
            Close::GoingAway => (1001, "the gateway is shutting down"),
            Close::Malformed => (1002, "a frame is not a request"),
            Close::NotText => (1003, "frames are JSON text"),
            Close::Unauthorized => (1008, "wrong or missing token"),
            Close::NotConnected => (1008, "the first frame must be connect, within 10 s"),
            Close::Version => (1008, "the gateway speaks version 1"),
            Close::TooManyRequests => (1008, "too many unanswered requests"),
            Close::Silent => (1008, "nothing was received for 60 s"),
            Close::FrameTooBig => (1009, "a frame is too large"),
            Close::Full => (1013, "too many connections"),
        }
    }

    /// The WebSocket close code.
    pub fn code(self) -> u16 {
        self.told().0
    }

    pub fn reason(self) -> &'static str {
        self.told().1
    }
}

/// The JSON of a frame. Nothing in these types can fail to serialize: their keys are strings.
fn to_text(frame: &impl serde::Serialize) -> String {
    serde_json::to_string(frame).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::Close::*;
    use super::*;

    #[test]
    fn the_limits_are_those_of_the_protocol() {
        assert_eq!((MAX_FRAME_BEFORE_CONNECT, MAX_FRAME), (16_384, 1_048_576));
        assert_eq!((MAX_UNANSWERED, MAX_NESTING, VERSION), (64, 32, "1"));
    }

    #[test]
    fn the_close_codes_are_those_of_the_protocol() {
        let mut reasons = std::collections::BTreeSet::new();
        for (code, ends) in [
            (1001, &[GoingAway][..]),
            (1002, &[Malformed]),
            (1003, &[NotText]),
            (1008, &[Unauthorized, NotConnected, Close::Version, TooManyRequests, Silent]),
            (1009, &[FrameTooBig]),
            (1013, &[Full]),
        ] {
            for end in ends {
                assert!(reasons.insert(end.reason()), "{end:?} has the reason of another");
                // A close frame has room for 123 bytes.
                assert!(end.code() == code && (1..=123).contains(&end.reason().len()), "{end:?}");
            }
        }
    }
}
