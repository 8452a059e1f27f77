//! What a failure means for people, and what they can do about it.

use std::borrow::Cow;

use super::{Address, Error};
use crate::code;

/// The code for a frame of the gateway that this version cannot read.
pub const UNREADABLE: &str = "unreadable";

const NEEDS_TOKEN: &str = "set THREAD_TOKEN to the content of the file `token` in the gateway's root";

/// An error of a command line, of what clap prints of it: one line, without what follows it.
pub fn usage(rendered: &str) -> String {
    // The error, sometimes with a list below it, is the first paragraph.
    let what = rendered.split("\n\n").next().unwrap_or_default().lines().map(str::trim);
    let what = what.collect::<Vec<_>>().join(" ");
    what.strip_prefix("error: ").unwrap_or(&what).to_owned()
}

/// A failure in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// Which one it is: the gateway's own code, or one of the client's.
    pub code: Cow<'static, str>,
    pub what: String,
    pub fix: Cow<'static, str>,
}

impl Error {
    /// Explains it to the users of a program, such as `thread chat`, which has the options `--url` and `--ca`. `begin`
    /// says how they begin another session.
    pub fn explain(&self, address: &Address, program: &str, begin: &str) -> Explained {
        let told = |code: &'static str, what: String, fix: &'static str| Explained {
            code: code.into(),
            what,
            fix: fix.into(),
        };
        match self {
            Error::Lost(why) => told(
                "unreachable",
                format!("cannot reach the gateway at {address}: {why}"),
                "start it with `thread serve`, or choose another with --url",
            ),
            Error::Unanswered { .. } => told(
                "outcome_unknown",
                self.to_string(),
                "see what the gateway prints; `thread chat --history 5` shows what arrived",
            ),
            Error::TooLarge(_) => told(
                "too_large",
                "as JSON, the message is larger than 1 MiB, which is more than the gateway takes".to_owned(),
                "send a shorter one, or use `thread push` in the session's directory",
            ),
            Error::Unreadable(_) | Error::Oversized(_) => Explained {
                fix: format!("use the `{program}` of the gateway's version").into(),
                ..told(UNREADABLE, self.to_string(), "")
            },
            Error::Closed { .. } => told(code::UNAUTHORIZED, self.to_string(), NEEDS_TOKEN),
            Error::Forbidden => told(
                code::FORBIDDEN,
                format!("the gateway does not serve {address} under this name"),
                "use its IP address, or start it with --origin and this name",
            ),
            Error::NotAGateway(why) => told(
                "not_a_gateway",
                format!("what answers at {address} is not a gateway: {why}"),
                "choose the address that `thread serve` prints, with --url",
            ),
            Error::Untrusted(why) => told(
                "untrusted",
                format!("the certificate of {address} is not trusted: {why}"),
                "name the file with the certificate of its authority with --ca",
            ),
            Error::Ca { path, why } => told(
                "io",
                format!("cannot read certificates from {}: {why}", path.display()),
                "give a file with certificates in the PEM format with --ca",
            ),
            Error::Refused(why) => {
                let fix: Cow<'static, str> = match &*why.code {
                    code::UNAUTHORIZED => NEEDS_TOKEN.into(),
                    code::UNKNOWN_SESSION => "`thread chat --sessions` lists the sessions".into(),
                    "disk_full" => {
                        "free some space where the gateway keeps its sessions, then try again".into()
                    }
                    _ => format!("try again, see what the gateway prints, or {begin}").into(),
                };
                let code = if why.code.is_empty() { "failed".to_owned() } else { why.code.clone() };
                Explained { code: code.into(), what: format!("the gateway refused: {why}"), fix }
            }
        }
    }
}
