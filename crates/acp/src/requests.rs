//! Requests that need the gateway, but no session that is open already.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use agent_client_protocol_schema::v1::{
    DeleteSessionRequest, DeleteSessionResponse, Error, ListSessionsRequest, ListSessionsResponse,
    LoadSessionRequest, LoadSessionResponse, Meta, NewSessionRequest, NewSessionResponse,
    ResumeSessionRequest, ResumeSessionResponse, SessionInfo, SessionInfoUpdate, SessionUpdate,
};
use serde_json::json;
use thread_protocol::client::{Client, Error as Failure, Found, NotFound, Settings, find as find_gateway};
use thread_protocol::code;
use thread_protocol::method::{
    DeleteParams, ListParams, NewParams, SessionsDelete, SessionsList, SessionsNew, SessionsSwitch,
    SwitchParams,
};
use uuid::Uuid;

use crate::choices::Choices;
use crate::editor::Editor;
use crate::options::Options;
use crate::problem::{self, Problems, not_found};
use crate::servers::Servers;
use crate::session::Session;

/// For how long to try to reconnect.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many sessions are listed at once.
const PAGE: u64 = 100;

type Result<T> = std::result::Result<T, Error>;

/// The gateway that the options name, or that has been started here.
///
/// # Errors
///
/// There is none, or its address or token cannot be read.
pub fn find(options: &Options) -> std::result::Result<Found, NotFound> {
    let token = env::var("THREAD_TOKEN").ok();
    find_gateway(options.root.as_deref(), options.url.as_deref(), token)
}

/// Connects to the gateway. Each connection is another client: what one has said is new to the others.
async fn connect(options: &Options) -> Result<(Client, Problems, Option<PathBuf>)> {
    let Found { address, token, root } = find(options).map_err(|e| not_found(&e))?;
    let problems = Problems(address.clone());
    let settings = Settings {
        address,
        token,
        client_type: "acp".to_owned(),
        client_id: Uuid::new_v4().to_string(),
        ca: options.ca.clone(),
        patience: PATIENCE,
    };
    let client = Client::connect(settings).await.map_err(|e| problems.of(&e))?;
    Ok((client, problems, root))
}

/// What of the request has no effect, for editors that look at it.
fn ignored(cwd: bool, servers: bool) -> Option<Meta> {
    let mut ignored = Vec::new();
    if cwd {
        ignored.push("cwd");
    }
    if servers {
        eprintln!(
            "thread acp: the editor's MCP servers are not used; the agent's entry must allow \"mcp_servers\", and its \
             gateway be on this machine"
        );
        ignored.push("mcpServers");
    }
    let meta = json!({ "thread": { "ignored": ignored } });
    (!ignored.is_empty()).then(|| meta.as_object().cloned().unwrap_or_default())
}

/// Makes a session.
pub async fn new_session(
    options: &Options,
    editor: &Editor,
    request: NewSessionRequest,
) -> Result<(Session, NewSessionResponse)> {
    let (mut client, problems, root) = connect(options).await?;
    let agents = client.agents();
    let chosen = match &options.agent {
        Some(name) => agents.iter().find(|agent| agent.name == *name),
        None => agents.first(),
    };
    // The editor's directory is one of this machine, and agents may be bound to theirs.
    let may_choose = chosen.is_some_and(|agent| agent.allow.iter().any(|word| word == "cwd"));
    let takes_cwd = may_choose && problems.0.is_loopback();
    let cwd = takes_cwd.then(|| request.cwd.to_string_lossy().into_owned());
    let params = NewParams { agent: options.agent.clone(), cwd, ..NewParams::default() };
    let made = client.call::<SessionsNew>(&params).await.map_err(|e| problems.of(&e))?;
    // What its agent has is known once that has been started, for the first message.
    let choices = Choices::new(client.agents(), made.agent, Vec::new());
    let unused = match (Servers { root, named: request.mcp_servers }).keep(&made.session_id, &choices) {
        Ok(unused) => unused,
        Err(why) => {
            // The editor does not learn its id. One that cannot be deleted stays, and is empty.
            let params = DeleteParams { session_id: made.session_id };
            if let Err(left) = client.call::<SessionsDelete>(&params).await {
                problem::note(&problems.of(&left));
            }
            return Err(why);
        }
    };
    let mut response = NewSessionResponse::new(made.session_id.clone());
    response = response.modes(choices.modes()).config_options(choices.options());
    response = response.meta(ignored(!takes_cwd, unused));
    Ok((Session::new(made.session_id, client, problems, editor.clone()).with(choices), response))
}

