//! Requests to a server of a model or an agent: one connection each, no redirects, and bounded answers.

use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, SystemTime};

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use serde_json::Value;

use super::{Endpoint, Failed};
use crate::lines::Lines;

/// How long it may take to connect.
pub const CONNECT: Duration = Duration::from_secs(10);

/// The longest line of a stream, in bytes.
const LONGEST_LINE: usize = 8 * 1024 * 1024;

/// The longest response that is not streamed, in bytes.
pub const LONGEST_BODY: usize = 32 * 1024 * 1024;

/// How much is read of a response that reports an error, and how much of it is told, in bytes.
const LONGEST_ERROR: usize = 64 * 1024;
pub const LONGEST_TOLD: usize = 300;

/// The longest wait that a server may ask for.
const LONGEST_WAIT: u64 = 60 * 60;

/// A client that follows no redirects: they could take the key and the conversation anywhere.
///
/// # Errors
///
/// It cannot be made, for want of root certificates for example.
pub fn client(endpoint: &Endpoint) -> Result<Client, Failed> {
    // Fails if there is one already, which is then the same.
    drop(rustls::crypto::ring::default_provider().install_default());
    let client = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .user_agent(concat!("thread-agent/", env!("CARGO_PKG_VERSION")));
    // Root certificates take time and memory, and are not needed then.
    let client = if endpoint.is_plain() { client.tls_certs_only([]) } else { client };
    let client = if endpoint.is_here() { client.no_proxy() } else { client };
    client.build().map_err(|e| final_failure(format!("no connection can be made: {}", cause(&e))))
}

/// Posts JSON to a URL of the server. `accept` is the form in which it should answer.
///
/// # Errors
///
/// It cannot be reached.
pub async fn post(
    client: &Client,
    (endpoint, url): (&Endpoint, &str),
    body: &Value,
    accept: &str,
) -> Result<Response, Failed> {
    let mut request = client.post(url).header(ACCEPT, accept);
    if let Some(key) = &endpoint.key {
        request = request.bearer_auth(key);
    }
    let request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
    request.send().await.map_err(|e| unreachable(&e, endpoint))
}

/// The events of a stream of server-sent events.
pub struct Events<'e> {
    response: Response,
    endpoint: &'e Endpoint,
    lines: Lines,
    /// The data of an event that is not complete.
    data: Vec<u8>,
    ready: VecDeque<Vec<u8>>,
    is_over: bool,
}

impl<'e> Events<'e> {
    pub fn of(response: Response, endpoint: &'e Endpoint) -> Events<'e> {
        let lines = Lines::of_at_most(LONGEST_LINE);
        Events { response, endpoint, lines, data: Vec::new(), ready: VecDeque::new(), is_over: false }
    }

    /// The data of the next event; `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// The connection is lost, or an event is too long.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Failed> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.is_over {
                return Ok(None);
            }
            let bytes = self.response.chunk().await.map_err(|e| broken_off(&e, self.endpoint))?;
            self.is_over = bytes.is_none();
            // A blank line ends an event, and so does the end of the stream.
            match bytes {
                Some(bytes) => self.take(&bytes)?,
                None => {
                    let rest = [self.lines.rest(), b"\n\n".to_vec()].concat();
                    self.take(&rest)?;
                }
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        for line in self.lines.push(bytes) {
            let line = line.map_err(|_| too_long(self.endpoint))?;
            let line = line.trim_ascii_end();
            if let Some(more) = line.strip_prefix(b"data:") {
                if !self.data.is_empty() {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(more.strip_prefix(b" ").unwrap_or(more));
                if self.data.len() > LONGEST_LINE {
                    return Err(too_long(self.endpoint));
                }
            }
            if line.is_empty() && !self.data.is_empty() {
                self.ready.push_back(std::mem::take(&mut self.data));
            }
        }
        Ok(())
    }
}

/// Reads the body of a response; `None` if it is longer than this.
pub async fn body_of(mut response: Response, longest: usize) -> reqwest::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    while let Some(bytes) = response.chunk().await? {
        body.extend_from_slice(&bytes);
        if body.len() > longest {
            return Ok(None);
        }
    }
    Ok(Some(body))
}

/// What a response says of an error.
pub async fn error_of(mut response: Response, endpoint: &Endpoint) -> String {
    let mut body = Vec::new();
    while body.len() < LONGEST_ERROR
        && let Ok(Ok(Some(bytes))) = tokio::time::timeout(CONNECT, response.chunk()).await
    {
        body.extend_from_slice(&bytes);
    }
    let told = match serde_json::from_slice::<Value>(&body) {
        Ok(json) => message_of(json.get("error").unwrap_or(&json)),
        Err(_) => String::from_utf8_lossy(&body).into_owned(),
    };
    shortened(&endpoint.without_key(&told), LONGEST_TOLD)
}

