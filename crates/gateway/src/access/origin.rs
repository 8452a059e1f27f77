//! Which pages may use the gateway, and by which host names it may be reached.
//!
//! A browser lets any page send requests, and names the page's origin in them. So requests of other origins
//! are refused. A foreign page can also let its own host name resolve to this machine (DNS rebinding), and
//! its requests are then of the same origin. So the host name is checked, too: IP addresses and `localhost`
//! cannot be rebound.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::HeaderMap;
use axum::http::header::{self, HeaderName};
use thread::failure::Failure;

/// Browsers send the origin of the page that makes a request.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Which origins may send requests, and under which names the gateway is reached.
#[derive(Debug, Default)]
pub struct Origins {
    /// The one of `--public-url`.
    public: Option<String>,
    /// Those of `--origin`.
    named: Vec<String>,
}

/// Where a request comes from, according to its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOrigin {
    /// A page of the gateway's own, or a program.
    Own,
    /// A page of another origin, which `--origin` names if it can send or read more than an image.
    Other,
}

/// The header for which a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disallowed {
    #[error("this host name is not the gateway's; --public-url and --origin admit theirs")]
    Host,
    #[error("pages of this origin may not use the gateway; --origin admits them")]
    Origin,
}

/// Reads the origins given with an option: `scheme://host[:port]`, which become lower case.
///
/// # Errors
///
/// One of them has another form.
pub fn parse(option: &str, origins: &[String]) -> Result<Vec<String>, Failure> {
    let parsed = origins.iter().map(|origin| {
        let origin = origin.trim_end_matches('/').to_ascii_lowercase();
        let valid = origin.split_once("://").is_some_and(|(scheme, host)| {
            ["http", "https"].contains(&scheme)
                && !host.is_empty()
                && host.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@\\,;".contains(&b))
        });
        if valid {
            Ok(origin)
        } else {
            Err(Failure::usage(
                format!("'{origin}' is not an origin"),
                format!("give {option} a scheme, a host and perhaps a port: https://chat.example.org"),
            ))
        }
    });
    parsed.collect()
}

impl Origins {
    /// From origins as [`parse`] returns them.
    pub fn new(public: Option<String>, named: Vec<String>) -> Origins {
        Origins { public, named }
    }

    /// The origins of other pages.
    pub fn named(&self) -> &[String] {
        &self.named
    }

