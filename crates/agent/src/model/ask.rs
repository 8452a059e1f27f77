//! Asking a model for a turn, and what its server answers.

use std::error::Error;
use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_TYPE, HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use serde_json::{Value, json};
use thread_conversation::ModelTurn;

use super::assembly::{Assembly, Chunk};
use super::{Endpoint, Failed, Heard};
use crate::lines::Lines;

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(10);

/// The longest line of a stream, in bytes.
const LONGEST_LINE: usize = 8 * 1024 * 1024;

/// The longest response that is not streamed, in bytes.
const LONGEST_BODY: usize = 32 * 1024 * 1024;

/// How much is read of a response that reports an error, and how much of it is told, in bytes.
const LONGEST_ERROR: usize = 64 * 1024;
const LONGEST_TOLD: usize = 300;

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

/// Asks for a turn. What is heard meanwhile goes to `hear`.
///
/// # Errors
///
/// Why there is none.
pub async fn ask(
    endpoint: &Endpoint,
    model: &str,
    messages: &[Value],
    more: &Value,
    hear: &mut impl FnMut(Heard),
) -> Result<ModelTurn, Failed> {
    let client = client(endpoint)?;
    let usage = json!({ "include_usage": true });
    let mut body = json!({ "model": model, "messages": messages, "stream": true, "stream_options": usage });
    if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
        body.extend(more.clone());
    }
    let mut response = post(&client, endpoint, &body).await?;
    if matches!(response.status(), StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY) {
        let told = error_of(response, endpoint).await;
        if !told.contains("stream_options") {
            let failed = refused(StatusCode::BAD_REQUEST, &told, endpoint, model);
            return Err(Failed { context: context_in(&told), told, ..failed });
        }
        // Some servers do not know it: then there are no numbers of tokens.
        drop(body.as_object_mut().and_then(|body| body.shift_remove("stream_options")));
        response = post(&client, endpoint, &body).await?;
    }
    let status = response.status();
    if status.is_redirection() {
        return Err(redirected(&response, endpoint));
    }
    if !status.is_success() {
        let retry_after = retry_after(response.headers());
        let told = error_of(response, endpoint).await;
        let failed = refused(status, &told, endpoint, model);
        let context = context_in(&told).filter(|_| status != StatusCode::TOO_MANY_REQUESTS);
        return Err(Failed { retry_after, context, told, ..failed });
    }
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.starts_with("application/json") {
        true => whole(response, endpoint, hear).await,
        false => streamed(response, endpoint, hear).await,
    }
}

async fn post(client: &Client, endpoint: &Endpoint, body: &Value) -> Result<Response, Failed> {
    let mut request = client.post(endpoint.path("chat/completions"));
    if let Some(key) = &endpoint.key {
        request = request.bearer_auth(key);
    }
    let request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
    request.send().await.map_err(|e| unreachable(&e, endpoint))
}

/// The names of the models that the server offers; none if it has no such list.
///
/// # Errors
///
/// It cannot be reached, or refuses to say.
pub async fn models(endpoint: &Endpoint) -> Result<Vec<String>, Failed> {
    let mut request = client(endpoint)?.get(endpoint.path("models")).timeout(CONNECT);
    if let Some(key) = &endpoint.key {
        request = request.bearer_auth(key);
    }
    let response = request.send().await.map_err(|e| unreachable(&e, endpoint))?;
    if response.status().is_redirection() {
        return Err(redirected(&response, endpoint));
    }
    let status = response.status();
    if matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) {
        return Ok(Vec::new());
    }
    if !status.is_success() {
        return Err(refused(status, &error_of(response, endpoint).await, endpoint, ""));
    }
    let list = body_of(response, LONGEST_BODY).await.map_err(|e| broken_off(&e, endpoint))?;
    let list: Value = serde_json::from_slice(&list.unwrap_or_default()).unwrap_or_default();
    let ids = list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str());
    Ok(ids.map(str::to_owned).collect())
}

