//! Which pages may use the gateway, and by which host names it may be reached.
//!
//! A browser lets any page send requests, and names the page's origin in them. So requests of other origins
//! are refused. A foreign page can also let its own host name resolve to this machine (DNS rebinding), and
//! its requests are then of the same origin. So the host name is checked, too: IP addresses and `localhost`
//! cannot be rebound.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderMap, header};

use crate::error::StartError;

/// Allowed origins besides the gateway's own: `scheme://host[:port]`, in lower case.
pub struct Origins(Vec<String>);

/// The header for which a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disallowed {
    Host,
    Origin,
}

impl Disallowed {
    pub fn message(self) -> &'static str {
        match self {
            Disallowed::Host => "this host name is not the gateway's; --origin admits it",
            Disallowed::Origin => "pages of this origin may not use the gateway; --origin admits them",
        }
    }
}

impl Origins {
    /// # Errors
    ///
    /// One of them is not of the form `scheme://host[:port]`.
    pub fn new(named: &[String]) -> Result<Origins, StartError> {
        let origins = named.iter().map(|origin| {
            let origin = origin.trim_end_matches('/').to_ascii_lowercase();
            let valid = origin.split_once("://").is_some_and(|(scheme, host)| {
                ["http", "https"].contains(&scheme)
                    && !host.is_empty()
                    && !host.contains(['/', '?', '#', '@', ' '])
            });
            if valid {
                Ok(origin)
            } else {
                Err(StartError::usage(
                    format!("'{origin}' is not an origin"),
                    "give --origin a scheme, a host and perhaps a port: https://chat.example.org",
                ))
            }
        });
        Ok(Origins(origins.collect::<Result<_, _>>()?))
    }

    /// The origins as strings.
    pub fn into_names(self) -> Vec<String> {
        self.0
    }

    /// Checks the `Host` and `Origin` of a request.
    ///
    /// # Errors
    ///
    /// Which of the two is not allowed.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Disallowed> {
        let text = |name| {
            let mut values = headers.get_all(name).iter();
            let first = values.next().map(|value| value.to_str().unwrap_or_default().to_ascii_lowercase());
            // A second header is meant to make two parsers see different values. "" is never allowed.
            if values.next().is_some() { Some(String::new()) } else { first }
        };
        let host = text(header::HOST).ok_or(Disallowed::Host)?;
        let named = |host: &str| self.0.iter().any(|origin| host_of(origin) == host);
        if !(is_unambiguous(&host) || named(&host)) {
            return Err(Disallowed::Host);
        }
        let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
        let own = origin.split_once("://").is_some_and(|(scheme, rest)| scheme == "http" && rest == host);
        if own || self.0.contains(&origin) { Ok(()) } else { Err(Disallowed::Origin) }
    }
}

/// The origins under which a request that [`Origins::check`] has accepted may name the gateway's own URLs.
pub fn own(headers: &HeaderMap) -> Vec<String> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    // Behind a proxy that terminates TLS, the scheme is another.
    ["http", "https"].map(|scheme| format!("{scheme}://{host}").to_ascii_lowercase()).into()
}

fn host_of(origin: &str) -> &str {
    origin.split_once("://").map_or(origin, |(_, host)| host)
}

/// Whether a host (with or without a port) is an IP address or `localhost`, which no name server can
/// redirect.
fn is_unambiguous(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if address.parse::<Ipv6Addr>().is_ok() => ("localhost", port),
            _ => return false,
        },
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok();
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
        && (name == "localhost" || name.parse::<Ipv4Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(named: &[&str], host: &str, origin: Option<&str>) -> Result<(), Disallowed> {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        Origins::new(&named).unwrap().check(&headers)
    }

    #[test]
    fn only_the_gateways_own_origin_and_named_ones_come_in() {
        for host in ["127.0.0.1:3336", "localhost:3336", "[::1]:3336", "192.168.1.5", "LOCALHOST"] {
            assert_eq!(check(&[], host, None), Ok(()), "{host}");
            assert_eq!(check(&[], host, Some(&format!("http://{host}"))), Ok(()), "{host}");
            for foreign in ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1:3336", ""]
            {
                assert_eq!(check(&[], host, Some(foreign)), Err(Disallowed::Origin), "{host} {foreign}");
            }
        }
        let named = ["https://Chat.example.org/"];
        assert_eq!(check(&named, "chat.example.org", Some("https://chat.example.org")), Ok(()));
        assert_eq!(check(&named, "127.0.0.1:1", Some("https://chat.example.org")), Ok(()));
        assert_eq!(
            check(&named, "chat.example.org", Some("https://other.example.org")),
            Err(Disallowed::Origin)
        );
    }

    #[test]
    fn a_name_that_could_be_rebound_is_refused() {
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:3336",
            "[::1",
            "",
            "a:b",
            "127.0.0.1:80@evil.example",
            "localhost:",
            "[::1]x",
            "[::1]:x",
            "localhost:+1",
            "127.0.0.1:65536",
        ] {
            assert_eq!(check(&[], host, None), Err(Disallowed::Host), "{host}");
            assert_eq!(check(&[], host, Some(&format!("http://{host}"))), Err(Disallowed::Host), "{host}");
        }
        assert_eq!(Origins::new(&[]).unwrap().check(&HeaderMap::new()), Err(Disallowed::Host));
    }

    #[test]
    fn what_is_no_origin_is_a_usage_error() {
        for bad in ["chat.example.org", "https://", "ftp://a", "https://a/b", "https://a@b"] {
            assert!(Origins::new(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
