//! Cancelling runs, answering their permission requests.

use thread_protocol::method::{self, CancelParams, CancelRequested, Nothing, PermissionAnswerParams};
use thread_sessions::{Result, SessionId};

use super::caller::{Caller, Reply, parse_session};
use super::methods::Handler;

impl Handler for method::AgentCancel {
    async fn handle(caller: &Caller, params: CancelParams) -> Result<Reply<CancelRequested>> {
        let session = caller.session_or_current(params.session_id.as_deref())?;
        request_cancel(caller, session, Some(params.run_id)).await?;
        Ok(CancelRequested::default().into())
    }
}

/// Requests the cancellation of a run, by default of the active one. Returns its id; `None` if there is none.
///
/// # Errors
///
/// [`UnknownRun`](thread_sessions::RequestError::UnknownRun); errors of the thread.
pub async fn request_cancel(
    caller: &Caller,
    session: SessionId,
    run_id: Option<String>,
) -> Result<Option<String>> {
    caller.write(session, move |to| to.cancel(run_id.as_deref())).await
}

impl Handler for method::PermissionAnswer {
    async fn handle(caller: &Caller, params: PermissionAnswerParams) -> Result<Reply<Nothing>> {
        let session = parse_session(&params.session_id)?;
        caller.write(session, move |to| to.permission(&params.request_id, &params.choice)).await?;
        Ok(Nothing::default().into())
    }
}
