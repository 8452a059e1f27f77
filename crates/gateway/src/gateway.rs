//! State shared by all connections. None of it needs to outlive the process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use thread::Queue;
use thread::model::exponential_backoff::ExponentialBackoff;
use thread::run::Launcher;
use thread_sessions::{Catalogue, Kind, RequestError, Result, Root, SessionId};
use tokio::sync::watch;

use crate::access::logins::Logins;
use crate::access::origin::Origins;
use crate::access::proxy::Proxies;
use crate::access::token::{self, Proof, Token};
use crate::agents::Agents;
use crate::counters::Counters;
use crate::health::Health;
use crate::http::openai::known::Known;
use crate::inspect::Inspector;
use crate::session::blocking_pool::{BlockingPool, Common, blocking};
use crate::session::hub::Hub;
use crate::session::root::{self, begin_deletion};
use crate::session::tallies::Tallies;
use crate::session::write::{Author, SessionWriter};
use crate::storage::Storage;
use crate::webhooks::Hooks;

/// How often it is looked whether clients that stay are still to be let in, whatever has changed.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// How often to look whether the handlers of a session that is deleted have ended: at first, and later.
const FIRST_STEP: Duration = Duration::from_millis(20);
const LONGEST_STEP: Duration = Duration::from_millis(300);

/// Why a gateway that only shows refuses a request, and what to do.
pub const READ_ONLY: &str = "this gateway was started with --read-only and changes nothing; use `thread` on its machine, \
     or start it without --read-only";

pub struct Gateway {
    pub root: Arc<Root>,
    /// `None` with `--no-auth`: every request is allowed.
    pub token: Option<Token>,
    pub logins: Logins,
    /// Changes when the token or a login may have.
    pub access: watch::Sender<()>,
    pub origins: Origins,
    pub proxies: Proxies,
    /// The port it listens on, which is part of the cookie's name.
    pub port: u16,
    /// The agents that sessions can have.
    pub agents: Agents,
    pub launcher: Launcher,
    pub hub: Hub,
    pub catalogue: Arc<Catalogue>,
    /// For clients that bring the whole conversation with each request.
    pub known: Arc<Known>,
    pub inspector: Arc<Inspector>,
    pub hooks: Hooks,
    /// Whether clients may only look.
    pub read_only: bool,
    pub tallies: Tallies,
    pub health: Health,
    pub common: Common,
    pub storage: Arc<Storage>,
    pub counters: Arc<Counters>,
    pub started: Instant,
    /// True once the shutdown has started.
    pub shutdown: watch::Receiver<bool>,
}

impl Gateway {
    /// Whether a token is the right one, or none is required.
    pub fn admits(&self, offered: &str) -> bool {
        self.token.as_ref().is_none_or(|token| token.matches(offered))
    }

    /// Whether a cookie is of a login that lasts, or none is required.
    pub fn admits_login(&self, value: &str) -> bool {
        let Some(token) = &self.token else { return true };
        token.text().is_some_and(|token| self.logins.is_valid(value, &token))
    }

    /// Waits until a client that was let in would be no more; not because the whole root has vanished.
    pub async fn expels(&self, proof: &Proof) {
        let mut access = self.access.subscribe();
        loop {
            let admits = match proof {
                Proof::NotNeeded => true,
                Proof::Token(token) => self.admits(token),
                Proof::Login(value) => self.admits_login(value),
            };
            // The sender lives as long as the gateway.
            if !admits && self.root.is_there() || access.changed().await.is_err() {
                return;
            }
        }
    }

    /// Looks for changes of the token and of the logins.
    pub async fn watch_access(&self) {
        let Some(token) = &self.token else { return };
        let mut seen = None;
        let mut since = Instant::now();
        loop {
            let now = Some((token::stamp(token.path()), token::stamp(self.logins.folder())));
            // A login that is over changes nothing.
            if now != seen || since.elapsed() >= LOOK_AGAIN {
                (seen, since) = (now, Instant::now());
                self.access.send_replace(());
            }
            tokio::time::sleep(thread::LOOK_EVERY).await;
        }
    }

