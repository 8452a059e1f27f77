//! Sessions that have readers: one task for each, which notices commits, and the newest events in a ring.
//!
//! Nothing is sent to a reader. The task reads new events once, puts them into a small ring and signals the change;
//! each reader has a [`Cursor`](super::cursor::Cursor) and takes what follows its own position, from the ring or,
//! if it is further behind, from the disk. So a slow reader costs nothing, and a late reader, a returning one and
//! one that was always there are the same.
//!
//! State that is not stored in the thread (the order of queued runs, the number of clients, the output of
//! sub-agents) is for readers that have caught up: they get the newest state, without history.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use thread_conversation::Entry;
use thread_conversation::runs::Runs;
use thread_sessions::{Result, SessionId, SessionWatch};
use tokio::sync::{OnceCell, watch};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::bell::Bell;
use super::context::Context;
use super::event::{Page, SessionEvent};
use super::page_reader::{ReadPage, Reader, read_page};

/// How much the ring of a session holds, in bytes.
const RING_BYTES: usize = 512 * 1024;

/// How many pieces of sub-agents' output wait for readers.
const MAX_NOTICES: usize = 256;

/// A session that has readers. Its task ends with the last reader.
pub struct LiveSession {
    pub session: SessionId,
    pub context: Arc<Context>,
    watch: Arc<SessionWatch>,
    state: Mutex<State>,
    /// A number that rises with each change of the state.
    changed: watch::Sender<u64>,
    /// Pages that are being read from disk, by the id they begin after.
    pages: Mutex<HashMap<i64, Weak<OnceCell<Arc<Page>>>>>,
    /// Those who hear several sessions are told which has changed.
    bells: Mutex<Vec<Weak<Bell>>>,
}

#[derive(Default)]
struct State {
    /// Every event up to this id has been read.
    upto: i64,
    /// The newest events, all of those after `ring_from`.
    ring: VecDeque<Arc<SessionEvent>>,
    ring_from: i64,
    ring_bytes: usize,
    /// As of `upto`.
    runs: Runs,
    order: Arc<Vec<i64>>,
    clients: usize,
    notices: VecDeque<Notice>,
    /// The number of the next notice.
    next_notice: u64,
    /// Calls that were open when the task began: output of their sub-agents up to then is not repeated.
    inherited: HashSet<String>,
    /// Whether a task relays the output of sub-agents.
    relaying: bool,
    gone: bool,
}

/// A piece of a sub-agent's output.
struct Notice {
    number: u64,
    /// The call that the sub-agent works for.
    call_id: String,
    frame: Utf8Bytes,
}

/// What follows a position.
pub enum Following {
    /// These events, and no others up to the id.
    Events(Vec<Arc<SessionEvent>>, i64),
    /// They are no longer in memory.
    OnDisk,
    /// Nothing yet: the reader has caught up. Also the number of the next notice.
    Nothing(Present, u64),
    /// The session was removed.
    Gone,
}

/// State for readers that have caught up.
pub struct Present {
    /// The ids of messages in the order of their runs, the active one first.
    pub order: Arc<Vec<i64>>,
    /// Messages with a larger id are not in the order yet.
    pub upto: i64,
    pub clients: usize,
    /// Output of sub-agents, oldest first.
    pub notices: Vec<Utf8Bytes>,
}

impl LiveSession {
    /// A session without readers yet, with its open runs as of `upto`.
    pub fn new(
        session: SessionId,
        context: Arc<Context>,
        watch: Arc<SessionWatch>,
        runs: Runs,
        upto: i64,
    ) -> LiveSession {
        let (inherited, order) = (open_calls(&runs).collect(), Arc::new(runs.in_order()));
        let state = State { upto, ring_from: upto, order, runs, inherited, ..State::default() };
        let (changed, pages, bells) = (watch::Sender::new(0), Mutex::default(), Mutex::default());
        LiveSession { session, context, watch, state: Mutex::new(state), changed, pages, bells }
    }

    /// How a reader learns of changes, and the number of the next notice.
    pub fn subscribe(&self) -> (watch::Receiver<u64>, u64) {
        (self.changed.subscribe(), self.state().next_notice)
    }

