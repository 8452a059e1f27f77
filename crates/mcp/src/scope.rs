//! What a server may touch: one thread, all sessions of a root, or both.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thread::Queue;
use thread::model::subscription::ConsumerId;
use thread::run::Launcher;
use thread_conversation::CONSUMER;
use thread_sessions::catalogue::Catalogue;
use thread_sessions::turns::Turns;
use thread_sessions::watch::ChangeWatcher;
use thread_sessions::{Root, SessionId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::problem::{Problem, Result};

/// How long a tool waits for another writer.
const BUSY: Duration = Duration::from_secs(2);

/// How many tools read or write at the same time. Those that wait for an event do neither.
pub const AT_ONCE: usize = 8;

/// What a server may touch, and what it needs for that.
pub struct Scope {
    /// The thread that tools are for if they name no session; absolute.
    pub thread: Option<PathBuf>,
    pub root: Option<Arc<Root>>,
    /// Whether there are the tools for what runs.
    pub has_processes: bool,
    pub catalogue: Arc<Catalogue>,
    pub watcher: Arc<ChangeWatcher>,
    pub launcher: Launcher,
    /// The source of what is pushed, `internal:dm:…`.
    pub source: String,
    /// The consumer that is the thread's agent.
    pub consumer: ConsumerId,
    pub allow_subscribe: bool,
    /// Whether the caller is on this machine, as the threads' owner.
    pub is_local: bool,
    /// Cancelled when the server is about to end.
    pub ending: CancellationToken,
    /// The calls under way.
    pub calls: TaskTracker,
    turns: Turns<Turn>,
}

/// What work is on: of each, one piece is done at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Turn {
    Read(PathBuf),
    Write(PathBuf),
    /// All sessions.
    List,
    Search,
}

/// What a look has found.
pub enum Look<T> {
    Found(T),
    Nothing,
    /// Nothing so far; there is more to look at.
    More,
}

impl Scope {
    pub fn new(watcher: Arc<ChangeWatcher>, launcher: Launcher) -> Scope {
        Scope {
            thread: None,
            root: None,
            has_processes: false,
            catalogue: Arc::default(),
            watcher,
            launcher,
            source: source("mcp"),
            consumer: ConsumerId::stored(CONSUMER),
            allow_subscribe: false,
            is_local: false,
            ending: CancellationToken::new(),
            calls: TaskTracker::new(),
            turns: Turns::new(AT_ONCE),
        }
    }

    /// The thread of a session, or the server's own.
    pub fn path_of(&self, session: Option<&str>) -> Result<PathBuf> {
        match (session, &self.root, &self.thread) {
            (Some(id), Some(root), _) => {
                let id = parse(id)?;
                root.refuse_deleted(id)?;
                Ok(root.path_of(id))
            }
            (Some(_), None, _) => {
                Err(Problem::new("this server is for one thread, not for sessions", "leave out `session`"))
            }
            (None, _, Some(thread)) => Ok(thread.clone()),
            (None, _, None) => Err(Problem::new(
                "no session is named",
                "give `session` the id of one; `sessions_list` shows them",
            )),
        }
    }

    /// The id of the session whose thread this is.
    pub fn session_of(&self, path: &Path) -> Option<SessionId> {
        let root = self.root.as_ref()?;
        let id = SessionId::parse_name(path.strip_prefix(root.dir()).ok()?.as_os_str())?;
        (root.path_of(id) == path).then_some(id)
    }

    /// The folder of all sessions, for tools that need one.
    pub fn root(&self) -> Result<&Arc<Root>> {
        self.root.as_ref().ok_or_else(|| {
            Problem::new("this server is for one thread, not for sessions", "use the tools of the thread")
        })
    }

    /// Does work that may block on the disk. It keeps its turn until it is done, even if its caller has left.
    pub async fn blocking<T: Send + 'static>(
        self: &Arc<Scope>,
        turn: Turn,
        work: impl FnOnce(&Scope) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let scope = Arc::clone(self);
        let done = self.turns.run(turn, move || work(&scope)).await;
        // It panicked, which has been reported on stderr, or the server is about to end.
        done.unwrap_or_else(|| Err(Problem::new("this server could not do it", "try again")))
    }

    /// Reads a thread until there is something to return, first at once and then whenever something was stored.
    /// `None` at `end`, if the caller has left, and if the server ends. Between two reads, it holds neither a turn
    /// nor files.
    pub async fn until<T: Send + 'static>(
        self: &Arc<Scope>,
        path: PathBuf,
        end: Instant,
        cancelled: &CancellationToken,
        mut look: impl FnMut(&mut Queue) -> Result<Look<T>> + Send + 'static,
    ) -> Result<Option<T>> {
        let turn = Turn::Read(path.clone());
        let own = path.clone();
        let watch = self.blocking(turn.clone(), move |scope| Ok(scope.watcher.watch(&open(&own)?))).await?;
        loop {
            let own = path.clone();
            let found;
            (look, found) = self
                .blocking(turn.clone(), move |_| {
                    let found = look(&mut open(&own)?)?;
                    Ok((look, found))
                })
                .await?;
            let is_over = || Instant::now() >= end || cancelled.is_cancelled() || self.ending.is_cancelled();
            match found {
                Look::Found(found) => return Ok(Some(found)),
                Look::More if is_over() => return Ok(None),
                Look::More => continue,
                Look::Nothing => {}
            }
            tokio::select! {
                () = watch.changed.notified() => {}
                () = tokio::time::sleep_until(end) => return Ok(None),
                () = cancelled.cancelled() => return Ok(None),
                () = self.ending.cancelled() => return Ok(None),
            }
        }
    }
}

/// Opens a thread.
pub fn open(path: &Path) -> Result<Queue> {
    Ok(Queue::open_waiting(path, BUSY)?)
}

/// The id of a session.
pub fn parse(session: &str) -> Result<SessionId> {
    SessionId::parse(session).ok_or_else(|| {
        let shown: String = session.chars().take(80).collect();
        thread_sessions::RequestError::UnknownSession(shown).into()
    })
}

/// The source of what a server of this name pushes.
pub fn source(name: &str) -> String {
    format!("internal:dm:default:{name}")
}
