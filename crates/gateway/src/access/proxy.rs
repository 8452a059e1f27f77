//! Whose connection it is: the peer's, or that of the client for whom a trusted proxy has opened it.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;

const FORWARDED_FOR: &str = "x-forwarded-for";

/// The proxies whose `X-Forwarded-For` is trusted.
#[derive(Debug, Default)]
pub struct Proxies(Vec<IpAddr>);

/// The address of a client, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    pub address: IpAddr,
    /// It may be a proxy's, with many clients behind it, so it has no limit of its own.
    pub is_shared: bool,
}

impl Proxies {
    pub fn new(trusted: &[IpAddr]) -> Proxies {
        Proxies(trusted.iter().map(IpAddr::to_canonical).collect())
    }

    /// The client of a new connection; only the peer is known yet.
    pub fn peer(&self, peer: IpAddr) -> Client {
        let address = peer.to_canonical();
        Client { address, is_shared: address.is_loopback() || self.0.contains(&address) }
    }

    /// The client of a request that came from `peer`. Every proxy appends the address of its peer, so the client is
    /// the last address that is not a trusted proxy; anything before it may be forged.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Client {
        let mut client = self.peer(peer);
        let lines = headers.get_all(FORWARDED_FOR).iter().rev();
        let mut hops = lines.flat_map(|line| line.to_str().unwrap_or_default().rsplit(','));
        while self.0.contains(&client.address)
            && let Some(address) = hops.next().and_then(address)
        {
            client = Client { address, is_shared: self.0.contains(&address) };
        }
        client
    }
}

/// Reads an address, which may have a port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let address = text.parse().or_else(|_| text.parse().map(|with_port: SocketAddr| with_port.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(trusted: &[&str], peer: &str, lines: &[&str]) -> (String, bool) {
        let trusted: Vec<IpAddr> = trusted.iter().map(|text| text.parse().unwrap()).collect();
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED_FOR, line.parse().unwrap());
        }
        let found = Proxies::new(&trusted).client(peer.parse().unwrap(), &headers);
        (found.address.to_string(), found.is_shared)
    }

    #[test]
    fn only_a_trusted_proxy_says_whose_request_it_is() {
        let is = |address: &str, is_shared| (address.to_owned(), is_shared);
        let told = ["198.51.100.1, 203.0.113.9"];
        assert_eq!(client(&[], "127.0.0.1", &told), is("127.0.0.1", true));
        assert_eq!(client(&[], "10.0.0.1", &told), is("10.0.0.1", false));
        assert_eq!(client(&["127.0.0.1"], "10.0.0.1", &told), is("10.0.0.1", false));
        let proxy = &["127.0.0.1"][..];
        assert_eq!(client(proxy, "127.0.0.1", &[]), is("127.0.0.1", true));
        assert_eq!(client(proxy, "127.0.0.1", &told), is("203.0.113.9", false));
        assert_eq!(client(proxy, "::ffff:127.0.0.1", &told), is("203.0.113.9", false));
        // This machine is a client like any other if the proxy reports it.
        assert_eq!(client(&["10.0.0.1"], "10.0.0.1", &["127.0.0.2"]), is("127.0.0.2", false));
        assert_eq!(
            client(&["127.0.0.1", "10.0.0.1"], "127.0.0.1", &["2001:db8::1", "10.0.0.1"]),
            is("2001:db8::1", false)
        );
        for (line, address) in [("[2001:db8::1]:443", "2001:db8::1"), ("203.0.113.9:80", "203.0.113.9")] {
            assert_eq!(client(proxy, "127.0.0.1", &[line]), is(address, false));
        }
        for unreadable in ["", "unknown", "203.0.113.9, ", "203.0.113.9 10.0.0.1"] {
            assert_eq!(client(proxy, "127.0.0.1", &[unreadable]), is("127.0.0.1", true), "{unreadable}");
        }
    }
}
