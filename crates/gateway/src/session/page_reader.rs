//! Reading pages of events of a session that has readers, within the budget.

use std::sync::Arc;

use thread::Queue;
use thread_conversation::runs::Runs;
use thread_sessions::events::LARGE;
use thread_sessions::{AgentView, Kind, RequestError, Result, SessionId, open_runs};

use super::budget::{PAGE, Share};
use super::context::Context;
use super::event::{Page, Reading, read};

/// What reads a session: its database, if it is open, and what is known of its agent.
#[derive(Default)]
pub struct Reader {
    pub queue: Option<Queue>,
    pub agent: Option<AgentView>,
    /// It reads one page: the database is closed with it, where that may write to the disk.
    pub once: bool,
}

/// A page as it was read.
pub struct ReadPage {
    pub page: Page,
    /// Which of its events are pending for the agent, if the reader knows one.
    pub pending: Vec<bool>,
    /// To read the next page with.
    pub reader: Reader,
    /// The open runs, and the id up to which they were read, if they had to be read again.
    pub runs: Option<(Runs, i64)>,
}

/// Reads a page, within the budget.
///
/// # Errors
///
/// Errors of the thread.
pub async fn read_page(
    context: &Arc<Context>,
    session: SessionId,
    after: i64,
    reader: Reader,
) -> Result<ReadPage> {
    let (mut share, mut room, mut reader) = (context.budget.share(PAGE).await, LARGE, reader);
    loop {
        let Reader { mut queue, agent: known, once } = reader;
        let own = context.clone();
        let job = move || {
            // The job may be tried again: then it opens the database again, and still knows the agent.
            let mut agent = known.clone();
            let mut queue = match queue.take() {
                Some(queue) => queue,
                None => own.root.queue(session)?,
            };
            if !queue.files().still_there() {
                return Err(RequestError::UnknownSession(session.to_string()));
            }
            let mut runs = None;
            if let Some(known) = &mut agent
                && known.update(&mut queue)?
            {
                let (view, open, upto) = open_runs(&mut queue)?;
                (*known, runs) = (view, Some((open, upto)));
            }
            let filter = agent.as_ref().and_then(AgentView::filter);
            let (reading, pending) = read(&mut queue, after, room, filter)?;
            Ok((reading, pending, Reader { queue: Some(queue).filter(|_| !once), agent, once }, runs))
        };
        let (reading, pending, read, runs) = context.pool.run(session, Kind::Read, job).await?;
        reader = read;
        match reading {
            Reading::Page(page) => {
                let page = Page { _share: Some(share), ..page };
                return Ok(ReadPage { page, pending, reader, runs });
            }
            Reading::LongEnding(bytes) => {
                // Given back first: a reader that waits for a large share must not hold a small one.
                drop(share);
                share = context.budget.share(Share::mib_for(bytes)).await;
                room = bytes;
            }
        }
    }
}
