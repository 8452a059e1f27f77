//! Listing, creating, entering, reading, renaming, searching and deleting sessions; the status.

use serde_json::value::RawValue;
use thread::Queue;
use thread_protocol::method::{
    self, DeleteParams, Deleted, ForkParams, GatewayStatus, HistoryPage, HistoryParams, ListParams,
    NewParams, NewSession, RenameParams, Renamed, SearchParams, SessionList, SessionStatus, StatusParams,
    StatusPayload, StepsPage, StepsParams, SwitchParams, Switched, UpdateParams, Updated,
};
use thread_sessions::events::LARGE;
use thread_sessions::excerpt::{TITLE, beginning};
use thread_sessions::{Kind, RequestError, Result, SessionId, open_runs, search};

use super::caller::{Caller, Reply, Subscribe, Then, parse_session};
use super::methods::{Effect, Handler};
use crate::agents::seating::Choice;
use crate::session::blocking_pool::blocking;
use crate::session::event::Frames;
use crate::session::root::{self, Copying};
use crate::session::write::SessionWriter;
use crate::session::{frames, history};

/// How many messages `sessions.switch` returns.
const RECENT: usize = 20;

impl Handler for method::SessionsList {
    const EFFECT: Effect = Effect::Looks;

    async fn handle(caller: &Caller, params: ListParams) -> Result<Reply<SessionList>> {
        let limit = within("limit", params.limit, 10, 100)?;
        let offset = usize::try_from(params.offset.unwrap_or_default()).unwrap_or(usize::MAX);
        let gateway = caller.gateway.clone();
        let own = gateway.clone();
        let page = move || own.catalogue.page(&own.root, offset, limit);
        blocking(&gateway.common.lists, page).await.map(Reply::from)
    }
}

/// Creates a session, with a title if one is given, and the agent that was chosen.
///
/// # Errors
///
/// Errors of [`Agents::seat`](crate::agents::Agents::seat), of [`root::create`] and of storing the title.
pub async fn create(caller: &Caller, title: Option<String>, choice: Choice) -> Result<SessionId> {
    let (gateway, author, session) = (caller.gateway.clone(), caller.author.clone(), SessionId::random());
    let work = move || {
        let agent = gateway.agents.seat(session, &choice)?;
        root::create(&gateway.root, session, agent.as_ref())?;
        if let Some(title) = &title {
            gateway.writer(&mut gateway.root.queue(session)?, session, &author).title(title)?;
        }
        Ok(session)
    };
    caller.gateway.pool().run(session, Kind::Write, work).await
}

impl Handler for method::SessionsNew {
    async fn handle(caller: &Caller, params: NewParams) -> Result<Reply<NewSession>> {
        let title = params.title.map(|title| title_of(&title)).transpose()?;
        let choice = Choice { agent: params.agent, model: params.model, cwd: params.cwd };
        let session = create(caller, title.clone(), choice).await?;
        enter_new(caller, session, title.unwrap_or_default()).await
    }
}

/// Enters a session that has just been made.
async fn enter_new(caller: &Caller, session: SessionId, title: String) -> Result<Reply<NewSession>> {
    let live = caller.gateway.hub.enter(session).await?;
    let look = |queue: &mut Queue| Ok((queue.newest()?.0, Choice::of(queue)?.1.agent));
    let (newest, agent) = caller.gateway.read(session, look).await?;
    let created_at = thread::model::time::now();
    Ok(Reply::at(NewSession { session_id: session.to_string(), title, created_at, agent }, live, newest))
}

impl Handler for method::SessionsFork {
    async fn handle(caller: &Caller, params: ForkParams) -> Result<Reply<NewSession>> {
        let (from, session) = (parse_session(&params.session_id)?, SessionId::random());
        let title = params.title.map(|title| title_of(&title)).transpose()?;
        let (gateway, source) = (caller.gateway.clone(), caller.author.source(session));
        let work = move || {
            let title_there = gateway.catalogue.summary(&gateway.root, &gateway.root.entry(from)?)?.title();
            let (before, title_there) = (params.before.as_deref(), title_there.as_str());
            let (step, title) = (params.step, title.clone());
            let copying = Copying { before, step, title, title_there, source: &source };
            root::fork(&gateway.root, from, session, copying, &gateway.agents, &gateway.storage)
        };
        // It only reads, perhaps for long, and must not make others wait.
        let title = caller.gateway.common.copies.run(from, Kind::Read, work).await?;
        enter_new(caller, session, title).await
    }
}

