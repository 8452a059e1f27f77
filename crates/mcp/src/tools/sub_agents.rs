//! The tool that gives a task to a sub-agent.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use thread::Queue;
use thread_agent::sub_agent::{self, NewSubAgent, Sub};
use thread_sessions::runs::open_runs;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::processes::{Status, of_sub_agent};
use super::queue::MAX_WAIT;
use crate::problem::{Problem, Result};
use crate::scope::{Look, Scope, Turn, open};

/// How often the sub-agent's consumers are dispatched, in case all its processes were killed.
const DISPATCH_EVERY: Duration = Duration::from_secs(5);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunArgs {
    session: Option<String>,
    task: String,
    /// a-z, 0-9 and -
    name: Option<String>,
    /// Do not wait; its answer comes as a message
    background: Option<bool>,
}

pub async fn run(scope: &Arc<Scope>, args: RunArgs, cancelled: &CancellationToken) -> Result<Status> {
    let path = scope.path_of(args.session.as_deref())?;
    let background = args.background.unwrap_or(false);
    let end = Instant::now() + MAX_WAIT;
    let sub =
        scope.blocking(Turn::Write(path.clone()), move |scope| start(scope, &mut open(&path)?, args)).await?;
    if background {
        return scope
            .blocking(Turn::Read(sub.dir.clone()), move |_| of_sub_agent(&sub, &mut open(&sub.dir)?, 0))
            .await;
    }
    loop {
        let looked = sub.clone();
        let look = move |queue: &mut Queue| Ok(looked.ending(queue)?.map_or(Look::Nothing, Look::Found));
        let slice = end.min(Instant::now() + DISPATCH_EVERY);
        let outcome = scope.until(sub.dir.clone(), slice, cancelled, look).await?;
        if outcome.is_none() && scope.ending.is_cancelled() && !scope.is_local {
            // A gateway that ends takes no work with it.
            return Err(Problem::new("this server ends; the sub-agent works on", "ask process_status later"));
        }
        if outcome.is_none() && (cancelled.is_cancelled() || scope.ending.is_cancelled()) {
            let turn = Turn::Write(sub.dir.clone());
            let cancel = move |scope: &Scope| {
                let why = "the request that waited for it was cancelled";
                Ok(sub.cancel(&mut open(&sub.dir)?, &scope.launcher, why)?)
            };
            scope.blocking(turn, cancel).await?;
            return Err(Problem::new("the sub-agent was cancelled", "run it again if it is still needed"));
        }
        if outcome.is_none() && Instant::now() < end {
            let dir = sub.dir.clone();
            let again = move |scope: &Scope| Ok(thread::run::dispatch(&mut open(&dir)?, &scope.launcher)?);
            scope.blocking(Turn::Write(sub.dir.clone()), again).await?;
            continue;
        }
        // It goes on if it takes longer; its answer becomes the result of its call, and can be asked for.
        return scope
            .blocking(Turn::Write(sub.parent.clone()), move |scope| {
                if let Some(outcome) = &outcome {
                    sub.deliver(&mut open(&sub.parent)?, &scope.launcher, outcome)?;
                }
                of_sub_agent(&sub, &mut open(&sub.dir)?, 0)
            })
            .await;
    }
}

fn start(scope: &Scope, parent: &mut Queue, args: RunArgs) -> Result<Sub> {
    let name = args.name.unwrap_or_else(|| "agent".to_owned());
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
        return Err(Problem::new("the name is not 1 to 64 of a-z, 0-9 and -", "choose another, or none"));
    }
    let no_agent = || {
        Problem::new(
            "this session has no agent whose program a sub-agent could run",
            "use a session whose agent was set by `thread serve --agent` or `thread agent install`",
        )
    };
    let subscription = parent.find_subscription(&scope.consumer)?.ok_or_else(no_agent)?;
    let handler = sub_agent::handler_of_parent(parent, &scope.consumer)?.ok_or_else(no_agent)?;
    let cwd = subscription.cwd.map_or_else(|| parent.path().to_owned(), |cwd| parent.path().join(cwd));
    let (_, runs, _) = open_runs(parent)?;
    let (run_id, attempt) = match runs.active() {
        Some(run) => (run.run.run_id.clone(), run.run.attempt),
        None => ("run_by_hand".to_owned(), 0),
    };
    let new = NewSubAgent {
        call_id: None,
        name,
        run_id,
        attempt,
        task: args.task,
        background: args.background.unwrap_or(false),
        handler,
        cwd,
    };
    Ok(sub_agent::start(parent, &scope.launcher, &new)?)
}
