//! Figures on the runs of all sessions.
//!
//! They are read from the sessions, so they are right whatever processes execute the runs. A session's tally is
//! cached with the state of its log. When that has changed, reading continues where it stopped.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use thread::Queue;
use thread_conversation::{Outcome, Spent};
use thread_sessions::{Result, Root, SessionId, catalogue, open_runs};

use super::event::for_each;

/// How long to read; sessions left unread are counted, and read the next time.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// Time and size of a log when its session was read.
type Stamp = (SystemTime, u64);

/// The stamp of a session that has not been read.
const NEVER: Stamp = (SystemTime::UNIX_EPOCH, 0);

/// What was taken, by the agent and the currency.
pub type Taken = BTreeMap<(Option<String>, String), Spent>;

#[derive(Default)]
pub struct Tallies(Mutex<HashMap<SessionId, (Stamp, Tally)>>);

/// Figures on the runs of a session.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    upto: i64,
    pub answered: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub queued: usize,
    pub running: usize,
    /// When the oldest queued message was stored.
    pub oldest: Option<String>,
    pub spent: Taken,
}

impl Tally {
    fn add(&mut self, spent: &Spent) {
        if !spent.is_nothing() {
            let of = (spent.agent.clone(), spent.cost.currency.clone());
            *self.spent.entry(of).or_default() += spent;
        }
    }

    fn update(&mut self, queue: &mut Queue) -> Result<()> {
        let condition =
            "source = 'self' AND (type = 'message' OR subtype IN ('error', 'cancelled', 'sub_agent'))";
        self.upto = for_each(queue, self.upto, condition, &mut |event| {
            self.add(&event.record.spent);
            let ending = event.record.entry.ending().filter(|_| event.ends.is_some());
            match ending.map(|ending| ending.outcome) {
                Some(Outcome::Answered) => self.answered += 1,
                Some(Outcome::Failed) => self.failed += 1,
                Some(Outcome::Cancelled) => self.cancelled += 1,
                None => {}
            }
        })?;
        let (_, runs, _) = open_runs(queue)?;
        (self.queued, self.oldest) = (runs.queued(), runs.oldest_queued().map(str::to_owned));
        self.running = usize::from(runs.active().is_some());
        Ok(())
    }
}

/// The totals of all sessions.
#[derive(Default)]
pub struct Sum {
    pub sessions: usize,
    pub unread: usize,
    pub tally: Tally,
    /// What was taken in the sessions that were named.
    pub spent: Vec<(SessionId, Taken)>,
}

impl Tallies {
    /// Reads new events, for [`TIME_LIMIT`] at most. Returns the totals, and what was taken in the sessions `named`.
    ///
    /// # Errors
    ///
    /// The root cannot be read.
    pub fn sum(&self, root: &Root, named: &HashSet<SessionId>) -> Result<Sum> {
        let until = Instant::now() + TIME_LIMIT;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut old = std::mem::take(&mut *all);
        let mut sum = Sum::default();
        for listed in catalogue::entries(root)? {
            sum.sessions += 1;
            let stamp = (listed.active, listed.size);
            let (seen, mut tally) = old.remove(&listed.id).unwrap_or((NEVER, Tally::default()));
            let mut now = seen;
            if seen != stamp && Instant::now() < until {
                let read = root.queue(listed.id).and_then(|mut queue| tally.update(&mut queue));
                now = if read.is_ok() { stamp } else { NEVER };
            }
            sum.unread += usize::from(now != stamp);
            all.insert(listed.id, (now, tally.clone()));
            let total = &mut sum.tally;
            total.answered += tally.answered;
            total.failed += tally.failed;
            total.cancelled += tally.cancelled;
            total.queued += tally.queued;
            total.running += tally.running;
            for ((agent, _), spent) in &tally.spent {
                total.add(&Spent { agent: agent.clone(), ..spent.clone() });
            }
            if named.contains(&listed.id) {
                sum.spent.push((listed.id, tally.spent));
            }
            let oldest = [total.oldest.take(), tally.oldest].into_iter().flatten().min();
            total.oldest = oldest;
        }
        Ok(sum)
    }
}
