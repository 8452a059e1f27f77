//! Giving handlers their events.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::places::Place;
use super::{COLLECT, Pool, open};
use crate::error::Result;
use crate::files::lock::Lock;
use crate::model::event::Row;
use crate::model::ledger::Claim;
use crate::model::run::Task;
use crate::model::window::{Key, Turn, Window};
use crate::pending::key_of;
use crate::queue::Remaining;
use crate::run::handler::BATCH_BYTES;
use crate::store::DeadLetterUpdate;

/// No more is given while a handler has left so many bytes unread.
const UNREAD: usize = 1024 * 1024;

/// How many runs are prepared together at most. Each has its lock open.
pub(super) const MOST_DUE: usize = 16;

/// After which time to look again whether the key of a dead letter is free.
const BUSY_KEY: Duration = Duration::from_millis(100);

/// How many events are read at once, while all are held back.
const LARGEST_PAGE: u64 = 256;

/// A run on stdin that begins once it is stored that its events are claimed.
pub(super) struct Due {
    pub place: u32,
    pub lock: Lock,
    task: Task,
    attempt: u32,
    pub events: Vec<i64>,
    lines: Vec<u8>,
}

/// Takes an event that is to be given, if it is.
type Take<'t> = dyn FnMut(Option<&Row<'_>>, &mut [Place], usize) -> bool + 't;

impl Pool<'_, '_> {
    /// Gives handlers what they may have, starting as many as there may be.
    pub(super) fn give(&mut self) -> Result<()> {
        self.holds_back = false;
        (self.wants, self.asks) = (false, 0);
        if self.closing.is_some() || !self.may_give() {
            self.note_places();
            return Ok(());
        }
        self.forget_sleeps()?;
        loop {
            if self.is_kept() {
                self.give_to_kept()?
            } else {
                self.prepare_runs()?
            }
            self.claim_given();
            self.note_places();
            if !self.window.is_held_up() || self.closing.is_some() {
                return Ok(());
            }
            self.changed.get_or_insert_with(Instant::now);
            self.store()?;
        }
    }

    /// Takes away the marks of events that sleep already, before they are given again.
    fn forget_sleeps(&mut self) -> Result<()> {
        loop {
            let (window, asleep) = (&self.window, &mut self.current.state.asleep);
            let before = asleep.len();
            asleep.retain(|id, _| window.has_given(*id));
            if asleep.len() == before || self.is_void() {
                return Ok(());
            }
            self.changed.get_or_insert_with(Instant::now);
            // Somebody may have changed the row.
            self.store()?;
        }
    }

    /// Whether there may be something to give now.
    fn has_turn(&self) -> Option<Turn> {
        if self.is_pool() && self.is_probe && self.window.given() > 0 {
            return None;
        }
        match self.window.turn(self.now()) {
            Turn::Full | Turn::Wait(_) => None,
            Turn::Next if self.is_exhausted => None,
            turn => Some(turn),
        }
    }

    fn give_to_kept(&mut self) -> Result<()> {
        // What another supervisor's handlers have is not known.
        if !self.strangers.is_empty() || self.gives_dead_letter()? {
            return Ok(());
        }
        while self.has_turn().is_some() {
            let Some(at) = self.handler_for_next()? else { break };
            // There may be nothing for one more handler.
            let Some(turn) = self.has_turn() else { break };
            if let Turn::Again(id) = turn {
                self.window.give_again(id);
                let mut line = Vec::new();
                if self.write_event(id, &mut line)? {
                    self.places[at].give(id, &line);
                } else {
                    self.pruned(id);
                }
                continue;
            }
            let room = self.room();
            let size = self.current.options.batch_size.saturating_mul(self.places.len() as u64);
            // While handlers have something to do, a few more are not worth a look for each of their answers.
            let has_enough = self.window.given() > 0 && !self.has_idle() && room < size / 2;
            self.holds_back = has_enough && self.looked.is_some_and(|looked| looked.elapsed() < COLLECT);
            if self.holds_back {
                break;
            }
            self.looked = Some(Instant::now());
            // Those that are not started yet are to have some, too.
            let most = if self.is_probe || self.has_free_place() { 1 } else { room };
            self.read_events(most, &mut |row, places, most_each| {
                let place = places.iter_mut().filter(|place| place.takes(most_each));
                if let (Some(row), Some(place)) = (row, place.min_by_key(|place| place.given.len())) {
                    place.give_row(row);
                }
                places.iter().any(|place| place.takes(most_each))
            })?;
        }
        Ok(())
    }

