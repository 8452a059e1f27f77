//! The address of a model's server, and its key.

use std::fmt;
use std::net::IpAddr;

use reqwest::Url;
use serde::{Deserialize, Serialize};

/// The host that has a variable for its key by default.
const MAKER: &str = "api.openai.com";

/// Where a model is asked.
#[derive(Clone, Serialize, Deserialize)]
pub struct Endpoint {
    /// Of a model, the base URL without a slash at the end.
    pub url: String,
    pub key: Option<String>,
    /// There is an agent, not a model.
    #[serde(default)]
    pub is_agent: bool,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// What is there, for errors.
    pub fn who(&self) -> String {
        format!("the {} at {}", if self.is_agent { "agent" } else { "model" }, self.url)
    }

    /// The address of one of the server's paths.
    pub fn path(&self, path: &str) -> String {
        format!("{}/{path}", self.url)
    }

    /// Whether it is reached without encryption.
    pub fn is_plain(&self) -> bool {
        self.url.starts_with("http:")
    }

    /// Whether it is on this machine, which no proxy can reach.
    pub fn is_here(&self) -> bool {
        let Ok(url) = Url::parse(&self.url) else { return false };
        let host = url.host_str().unwrap_or_default();
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => host == "localhost" || host.ends_with(".localhost"),
        }
    }

    /// A text of the server's without the key, which it may repeat.
    pub fn without_key(&self, text: &str) -> String {
        match self.key.as_deref().filter(|key| !key.is_empty()) {
            Some(key) => text.replace(key, "[key]"),
            None => text.to_owned(),
        }
    }
}

/// Checks the base URL of a model's server, such as `http://localhost:11434/v1`, and returns it without a slash at the end.
///
/// # Errors
///
/// See [`checked_url`].
pub fn parse_url(text: &str) -> Result<String, String> {
    let url = checked_url(text)?;
    let url = url.trim_end_matches('/');
    // The whole address is often what documentation shows.
    Ok(url.strip_suffix("/chat/completions").unwrap_or(url).to_owned())
}

/// Checks the URL of a model's server or an agent.
///
/// # Errors
///
/// Why it is none. Whatever is given here is stored and shown, so it must not have a password or a key.
pub fn checked_url(text: &str) -> Result<String, String> {
    let url =
        Url::parse(text).map_err(|e| format!("it is not a URL ({e}); one is http://localhost:11434/v1"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("it must begin with http:// or https:// and a host".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        return Err("it must have no password and no query; a key is given by --key-env".to_owned());
    }
    if url.fragment().is_some() {
        return Err("the model is given by --model".to_owned());
    }
    Ok(text.to_owned())
}

/// How many tokens the model of a server can read, unless it is configured. Ollama, known by its port, takes longer prompts,
/// and leaves out their beginning in silence.
pub fn default_context(url: &str) -> Option<u64> {
    (Url::parse(url).ok()?.port() == Some(11434)).then_some(4096)
}

/// The environment variable with the key for a server, if none is named: only its maker's own host has one, because a
/// key must not reach another.
pub fn default_key_variable(url: &str) -> Option<&'static str> {
    let url = Url::parse(url).ok()?;
    (url.scheme() == "https" && url.host_str() == Some(MAKER)).then_some("OPENAI_API_KEY")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_and_no_secrets() {
        let good = |text| parse_url(text).unwrap();
        assert_eq!(good("http://localhost:11434/v1/"), "http://localhost:11434/v1");
        assert_eq!(good("https://a.example/v1/chat/completions"), "https://a.example/v1");
        assert_eq!(good("https://a.example"), "https://a.example");
        for bad in [
            "",
            "localhost:11434",
            "ftp://a/b",
            "http://",
            "http://me:pw@a/",
            "http://me@a/",
            "http://a/?key=x",
            "http://a/#m",
        ] {
            assert!(parse_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_the_makers_host_has_a_key_by_default() {
        assert_eq!(default_key_variable("https://api.openai.com/v1"), Some("OPENAI_API_KEY"));
        for other in [
            "http://api.openai.com/v1",
            "https://api.openai.com.evil.example",
            "https://a.example/api.openai.com",
        ] {
            assert_eq!(default_key_variable(other), None);
        }
    }

    #[test]
    fn a_server_on_this_machine_needs_no_proxy() {
        let is_here = |url: &str| Endpoint { url: url.into(), key: None, is_agent: false }.is_here();
        let here =
            ["http://localhost:1/v1", "http://127.0.0.1:1", "http://[::1]:1/v1", "https://a.localhost"];
        assert!(here.iter().all(|url| is_here(url)));
        assert!(!is_here("http://10.0.0.1/v1") && !is_here("http://localhost.example/v1"));
    }

    #[test]
    fn a_key_is_not_shown() {
        let endpoint = Endpoint { url: "http://a".into(), key: Some("secret".into()), is_agent: false };
        assert_eq!(endpoint.without_key("the secret is secret"), "the [key] is [key]");
        assert!(!format!("{endpoint:?}").contains("secret"));
    }
}
