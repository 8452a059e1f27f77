//! Running an agent behind AG-UI: one request, whose answer is a stream of events.

use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::http::{
    Events, LONGEST_TOLD, client, error_of, final_failure, post, redirected, refused, retry_after, retryable,
    shortened,
};
use super::{Endpoint, Failed};

/// The form of the answer.
const EVENTS: &str = "text/event-stream";

/// Events of which nothing is used but that they came. They may be long.
const UNUSED: [&str; 3] = ["RAW", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA"];

/// Runs the agent with a `RunAgentInput`. Its events go to `hear`; the last one is `RUN_FINISHED` or `RUN_ERROR`.
///
/// # Errors
///
/// There is no such event, and why.
pub async fn run(endpoint: &Endpoint, input: &Value, hear: &mut impl FnMut(Value)) -> Result<(), Failed> {
    let client = client(endpoint)?;
    let response = post(&client, (endpoint, &endpoint.url), input, EVENTS).await?;
    let status = response.status();
    if status.is_redirection() {
        return Err(redirected(&response, endpoint));
    }
    let missing = ("no agent", "check the URL");
    if !status.is_success() {
        let retry_after = retry_after(response.headers());
        let told = error_of(response, endpoint).await;
        let failed = match status {
            StatusCode::METHOD_NOT_ALLOWED => refused(StatusCode::NOT_FOUND, &told, endpoint, missing),
            status => refused(status, &told, endpoint, missing),
        };
        return Err(Failed { retry_after, told, ..failed });
    }
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.starts_with(EVENTS) {
        let kind = shortened(&endpoint.without_key(kind), 80);
        return Err(final_failure(format!(
            "{} does not answer with AG-UI events ({EVENTS}) but with '{kind}': check the URL",
            endpoint.url
        )));
    }
    let mut events = Events::of(response, endpoint);
    while let Some(data) = events.next().await? {
        let read = serde_json::from_slice::<Value>(&data).ok();
        let Some((kind, mut event)) =
            read.and_then(|event| Some((event["type"].as_str()?.to_owned(), event)))
        else {
            let shown = shortened(&endpoint.without_key(&String::from_utf8_lossy(&data)), 80);
            return Err(retryable(format!(
                "{} sends something that is no AG-UI event: {shown}",
                endpoint.url
            )));
        };
        if UNUSED.contains(&&*kind) {
            event = json!({ "type": kind });
        }
        if kind == "RUN_ERROR" {
            // Servers repeat what they were sent.
            let told = event["message"].as_str().unwrap_or_default();
            event["message"] = shortened(&endpoint.without_key(told), LONGEST_TOLD).into();
        }
        hear(event);
        if matches!(&*kind, "RUN_FINISHED" | "RUN_ERROR") {
            return Ok(());
        }
    }
    Err(retryable(format!("the answer of {} broke off", endpoint.who())))
}
