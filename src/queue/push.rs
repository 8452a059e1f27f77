//! Pushing: storing events, then bringing the JSONL log up to date and notifying waiters. The last step, waking
//! consumers, is [`run::wake`](fn@crate::run::wake).

use super::Queue;
use crate::error::{Error, Result};
use crate::files::COMMIT;
use crate::files::log::{self, log};
use crate::jsonl;
use crate::model::event::NewEvent;
use crate::model::scheduled::ScheduledId;
use crate::model::time::Time;
use crate::store::{Appended, Notice, Put, Stored};

/// Result of a push.
#[derive(Debug)]
pub struct Pushed {
    pub appended: Appended,
    /// Why the JSONL log is behind, if it is. The events are stored; the next push brings the log up
    /// to date.
    pub log_behind: Option<Error>,
}

/// A pushed event, or the event pushed before under the same idempotency key.
#[derive(Debug)]
pub struct PushedEvent {
    /// 0 if it is scheduled.
    pub id: i64,
    /// When it was stored or scheduled.
    pub created_at: String,
    /// Its number, and when it becomes an event, if it is scheduled.
    pub scheduled: Option<(ScheduledId, Time)>,
    pub repeated: bool,
    /// As in [`Pushed`].
    pub log_behind: Option<Error>,
}

impl Queue {
    /// Stores one event. Once this returns, the event survives a power cut.
    ///
    /// # Errors
    ///
    /// [`Error::KeyConflict`]; those of the database. Nothing is stored then, unless the error says
    /// that the outcome is unknown.
    pub fn push(&mut self, event: &NewEvent<'_>) -> Result<PushedEvent> {
        let pushed = self.append_one(event, || {})?;
        Ok(PushedEvent { log_behind: self.publish(&mut |_| {}), ..pushed })
    }

    /// Stores what `feed` puts, in one transaction: all or nothing.
    ///
    /// # Errors
    ///
    /// As [`Queue::push`], and those of `feed`.
    pub fn push_all(&mut self, feed: &mut dyn FnMut(&mut Put<'_>) -> Result<()>) -> Result<Pushed> {
        let appended = self.append(feed)?;
        log!(self, Info, "push batch: {appended}");
        Ok(Pushed { appended, log_behind: self.publish(&mut |_| {}) })
    }

    /// The first step of [`Queue::push_all`]: only stores, without a line in the thread's log. [`Queue::publish`] must
    /// follow.
    pub fn append(&mut self, feed: &mut dyn FnMut(&mut Put<'_>) -> Result<()>) -> Result<Appended> {
        if let Err(e) = log::rotate(&self.files) {
            log!(self, Warn, "push: logs/thread.log could not be rotated: {e}");
        }
        let appended = self.store.append(feed);
        if let Err(e @ (Error::Database(_) | Error::Io { .. } | Error::TooManyFiles(_))) = &appended {
            log!(self, Error, "push: {e}");
        }
        appended
    }

    /// The first step of [`Queue::push`]. `before_commit` is called directly before the commit.
    pub(crate) fn append_one(
        &mut self,
        event: &NewEvent<'_>,
        before_commit: impl Fn(),
    ) -> Result<PushedEvent> {
        let mut stored = None;
        let appended = self.append(&mut |put| {
            stored = put(std::slice::from_ref(event))?.pop();
            before_commit();
            Ok(())
        })?;
        let (id, created_at, repeated) = match stored {
            Some(Stored::Scheduled { id, due, repeated }) => {
                let again = if repeated { " repeated" } else { "" };
                log!(
                    self,
                    Info,
                    "push: source={} type={} scheduled={id}{again}",
                    event.source,
                    event.kind.as_str()
                );
                let created_at = appended.created_at;
                return Ok(PushedEvent {
                    id: 0,
                    created_at,
                    scheduled: Some((id, due)),
                    repeated,
                    log_behind: None,
                });
            }
            Some(Stored::Repeated { id, created_at }) => (id, created_at, true),
            _ => {
                let created_at = event.created_at.as_deref().map_or(appended.created_at, str::to_owned);
                (appended.last_id.unwrap_or_default(), created_at, false)
            }
        };
        let again = if repeated { " repeated" } else { "" };
        let (source, kind) = (&event.source, event.kind.as_str());
        log!(self, Info, "push: source={source} type={kind} id={id}{again}");
        Ok(PushedEvent { id, created_at, scheduled: None, repeated, log_behind: None })
    }

    /// The second step of a push: brings the JSONL log up to date, then notifies waiters. Returns why the log is
    /// behind, if it is. `progress` is called with the number of events written since its last call.
    pub fn publish(&mut self, progress: &mut dyn FnMut(u64)) -> Option<Error> {
        let logged = jsonl::catch_up(&self.files, &mut *self.store, self.busy_limit, progress);
        if let Err(e) = &logged {
            log!(self, Warn, "push: events.jsonl is behind: {e}");
        }
        // If the file cannot be touched, waiters notice by polling within a second.
        drop(self.files.touch(COMMIT));
        self.store.announce(Notice::Stored);
        logged.err()
    }
}