fn title_of(title: &str) -> Result<String> {
    let title = beginning(title, TITLE);
    if title.is_empty() { Err(RequestError::BadParams("'title' is empty".into())) } else { Ok(title) }
}

impl Handler for method::SessionsSwitch {
    const EFFECT: Effect = Effect::Moves;

    async fn handle(caller: &Caller, params: SwitchParams) -> Result<Reply<Switched>> {
        enter(caller, parse_session(&params.session_id)?, params.after).await
    }
}

/// Enters a session. With `after`, every later event is written before the response. Without it, and while a
/// run is open, the events from that run's message on follow the response.
///
/// # Errors
///
/// [`RequestError::UnknownSession`]; errors of the thread.
pub async fn enter(caller: &Caller, session: SessionId, after: Option<u64>) -> Result<Reply<Switched>> {
    let live = caller.gateway.hub.enter(session).await?;
    let gateway = caller.gateway.clone();
    // A client that is already in the session, or hears it, misses nothing by entering it.
    let reached = caller.position_in(session).unwrap_or(i64::MAX);
    let work = move |queue: &mut Queue| {
        let (agent, runs, newest) = open_runs(queue)?;
        // The run that is open, or will be next: an entering client sees all of it.
        let open = runs.in_order().first().and_then(|id| runs.get(*id));
        // Events stored while this is read follow, whatever the position is.
        let (position, respond_after) = match after {
            // An id that does not exist yet would suppress the next events.
            Some(after) => (i64::try_from(after).unwrap_or(i64::MAX).min(newest), Some(newest)),
            None => (open.map_or(newest, |run| run.id() - 1).min(reached), None),
        };
        // The newest event may have been pruned: then no event has that id.
        let respond_after = match respond_after {
            Some(upto) => queue.last_upto(upto)?,
            None => None,
        };
        let last_seq = if after.is_some() { newest.max(position) } else { position };
        let summary = gateway.catalogue.summary(&gateway.root, &gateway.root.entry(session)?)?;
        let recent = history::before(queue, last_seq.saturating_add(1), RECENT, LARGE)?;
        let options = frames::options_of(&summary.options(queue)?);
        let switched = Switched {
            session_id: session.to_string(),
            title: summary.title(),
            recent_messages: history::entries(&gateway.storage, session, &recent.messages),
            last_seq,
            active_run: runs.active().map(|run| run.run.run_id.clone()),
            forked_from: summary.forked_from,
            agent: agent.name(),
            options,
        };
        Ok((switched, position, respond_after))
    };
    let (switched, position, respond_after) = caller.gateway.read(session, work).await?;
    Ok(Reply { subscribe: Subscribe::At { live, position, respond_after }, ..switched.into() })
}

impl Handler for method::SessionsHistory {
    const EFFECT: Effect = Effect::Looks;

    async fn handle(caller: &Caller, params: HistoryParams) -> Result<Reply<HistoryPage>> {
        let session = caller.session_or_current(params.session_id.as_deref())?;
        let limit = within("limit", params.limit, 20, 200)?;
        let page = history::read(&caller.gateway.hub.context, session, params.before, limit).await?;
        let payload = HistoryPage { messages: page.messages, has_more: page.has_more };
        Ok(Reply { then: page.share.map_or(Then::Nothing, Then::Release), ..payload.into() })
    }
}

impl Handler for method::SessionsSteps {
    const EFFECT: Effect = Effect::Looks;

    async fn handle(caller: &Caller, params: StepsParams) -> Result<Reply<StepsPage>> {
        let session = caller.session_or_current(params.session_id.as_deref())?;
        let limit = within("limit", params.limit, 200, 1000)?;
        let id =
            |given: Option<u64>, default| given.map_or(default, |id| i64::try_from(id).unwrap_or(i64::MAX));
        let (after, before) = (id(params.after, 0), id(params.before, i64::MAX));
        let (gateway, client) = (caller.gateway.clone(), caller.author.client.clone());
        let work = move |queue: &mut Queue| {
            let page = history::steps(queue, after, before, limit)?;
            let frames = page.messages.iter().filter_map(|step| frames::of(&gateway.storage, session, step));
            let raw = |frames: Frames| RawValue::from_string(frames.for_client(&client).to_string()).ok();
            Ok(StepsPage { events: frames.filter_map(raw).collect(), has_more: page.has_more })
        };
        caller.gateway.read(session, work).await.map(Reply::from)
    }
}

impl Handler for method::SessionsRename {
    async fn handle(caller: &Caller, params: RenameParams) -> Result<Reply<Renamed>> {
        let session = parse_session(&params.session_id)?;
        let title = title_of(&params.title)?;
        let renamed = Renamed { session_id: session.to_string(), title: title.clone() };
        caller.write(session, move |to| to.title(&title)).await?;
        Ok(renamed.into())
    }
}