    /// Checks the `Host` and `Origin` of a request.
    ///
    /// # Errors
    ///
    /// Which of the two is not allowed.
    pub fn check(&self, headers: &HeaderMap) -> Result<RequestOrigin, Disallowed> {
        let text = |name| {
            let mut values = headers.get_all(name).iter();
            let first = values.next().map(|value| value.to_str().unwrap_or_default().to_ascii_lowercase());
            // A second header is meant to make two parsers see different values. "" is never allowed.
            if values.next().is_some() { Some(String::new()) } else { first }
        };
        let host = text(header::HOST).ok_or(Disallowed::Host)?;
        let known = |host: &str| self.public.iter().chain(&self.named).any(|origin| host_of(origin) == host);
        if !(is_unambiguous(&host) || known(&host)) {
            return Err(Disallowed::Host);
        }
        let Some(origin) = text(header::ORIGIN) else {
            // An image or the like, which a page need not be able to read.
            let is_foreign =
                text(SEC_FETCH_SITE).is_some_and(|site| !["same-origin", "none"].contains(&&*site));
            return Ok(if is_foreign { RequestOrigin::Other } else { RequestOrigin::Own });
        };
        let is_named = self.named.contains(&origin);
        let is_public = self.public.as_ref().is_some_and(|public| host_of(public) == host);
        // Behind a proxy, a named origin may be the gateway's own.
        let is_own = origin == format!("http://{host}") && !is_public || is_named && host_of(&origin) == host;
        if is_own || self.public.as_ref() == Some(&origin) {
            Ok(RequestOrigin::Own)
        } else if is_named {
            Ok(RequestOrigin::Other)
        } else {
            Err(Disallowed::Origin)
        }
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

    fn check(
        public: Option<&str>,
        named: &[&str],
        host: &str,
        origin: Option<&str>,
    ) -> Result<RequestOrigin, Disallowed> {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        let public = public.map(str::to_owned);
        Origins::new(public, parse("--origin", &named).unwrap()).check(&headers)
    }

    #[test]
    fn only_the_gateways_own_origin_and_named_ones_come_in() {
        for host in ["127.0.0.1:3336", "localhost:3336", "[::1]:3336", "192.168.1.5", "LOCALHOST"] {
            assert_eq!(check(None, &[], host, None), Ok(RequestOrigin::Own), "{host}");
            let own = format!("http://{host}");
            assert_eq!(check(None, &[], host, Some(&own)), Ok(RequestOrigin::Own), "{host}");
            for foreign in ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1:3336", ""]
            {
                let found = check(None, &[], host, Some(foreign));
                assert_eq!(found, Err(Disallowed::Origin), "{host} {foreign}");
            }
        }
        let named = ["https://Chat.example.org/"];
        let chat = Some("https://chat.example.org");
        assert_eq!(check(None, &named, "chat.example.org", chat), Ok(RequestOrigin::Own));
        assert_eq!(check(None, &named, "127.0.0.1:1", chat), Ok(RequestOrigin::Other));
        let other = Some("https://other.example.org");
        assert_eq!(check(None, &named, "chat.example.org", other), Err(Disallowed::Origin));
    }

    #[test]
    fn the_public_url_is_the_gateways_own_origin_whatever_the_proxy_makes_of_the_host() {
        let public = Some("https://chat.example.org");
        for host in ["chat.example.org", "127.0.0.1:3336"] {
            assert_eq!(check(public, &[], host, public), Ok(RequestOrigin::Own), "{host}");
            assert_eq!(check(public, &[], host, None), Ok(RequestOrigin::Own), "{host}");
            for foreign in ["http://evil.example", "http://chat.example.org"] {
                let found = check(public, &[], host, Some(foreign));
                assert_eq!(found, Err(Disallowed::Origin), "{host} {foreign}");
            }
        }
        assert_eq!(check(public, &[], "evil.example", None), Err(Disallowed::Host));
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
            "[evil.example]",
            "[evil.example]:3336",
            "localhost:+1",
            "127.0.0.1:65536",
        ] {
            assert_eq!(check(None, &[], host, None), Err(Disallowed::Host), "{host}");
            let own = format!("http://{host}");
            assert_eq!(check(None, &[], host, Some(&own)), Err(Disallowed::Host), "{host}");
        }
        assert_eq!(Origins::default().check(&HeaderMap::new()), Err(Disallowed::Host));
    }

    #[test]
    fn what_is_no_origin_is_a_usage_error() {
        for bad in [
            "chat.example.org",
            "https://",
            "ftp://a",
            "https://a/b",
            "https://a@b",
            "https://a b",
            "https://ä",
        ] {
            assert!(parse("--origin", &[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_another_page_shows_of_the_gateway_is_not_its_own() {
        for (site, expected) in [
            ("same-origin", RequestOrigin::Own),
            ("none", RequestOrigin::Own),
            ("same-site", RequestOrigin::Other),
            ("cross-site", RequestOrigin::Other),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "localhost:3336".parse().unwrap());
            headers.insert(SEC_FETCH_SITE, site.parse().unwrap());
            assert_eq!(Origins::default().check(&headers), Ok(expected), "{site}");
        }
    }

    #[test]
    fn the_gateways_own_urls_have_either_scheme_and_others_are_as_they_were_named() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "Chat.example.org:8443".parse().unwrap());
        assert_eq!(own(&headers), ["http://chat.example.org:8443", "https://chat.example.org:8443"]);
        let named = vec!["https://a.example".to_owned(), "http://b.example".to_owned()];
        assert_eq!(Origins::new(None, named.clone()).named(), named);
    }
}
