//! What a connection gets of the sessions that it hears besides its own, and what is for clients that have caught up.

use thread_protocol::event;
use thread_sessions::SessionId;
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::{Connection, Out};
use crate::session::cursor::Next;
use crate::session::frames::notice;
use crate::session::live_session::Present;
use crate::ws::socket::End;
use crate::ws::watched::{Change, Heard, Heeded, MOST};

impl Connection {
    /// Writes what comes next in another session that it hears.
    pub(super) async fn heeded(&mut self, heeded: Heeded) -> Result<(), End> {
        let (session, next) = match heeded {
            Heeded::Next(session, next) => (session, next),
            Heeded::Found(live) => {
                let session = live.session;
                if self.caller.session == Some(session)
                    || self.watched.has(session)
                    || self.watched.hear(live, 0, false)
                {
                    return Ok(());
                }
                let why = format!("one connection hears at most {MOST} sessions, and this is one more");
                return self.write(Out::Send(gone(session, why, event::ErrorCode::NotWatched))).await;
            }
        };
        match next {
            Next::Event(event) => {
                let Some(cursor) = self.watched.cursor(session) else { return Ok(()) };
                let frame = cursor.frames(&event);
                let frame = frame.map(|frames| frames.for_client(&self.caller.author.client).clone());
                let more = cursor.has_more();
                drop(event);
                match frame {
                    Some(frame) if more => self.write(Out::Feed(frame)).await,
                    Some(frame) => self.write(Out::Send(frame)).await,
                    None if !more && self.unflushed => self.write(Out::Flush).await,
                    None => Ok(()),
                }
            }
            Next::CaughtUp(present) => self.present(session, present).await,
            Next::Gone => {
                self.watched.leave(session);
                self.queued.retain(|(of, _), _| *of != session);
                let frame =
                    gone(session, "the session was removed".to_owned(), event::ErrorCode::SessionDeleted);
                self.write(Out::Send(frame)).await
            }
        }
    }

    /// Writes what is new for a client that has caught up in a session.
    pub(super) async fn present(&mut self, session: SessionId, present: Present) -> Result<(), End> {
        let is_here = self.caller.session == Some(session);
        let session = Some(session);
        let mut frames = present.notices;
        if is_here && self.clients.replace(present.clients) != Some(present.clients) {
            let clients = event::Clients { clients: present.clients as u64 };
            frames.push(notice(clients, session, None));
        }
        self.queued.retain(|(of, id), queued| {
            // Of another session, or stored after the order was computed.
            if Some(*of) != session || *id > present.upto {
                return true;
            }
            match present.order.iter().position(|other| other == id) {
                None | Some(0) => false,
                Some(position) => {
                    if std::mem::replace(&mut queued.position, position) != position {
                        frames.push(queued.frame(session));
                    }
                    true
                }
            }
        });
        for frame in frames {
            self.write(Out::Send(frame)).await?;
        }
        Ok(())
    }

    /// Hears other sessions from now on.
    pub(super) fn watch(&mut self, change: Change) {
        match change {
            Change::Hear { sessions, all } => {
                for Heard { live, position, is_asked } in sessions {
                    match self.cursor.as_mut().filter(|cursor| cursor.is_in(&live)) {
                        Some(cursor) => {
                            self.watched.stays(live.session);
                            if is_asked {
                                cursor.seek(position);
                            }
                        }
                        None => drop(self.watched.hear(live, position, is_asked)),
                    }
                }
                if all {
                    self.watched.discover(&self.caller.gateway);
                }
            }
            Change::Leave(None) => self.watched.leave_all(),
            Change::Leave(Some(sessions)) => {
                sessions.into_iter().for_each(|session| self.watched.leave(session))
            }
        }
        let (watched, here) = (&self.watched, self.caller.session);
        self.queued.retain(|(of, _), _| Some(*of) == here || watched.has(*of));
    }
}

/// The end of a session for a client, though not of its connection.
pub(super) fn gone(session: SessionId, message: String, error_code: event::ErrorCode) -> Utf8Bytes {
    notice(event::Error { message, error_code, retryable: false }, Some(session), None)
}
