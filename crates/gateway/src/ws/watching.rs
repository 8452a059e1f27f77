//! Hearing several sessions over one connection.

use std::collections::HashMap;

use thread_protocol::method::{self, Nothing, UnwatchParams, WatchParams, WatchedSession, Watching};
use thread_sessions::{RequestError, Result, SessionId};
use tokio::task::JoinSet;

use super::caller::{Caller, Reply, Then, parse_session};
use super::methods::{Effect, Handler};
use super::watched::{Change, Heard, MOST};
use crate::session::blocking_pool::blocking;

impl Handler for method::SessionsWatch {
    const EFFECT: Effect = Effect::Moves;

    async fn handle(caller: &Caller, params: WatchParams) -> Result<Reply<Watching>> {
        let bad = |what: &str| RequestError::BadParams(what.to_owned());
        let all = params.all.unwrap_or_default();
        let mut after: HashMap<SessionId, i64> = HashMap::new();
        for (session, seq) in params.after.iter().flatten() {
            let id = SessionId::parse(session).ok_or_else(|| bad("'after' is by the ids of sessions"))?;
            after.insert(id, i64::try_from(*seq).unwrap_or(i64::MAX));
        }
        let mut ids: Vec<SessionId> = match (all, &params.session_ids) {
            (true, None) => {
                let root = caller.gateway.root.clone();
                let list = move || root.entries().map_err(|e| root.failed(e));
                blocking(&caller.gateway.common.lists, list)
                    .await?
                    .into_iter()
                    .map(|listed| listed.id)
                    .collect()
            }
            (false, Some(ids)) => ids.iter().map(|id| parse_session(id)).collect::<Result<_>>()?,
            _ => return Err(bad("give either 'sessionIds' or 'all'")),
        };
        ids.sort_unstable();
        ids.dedup();
        let more = ids.iter().filter(|id| !caller.watched.contains_key(id)).count();
        if caller.watched.len() + more > MOST {
            return Err(bad(&format!("one connection hears at most {MOST} sessions")));
        }
        let (mut entering, mut unknown, mut heard) = (JoinSet::new(), Vec::new(), Vec::new());
        for id in ids {
            let gateway = caller.gateway.clone();
            entering.spawn(async move { (id, gateway.hub.enter(id).await) });
        }
        while let Some(entered) = entering.join_next().await {
            // It fails only if it panicked, which was reported on stderr.
            let Ok((id, entered)) = entered else { continue };
            match entered {
                Ok(live) => {
                    let newest = live.upto();
                    let asked = after.get(&id).copied().or((all && params.after.is_some()).then_some(0));
                    // An id that does not exist yet would suppress the next events.
                    let position = asked.map(|asked| asked.min(newest));
                    let is_asked = position.is_some();
                    let position = position.or_else(|| caller.position_in(id)).unwrap_or(newest);
                    heard.push(Heard { live, position, is_asked });
                }
                Err(RequestError::UnknownSession(_) | RequestError::NotNow(_)) => {
                    unknown.push(id.to_string())
                }
                Err(e) => return Err(e),
            }
        }
        heard.sort_unstable_by_key(|heard| heard.live.session);
        unknown.sort_unstable();
        let watched = |heard: &Heard| WatchedSession {
            session_id: heard.live.session.to_string(),
            last_seq: heard.position,
        };
        let payload = Watching { sessions: heard.iter().map(watched).collect(), unknown };
        Ok(Reply { then: Then::Watch(Change::Hear { sessions: heard, all }), ..payload.into() })
    }
}

impl Handler for method::SessionsUnwatch {
    const EFFECT: Effect = Effect::Moves;

    async fn handle(_: &Caller, params: UnwatchParams) -> Result<Reply<Nothing>> {
        let ids = params.session_ids.map(|ids| ids.iter().map(|id| parse_session(id)).collect::<Result<_>>());
        let change = Change::Leave(ids.transpose()?);
        Ok(Reply { then: Then::Watch(change), ..Nothing {}.into() })
    }
}
