//! The frames of the WebSocket, and stored events as frames.
//!
//! docs/PROTOCOL.md is the contract, docs/schema/ its machine-readable form.

pub mod content;
pub mod event;
pub mod frame;

/// The version that clients name in `connect`.
pub const VERSION: &str = "1";

/// The longest frame a client may send, in bytes.
pub const MAX_FRAME: usize = 1024 * 1024;

/// How many requests of one client may be unanswered.
pub const MAX_UNANSWERED: usize = 64;

/// How many bytes may wait for a client that reads slowly.
pub const MAX_BACKLOG: usize = 16 * 1024 * 1024;

/// Why a connection ends, as a WebSocket close code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    GoingAway,
    Malformed,
    NotText,
    Unauthorized,
    NotConnected,
    Version,
    TooManyRequests,
    FrameTooBig,
    SlowReader,
    Silent,
}

impl Close {
    pub fn code(self) -> u16 {
        match self {
            Close::GoingAway => 1001,
            Close::Malformed => 1002,
            Close::NotText => 1003,
            Close::Unauthorized
            | Close::NotConnected
            | Close::Version
            | Close::TooManyRequests
            | Close::Silent => 1008,
            Close::FrameTooBig => 1009,
            Close::SlowReader => 1013,
        }
    }

    pub fn reason(self) -> &'static str {
        match self {
            Close::GoingAway => "the gateway is shutting down",
            Close::Malformed => "a frame is not a request",
            Close::NotText => "frames are JSON text",
            Close::Unauthorized => "wrong or missing token",
            Close::NotConnected => "the first frame must be connect, within 10 s",
            Close::Version => "the gateway speaks version 1",
            Close::TooManyRequests => "too many unanswered requests",
            Close::FrameTooBig => "a frame is larger than 1 MiB",
            Close::SlowReader => "too much is waiting to be read",
            Close::Silent => "nothing was received for 60 s",
        }
    }
}
