//! Results of calls of the client's tools.

use std::sync::Arc;

use thread_conversation::{ClientInput, Record};
use thread_sessions::{Kind, RequestError};

use super::asked::{Begun, CLIENT, Request, author};
use super::conversation::Output;
use super::error::{OpenAiError, Result};
use super::ids;
use super::text::hex;
use crate::gateway::Gateway;
use crate::http::agui::input::Input;
use crate::http::agui::respond::respond;

/// The prefix of the ids of calls.
pub const CALL: &str = "call_";

/// Stores the results of calls, and continues their run.
///
/// # Errors
///
/// There is no such call; errors of the thread.
pub async fn answer_calls(gateway: &Arc<Gateway>, request: &Request, results: &[Output]) -> Result<Begun> {
    let unknown = |call_id: &str| {
        OpenAiError::bad(format!("there is no call '{call_id}' - send the result with the id of the call"))
    };
    let mut calls = Vec::with_capacity(results.len());
    for result in results {
        let (session, event) = ids::place(CALL, &result.call_id).ok_or_else(|| unknown(&result.call_id))?;
        calls.push((session, event, result.clone()));
    }
    let Some((session, ..)) = calls.last().cloned() else { return Err(unknown("")) };
    if let Some((.., other)) = calls.iter().find(|(of, ..)| *of != session) {
        return Err(unknown(&other.call_id));
    }
    gateway.root.refuse_deleted(session)?;
    let (own, author) = (gateway.clone(), author(request.user.as_deref()));
    let run_id = format!("{CLIENT}_{}", hex(request.body));
    let work = move || {
        let mut queue = own.root.queue(session)?;
        let mut results = Vec::with_capacity(calls.len());
        for (_, event, output) in &calls {
            let record = queue.event(*event)?.map(Record::of);
            let Some(id) = record.filter(|record| record.for_client).and_then(|one| one.shown_call_id())
            else {
                return Ok(Err(output.call_id.clone()));
            };
            results.push(output.message(id));
        }
        let input = Input {
            version: None,
            thread_id: session.to_string(),
            run_id: run_id.clone(),
            message: None,
            previous: None,
            resume: Vec::new(),
            last_results: results.len(),
            results,
            handed: ClientInput::default(),
        };
        let start = respond(&mut own.writer(&mut queue, session, &author), &input)?;
        Ok(start.ok_or_else(|| calls[0].2.call_id.clone()))
    };
    match gateway.pool().run(session, Kind::Write, work).await {
        Ok(Ok(start)) => Ok(Begun { session, start }),
        Ok(Err(call_id)) => Err(unknown(&call_id)),
        Err(RequestError::UnknownSession(_)) => Err(unknown(&results[0].call_id)),
        Err(e) => Err(e.into()),
    }
}