/// Reads a stream of server-sent events.
async fn streamed(
    mut response: Response,
    endpoint: &Endpoint,
    hear: &mut impl FnMut(Heard),
) -> Result<ModelTurn, Failed> {
    let (mut lines, mut data, mut assembly) =
        (Lines::of_at_most(LONGEST_LINE), Vec::new(), Assembly::default());
    loop {
        let bytes = response.chunk().await.map_err(|e| broken_off(&e, endpoint))?;
        let is_over = bytes.is_none();
        // A blank line ends an event, and so does the end of the stream.
        let mut rest = if is_over { [lines.rest(), b"\n\n".to_vec()].concat() } else { Vec::new() };
        if let Some(bytes) = bytes {
            rest.extend_from_slice(&bytes);
        }
        for line in lines.push(&rest) {
            let line = line.map_err(|_| too_long(endpoint))?;
            let line = line.trim_ascii_end();
            if let Some(more) = line.strip_prefix(b"data:") {
                if !data.is_empty() {
                    data.push(b'\n');
                }
                data.extend_from_slice(more.strip_prefix(b" ").unwrap_or(more));
                if data.len() > LONGEST_LINE {
                    return Err(too_long(endpoint));
                }
            }
            if !line.is_empty() || data.is_empty() {
                continue;
            }
            let event = std::mem::take(&mut data);
            if event == b"[DONE]" {
                return finish(assembly, endpoint);
            }
            take(&event, &mut assembly, endpoint, hear)?;
        }
        if is_over {
            return match assembly.is_finished() {
                true => finish(assembly, endpoint),
                false => Err(retryable(format!("the answer of the model at {} broke off", endpoint.url))),
            };
        }
    }
}

/// Reads a response that is not streamed.
async fn whole(
    response: Response,
    endpoint: &Endpoint,
    hear: &mut impl FnMut(Heard),
) -> Result<ModelTurn, Failed> {
    let body = body_of(response, LONGEST_BODY).await.map_err(|e| broken_off(&e, endpoint))?;
    let body = body.ok_or_else(|| too_long(endpoint))?;
    let mut assembly = Assembly::default();
    take(&body, &mut assembly, endpoint, hear)?;
    finish(assembly, endpoint)
}

fn take(
    json: &[u8],
    assembly: &mut Assembly,
    endpoint: &Endpoint,
    hear: &mut impl FnMut(Heard),
) -> Result<(), Failed> {
    let chunk: Chunk = serde_json::from_slice(json).map_err(|e| {
        let shown = shortened(&endpoint.without_key(&String::from_utf8_lossy(json)), 80);
        retryable(format!("{} does not send chat completions ({e}): {shown}", endpoint.url))
    })?;
    if let Some(error) = chunk.error.as_ref().filter(|error| !error.is_null()) {
        let told = shortened(&endpoint.without_key(&message_of(error)), LONGEST_TOLD);
        return Err(retryable(format!("the model at {} failed: {told}", endpoint.url)));
    }
    assembly.push(chunk).map_err(|_| too_long(endpoint))?.into_iter().for_each(hear);
    Ok(())
}

fn finish(assembly: Assembly, endpoint: &Endpoint) -> Result<ModelTurn, Failed> {
    match assembly.is_empty() {
        true => Err(retryable(format!("the model at {} said nothing", endpoint.url))),
        false => Ok(assembly.finish()),
    }
}

/// Reads the body of a response; `None` if it is longer than this.
async fn body_of(mut response: Response, longest: usize) -> reqwest::Result<Option<Vec<u8>>> {
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
async fn error_of(mut response: Response, endpoint: &Endpoint) -> String {
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
fn message_of(error: &Value) -> String {
    let texts = [error, &error["message"], &error["detail"], &error["error"]];
    texts.into_iter().find_map(Value::as_str).map_or_else(|| error.to_string(), str::to_owned)
}

/// The beginning of a text, on one line.
fn shortened(text: &str, most: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace(char::is_control, " ");
    match text.floor_char_boundary(most) {
        end if end < text.len() => format!("{}…", &text[..end]),
        _ => text,
    }
}

/// How many seconds a server asks to wait: a number, or a date.
fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let until = || httpdate::parse_http_date(text).ok();
    let seconds = text
        .parse()
        .ok()
        .or_else(|| Some(until()?.duration_since(SystemTime::now()).map_or(0, |wait| wait.as_secs() + 1)));
    seconds.map(|seconds: u64| seconds.min(LONGEST_WAIT))
}

fn refused(status: StatusCode, told: &str, endpoint: &Endpoint, model: &str) -> Failed {
    let url = &endpoint.url;
    let told = if told.is_empty() { String::new() } else { format!(": {told}") };
    let code = status.as_u16();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if endpoint.key.is_none() => final_failure(format!(
            "{url} asks for a key ({code}{told}): put it into a file for --env-file, and name its variable by --key-env"
        )),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            final_failure(format!("{url} refuses the key ({code}{told}): check the variable of --key-env"))
        }
        StatusCode::NOT_FOUND => final_failure(format!(
            "{url} has no model '{model}' or no chat completions ({code}{told}): check the name, and the URL, which \
             often ends in /v1"
        )),
        StatusCode::TOO_MANY_REQUESTS => retryable(format!(
            "the model at {url} has too many requests, or the account has no quota left ({code}{told})"
        )),
        _ if status.is_server_error() || matches!(code, 408 | 409 | 425) => {
            retryable(format!("the model at {url} failed ({code}{told})"))
        }
        _ => final_failure(format!("{url} refuses the request ({code}{told})")),
    }
}

