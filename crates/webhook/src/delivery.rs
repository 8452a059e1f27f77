//! Posting an event, and what the receiver's answer means.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_TYPE, HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use standardwebhooks::Webhook;

use crate::address::{PublicOnly, is_public};

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// How much of a refusal is kept, in bytes.
const TOLD: usize = 300;

/// The longest time that a receiver may ask to wait: a day.
const LONGEST_WAIT: u64 = 24 * 60 * 60;

/// An event to post.
#[derive(Debug)]
pub struct Delivery {
    pub id: i64,
    /// The same each time this event is posted.
    pub webhook_id: String,
    body: Vec<u8>,
}

/// What became of a request.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    Taken,
    /// The same request may be taken later; after so many seconds, if the receiver says so.
    Later {
        error: String,
        delay: Option<u64>,
    },
    /// It never will be.
    Refused(String),
    /// The receiver wants nothing any more.
    Gone(String),
}

impl Delivery {
    /// The delivery of a line with an event, as kept handlers get it; `None` if it is no event.
    pub fn of(line: Vec<u8>) -> Option<Delivery> {
        #[derive(Deserialize)]
        struct Event {
            id: i64,
            created_at: String,
            source: String,
            content: String,
        }
        let Event { id, created_at, source, content } = serde_json::from_slice(&line).ok()?;
        // Ids of several threads are alike, so there is a digest of what else an event keeps, wherever its thread is.
        let mut digest = Sha256::new();
        for part in [created_at, source, content] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let digest: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Some(Delivery { id, webhook_id: format!("evt_{id}_{digest}"), body: line })
    }
}

/// Where events are posted.
pub struct Receiver {
    url: Url,
    secrets: Vec<Webhook>,
    client: Client,
}

impl Receiver {
    /// A receiver that may take so long to answer. With secrets, requests are signed with each.
    ///
    /// # Errors
    ///
    /// What is wrong with the URL; there can be no connections.
    pub fn new(
        url: &str,
        secrets: Vec<Webhook>,
        allow_private: bool,
        timeout: Duration,
    ) -> Result<Receiver, String> {
        let url = parsed(url)?;
        if !allow_private && host_address(&url).is_some_and(|address| !is_public(address)) {
            return Err(format!(
                "{} is no public address; --allow-private posts to it",
                url.host_str().unwrap_or_default()
            ));
        }
        // Fails if there is one already, which is then the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .timeout(timeout)
            // It would connect in our place, to any address.
            .no_proxy()
            .user_agent(concat!("thread-webhook/", env!("CARGO_PKG_VERSION")));
        let client = if allow_private { client } else { client.dns_resolver(Arc::new(PublicOnly)) };
        // Root certificates take time and memory, and are not needed then.
        let client = if url.scheme() == "http" { client.tls_certs_only([]) } else { client };
        let client = client.build().map_err(|e| format!("no connection can be made: {}", cause(&e)))?;
        Ok(Receiver { url, secrets, client })
    }

    /// Posts an event.
    pub async fn post(&self, delivery: &Delivery) -> Outcome {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut request = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &delivery.webhook_id)
            .header("webhook-timestamp", now.to_string())
            .body(delivery.body.clone());
        if !self.secrets.is_empty() {
            let time = i64::try_from(now).unwrap_or(i64::MAX);
            let sign = |secret: &Webhook| secret.sign(&delivery.webhook_id, time, &delivery.body);
            match self.secrets.iter().map(sign).collect::<Result<Vec<_>, _>>() {
                Ok(signatures) => request = request.header("webhook-signature", signatures.join(" ")),
                Err(e) => return Outcome::Refused(format!("it cannot be signed: {e}")),
            }
        }
        match request.send().await {
            Ok(response) => outcome(response).await,
            Err(e) => Outcome::Later { error: no_answer(&e), delay: None },
        }
    }
}

async fn outcome(response: Response) -> Outcome {
    let status = response.status();
    if status.is_success() {
        return Outcome::Taken;
    }
    if status.is_redirection() {
        let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or("elsewhere");
        return Outcome::Refused(format!("{status}: redirected to {to}, which is not followed"));
    }
    let delay = retry_after(response.headers());
    let error = told(status, response).await;
    match status {
        StatusCode::GONE => Outcome::Gone(error),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            Outcome::Later { error, delay }
        }
        status if status.is_server_error() => Outcome::Later { error, delay },
        _ => Outcome::Refused(error),
    }
}

/// The status, and the beginning of what the receiver says about it.
async fn told(status: StatusCode, mut response: Response) -> String {
    let mut body = Vec::new();
    while body.len() < TOLD
        && let Ok(Some(piece)) = response.chunk().await
    {
        body.extend_from_slice(&piece[..piece.len().min(TOLD)]);
    }
    let text = String::from_utf8_lossy(&body);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = text.floor_char_boundary(TOLD);
    match text.is_empty() {
        true => status.to_string(),
        false => format!("{status}: {}", &text[..end]),
    }
}

/// How many seconds to wait, which is given as such or as a date.
fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = text.parse().ok().or_else(|| {
        let then = httpdate::parse_http_date(text).ok()?;
        Some(then.duration_since(SystemTime::now()).unwrap_or_default().as_secs())
    })?;
    Some(seconds.min(LONGEST_WAIT))
}

fn parsed(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|e| format!("'{text}' is not a URL ({e})"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("'{text}' does not begin with https:// or http:// and a host"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "the URL has a password, which `thread info` would show; sign with --secret-env".to_owned()
        );
    }
    Ok(url)
}

/// The address, if the URL has one in place of a name.
fn host_address(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

fn no_answer(error: &reqwest::Error) -> String {
    match error.is_timeout() {
        true => "no answer in time".to_owned(),
        false => format!("no answer: {}", cause(error)),
    }
}

/// The innermost cause. The outer ones repeat the URL, which may have a key in its query.
fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    match innermost.downcast_ref::<reqwest::Error>() {
        Some(_) => "the request failed".to_owned(),
        None => innermost.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        r#"{"id":7,"created_at":"2026-01-01T00:00:00.000Z","source":"a","type":"message","content":"x"}"#;

    #[test]
    fn an_event_has_the_same_id_each_time_and_another_event_another() {
        let id = |line: &str| Delivery::of(line.into()).unwrap().webhook_id;
        assert_eq!(id(LINE), id(LINE));
        assert!(id(LINE).starts_with("evt_7_"));
        for other in
            [LINE.replace("\"x\"", "\"y\""), LINE.replace("2026", "2025"), LINE.replace("\"a\"", "\"b\"")]
        {
            assert_ne!(id(LINE), id(&other));
        }
        assert!(Delivery::of(b"{}".to_vec()).is_none() && Delivery::of(b"no".to_vec()).is_none());
    }

    #[test]
    fn a_url_is_public_and_has_no_password() {
        let receiver = |url: &str, private| Receiver::new(url, Vec::new(), private, CONNECT).map(drop);
        assert!(receiver("https://partner.example/hook?key=1", false).is_ok());
        for bad in ["", "partner.example", "ftp://a/", "https://me:pw@a/"] {
            assert!(receiver(bad, true).is_err(), "{bad}");
        }
        for private in
            ["http://127.0.0.1/", "http://[::1]:8080/", "http://169.254.169.254/latest", "http://0x7f.1/"]
        {
            assert!(receiver(private, false).is_err(), "{private}");
            assert!(receiver(private, true).is_ok(), "{private}");
        }
    }
}
