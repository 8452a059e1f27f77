//! Inspecting threads: their events, the state of their consumers, how runs went; and acting on them.
//!
//! The threads are those of the sessions, those of their sub-agents, and the ones that `--thread` names. The last
//! are looked at only: nothing is started there, except by the same requests as on the command line.
//!
//! Nothing here runs on the threads that serve connections, and nothing waits for long: filters of strangers have
//! [`FILTER_TIME`], counting has limits, and a thread that is locked, damaged or enormous has its own turns. State
//! other than events is read once a second, however many watch it, and not at all while no one does: see
//! [`watched`].
//!
//! | module | owns |
//! |---|---|
//! | `dto` | what requests are answered with |
//! | `threads` | which threads there are, and their ids |
//! | `overview`, `rate` | the list of all threads |
//! | `state`, `series` | one thread and its consumers, now and over time |
//! | `watched` | looking once a second |
//! | `event`, `events`, `tail` | reading events: one, backwards, and as they come |
//! | `runs` | runs of handlers |
//! | `trace` | what became of an event |
//! | `dead` | dead letters |
//! | `verbs` | what people do to consumers |

pub mod dead;
pub mod dto;
mod event;
pub mod events;
pub mod overview;
mod rate;
pub mod runs;
pub mod series;
pub mod state;
pub mod tail;
pub mod threads;
pub mod trace;
pub mod verbs;
pub mod watched;

use std::sync::Arc;
use std::time::Duration;

use thread::Queue;
use thread::model::subscription::ConsumerId;
use thread::run::Launcher;
use thread_sessions::root::BUSY;
use thread_sessions::turns::Keyed;
use thread_sessions::{Catalogue, Kind, Result};

use self::overview::Overview;
use self::threads::{Target, ThreadId, Threads};
use self::watched::Watched;
use crate::session::blocking_pool::{BlockingPool, LOOKING};
use crate::session::context::Context;

/// How long the filter of a request may take.
pub const FILTER_TIME: Duration = Duration::from_secs(2);

/// How long a request is tried again while a thread is locked.
const PATIENCE: Duration = Duration::from_secs(3);

pub struct Inspector {
    pub threads: Threads,
    overview: Overview,
    watched: Watched,
    context: Arc<Context>,
    catalogue: Arc<Catalogue>,
    launcher: Launcher,
    pool: BlockingPool<ThreadId>,
    /// Tasks that wait for the end of a run or wait: one for each consumer, which polls.
    stops: Keyed<(ThreadId, ConsumerId)>,
    read_only: bool,
}

impl Inspector {
    pub fn new(
        context: Arc<Context>,
        catalogue: Arc<Catalogue>,
        launcher: Launcher,
        threads: Threads,
        read_only: bool,
    ) -> Inspector {
        Inspector {
            threads,
            overview: Overview::default(),
            watched: Watched::default(),
            context,
            catalogue,
            launcher,
            pool: BlockingPool::new(LOOKING),
            stops: Keyed::default(),
            read_only,
        }
    }

    /// Does work on the thread with an id. If the thread is locked, the work is done again from its beginning.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unknown`](thread_sessions::RequestError::Unknown), there is no such thread; as
    /// [`BlockingPool::run`](crate::session::blocking_pool::BlockingPool::run).
    pub async fn at<T: Send + 'static>(
        self: &Arc<Inspector>,
        id: &str,
        kind: Kind,
        work: impl FnMut(&Inspector, &Target, &mut Queue) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let id = self.threads.parse(id)?;
        self.at_thread(&id, kind, work).await
    }

    async fn at_thread<T: Send + 'static>(
        self: &Arc<Inspector>,
        id: &ThreadId,
        kind: Kind,
        mut work: impl FnMut(&Inspector, &Target, &mut Queue) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (inspector, own) = (self.clone(), id.clone());
        let work = move || {
            let target = inspector.threads.find(&own)?;
            work(&inspector, &target, &mut target.open(BUSY)?)
        };
        self.run(id, kind, work).await
    }

    /// The id of a thread that exists.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unknown`](thread_sessions::RequestError::Unknown): there is none.
    pub async fn existing(self: &Arc<Inspector>, id: &str) -> Result<ThreadId> {
        let id = self.threads.parse(id)?;
        let (inspector, own) = (self.clone(), id.clone());
        self.run(&id, Kind::Read, move || inspector.threads.find_existing(&own)).await?;
        Ok(id)
    }

    /// Does work for the thread with an id, in its turn.
    async fn run<T: Send + 'static>(
        &self,
        id: &ThreadId,
        kind: Kind,
        work: impl FnMut() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.pool.run_within(PATIENCE, id.clone(), kind, work).await
    }
}