/// How many tokens the model can read, if the error is that the prompt has more; 0 if it does not say how many.
fn context_in(told: &str) -> Option<u64> {
    let told = told.to_ascii_lowercase();
    const SIGNS: [&str; 6] = [
        "maximum context length",
        "context_length",
        "context size",
        "context window",
        "prompt is too long",
        "context length",
    ];
    SIGNS.iter().find(|sign| told.contains(**sign))?;
    let number = |before: &str| {
        let rest = told.split(before).nth(1)?.trim_start_matches(|c: char| !c.is_ascii_digit());
        rest[..rest.bytes().take_while(u8::is_ascii_digit).count()].parse().ok()
    };
    let named = ["maximum context length", " > ", "context window of", "context size"];
    Some(named.iter().find_map(|before| number(before)).filter(|number| *number >= 256).unwrap_or(0))
}

/// Where a redirect leads is told without its query, which may have secrets.
fn redirected(response: &Response, endpoint: &Endpoint) -> Failed {
    let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
    let to = to.and_then(|to| response.url().join(to).ok()).map(|mut to: Url| {
        to.set_query(None);
        to.set_fragment(None);
        // Neither can fail for a URL with a host.
        let _ = to.set_username("").and_then(|()| to.set_password(None));
        shortened(&endpoint.without_key(to.as_str()), LONGEST_TOLD)
    });
    let to = to.unwrap_or_else(|| "elsewhere".to_owned());
    final_failure(format!("{} redirects to {to}, which is not followed: give the right URL", endpoint.url))
}

fn unreachable(error: &reqwest::Error, endpoint: &Endpoint) -> Failed {
    let url = &endpoint.url;
    let why = if error.is_timeout() { "it took too long".to_owned() } else { cause(error) };
    match error.is_connect() || error.is_timeout() {
        true => {
            retryable(format!("the model at {url} cannot be reached ({why}): start it, or check the URL"))
        }
        false => broken_off(error, endpoint),
    }
}

fn broken_off(error: &reqwest::Error, endpoint: &Endpoint) -> Failed {
    retryable(format!("the connection to the model at {} was lost ({})", endpoint.url, cause(error)))
}

fn too_long(endpoint: &Endpoint) -> Failed {
    final_failure(format!("the model at {} sends more than is accepted for one answer", endpoint.url))
}

/// The innermost reason, which says most in the fewest words.
fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    shortened(&innermost.to_string(), LONGEST_TOLD)
}

fn retryable(error: String) -> Failed {
    Failed { error, retryable: true, ..Failed::default() }
}

fn final_failure(error: String) -> Failed {
    Failed { error, retryable: false, ..Failed::default() }
}

#[cfg(test)]
mod tests {
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
    fn the_length_of_a_context_is_found_in_errors() {
        for (told, expected) in [
            (
                "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
                Some(8192),
            ),
            ("prompt is too long: 210000 tokens > 200000 maximum", Some(200_000)),
            ("the request exceeds the available context size, try increasing it", Some(0)),
            ("Requested tokens (900) exceed context window of 512", Some(512)),
            ("the tool is unknown", None),
        ] {
            assert_eq!(context_in(told), expected, "{told}");
        }
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
