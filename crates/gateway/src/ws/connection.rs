//! One connection: requests are answered one after the other, and between them the events of its session are
//! written, from where the client is, as fast as its socket takes them.
//!
//! A connection holds no queue. It knows the id of the last event that it has written, and takes the next one
//! once that is in the socket. A task of its own reads, so that the end of a connection, a request too many or
//! a pong is noticed also while a write waits for a client that does not read.

mod hearing;

use std::collections::HashMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::upgrade::Upgraded;
use thread_protocol::{Call, Close, Request, code, event, response};
use thread_sessions::SessionId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use self::hearing::gone;
use super::caller::{Caller, Done, Reply, Subscribe, Then};
use super::handshake::handshake;
use super::methods::{self, Effect};
use super::reading::{Alive, read};
use super::socket::{self, End, Writer};
use super::watched::Watched;
use crate::access::connection_limits::Permit;
use crate::access::token::Proof;
use crate::gateway::Gateway;
use crate::log;
use crate::session::cursor::{Cursor, Next};
use crate::session::frames::notice;
use crate::session::write::Accepted;

const PING_EVERY: Duration = Duration::from_secs(20);

/// How long a write may take before the client counts as behind.
const BEHIND_AFTER: Duration = Duration::from_millis(250);

/// Serves a connection to its end.
pub async fn serve(
    gateway: Arc<Gateway>,
    upgraded: Upgraded,
    permit: Arc<Permit>,
    origins: Vec<String>,
    admitted: Option<Proof>,
) {
    let (mut reader, mut writer) = socket::open(upgraded).await;
    if admitted.is_some() {
        reader.trust();
    }
    let client = tokio::select! {
        client = handshake(&gateway, &permit, &mut reader, &mut writer, admitted) => client,
        () = gateway.shutting_down() => Err(End::Close(Close::GoingAway)),
        () = permit.dismissed() => Err(End::Gone),
    };
    let end = match client {
        Err(end) => end,
        Ok((author, proof)) => {
            let (stop, stopped) = oneshot::channel();
            let (ending, ended) = oneshot::channel();
            let (sender, requests) = mpsc::unbounded_channel();
            let alive = Arc::new(Alive::default());
            let reading = tokio::spawn(read(reader, sender, alive.clone(), ending, stopped));
            let caller = Caller {
                gateway,
                author,
                origins,
                session: None,
                position: None,
                watched: Arc::default(),
                last_list: Arc::default(),
            };
            let mut connection = Connection {
                caller,
                writer,
                ended,
                alive,
                cursor: None,
                watched: Watched::default(),
                queued: HashMap::new(),
                clients: None,
                awaited: None,
                unflushed: false,
            };
            let end = connection.run(requests, &proof).await;
            drop(stop);
            let Ok(back) = reading.await else { return };
            (reader, writer) = (back, connection.writer);
            end
        }
    };
    let (answer, why) = match end {
        End::Gone => return,
        End::Close(why) => (None, why),
        End::Malformed(malformed) => {
            let answer =
                malformed.id.map(|id| Utf8Bytes::from(response::error(&id, malformed.why, code::MALFORMED)));
            (answer, Close::Malformed)
        }
    };
    if !matches!(why, Close::GoingAway | Close::Silent) {
        log::refused(permit.client().address, "/ws", why.reason());
    }
    tokio::select! {
        () = socket::close(reader, writer, answer, why) => {}
        () = permit.dismissed() => {}
    }
}

/// A connection that has been let in.
struct Connection {
    caller: Caller,
    writer: Writer,
    ended: oneshot::Receiver<End>,
    alive: Arc<Alive>,
    /// Where the client is, if it is in a session.
    cursor: Option<Cursor>,
    /// The other sessions that it hears.
    watched: Watched,
    /// Its messages whose runs have not begun, by session and event id.
    queued: HashMap<(SessionId, i64), QueuedMessage>,
    /// The number of clients in the session, as last sent to it.
    clients: Option<usize>,
    /// A response that must follow the event with an id.
    awaited: Option<(i64, Utf8Bytes)>,
    /// Whether something was written that is not flushed.
    unflushed: bool,
}

/// A message that waits.
struct QueuedMessage {
    request: String,
    run_id: String,
    position: usize,
}

