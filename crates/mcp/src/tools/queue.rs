//! Tools for the queue of one thread.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use thread::model::filter::Scope as FilterScope;
use thread::model::key::{IdempotencyKey, InvalidKey};
use thread::model::run::Options;
use thread::model::subscription::{ConsumerId, NewSubscription};
use thread::queue::Selection;
use thread::{After, Filter, Queue};
use thread_conversation::{Message, Priority, keys};
use thread_sessions::runs::open_runs;
use tokio_util::sync::CancellationToken;

use crate::problem::{Problem, Result};
use crate::scope::{Look, Scope, Turn, open};
use crate::text::{self, PIECE, Shown};

/// The longest message, in bytes: what every reader gets whole.
pub const MAX_CONTENT: usize = 1024 * 1024;

/// How long a call of `wait` takes at most: hosts give up on tools after a minute.
pub const MAX_WAIT: Duration = Duration::from_secs(50);

/// How long the filter of a stranger is evaluated.
const FILTER_FOR: Duration = Duration::from_secs(2);

/// How many events are shown, by default and at most.
const EVENTS: u64 = 20;
const MAX_EVENTS: u64 = 100;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PushArgs {
    pub session: Option<String>,
    content: String,
    #[schemars(with = "Option<String>", extend("enum" = ["now", "next", "later"]))]
    priority: Option<Priority>,
    /// Id of the event it answers
    reply_to: Option<i64>,
    /// A second push with it does nothing
    idempotency_key: Option<String>,
}

#[skip_serializing_none]
#[derive(Serialize, JsonSchema)]
pub struct Pushed {
    id: i64,
    /// It was pushed before, under the same key.
    repeated: bool,
    /// The agent's run that will answer it.
    run_id: Option<String>,
    /// How many runs are before that.
    runs_ahead: Option<usize>,
}

