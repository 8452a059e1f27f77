//! The list of all threads, however many there are: only those are opened whose files have changed, and only for
//! [`BUDGET`] at a time.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use chrono::Utc;
use thread::failure::Failure;
use thread::files::stamp::Stamp;
use thread::model::time;
use thread::{LOOK_EVERY, Queue};
use thread_protocol::method::SessionState;
use thread_sessions::root::Listed;
use thread_sessions::turns::Threads;
use thread_sessions::{RequestError, Result};

use super::Inspector;
use super::dto::{Figures, Summary, ThreadKind, ThreadList, Trouble};
use super::rate::Rate;
use super::state::{self, Looked, Session};
use super::threads::{Target, ThreadId};
use crate::session::blocking_pool::blocking;

/// How long a look may open threads. Those that are left are opened by the next ones, the longest unread first.
const BUDGET: Duration = Duration::from_millis(400);

/// How long to wait for other writers in each.
const BUSY: Duration = Duration::from_millis(20);

/// After how long a thread is opened again although its files have not changed: where something runs or waits, and
/// where opening has failed.
const MOVING: Duration = Duration::from_secs(3);
const FAILED: Duration = Duration::from_secs(5);

/// After how long a thread of `--thread`, of which there are few, is opened again even if its files seem unchanged.
const ANYWAY: Duration = Duration::from_secs(10);

/// How many different pages are kept as JSON.
const PAGES: usize = 8;

pub struct Overview {
    entries: Mutex<HashMap<ThreadId, Entry>>,
    /// Locked while the list is being made.
    last: Arc<tokio::sync::Mutex<Last>>,
    thread: Threads,
    /// How many threads were opened to look at them.
    pub opened: AtomicU64,
}

/// The list, and when it was made.
type Last = Option<(Instant, Arc<Listing>)>;

impl Default for Overview {
    fn default() -> Overview {
        let thread = Threads::new(1);
        Overview { entries: Mutex::default(), last: Arc::default(), thread, opened: AtomicU64::new(0) }
    }
}

/// What is known of a thread.
struct Entry {
    /// The state of its files before it was read; `None` if that was too recent to detect a later commit.
    stamp: Option<Stamp>,
    read: Instant,
    rate: Rate,
    title: Option<String>,
    found: Result<Figures, String>,
    is_moving: bool,
}

/// All threads, in the order of the list.
pub struct Listing {
    /// Another one for another list.
    pub version: u64,
    unread: usize,
    threads: Vec<Summary>,
    /// The pages sent to watchers, by offset and limit.
    written: Mutex<HashMap<(usize, usize), Bytes>>,
}

impl Listing {
    /// A page without threads.
    fn head(&self, read_only: bool) -> ThreadList {
        let (total, unread) = (self.threads.len(), self.unread);
        ThreadList { read_only, now: time::now(), total, unread, threads: Vec::new() }
    }

    /// The page as JSON; each thread is serialised once for all requests.
    fn written(&self, read_only: bool, offset: usize, limit: usize) -> Bytes {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if written.len() >= PAGES && !written.contains_key(&(offset, limit)) {
            written.clear();
        }
        let threads = || {
            let threads: Vec<&Summary> = self.threads.iter().skip(offset).take(limit).collect();
            serde_json::to_vec(&threads).unwrap_or_default().into()
        };
        let threads: Bytes = written.entry((offset, limit)).or_insert_with(threads).clone();
        drop(written);
        let head = serde_json::to_vec(&self.head(read_only)).unwrap_or_default();
        let head = head.strip_suffix(b"[]}").unwrap_or_default();
        [head, &threads, b"}"].concat().into()
    }
}

impl Inspector {
    /// The list; made again if it is older than a second.
    ///
    /// # Errors
    ///
    /// The root cannot be read.
    pub async fn listing(self: &Arc<Inspector>) -> Result<Arc<Listing>> {
        let mut last = self.overview.last.clone().lock_owned().await;
        if let Some((_, listing)) = last.as_ref().filter(|(at, _)| at.elapsed() < LOOK_EVERY) {
            return Ok(listing.clone());
        }
        let inspector = self.clone();
        let work = move || {
            let listing = inspector.look_at_all(last.as_ref().map(|(_, listing)| listing.clone()))?;
            *last = Some((Instant::now(), listing.clone()));
            Ok(listing)
        };
        blocking(&self.overview.thread, work).await
    }

    /// A page of the list, as JSON.
    pub fn written_page_of(&self, listing: &Listing, offset: usize, limit: usize) -> Bytes {
        listing.written(self.read_only, offset, limit)
    }

    /// How many threads were opened to look at them.
    pub fn opened(&self) -> u64 {
        self.overview.opened.load(Ordering::Relaxed)
    }

    pub(super) fn count_opened(&self) {
        self.overview.opened.fetch_add(1, Ordering::Relaxed);
    }

