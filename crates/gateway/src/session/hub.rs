//! The sessions that have readers, and the task of each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use thread::Queue;
use thread_sessions::{AgentView, Kind, RequestError, Result, SessionId, SessionWatch, open_runs};
use tokio::time::timeout;

use super::context::Context;
use super::live_session::LiveSession;
use super::page_reader::Reader;
use super::read_failures::ReadFailures;
use super::sub_agents;

/// How long a database stays open, and events stay in the ring, after the last event.
const LINGER: Duration = Duration::from_secs(3);

/// The sessions that have readers.
pub struct Hub {
    pub context: Arc<Context>,
    all: Mutex<HashMap<SessionId, Weak<LiveSession>>>,
}

impl Hub {
    pub fn new(context: Context) -> Hub {
        Hub { context: Arc::new(context), all: Mutex::default() }
    }

    /// The session, which is read from now on, for as long as the result or a cursor lives.
    ///
    /// # Errors
    ///
    /// [`RequestError::UnknownSession`]; errors of the thread.
    pub async fn enter(&self, session: SessionId) -> Result<Arc<LiveSession>> {
        if let Some(live) = self.live(session) {
            return Ok(live);
        }
        let context = self.context.clone();
        let (queue, watch, agent, runs, upto) = self
            .context
            .pool
            .run(session, Kind::Read, move || {
                let mut queue = context.root.queue(session)?;
                // Watched before it is read, so that events stored in between are noticed.
                let watch = context.watcher.watch(&queue);
                let (agent, runs, upto) = open_runs(&mut queue)?;
                Ok((queue, watch, agent, runs, upto))
            })
            .await?;
        let live = Arc::new(LiveSession::new(session, self.context.clone(), watch.clone(), runs, upto));
        let mut all = self.all();
        if let Some(other) = all.get(&session).and_then(Weak::upgrade).filter(|other| !other.is_gone()) {
            // Another reader came at the same time.
            return Ok(other);
        }
        all.retain(|_, live| live.strong_count() > 0);
        all.insert(session, Arc::downgrade(&live));
        drop(all);
        let (context, weak) = (self.context.clone(), Arc::downgrade(&live));
        tokio::spawn(follow(context, weak, watch, queue, agent));
        Ok(live)
    }

    /// The session, if it has readers.
    pub fn live(&self, session: SessionId) -> Option<Arc<LiveSession>> {
        let live = self.all().get(&session)?.upgrade();
        live.filter(|live| !live.is_gone())
    }

    /// The sessions that have readers.
    pub fn everything(&self) -> Vec<Arc<LiveSession>> {
        self.all().values().filter_map(Weak::upgrade).collect()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<SessionId, Weak<LiveSession>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads new events of a session, until it has no reader left.
async fn follow(
    context: Arc<Context>,
    live: Weak<LiveSession>,
    watch: Arc<SessionWatch>,
    queue: Queue,
    agent: AgentView,
) {
    let mut reader = Reader { queue: Some(queue), agent: Some(agent), once: false };
    let mut failures = ReadFailures::none();
    let Some(id) = live.upgrade().map(|live| live.session) else { return };
    while let Some(session) = live.upgrade() {
        let agent = reader.agent.clone();
        let more = match session.advance(reader).await {
            Ok((next, more)) => {
                reader = next;
                failures.worked();
                if session.claim_relay() {
                    tokio::spawn(sub_agents::relay(live.clone(), context.root.path_of(session.session)));
                }
                more
            }
            Err(RequestError::UnknownSession(_)) => {
                session.removed();
                return;
            }
            Err(e) => {
                drop(session);
                reader = Reader { queue: None, agent, once: false };
                failures.failed(id, &e).await;
                continue;
            }
        };
        drop(session);
        if !more && timeout(LINGER, watch.changed.notified()).await.is_err() {
            // Quiet: nothing is kept until the next event.
            close(&context, id, &mut reader).await;
            if let Some(session) = live.upgrade() {
                session.clear_ring();
            }
            watch.changed.notified().await;
        }
    }
    close(&context, id, &mut reader).await;
}

/// Closes the database, which may write to the disk.
async fn close(context: &Context, session: SessionId, reader: &mut Reader) {
    let mut queue = reader.queue.take();
    let close = move || {
        drop(queue.take());
        Ok(())
    };
    // It fails only when the runtime is shutting down.
    context.pool.run(session, Kind::Read, close).await.ok();
}

#[cfg(test)]
mod tests;
