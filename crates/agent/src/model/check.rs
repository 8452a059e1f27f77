//! Whether a model can be an agent.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ask::{ask, models};
use super::{Endpoint, Failed, Heard};

/// How long the model may take for each answer: it may have to be loaded first.
const LONGEST: Duration = Duration::from_secs(180);

/// How many names of models are told.
const NAMES: usize = 20;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// `answers`, `streams` or `tools`.
    pub what: &'static str,
    pub is_so: bool,
    /// For people.
    pub detail: String,
}

/// Checks whether a server answers, and whether its model streams and takes tools. Without a model, the first one that
/// it lists is asked. Each result is told once it is known. Returns whether the model can answer.
///
/// # Errors
///
/// There is no runtime.
pub fn check(
    endpoint: &Endpoint,
    model: Option<String>,
    tell: &mut dyn FnMut(Check),
) -> std::io::Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let Some(model) = answers(endpoint, model, tell).await else { return Ok(false) };
        let has_answered = streams(endpoint, &model, tell).await;
        if has_answered {
            tools(endpoint, &model, tell).await;
        }
        Ok(has_answered)
    })
}

/// Returns the model to ask.
async fn answers(endpoint: &Endpoint, model: Option<String>, tell: &mut dyn FnMut(Check)) -> Option<String> {
    let (names, detail) = match models(endpoint).await {
        Ok(names) => {
            let more = if names.len() > NAMES { ", …" } else { "" };
            let listed = names[..names.len().min(NAMES)].join(", ");
            let detail =
                if names.is_empty() { "it lists no models".to_owned() } else { format!("{listed}{more}") };
            (names, detail)
        }
        Err(failed) => {
            tell(Check { what: "answers", is_so: false, detail: failed.error });
            return None;
        }
    };
    let chosen = model.or_else(|| names.into_iter().next());
    let detail = match &chosen {
        Some(_) => detail,
        None => format!("{detail}: name one, as in {}#qwen3", endpoint.url),
    };
    tell(Check { what: "answers", is_so: chosen.is_some(), detail });
    chosen
}

/// Returns whether there was an answer, streamed or not.
async fn streams(endpoint: &Endpoint, model: &str, tell: &mut dyn FnMut(Check)) -> bool {
    let messages = [json!({ "role": "user", "content": "Count from one to ten, in words." })];
    let (began, mut first, mut pieces) = (Instant::now(), None, 0);
    let mut hear = |_: Heard| {
        first.get_or_insert_with(|| began.elapsed());
        pieces += 1;
    };
    let answer = within(ask(endpoint, model, &messages, &Value::Null, &mut hear)).await;
    let has_answered = answer.is_ok();
    let (is_so, detail) = match (answer, first) {
        (Err(failed), _) => (false, failed.error),
        (Ok(_), Some(first)) if pieces > 1 => {
            let seconds = first.as_secs_f32();
            (true, format!("{model}, the first of {pieces} pieces after {seconds:.1} s"))
        }
        (Ok(_), _) => (false, format!("{model} answers all at once")),
    };
    tell(Check { what: "streams", is_so, detail });
    has_answered
}

async fn tools(endpoint: &Endpoint, model: &str, tell: &mut dyn FnMut(Check)) {
    let messages = [json!({ "role": "user", "content": "What time is it? Use the tool." })];
    let parameters = json!({ "type": "object", "properties": {} });
    let function = json!({ "name": "clock", "description": "Returns the time.", "parameters": parameters });
    let more = json!({ "tools": [{ "type": "function", "function": function }] });
    let turn = within(ask(endpoint, model, &messages, &more, &mut |_| {})).await;
    let (is_so, detail) = match turn {
        Ok(turn)
            if turn
                .message
                .get("tool_calls")
                .is_some_and(|calls| calls.as_array().is_some_and(|c| !c.is_empty())) =>
        {
            (true, format!("{model} called one"))
        }
        Ok(_) => (true, format!("{model} accepts them, but called none")),
        Err(failed) => (false, failed.error),
    };
    tell(Check { what: "tools", is_so, detail });
}

async fn within<T>(answer: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    let error = format!("there was no answer within {} s", LONGEST.as_secs());
    let late = Failed { error, retryable: true, ..Failed::default() };
    tokio::time::timeout(LONGEST, answer).await.unwrap_or(Err(late))
}