    fn look_at_all(&self, last: Option<Arc<Listing>>) -> Result<Arc<Listing>> {
        let until = Instant::now() + BUDGET;
        let mut all: Vec<(Target, Option<Listed>)> =
            self.threads.named().iter().map(|target| (target.clone(), None)).collect();
        all.extend(self.threads.below_the_root()?.into_iter().map(|(target, listed)| (target, Some(listed))));
        let mut entries = self.overview.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = std::mem::take(&mut *entries);
        // Threads never read come first, then those not read for the longest time.
        let mut due = Vec::new();
        for (at, (target, _)) in all.iter().enumerate() {
            let stamp = target.stamp();
            match known.remove(&target.id) {
                Some(entry) => {
                    if entry.is_due(target.id.kind(), stamp) {
                        due.push((Some(entry.read), at, stamp));
                    }
                    entries.insert(target.id.clone(), entry);
                }
                None => due.push((None, at, stamp)),
            }
        }
        due.sort_unstable_by_key(|(read, at, _)| (*read, *at));
        for (_, at, stamp) in due {
            if Instant::now() >= until {
                break;
            }
            let (target, listed) = &all[at];
            let entry = self.read(target, listed.as_ref(), stamp, entries.remove(&target.id));
            entries.insert(target.id.clone(), entry);
        }
        let now = Utc::now();
        let mut threads: Vec<Summary> = all
            .iter()
            .map(|(target, _)| match entries.get(&target.id) {
                Some(entry) => entry.summary(target, now),
                None => Summary { unread: true, ..state::summary(target, None, None) },
            })
            .collect();
        drop(entries);
        sort(&mut threads);
        if let Some(last) = last.as_ref().filter(|last| last.threads == threads) {
            return Ok(last.clone());
        }
        let unread = threads.iter().filter(|thread| thread.unread).count();
        let version = last.map_or(1, |last| last.version + 1);
        Ok(Arc::new(Listing { version, unread, threads, written: Mutex::default() }))
    }

    /// Reads a thread.
    fn read(
        &self,
        target: &Target,
        listed: Option<&Listed>,
        stamp: Option<Stamp>,
        known: Option<Entry>,
    ) -> Entry {
        let (mut rate, title) =
            known.map_or_else(|| (Rate::by_minute(), None), |entry| (entry.rate, entry.title));
        let settled = stamp.filter(|stamp| !stamp.is_fresh());
        // Opening a thread that is gone, or is being removed, would make files.
        let looked = match stamp {
            None => Err(RequestError::Unknown("the thread is gone".to_owned())),
            Some(_) => {
                self.count_opened();
                target.open(BUSY).and_then(|mut queue| {
                    let mut looked = Looked::briefly(&mut queue, &mut rate)?;
                    let listed = listed.filter(|_| target.id.kind() == ThreadKind::Session);
                    let session = listed.and_then(|listed| self.session(&mut queue, listed));
                    looked.note(session.as_ref());
                    Ok((looked, session.and_then(|session| session.title)))
                })
            }
        };
        let (looked, title) = match looked {
            Ok((looked, newer)) => (Ok(looked), newer.or(title)),
            Err(e) => (Err(e), title),
        };
        let is_moving = looked.as_ref().is_ok_and(|looked| looked.is_moving);
        let found = looked.map(|looked| looked.figures).map_err(explained);
        Entry { stamp: settled, read: Instant::now(), rate, title, found, is_moving }
    }

    fn session(&self, queue: &mut Queue, listed: &Listed) -> Option<Session> {
        let summary = self.catalogue.summary_of(queue, listed).ok()?;
        let title = Some(summary.title()).filter(|title| !title.is_empty());
        let is_busy = !matches!(summary.state, None | Some(SessionState::Failed));
        Some(Session { title, asks: summary.state == Some(SessionState::Asks), is_busy })
    }

    /// What is known of a thread if it is a session.
    pub(super) fn session_of(&self, queue: &mut Queue, target: &Target) -> Option<Session> {
        let ThreadId::Session(session) = target.id else { return None };
        self.session(queue, &self.context.root.entry(session).ok()?)
    }
}

impl Entry {
    /// Whether it has to be read again.
    fn is_due(&self, kind: ThreadKind, stamp: Option<Stamp>) -> bool {
        let age = self.read.elapsed();
        match &self.found {
            Err(_) => age >= FAILED,
            Ok(_) if self.stamp.is_none() || self.stamp != stamp => true,
            Ok(_) => self.is_moving && age >= MOVING || kind == ThreadKind::Thread && age >= ANYWAY,
        }
    }

    fn summary(&self, target: &Target, now: time::Time) -> Summary {
        let (figures, error) = match &self.found {
            Ok(figures) => (Some(Figures { rate: self.rate.series(now), ..figures.clone() }), None),
            Err(message) => (None, Some(Trouble { message: message.clone() })),
        };
        Summary { error, ..state::summary(target, self.title.clone(), figures) }
    }
}

/// Threads given by name, then those that need attention, then the most recently active.
fn sort(threads: &mut [Summary]) {
    threads.sort_by_cached_key(|thread| {
        let attention = thread.figures.as_ref().is_some_and(|figures| figures.attention.is_some());
        let rank = match thread.kind {
            ThreadKind::Thread => 0,
            _ if attention || thread.error.is_some() => 1,
            _ => 2,
        };
        let newest = thread.figures.as_ref().and_then(|figures| figures.newest_at.clone());
        (rank, Reverse(newest.filter(|_| rank > 0)))
    });
}

/// An error with what to do about it.
pub fn explained(error: RequestError) -> String {
    match error {
        RequestError::Thread(e) => Failure::from(e).to_string(),
        e => e.to_string(),
    }
}
