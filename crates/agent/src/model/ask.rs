//! Asking a model for a turn, and what its server answers.

use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use thread_conversation::ModelTurn;

use super::assembly::{Assembly, Chunk};
use super::http::{
    CONNECT, Events, LONGEST_BODY, LONGEST_TOLD, body_of, broken_off, client, error_of, message_of, post,
    redirected, refused, retry_after, retryable, shortened, too_long, unreachable,
};
use super::{Endpoint, Failed, Heard};

/// Asks for a turn. Its pieces go to `hear` as they come.
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
    let url = endpoint.path("chat/completions");
    let missing = format!("no model '{model}' or no chat completions");
    let missing = (&*missing, "check the name, and the URL, which often ends in /v1");
    let usage = json!({ "include_usage": true });
    let mut body = json!({ "model": model, "messages": messages, "stream": true, "stream_options": usage });
    if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
        body.extend(more.clone());
    }
    let mut response = post(&client, (endpoint, &url), &body, "*/*").await?;
    if matches!(response.status(), StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY) {
        let told = error_of(response, endpoint).await;
        if !told.contains("stream_options") {
            let failed = refused(StatusCode::BAD_REQUEST, &told, endpoint, missing);
            return Err(Failed { context: context_in(&told), told, ..failed });
        }
        // Some servers do not know it: then there are no numbers of tokens.
        drop(body.as_object_mut().and_then(|body| body.shift_remove("stream_options")));
        response = post(&client, (endpoint, &url), &body, "*/*").await?;
    }
    let status = response.status();
    if status.is_redirection() {
        return Err(redirected(&response, endpoint));
    }
    if !status.is_success() {
        let retry_after = retry_after(response.headers());
        let told = error_of(response, endpoint).await;
        let failed = refused(status, &told, endpoint, missing);
        let context = context_in(&told).filter(|_| status != StatusCode::TOO_MANY_REQUESTS);
        return Err(Failed { retry_after, context, told, ..failed });
    }
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    match kind.starts_with("application/json") {
        true => whole(response, endpoint, hear).await,
        false => streamed(response, endpoint, hear).await,
    }
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
        return Err(refused(
            status,
            &error_of(response, endpoint).await,
            endpoint,
            ("no models", "check the URL"),
        ));
    }
    let list = body_of(response, LONGEST_BODY).await.map_err(|e| broken_off(&e, endpoint))?;
    let list: Value = serde_json::from_slice(&list.unwrap_or_default()).unwrap_or_default();
    let ids = list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str());
    Ok(ids.map(str::to_owned).collect())
}

/// Reads a stream of server-sent events.
async fn streamed(
    response: Response,
    endpoint: &Endpoint,
    hear: &mut impl FnMut(Heard),
) -> Result<ModelTurn, Failed> {
    let (mut events, mut assembly) = (Events::of(response, endpoint), Assembly::default());
    while let Some(event) = events.next().await? {
        if event == b"[DONE]" {
            return finish(assembly, endpoint);
        }
        take(&event, &mut assembly, endpoint, hear)?;
    }
    match assembly.is_finished() {
        true => finish(assembly, endpoint),
        false => Err(retryable(format!("the answer of {} broke off", endpoint.who()))),
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
        return Err(retryable(format!("{} failed: {told}", endpoint.who())));
    }
    assembly.push(chunk).map_err(|_| too_long(endpoint))?.into_iter().for_each(hear);
    Ok(())
}

fn finish(assembly: Assembly, endpoint: &Endpoint) -> Result<ModelTurn, Failed> {
    match assembly.is_empty() {
        true => Err(retryable(format!("{} said nothing", endpoint.who()))),
        false => Ok(assembly.finish()),
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