impl Connection {
    /// Answers requests and writes events until the connection ends.
    async fn run(&mut self, mut requests: mpsc::UnboundedReceiver<Request>, proof: &Proof) -> End {
        let gateway = self.caller.gateway.clone();
        let mut expelled = pin!(gateway.expels(proof));
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.tick().await;
        let mut working: Option<Working> = None;
        loop {
            // Events wait for the response that says where they begin.
            let flows = working.as_ref().is_none_or(|working| !working.holds);
            let accepts = working.is_none() && self.awaited.is_none();
            let done = tokio::select! {
                biased;
                end = &mut self.ended => return end.unwrap_or(End::Gone),
                () = gateway.shutting_down() => return End::Close(Close::GoingAway),
                () = &mut expelled => return End::Close(Close::Unauthorized),
                _ = pings.tick() => self.write(Out::Ping).await,
                done = Working::done(&mut working) => {
                    working = None;
                    self.finish(done).await
                }
                Some(request) = requests.recv(), if accepts => {
                    let position = self.cursor.as_ref().map(Cursor::position);
                    let watched = Arc::new(self.watched.positions());
                    working = Some(Working::new(Caller { position, watched, ..self.caller.clone() }, request));
                    Ok(())
                }
                next = next(&mut self.cursor), if flows => self.next(next).await,
                heeded = self.watched.next(), if flows => self.heeded(heeded).await,
            };
            if let Err(end) = done {
                return end;
            }
        }
    }

    /// Writes the next events of the session.
    async fn next(&mut self, next: Next) -> Result<(), End> {
        match next {
            Next::Event(event) => {
                let Some(cursor) = &self.cursor else { return Ok(()) };
                let frame = cursor.frames(&event);
                let frame = frame.map(|frames| frames.for_client(&self.caller.author.client).clone());
                // Events that come together are flushed together.
                let more = cursor.has_more();
                // The write may take long.
                drop(event);
                match frame {
                    Some(frame) if more => self.write(Out::Feed(frame)).await?,
                    Some(frame) => self.write(Out::Send(frame)).await?,
                    None if !more && self.unflushed => self.write(Out::Flush).await?,
                    None => {}
                }
            }
            Next::CaughtUp(present) => {
                if let Some(session) = self.caller.session {
                    self.present(session, present).await?;
                }
            }
            Next::Gone => return self.removed().await,
        }
        let position = self.cursor.as_ref().map_or(i64::MAX, Cursor::position);
        if let Some((_, response)) = self.awaited.take_if(|(upto, _)| position >= *upto) {
            self.respond(response).await?;
        }
        Ok(())
    }

    /// Leaves a session that was removed.
    async fn removed(&mut self) -> Result<(), End> {
        let Some(session) = self.caller.session else { return Ok(()) };
        let frame = gone(session, "the session was removed".to_owned(), event::ErrorCode::SessionDeleted);
        self.watched.leave(session);
        self.leave();
        self.write(Out::Send(frame)).await?;
        match self.awaited.take() {
            Some((_, response)) => self.respond(response).await,
            None => Ok(()),
        }
    }

    fn leave(&mut self) {
        let (cursor, left) = (self.cursor.take(), self.caller.session.take());
        self.clients = None;
        if let Some(cursor) = cursor {
            self.watched.left(cursor);
        }
        let watched = &self.watched;
        self.queued.retain(|(of, _), _| Some(*of) != left || watched.has(*of));
    }

    /// Answers a request that was carried out, and applies its effects on the connection.
    async fn finish(&mut self, done: Done) -> Result<(), End> {
        let Done { id, reply } = done;
        let Reply { payload: response, subscribe, then } = reply;
        let mut after = None;
        match subscribe {
            Subscribe::Stay => {}
            Subscribe::At { live, position, respond_after } => {
                if self.caller.session != Some(live.session) {
                    self.leave();
                    self.caller.session = Some(live.session);
                }
                after = respond_after.filter(|upto| *upto > position);
                match self.cursor.as_mut().filter(|cursor| cursor.is_in(&live)) {
                    Some(cursor) => cursor.seek(position),
                    None => {
                        // It continues where it is: what it has not heard yet is between that and the position, if at
                        // all.
                        drop(self.watched.enter(live.session));
                        self.cursor = Some(Cursor::new(live, position).of_client());
                    }
                }
            }
        }
        if let Some(upto) = after {
            self.awaited = Some((upto, response));
            return Ok(());
        }
        self.respond(response).await?;
        match then {
            Then::Send(frame) => self.write(Out::Send(frame)).await,
            Then::Queued(session, Accepted { event, run_id, position: Some(position), .. })
                if position > 0 =>
            {
                let queued = QueuedMessage { request: id, run_id, position };
                let frame = queued.frame(Some(session));
                self.queued.insert((session, event), queued);
                self.write(Out::Send(frame)).await
            }
            Then::Release(share) => {
                drop(share);
                Ok(())
            }
            Then::Watch(change) => {
                self.watch(change);
                Ok(())
            }
            Then::Nothing | Then::Queued(..) => Ok(()),
        }
    }