pub fn push(scope: &Scope, path: &Path, args: PushArgs) -> Result<Pushed> {
    if args.content.len() > MAX_CONTENT {
        let what = format!("the content has {} bytes, more than {MAX_CONTENT}", args.content.len());
        return Err(Problem::new(what, "store it in a file, and push its path"));
    }
    let key = args.idempotency_key.as_deref().map(|key| IdempotencyKey::of_client("mcp", key)).transpose();
    let key = key.map_err(|e| match e {
        InvalidKey::Reserved(_) => thread::Error::from(e).into(),
        _ => Problem::new("the idempotency_key is empty or too long", "use 1 to 512 bytes"),
    })?;
    let mut queue = open(path)?;
    if let Some(id) = args.reply_to
        && queue.stored_at(id)?.is_none()
    {
        return Err(Problem::new(format!("there is no event {id} to reply to"), "`peek` shows events"));
    }
    let message = Message {
        content: args.content,
        priority: args.priority.unwrap_or_default(),
        other: args.reply_to.map(|id| ("reply_to".to_owned(), id.into())).into_iter().collect(),
        ..Message::default()
    };
    let mut event = message.event(&scope.source).map_err(thread::Error::from)?;
    let mut before = None;
    if let Some(key) = key {
        before = keys::stored_before(&mut queue, &key)?.filter(|stored| event.is_same(stored));
        event = event.keyed(key);
    }
    let (id, repeated) = match before {
        Some(stored) => (stored.id, true),
        None => {
            let pushed = thread::run::push(&mut queue, &scope.launcher, &event)?;
            (pushed.id, pushed.repeated)
        }
    };
    let (_, runs, _) = open_runs(&mut queue)?;
    let run = runs.get(id);
    Ok(Pushed {
        id,
        repeated,
        run_id: run.map(|run| run.run.run_id.clone()),
        runs_ahead: run.and_then(|run| runs.position(run.id())),
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeekArgs {
    pub session: Option<String>,
    /// Only events with larger ids
    after: Option<i64>,
    /// SQL condition, such as type = 'message'; searches from `after` or the first event on
    filter: Option<String>,
    limit: Option<u64>,
    /// Only this event, whole
    id: Option<i64>,
    /// With `id`: from this byte on
    offset: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
pub struct Peeked {
    events: Vec<Shown>,
    /// All events up to this id were looked at.
    cursor: i64,
    /// Whether there may be more after it.
    more: bool,
}

pub fn peek(_: &Scope, path: &Path, args: PeekArgs) -> Result<Peeked> {
    let filter = filter_of(args.filter.as_deref())?;
    let limit = args.limit.unwrap_or(EVENTS).clamp(1, MAX_EVENTS);
    let mut queue = open(path)?;
    if let Some(id) = args.id {
        return peek_one(&mut queue, id, args.offset.unwrap_or(0));
    }
    let (events, cursor) = if args.after.is_none() && filter.is_none() {
        text::tail(&mut queue, limit)?
    } else {
        let after = args.after.unwrap_or(0).max(0);
        let mut selection = Selection { after, limit: Some(limit), filter };
        let (events, _) = text::read(&mut queue, &mut selection, Instant::now() + FILTER_FOR)?;
        (events, selection.after)
    };
    let more = queue.newest()?.0 > cursor;
    Ok(Peeked { events, cursor, more })
}

fn peek_one(queue: &mut Queue, id: i64, offset: u64) -> Result<Peeked> {
    let mut selection = Selection { limit: Some(1), ..After(id.saturating_sub(1)).into() };
    let (mut events, _) = text::read(queue, &mut selection, Instant::now() + FILTER_FOR)?;
    events.retain(|event| event.id == id);
    let Some(event) = events.first_mut() else {
        return Err(Problem::new(
            format!("there is no event {id}"),
            "`peek` without `id` shows the last ones",
        ));
    };
    (event.content, event.next_offset) = text::piece(queue, id, offset, PIECE)?;
    Ok(Peeked { events, cursor: id, more: queue.newest()?.0 > id })
}

fn filter_of(text: Option<&str>) -> Result<Option<Filter>> {
    let filter = text.map(|text| Filter::new(text, FilterScope::Reading)).transpose();
    Ok(filter.map_err(thread::Error::from)?.flatten())
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WaitArgs {
    session: Option<String>,
    /// A `cursor`; without it, only new events
    after: Option<i64>,
    /// SQL condition
    filter: Option<String>,
    /// At most 50
    timeout_seconds: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
pub struct Waited {
    timed_out: bool,
    events: Vec<Shown>,
    /// For `after` of the next call.
    cursor: i64,
}

pub async fn wait(scope: &Arc<Scope>, args: WaitArgs, cancelled: &CancellationToken) -> Result<Waited> {
    let path = scope.path_of(args.session.as_deref())?;
    let filter = filter_of(args.filter.as_deref())?;
    let patience = args.timeout_seconds.map_or(MAX_WAIT, Duration::from_secs).min(MAX_WAIT);
    let began = Instant::now();
    let end = began + patience;
    // The last look may take as long as any if nothing else was looked at, but no call longer than the cap.
    let last = end.max(began + FILTER_FOR).min(began + MAX_WAIT);
    let own = path.clone();
    let start = scope.blocking(Turn::Read(path.clone()), move |_| Ok(open(&own)?.newest()?.0)).await?;
    let after = args.after.map_or(start, |after| after.clamp(0, start));
    let mut selection = Selection { after, limit: Some(EVENTS), filter };
    let reached = Arc::new(std::sync::atomic::AtomicI64::new(after));
    let seen = Arc::clone(&reached);
    let look = move |queue: &mut Queue| {
        let until = Instant::now() + FILTER_FOR;
        let (events, more) = match text::read(queue, &mut selection, until.min(last)) {
            // It was not given the time that a filter has.
            Err(e) if until > last && e.is_slow_filter() => return Ok(Look::Nothing),
            read => read?,
        };
        seen.store(selection.after, std::sync::atomic::Ordering::Relaxed);
        Ok(match (events.is_empty(), more) {
            (false, _) => Look::Found(events),
            (true, true) => Look::More,
            (true, false) => Look::Nothing,
        })
    };
    let events = scope.until(path, end.into(), cancelled, look).await?;
    let cursor = reached.load(std::sync::atomic::Ordering::Relaxed);
    Ok(Waited { timed_out: events.is_none(), events: events.unwrap_or_default(), cursor })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AckArgs {
    pub session: Option<String>,
    consumer: String,
    id: i64,
}

#[derive(Serialize, JsonSchema)]
pub struct Acked {
    /// The consumer's position now.
    cursor: i64,
}

pub fn ack(_: &Scope, path: &Path, args: AckArgs) -> Result<Acked> {
    let mut queue = open(path)?;
    let consumer = ConsumerId::stored(args.consumer);
    if queue.subscription(&consumer)?.has_handler() {
        let what = format!("the consumer '{consumer}' has a handler, which acknowledges for itself");
        return Err(Problem::new(what, "acknowledge only for one without; `info` shows them"));
    }
    Ok(Acked { cursor: queue.acknowledge(&consumer, args.id)?.position() })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InfoArgs {
    pub session: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct Info {
    /// The thread's directory, or the session's id.
    thread: String,
    /// The newest id.
    newest: i64,
    consumers: Vec<Consumer>,
}

#[derive(Serialize, JsonSchema)]
pub struct Consumer {
    consumer: String,
    /// All events up to this id are acknowledged.
    cursor: i64,
    /// Whether it has something to do.
    pending: bool,
    paused: bool,
    /// Whether a push starts a program for it.
    has_handler: bool,
    dead_letters: i64,
}

pub fn info(scope: &Scope, path: &Path, _: InfoArgs) -> Result<Info> {
    let mut queue = open(path)?;
    let newest = queue.newest()?.0;
    let until = Instant::now() + FILTER_FOR;
    let mut consumers = Vec::new();
    for subscription in queue.subscriptions()? {
        // A broken or slow filter is assumed to match something.
        let look = queue.scan_pending(&subscription, Some(until));
        consumers.push(Consumer {
            cursor: subscription.last_acked_id,
            pending: look.map_or(true, |look| look.first.is_some() || look.cut_short),
            paused: subscription.state.paused,
            has_handler: subscription.has_handler(),
            dead_letters: subscription.dead,
            consumer: subscription.consumer.to_string(),
        });
    }
    let thread = match scope.session_of(path) {
        Some(session) => session.to_string(),
        None => path.display().to_string(),
    };
    Ok(Info { thread, newest, consumers })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubscribeArgs {
    pub session: Option<String>,
    consumer: String,
    /// Shell command, run when there is something new
    handler: String,
    /// SQL condition
    filter: Option<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct Subscribed {
    consumer: String,
    cursor: i64,
}

pub fn subscribe(scope: &Scope, path: &Path, args: SubscribeArgs) -> Result<Subscribed> {
    let consumer = ConsumerId::new(&args.consumer)
        .map_err(|why| Problem::new(format!("the consumer name {why}"), "choose another name"))?;
    if args.handler.trim().is_empty() {
        return Err(Problem::new("the handler is empty", "give a shell command"));
    }
    if let Some(filter) = &args.filter {
        Filter::new(filter, FilterScope::Subscription).map_err(thread::Error::from)?;
    }
    let mut queue = open(path)?;
    let new = NewSubscription {
        consumer: consumer.clone(),
        handler_cmd: args.handler,
        filter: args.filter,
        cwd: Some(path.to_owned()),
        options: Options::default(),
        from: Some(queue.newest()?.0),
        replace: false,
    };
    queue.subscribe(&new)?;
    thread::run::wake::wake_consumer(&mut queue, &scope.launcher, &consumer)?;
    let cursor = queue.subscription(&consumer)?.last_acked_id;
    Ok(Subscribed { consumer: consumer.to_string(), cursor })
}