    /// Deletes a session and its files, and notifies its readers. While its handlers end, only the deletion itself
    /// is held.
    ///
    /// # Errors
    ///
    /// As [`begin_deletion`] and [`root::delete`].
    pub async fn delete(&self, session: SessionId) -> Result<()> {
        let root = self.root.clone();
        let deletion = self.pool().run(session, Kind::Write, move || begin_deletion(&root, session)).await?;
        let (deletion, mut backoff) =
            (Arc::new(Mutex::new(deletion)), ExponentialBackoff::new(FIRST_STEP, LONGEST_STEP));
        loop {
            let (root, deletion) = (self.root.clone(), deletion.clone());
            let step =
                move || root::delete(&root, &mut deletion.lock().unwrap_or_else(PoisonError::into_inner));
            if self.pool().run(session, Kind::Write, step).await? {
                break;
            }
            tokio::time::sleep(backoff.pause()).await;
        }
        self.storage.release(session).await;
        self.catalogue.forget(session);
        if let Some(live) = self.hub.live(session) {
            live.removed();
        }
        let done = move || deletion.lock().unwrap_or_else(PoisonError::into_inner).done();
        let done = move || done().map_err(|e| RequestError::Failed(e.to_string()));
        blocking(&self.common.lists, done).await
    }

    /// Continues unfinished deletions: their gateway was killed, or something prevented them. Deletes the hidden
    /// sessions that nobody needs any more.
    pub async fn continue_deletions(&self) {
        let root = self.root.clone();
        let due = blocking(&self.common.lists, move || {
            let forgotten = root.forgotten().map_err(|e| root.failed(e))?;
            Ok(root.being_deleted().into_iter().chain(forgotten).collect::<Vec<_>>())
        });
        for session in due.await.unwrap_or_default() {
            match self.delete(session).await {
                // By another gateway, or a request.
                Ok(()) | Err(RequestError::NotNow(_) | RequestError::UnknownSession(_)) => {}
                Err(e) => e.log("a deletion"),
            }
        }
    }

    /// Reads a session.
    ///
    /// # Errors
    ///
    /// [`RequestError::NotNow`]: the session is being deleted. As [`BlockingPool::run`].
    pub async fn read<T: Send + 'static>(
        &self,
        session: SessionId,
        mut work: impl FnMut(&mut Queue) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // Not after the deletion, whose turn may take seconds.
        self.root.refuse_deleted(session)?;
        let root = self.root.clone();
        self.pool().run(session, Kind::Read, move || work(&mut root.queue(session)?)).await
    }

    /// Writes to a session what an author sends.
    ///
    /// # Errors
    ///
    /// As [`Gateway::read`].
    pub async fn write<T: Send + 'static>(
        self: &Arc<Gateway>,
        session: SessionId,
        author: Author,
        mut work: impl FnMut(&mut SessionWriter<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.root.refuse_deleted(session)?;
        let own = self.clone();
        let work = move || work(&mut own.writer(&mut own.root.queue(session)?, session, &author));
        self.pool().run(session, Kind::Write, work).await
    }

    /// Writes to a session that is open.
    pub fn writer<'w>(
        &'w self,
        queue: &'w mut Queue,
        session: SessionId,
        author: &'w Author,
    ) -> SessionWriter<'w> {
        SessionWriter { queue, launcher: &self.launcher, storage: &self.storage, session, author }
    }

    /// Blocking work on sessions.
    pub fn pool(&self) -> &BlockingPool {
        &self.hub.context.pool
    }

    /// Waits until the shutdown starts.
    pub async fn shutting_down(&self) {
        // An error means that the sender was dropped, which only happens after the shutdown has started.
        drop(self.shutdown.clone().wait_for(|started| *started).await.map(|started| *started));
    }
}