/// Opens a session and shows all of it.
pub async fn load(
    options: &Options,
    editor: &Editor,
    request: LoadSessionRequest,
) -> Result<(Session, LoadSessionResponse)> {
    let (client, problems, root) = connect(options).await?;
    let all = client.agents().to_vec();
    let mut session = Session::new(request.session_id.to_string(), client, problems, editor.clone());
    let switched = session.replay().await?;
    if !switched.title.is_empty() {
        let title = SessionInfoUpdate::new().title(switched.title);
        editor.update(&session.id, SessionUpdate::SessionInfoUpdate(title)).await;
    }
    let choices = Choices::new(&all, switched.agent, switched.options);
    let unused = Servers { root, named: request.mcp_servers }.keep(&session.id, &choices)?;
    let mut response = LoadSessionResponse::new();
    response = response.modes(choices.modes()).config_options(choices.options());
    Ok((session.with(choices), response.meta(ignored(true, unused))))
}

/// Opens a session and shows nothing of it but the run under way.
pub async fn resume(
    options: &Options,
    editor: &Editor,
    request: ResumeSessionRequest,
) -> Result<(Session, ResumeSessionResponse)> {
    let (mut client, problems, root) = connect(options).await?;
    let id = request.session_id.to_string();
    let params = SwitchParams { session_id: id.clone(), after: None };
    let switched = client.call::<SessionsSwitch>(&params).await.map_err(|e| problems.of(&e))?;
    let choices = Choices::new(client.agents(), switched.agent, switched.options);
    let unused = Servers { root, named: request.mcp_servers }.keep(&id, &choices)?;
    let mut session = Session::new(id, client, problems, editor.clone());
    session.is_active(switched.active_run);
    let mut response = ResumeSessionResponse::new();
    response = response.modes(choices.modes()).config_options(choices.options());
    Ok((session.with(choices), response.meta(ignored(true, unused))))
}

/// Lists sessions, the one that was active last first.
pub async fn list(options: &Options, request: ListSessionsRequest) -> Result<ListSessionsResponse> {
    let offset = match &request.cursor {
        None => 0,
        Some(cursor) => cursor
            .parse()
            .map_err(|_| Error::new(-32602, "the cursor is none of this agent - list from the beginning"))?,
    };
    let (mut client, problems, _) = connect(options).await?;
    let params = ListParams { limit: Some(PAGE), offset: Some(offset) };
    let found = client.call::<SessionsList>(&params).await.map_err(|e| problems.of(&e))?;
    // Sessions are bound to no directory, so they are in each that an editor asks for.
    let cwd = request.cwd.clone().or_else(|| env::current_dir().ok()).unwrap_or_else(|| PathBuf::from("/"));
    let next = offset + found.sessions.len() as u64;
    let info = |session: thread_protocol::method::SessionSummary| {
        let title = Some(session.title).filter(|title| !title.is_empty());
        SessionInfo::new(session.id, cwd.clone()).title(title).updated_at(session.last_activity)
    };
    let has_more = !found.sessions.is_empty() && next < found.total;
    let sessions = found.sessions.into_iter().map(info).collect();
    Ok(ListSessionsResponse::new(sessions).next_cursor(has_more.then(|| next.to_string())))
}

/// Ends what is under way in a session, and removes it.
pub async fn delete(options: &Options, request: DeleteSessionRequest) -> Result<DeleteSessionResponse> {
    let (mut client, problems, _) = connect(options).await?;
    let params = DeleteParams { session_id: request.session_id.to_string() };
    match client.call::<SessionsDelete>(&params).await {
        // As the protocol wants it for one that is gone already.
        Err(Failure::Refused(why)) if why.code == code::UNKNOWN_SESSION => {}
        Err(e) => return Err(problems.of(&e)),
        Ok(_) => {}
    }
    Ok(DeleteSessionResponse::new())
}