    async fn respond(&mut self, response: Utf8Bytes) -> Result<(), End> {
        self.write(Out::Send(response)).await?;
        self.alive.answered();
        Ok(())
    }

    /// Writes to the client, however long that takes, unless the connection must end.
    async fn write(&mut self, out: Out) -> Result<(), End> {
        self.unflushed = matches!(out, Out::Feed(_));
        let gateway = &self.caller.gateway;
        let writer = &mut self.writer;
        let mut write = std::pin::pin!(async move {
            match out {
                Out::Ping => writer.ping().await,
                Out::Flush => writer.flush().await,
                Out::Feed(text) => writer.feed(&text).await,
                Out::Send(text) => {
                    writer.feed(&text).await?;
                    writer.flush().await
                }
            }
        });
        let mut behind = false;
        let done = loop {
            tokio::select! {
                biased;
                done = &mut write => break done,
                end = &mut self.ended => return Err(end.unwrap_or(End::Gone)),
                () = gateway.shutting_down() => return Err(End::Close(Close::GoingAway)),
                () = sleep(BEHIND_AFTER), if !behind => {
                    behind = true;
                    self.alive.behind(true);
                    // Drops data that was read ahead: it would be kept until the client reads again.
                    if let Some(cursor) = &mut self.cursor {
                        cursor.forget();
                    }
                    self.watched.forget();
                }
            }
        };
        if behind {
            self.alive.behind(false);
        }
        done.map_err(|_| End::Gone)
    }
}

/// What is written.
enum Out {
    /// A text, without flushing it.
    Feed(Utf8Bytes),
    /// A text, and everything before it.
    Send(Utf8Bytes),
    Flush,
    Ping,
}

/// A request that is being carried out.
struct Working {
    work: Pin<Box<dyn Future<Output = Done> + Send>>,
    /// Whether events wait until it is answered.
    holds: bool,
}

impl Working {
    fn new(caller: Caller, request: Request) -> Working {
        let call = Call::parse(&request.method, request.params);
        let holds = call.as_ref().is_ok_and(|call| methods::effect(call) != Effect::Looks);
        Working { work: Box::pin(methods::call(caller, request.id, call)), holds }
    }

    /// Waits until it is done; forever, if nothing is being carried out.
    async fn done(working: &mut Option<Working>) -> Done {
        match working {
            Some(working) => working.work.as_mut().await,
            None => std::future::pending().await,
        }
    }
}

/// What comes next in the session; waits forever without one.
async fn next(cursor: &mut Option<Cursor>) -> Next {
    match cursor {
        Some(cursor) => cursor.next().await,
        None => std::future::pending().await,
    }
}

impl QueuedMessage {
    fn frame(&self, session: Option<SessionId>) -> Utf8Bytes {
        let others = if self.position == 1 { "run is" } else { "runs are" };
        let queued = event::Queued {
            request_id: self.request.clone(),
            position: self.position as u64,
            message: format!("{} {others} before this one", self.position),
        };
        notice(queued, session, Some(&self.run_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_waits_says_how_many_are_before_it() {
        let frame = |position| {
            let queued = QueuedMessage { request: "q".into(), run_id: "r".into(), position };
            let frame: serde_json::Value = serde_json::from_str(&queued.frame(None)).unwrap();
            frame["payload"].clone()
        };
        let payload = |position: u64, message: &str| {
            serde_json::json!({
                "requestId": "q", "position": position, "message": message, "sessionId": null, "runId": "r",
            })
        };
        assert_eq!(frame(1), payload(1, "1 run is before this one"));
        assert_eq!(frame(2), payload(2, "2 runs are before this one"));
    }
}