/// The message in an error, which servers give in several forms.
pub fn message_of(error: &Value) -> String {
    let texts = [error, &error["message"], &error["detail"], &error["error"]];
    texts.into_iter().find_map(Value::as_str).map_or_else(|| error.to_string(), str::to_owned)
}

/// The beginning of a text, on one line.
pub fn shortened(text: &str, most: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace(char::is_control, " ");
    match text.floor_char_boundary(most) {
        end if end < text.len() => format!("{}…", &text[..end]),
        _ => text,
    }
}

/// How many seconds a server asks to wait: a number, or a date.
pub fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let until = || httpdate::parse_http_date(text).ok();
    let seconds = text
        .parse()
        .ok()
        .or_else(|| Some(until()?.duration_since(SystemTime::now()).map_or(0, |wait| wait.as_secs() + 1)));
    seconds.map(|seconds: u64| seconds.min(LONGEST_WAIT))
}

/// Why a server refuses a request. `missing` is what the URL has not if
/// that is why, with what can be done about it.
pub fn refused(status: StatusCode, told: &str, endpoint: &Endpoint, (missing, hint): (&str, &str)) -> Failed {
    let (url, who) = (&endpoint.url, endpoint.who());
    let told = if told.is_empty() { String::new() } else { format!(": {told}") };
    let code = status.as_u16();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if endpoint.key.is_none() => final_failure(format!(
            "{url} asks for a key ({code}{told}): put it into a file for --env-file, and name its variable by --key-env"
        )),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            final_failure(format!("{url} refuses the key ({code}{told}): check the variable of --key-env"))
        }
        StatusCode::NOT_FOUND => final_failure(format!("{url} has {missing} ({code}{told}): {hint}")),
        StatusCode::TOO_MANY_REQUESTS => {
            retryable(format!("{who} has too many requests, or the account has no quota left ({code}{told})"))
        }
        _ if status.is_server_error() || matches!(code, 408 | 409 | 425) => {
            retryable(format!("{who} failed ({code}{told})"))
        }
        _ => final_failure(format!("{url} refuses the request ({code}{told})")),
    }
}

/// Where a redirect leads is told without its query, which may have secrets.
pub fn redirected(response: &Response, endpoint: &Endpoint) -> Failed {
    let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
    let to = to.and_then(|to| response.url().join(to).ok()).and_then(|mut to: Url| {
        to.set_query(None);
        to.set_fragment(None);
        // A URL whose password cannot be removed is not shown.
        to.set_username("").and_then(|()| to.set_password(None)).ok()?;
        Some(shortened(&endpoint.without_key(to.as_str()), LONGEST_TOLD))
    });
    let to = to.unwrap_or_else(|| "elsewhere".to_owned());
    final_failure(format!("{} redirects to {to}, which is not followed: give the right URL", endpoint.url))
}

pub fn unreachable(error: &reqwest::Error, endpoint: &Endpoint) -> Failed {
    let who = endpoint.who();
    let why = if error.is_timeout() { "it took too long".to_owned() } else { cause(error) };
    match error.is_connect() || error.is_timeout() {
        true => retryable(format!("{who} cannot be reached ({why}): start it, or check the URL")),
        false => broken_off(error, endpoint),
    }
}

pub fn broken_off(error: &reqwest::Error, endpoint: &Endpoint) -> Failed {
    retryable(format!("the connection to {} was lost ({})", endpoint.who(), cause(error)))
}

pub fn too_long(endpoint: &Endpoint) -> Failed {
    final_failure(format!("{} sends more than is accepted for one answer", endpoint.who()))
}

/// The innermost reason, which says most in the fewest words.
fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    shortened(&innermost.to_string(), LONGEST_TOLD)
}

pub fn retryable(error: String) -> Failed {
    Failed { error, retryable: true, ..Failed::default() }
}

pub fn final_failure(error: String) -> Failed {
    Failed { error, retryable: false, ..Failed::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_may_ask_to_wait_by_a_number_or_a_date() {
        let after = |text: &str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]));
        assert_eq!((after("7"), after("99999999999"), after("soon")), (Some(7), Some(LONGEST_WAIT), None));
        let date = |seconds| httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds));
        assert!((28..=31).contains(&after(&date(30)).unwrap()));
        assert_eq!(after("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
    }

    #[test]
    fn errors_are_found_in_their_forms() {
        for (error, message) in [
            (json!("a"), "a"),
            (json!({ "message": "b", "code": 1 }), "b"),
            (json!({ "detail": "c" }), "c"),
            (json!({ "n": 1 }), r#"{"n":1}"#),
        ] {
            assert_eq!(message_of(&error), message);
        }
    }
}