impl Handler for method::SessionsUpdate {
    async fn handle(caller: &Caller, params: UpdateParams) -> Result<Reply<Updated>> {
        let session = parse_session(&params.session_id)?;
        let wanted = Choice { agent: params.agent, model: params.model, cwd: params.cwd };
        let options = params.options.unwrap_or_default();
        if !options.is_empty() && !wanted.is_empty() {
            let why = "'options' are those of the agent that the session has: choose them in a request of their own";
            return Err(RequestError::BadParams(why.into()));
        }
        let gateway = caller.gateway.clone();
        let update = move |to: &mut SessionWriter<'_>| {
            let source = to.source();
            let mut updated = match options.is_empty() {
                true => gateway.agents.update(to.queue, session, &source, &wanted)?,
                false => Choice::of(to.queue)?.1.updated(session),
            };
            let summary = gateway.catalogue.summary_of(to.queue, &gateway.root.entry(session)?)?;
            let mut all = summary.options(to.queue)?;
            to.choose(&mut all, &options)?;
            updated.options = frames::options_of(&all);
            Ok(updated)
        };
        caller.write(session, update).await.map(Reply::from)
    }
}

impl Handler for method::SessionsSearch {
    const EFFECT: Effect = Effect::Looks;

    async fn handle(caller: &Caller, params: SearchParams) -> Result<Reply<SessionList>> {
        let limit = within("limit", params.limit, 10, 100)?;
        let gateway = caller.gateway.clone();
        let search = move || {
            let (root, catalogue) = (&gateway.root, &gateway.catalogue);
            search::search(root, catalogue, params.query.as_deref(), params.date_filter, limit)
        };
        blocking(&caller.gateway.common.searches, search).await.map(Reply::from)
    }
}

impl Handler for method::SessionsDelete {
    async fn handle(caller: &Caller, params: DeleteParams) -> Result<Reply<Deleted>> {
        let session = parse_session(&params.session_id)?;
        let gateway = caller.gateway.clone();
        // To its end, even if the client leaves.
        let deleting = tokio::spawn(async move { gateway.delete(session).await });
        // It fails only if it panicked, which was reported on stderr.
        deleting.await.map_err(|_| RequestError::Failed("the gateway could not do this".into()))??;
        Ok(Deleted { session_id: session.to_string() }.into())
    }
}

impl Handler for method::Status {
    const EFFECT: Effect = Effect::Looks;

    async fn handle(caller: &Caller, params: StatusParams) -> Result<Reply<StatusPayload>> {
        let session = params.session_id.as_deref().map(parse_session).transpose()?.or(caller.session);
        status_of(caller, session).await.map(Reply::from)
    }
}

/// The status of the gateway, and of a session.
///
/// # Errors
///
/// Errors of the thread.
pub async fn status_of(caller: &Caller, session: Option<SessionId>) -> Result<StatusPayload> {
    let gateway = caller.gateway.clone();
    let about = GatewayStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime: gateway.started.elapsed().as_secs(),
        active_connections: gateway.counters.connections.value(),
        active_sessions: gateway.hub.everything().len() as u64,
    };
    let Some(session) = session else { return Ok(StatusPayload { gateway: about, session: None }) };
    let clients = gateway.hub.live(session).map_or(0, |live| live.clients()) as u64;
    let work = move |queue: &mut Queue| {
        let (agent, runs, _) = open_runs(queue)?;
        let summary = gateway.catalogue.summary(&gateway.root, &gateway.root.entry(session)?)?;
        Ok(SessionStatus {
            id: session.to_string(),
            message_count: summary.messages,
            queued_requests: runs.queued() as u64,
            active_run: runs.active().map(|run| run.run.run_id.clone()),
            clients,
            agent: agent.name(),
            usage: frames::usage_of(summary.spent.usage),
            cost: frames::cost_of(&summary.spent.cost),
        })
    };
    let session = caller.gateway.read(session, work).await?;
    Ok(StatusPayload { gateway: about, session: Some(session) })
}

/// A number from 1 to `most`, or its default.
fn within(name: &str, value: Option<u64>, default: usize, most: usize) -> Result<usize> {
    match value.map(usize::try_from) {
        None => Ok(default),
        Some(Ok(value)) if (1..=most).contains(&value) => Ok(value),
        Some(_) => Err(RequestError::BadParams(format!("'{name}' must be 1 to {most}"))),
    }
}