    /// Reads the next events, and passes those that are to be given now to `take`, at most `most`; others are held back. It
    /// is called with the handlers and with how many events each may have, and returns whether there is room for more.
    fn read_events(&mut self, most: u64, take: &mut Take<'_>) -> Result<()> {
        let now = self.now();
        let supervisor = self.supervisor;
        let queue = open(supervisor, &mut self.queue)?;
        // Those that are held back are read in growing pages.
        let page = most.max(self.page);
        self.selection.limit = Some(page);
        let mut left = most;
        let (window, selection, places) = (&mut self.window, &mut self.selection, &mut self.places);
        let (key, failures, tally) = (&self.key, &mut self.without_key, &mut self.tally);
        let mut wants_more = true;
        let remaining = supervisor.retrying(|| {
            queue.read_page(selection, &mut |row| {
                let key = key.as_ref().and_then(|key| key_of(key, &row, failures));
                let mut is_given = window.found(row.id, key);
                if is_given && row.is_expired(now) {
                    window.finish(row.id);
                    tally.expire();
                    is_given = false;
                }
                left = left.saturating_sub(u64::from(is_given));
                let has_room = take(is_given.then_some(&row), places, window.most_each()) && left > 0;
                wants_more = has_room && matches!(window.turn(now), Turn::Next);
                if wants_more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
        })?;
        supervisor.retrying(|| queue.note_failures(&mut self.current))?;
        let failures = std::mem::take(&mut self.without_key);
        supervisor.retrying(|| queue.note_without_key(&mut self.current, &failures))?;
        self.is_exhausted = remaining == Remaining::None && wants_more && self.selection.limit != Some(0);
        self.page = if left == most { (page * 2).min(LARGEST_PAGE) } else { 1 };
        if !self.window.changes().is_empty() {
            self.changed.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    /// How many events the handlers that are there may have in addition.
    fn room(&self) -> u64 {
        let most = self.window.most_each();
        let places = self.places.iter().filter(|place| place.takes(most));
        places.map(|place| (most - place.given.len()) as u64).sum()
    }

    fn has_idle(&self) -> bool {
        self.places.iter().any(|place| place.is_open() && place.given.is_empty())
    }

    fn has_free_place(&self) -> bool {
        let most = self.current.options.concurrency.map_or(0, |_| self.most_places()) as usize;
        self.places.len() < most && self.may_start()
    }

    fn may_start_more(&mut self) -> bool {
        self.wants |= self.is_pool() && self.places.len() >= self.most_places() as usize;
        self.has_free_place() && self.has_reserved()
    }

    /// The handler that has the least to do, if it may be given another event. In a pool, one more is started if all
    /// have something to do.
    fn handler_for_next(&mut self) -> Result<Option<usize>> {
        if self.is_pool()
            && !self.has_idle()
            && (self.places.is_empty() || !self.has_free_place() || self.finds_next()?)
            && self.may_start_more()
            && let Some((number, lock)) = self.free_place()?
            && self.start_kept(number, lock)
        {
            return Ok(Some(self.places.len() - 1));
        }
        let most = self.window.most_each();
        let places = self.places.iter().enumerate().filter(|(_, place)| place.takes(most));
        Ok(places.min_by_key(|(_, place)| place.given.len()).map(|(at, _)| at))
    }

    /// Whether there is an event for one more handler. One that gets nothing would be started again whenever it ends.
    fn finds_next(&mut self) -> Result<bool> {
        while matches!(self.has_turn(), Some(Turn::Next)) {
            let mut found = None;
            self.read_events(1, &mut |row, _, _| {
                found = row.map(|row| row.id);
                found.is_none()
            })?;
            if let Some(id) = found {
                self.window.give_back(id);
            }
        }
        Ok(self.has_turn().is_some())
    }

    /// A dead letter to be retried is given alone. Returns whether nothing else may be given for now.
    fn gives_dead_letter(&mut self) -> Result<bool> {
        // In a pool, only one handler has it.
        let holds = !self.is_pool();
        if self.has_dead_letter() {
            return Ok(holds);
        }
        if !self.may_give_dead_letter() {
            return Ok(false);
        }
        if holds && self.window.given() > 0 {
            return Ok(true);
        }
        if self.is_pool() && !self.has_idle() {
            if !self.may_start_more() {
                return Ok(false);
            }
            let Some((number, lock)) = self.free_place()? else { return Ok(false) };
            if !self.start_kept(number, lock) {
                return Ok(true);
            }
        }
        let Some(at) = self.places.iter().position(|place| place.is_open() && place.given.is_empty()) else {
            return Ok(holds);
        };
        let Some((id, line)) = self.next_dead_letter()? else { return Ok(false) };
        self.places[at].give(id, &line);
        self.places[at].dead = Some(id);
        Ok(holds)
    }

    fn has_dead_letter(&self) -> bool {
        let is_dead = |due: &Due| matches!(due.task, Task::DeadLetter(_));
        self.places.iter().any(|place| place.dead.is_some()) || self.due.iter().any(is_dead)
    }

    fn may_give_dead_letter(&self) -> bool {
        let waits = self.dead_after.is_some_and(|after| Instant::now() < after);
        self.current.has_retry() && !waits && self.strangers.is_empty() && !self.has_dead_letter()
    }

    /// The next dead letter to be retried whose key no handler has, with its line. It has its key from now on.
    fn next_dead_letter(&mut self) -> Result<Option<(i64, Vec<u8>)>> {
        self.store()?;
        let supervisor = self.supervisor;
        let queue = open(supervisor, &mut self.queue)?;
        let letters = supervisor.retrying(|| queue.store.dead_letters(Some(supervisor.consumer)))?;
        for letter in letters.into_iter().filter(|letter| letter.retry) {
            let (id, mut line) = (letter.event_id, Vec::new());
            let Some(key) = self.read_event(id, &mut |row| row.write_line(&mut line))? else {
                // It was pruned.
                self.dead_letters.push(DeadLetterUpdate::Remove { event_id: id });
                self.changed.get_or_insert_with(Instant::now);
                continue;
            };
            if self.window.take(id, key) {
                return Ok(Some((id, line)));
            }
        }
        // A handler has their keys.
        self.dead_after = Some(Instant::now() + BUSY_KEY);
        Ok(None)
    }

    /// Finds the keys of events that are claimed.
    pub(super) fn find_keys(&mut self) -> Result<()> {
        if self.key.is_some() {
            for id in self.window.ledger().claims().keys().copied().collect::<Vec<_>>() {
                if let Some(key) = self.read_event(id, &mut |_| {})? {
                    self.window.set_key(id, key);
                }
            }
        }
        Ok(())
    }

    /// Appends an event as a line. Returns false if there is nothing to deliver: it is not stored any more, or has
    /// expired before it was given to anybody.
    fn write_event(&mut self, id: i64, lines: &mut Vec<u8>) -> Result<bool> {
        let (before, now) = (lines.len(), self.now());
        let mut is_expired = false;
        let found = self.read_event(id, &mut |row| {
            lines.truncate(before);
            row.write_line(lines);
            is_expired = row.is_expired(now);
        })?;
        if is_expired && !self.window.was_given(id) {
            lines.truncate(before);
            self.tally.expire();
            return Ok(false);
        }
        Ok(found.is_some())
    }

    /// Passes an event to `take`, and returns its key.
    pub(super) fn read_event(
        &mut self,
        id: i64,
        take: &mut dyn FnMut(&Row<'_>),
    ) -> Result<Option<Option<Key>>> {
        let supervisor = self.supervisor;
        let queue = open(supervisor, &mut self.queue)?;
        let (key, mut found) = (&self.key, None);
        supervisor.retrying(|| {
            queue.store.read(id - 1, id, 1, &mut |row| {
                found = Some(key.as_ref().and_then(|key| key_of(key, &row, &mut Vec::new())));
                take(&row);
                ControlFlow::Break(())
            })
        })?;
        Ok(found)
    }

    /// There is nothing to deliver.
    fn pruned(&mut self, id: i64) {
        self.window.finish(id);
        self.changed.get_or_insert_with(Instant::now);
    }

    /// Prepares runs on stdin, as many as there may be.
    fn prepare_runs(&mut self) -> Result<()> {
        while (self.has_turn().is_some() || self.may_give_dead_letter()) && self.may_start() {
            if self.has_unknown_strangers() || self.due.len() >= MOST_DUE {
                break;
            }
            let Some((place, lock)) = self.free_place()? else { break };
            if !self.prepare_run(place, lock)? {
                break;
            }
        }
        Ok(())
    }

    /// Prepares the next run at a place, whose events are claimed from now on. Returns false if there is none.
    fn prepare_run(&mut self, place: u32, lock: Lock) -> Result<bool> {
        if self.may_give_dead_letter()
            && let Some((id, lines)) = self.next_dead_letter()?
        {
            let task = Task::DeadLetter(id);
            if let Some(machine) = self.supervisor.machine() {
                let machine = Some(machine.to_owned());
                let claim = Claim { place, since: self.now(), machine, is_dead_letter: true, taken: None };
                self.window.claim(id, claim);
                self.unstored.insert(id);
                self.changed.get_or_insert_with(Instant::now);
            }
            self.due.push(Due { place, lock, task, attempt: 1, events: vec![id], lines });
            return Ok(true);
        }
        let most = usize::try_from(self.current.options.batch_size).unwrap_or(usize::MAX);
        let (mut events, mut lines, mut is_alone) = (Vec::new(), Vec::new(), false);
        while events.len() < most
            && lines.len() < BATCH_BYTES
            && !is_alone
            && let Some(turn) = self.has_turn()
        {
            let Turn::Again(id) = turn else {
                let most = if self.window.most_each() == 1 { 1 } else { most };
                is_alone = most == 1;
                let room = most.saturating_sub(events.len()) as u64;
                if room == 0 {
                    break;
                }
                self.read_events(room, &mut |row, _, _| {
                    if let Some(row) = row {
                        events.push(row.id);
                        row.write_line(&mut lines);
                    }
                    events.len() < most && lines.len() < BATCH_BYTES
                })?;
                is_alone &= !events.is_empty();
                continue;
            };
            is_alone = self.window.is_alone(id);
            if is_alone && !events.is_empty() {
                break;
            }
            self.window.give_again(id);
            if self.write_event(id, &mut lines)? {
                events.push(id);
            } else {
                self.pruned(id);
                is_alone = false;
            }
        }
        let Some(last) = events.last().copied() else {
            lock.release();
            return Ok(false);
        };
        let since = self.now();
        let machine = self.supervisor.machine().map(str::to_owned);
        let claim = Claim { place, since, machine, ..Claim::default() };
        events.iter().for_each(|id| self.window.claim(*id, claim.clone()));
        self.unstored.extend(&events);
        self.changed.get_or_insert_with(Instant::now);
        let (task, attempt) = match events.len() {
            1 => (Task::Single(last), self.window.tried(last).0.saturating_add(1)),
            _ => (Task::Batch(last), 1),
        };
        self.due.push(Due { place, lock, task, attempt, events, lines });
        Ok(true)
    }

    /// Starts the runs whose claims are stored.
    pub(super) fn start_due(&mut self) -> Result<()> {
        for Due { place, lock, task, attempt, events, lines } in std::mem::take(&mut self.due) {
            let is_dead = matches!(task, Task::DeadLetter(_));
            // Others may have finished some in the meantime.
            let is_whole = events.iter().all(|id| self.window.has_given(*id));
            if self.closing.is_some() || !is_whole {
                lock.release();
            } else if self.start_run(place, lock, task, attempt, &lines) {
                let now = Instant::now();
                if let Some(place) = self.places.last_mut() {
                    place.began_with = (events.len(), events.last().copied().unwrap_or(0));
                    place.dead = events.first().copied().filter(|_| is_dead);
                    place.given = events.into_iter().filter(|_| !is_dead).map(|id| (id, now)).collect();
                }
                continue;
            }
            for id in events {
                if is_dead { self.window.drop_taken(id) } else { self.window.give_back(id) }
            }
            self.changed.get_or_insert_with(Instant::now);
        }
        Ok(())
    }
}

impl Place {
    /// Whether it may have another event, if each may have so many.
    fn takes(&self, most: usize) -> bool {
        let untaken = self.pipes.as_ref().map_or(0, |pipes| pipes.untaken());
        self.is_open() && self.given.len() < most && untaken < UNREAD
    }

    fn give(&mut self, id: i64, line: &[u8]) {
        match (&mut self.pipes, self.holds) {
            (_, true) => drop(self.held.insert(id, line.to_vec())),
            (Some(pipes), false) => pipes.outbox().extend_from_slice(line),
            (None, false) => {}
        }
        self.given.insert(id, Instant::now());
    }

    /// Takes back an event that it was to get.
    pub fn take_back(&mut self, id: i64, window: &mut Window) {
        self.given.remove(&id);
        match self.dead.take_if(|dead| *dead == id) {
            Some(id) => window.drop_taken(id),
            None => window.give_back(id),
        }
    }

    fn give_row(&mut self, row: &Row<'_>) {
        match (&mut self.pipes, self.holds) {
            (_, true) => row.write_line(self.held.entry(row.id).or_default()),
            (Some(pipes), false) => row.write_line(pipes.outbox()),
            (None, false) => {}
        }
        self.given.insert(row.id, Instant::now());
    }
}