    /// Rings a bell with each change from now on, and once now.
    pub fn ring_at_change(&self, bell: &Arc<Bell>) {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(bell));
        bell.ring(self.session);
    }

    /// Every event up to this id is read.
    pub fn upto(&self) -> i64 {
        self.state().upto
    }

    /// Counts a client that is in the session from now on, or no longer.
    pub fn count_client(&self, here: bool) {
        self.change(|state| state.clients = state.clients + usize::from(here) - usize::from(!here));
        if here {
            // The first client starts what only clients need: the relay of sub-agents' output.
            self.watch.changed.notify_one();
        }
    }

    /// How many clients are in the session; one with two connections counts twice.
    pub fn clients(&self) -> usize {
        self.state().clients
    }

    /// The events after a position; if there are none, the state for readers that have caught up, with the notices
    /// from a number on.
    pub fn following(&self, position: i64, notices_from: u64) -> Following {
        let state = self.state();
        if state.gone {
            Following::Gone
        } else if position >= state.upto {
            let notices = state.notices.iter().filter(|notice| notice.number >= notices_from);
            let present = Present {
                order: state.order.clone(),
                upto: state.upto,
                clients: state.clients,
                notices: notices.map(|notice| notice.frame.clone()).collect(),
            };
            Following::Nothing(present, state.next_notice)
        } else if position < state.ring_from {
            Following::OnDisk
        } else {
            let start = state.ring.partition_point(|event| event.id() <= position);
            Following::Events(state.ring.range(start..).cloned().collect(), state.upto)
        }
    }

    /// The page after an id, read from disk once for all readers that need it at the same time.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub async fn page(&self, after: i64) -> Result<Arc<Page>> {
        let cell = {
            let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
            pages.retain(|_, page| page.strong_count() > 0);
            pages.get(&after).and_then(Weak::upgrade).unwrap_or_else(|| {
                let cell = Arc::default();
                pages.insert(after, Arc::downgrade(&cell));
                cell
            })
        };
        let read = || async {
            let reader = Reader { once: true, ..Reader::default() };
            let read = read_page(&self.context, self.session, after, reader).await?;
            Ok(Arc::new(read.page))
        };
        cell.get_or_try_init(read).await.cloned()
    }

    /// Reads the next page into the ring. Returns what to read the one after it with, and whether there is
    /// more.
    ///
    /// # Errors
    ///
    /// Errors of the thread.
    pub async fn advance(&self, reader: Reader) -> Result<(Reader, bool)> {
        let after = self.state().upto;
        let read = read_page(&self.context, self.session, after, reader).await?;
        let more = read.page.more;
        Ok((self.add(read), more))
    }

    /// Adds new events to the ring.
    fn add(&self, ReadPage { page, pending, reader, runs }: ReadPage) -> Reader {
        self.change_if(|state| {
            let before = state.upto;
            let mut concerns_runs = runs.is_some();
            let mut noted = state.upto;
            if let Some((runs, upto)) = runs {
                (state.runs, noted) = (runs, upto);
            }
            for (event, is_pending) in page.events.into_iter().zip(pending) {
                if event.id() > noted {
                    state.runs.note(event.noted(is_pending));
                }
                concerns_runs |= !matches!(event.record.entry, Entry::Token { .. } | Entry::Thinking { .. });
                if let Entry::ToolResult(result) = &event.record.entry {
                    // Output of a sub-agent is dropped once its call has a result.
                    state.notices.retain(|notice| notice.call_id != result.call_id);
                    state.inherited.remove(&result.call_id);
                }
                state.ring_bytes += event.size();
                state.ring.push_back(event);
            }
            if let Some(agent) = &reader.agent {
                concerns_runs |= state.runs.acknowledged(agent.cursor().min(page.upto));
            }
            if concerns_runs {
                state.order = Arc::new(state.runs.in_order());
            }
            state.upto = page.upto;
            while state.ring_bytes > RING_BYTES
                && let Some(oldest) = state.ring.pop_front()
            {
                state.ring_bytes -= oldest.size();
                state.ring_from = oldest.id();
            }
            concerns_runs || state.upto > before
        });
        reader
    }

    /// Drops the events in the ring. Readers that are behind get them from the disk.
    pub fn clear_ring(&self) {
        let mut state = self.state();
        state.ring.clear();
        (state.ring_bytes, state.ring_from) = (0, state.upto);
    }

    pub fn is_gone(&self) -> bool {
        self.state().gone
    }

    /// Tells all readers that the session is gone.
    pub fn removed(&self) {
        self.change(|state| state.gone = true);
        self.watch.changed.notify_one();
    }

    /// The calls that are open, and those of them that were open before the session was read; `None` if there are
    /// none or no client. Then the relay of sub-agents' output counts as ended.
    pub fn calls_to_relay(&self) -> Option<(HashSet<String>, HashSet<String>)> {
        let mut state = self.state();
        let calls: HashSet<String> = open_calls(&state.runs).collect();
        state.relaying = !calls.is_empty() && state.clients > 0 && !state.gone;
        state.relaying.then(|| (calls, state.inherited.clone()))
    }

    /// Whether the relay has to be started; from then on it counts as running.
    pub fn claim_relay(&self) -> bool {
        let mut state = self.state();
        let new = !state.relaying && state.clients > 0 && open_calls(&state.runs).next().is_some();
        state.relaying |= new;
        new
    }

    /// Adds output of sub-agents, by call.
    pub fn relay(&self, output: Vec<(String, Utf8Bytes)>) {
        if output.is_empty() {
            return;
        }
        self.change(|state| {
            let open: HashSet<String> = open_calls(&state.runs).collect();
            for (call_id, frame) in output {
                if open.contains(&call_id) {
                    let number = state.next_notice;
                    state.next_notice += 1;
                    state.notices.push_back(Notice { number, call_id, frame });
                }
            }
            let surplus = state.notices.len().saturating_sub(MAX_NOTICES);
            state.notices.drain(..surplus);
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.change_if(|state| {
            change(state);
            true
        });
    }

    /// Changes the state, and signals it if `change` returns true.
    fn change_if(&self, change: impl FnOnce(&mut State) -> bool) {
        if change(&mut self.state()) {
            self.changed.send_modify(|version| *version += 1);
            let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
            bells.retain(|bell| bell.upgrade().inspect(|bell| bell.ring(self.session)).is_some());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LiveSession {
    fn drop(&mut self) {
        // So that its task ends.
        self.watch.changed.notify_one();
    }
}

/// The ids of the calls that have no result yet.
fn open_calls(runs: &Runs) -> impl Iterator<Item = String> {
    runs.iter().flat_map(|run| &run.open_calls).map(|(call_id, _)| call_id.clone())
}

#[cfg(test)]
mod tests;
