//! A gateway's address, as people write it.

use std::fmt;
use std::net::IpAddr;

use tokio_tungstenite::tungstenite::http::uri::Authority;

/// The URL of a gateway's WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub(super) is_tls: bool,
    /// Host and port.
    authority: Authority,
}

impl Address {
    /// Reads `host:port`, or a URL that begins with `http`, `https`, `ws` or `wss`; its path is ignored.
    /// `None` if it is no such address, or has a user name in it.
    pub fn parse(text: &str) -> Option<Address> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("ws", text));
        let is_tls = match scheme {
            "http" | "ws" => false,
            "https" | "wss" => true,
            _ => return None,
        };
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let authority: Authority = host.parse().ok()?;
        let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.ends_with(']'));
        let is_valid = !authority.host().is_empty()
            && !host.contains('@')
            && port.is_none() == authority.port().is_none();
        is_valid.then_some(Address { is_tls, authority })
    }

    /// Whether it is this machine, without asking a name server.
    pub fn is_loopback(&self) -> bool {
        let host = self.authority.host();
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/ws", if self.is_tls { "wss" } else { "ws" }, self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Option<String> {
        Address::parse(text).map(|address| address.to_string())
    }

    #[test]
    fn addresses_are_understood_as_people_write_them() {
        for text in ["127.0.0.1:3336", "http://127.0.0.1:3336/", "ws://127.0.0.1:3336/ws?x=1"] {
            assert_eq!(url(text).as_deref(), Some("ws://127.0.0.1:3336/ws"));
        }
        for text in ["https://example.org", "wss://example.org/", "https://example.org/#token=x"] {
            assert_eq!(url(text).as_deref(), Some("wss://example.org/ws"));
        }
        assert_eq!(url("[::1]:3336").as_deref(), Some("ws://[::1]:3336/ws"));
        assert_eq!(url("localhost").as_deref(), Some("ws://localhost/ws"));
        for bad in [
            "",
            "http://",
            "a b:1",
            "http://me:secret@localhost:1",
            "127.0.0.1:99999",
            "localhost:",
            ":1",
            "ftp://localhost:1",
        ] {
            assert_eq!(url(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_that_begins_like_this_machine_is_another_one() {
        let is_loopback = |text| Address::parse(text).unwrap().is_loopback();
        for own in ["127.0.0.1:3336", "localhost:1", "https://localhost", "[::1]:1", "127.1.2.3"] {
            assert!(is_loopback(own), "{own}");
        }
        for other in
            ["localhost.example.org:1", "127.0.0.1.example.org:1", "10.0.0.1:3336", "[2001:db8::1]:1"]
        {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
