//! The places of a pool: a handler at work, and what it has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use chrono::Utc;

use super::{Closing, Pool, open};
use crate::error::{Error, Result};
use crate::files::lock::Lock;
use crate::files::log::{Quoted, abridged, log};
use crate::model::ledger::Claim;
use crate::model::run::{RunState, StopRequest, Task};
use crate::model::time::Time;
use crate::run::control;
use crate::run::guard::Guard;
use crate::run::handler::{self, Running, Terms};
use crate::run::pipes::Pipes;
use crate::run::supervisor::runs::SHUTDOWN_GRACE;
use crate::store::RunUpdate;

/// How long a handler has to end once it has nothing left to answer: until TERM, and from then until KILL.
const GRACE: Duration = Duration::from_secs(10);

/// How long a handler that is stopped has to answer before it gets the signal.
const BEFORE_STOP: Duration = Duration::from_secs(1);

/// After which time a start that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The only place where there is no pool.
pub(super) const ONLY: u32 = 1;

/// A handler at work.
pub(super) struct Place {
    pub number: u32,
    /// In a pool, the place's own lock and guard.
    own: Option<(Lock, Guard)>,
    pub running: Running,
    /// To and from a handler that is kept.
    pub pipes: Option<Pipes>,
    pub attempt: u32,
    /// With how many events it began, and the last of them, on stdin.
    pub began_with: (usize, i64),
    /// The events that it has, and since when.
    pub given: BTreeMap<i64, Instant>,
    /// Whether it gets events only once their claims are stored, and those that it is to get then.
    pub holds: bool,
    pub held: BTreeMap<i64, Vec<u8>>,
    /// The dead letter that it has.
    pub dead: Option<i64>,
    /// When it began, by both clocks.
    pub began: (Time, Instant),
    pub last_answer: Instant,
    /// When it had something to do last.
    pub busy: Instant,
    /// How many events it has acknowledged.
    pub answered: u64,
    pub closing: Option<(Closing, Instant)>,
    /// It has closed its stdout.
    is_mute: bool,
    /// It is ended through no fault of its own.
    pub is_interrupted: bool,
    pub has_timed_out: bool,
}

impl Place {
    fn new(number: u32, own: Option<(Lock, Guard)>, running: Running, pipes: Option<Pipes>) -> Place {
        let now = Instant::now();
        Place {
            number,
            own,
            running,
            pipes,
            attempt: 1,
            began_with: (0, 0),
            given: BTreeMap::new(),
            holds: false,
            held: BTreeMap::new(),
            dead: None,
            began: (Utc::now(), now),
            last_answer: now,
            busy: now,
            answered: 0,
            closing: None,
            is_mute: false,
            is_interrupted: false,
            has_timed_out: false,
        }
    }

    /// Whether it takes further events.
    pub fn is_open(&self) -> bool {
        self.closing.is_none() && self.dead.is_none() && self.pipes.is_some()
    }

    /// Gives it nothing more.
    pub fn close(&mut self, why: Closing) {
        self.closing = Some((why, Instant::now()));
        if let Some(pipes) = &mut self.pipes {
            pipes.close_stdin();
        }
    }

    /// Ends it because this process is to end.
    pub fn shut_down(&mut self) {
        self.interrupt(SHUTDOWN_GRACE);
    }

    /// Ends it through no fault of its own.
    pub fn interrupt(&mut self, grace: Duration) {
        if !self.running.is_being_ended() {
            self.is_interrupted = true;
            self.running.end(libc::SIGTERM, grace);
        }
    }

    /// When it has taken too long. A handler that is kept may take so long for the oldest event without an answer,
    /// counted again from each answer.
    pub fn deadline(&self, timeout: Option<Duration>) -> Option<Instant> {
        let timeout = timeout.filter(|_| !self.running.is_being_ended())?;
        if self.pipes.is_none() {
            return Some(self.began.1 + timeout);
        }
        let oldest = self.given.values().min().copied()?;
        Some(oldest.max(self.last_answer) + timeout)
    }

    pub fn time_out(&mut self) {
        self.has_timed_out = true;
        self.running.end(libc::SIGTERM, GRACE);
    }

    /// Ends it if it was given the time to end by itself.
    pub fn end_when_due(&mut self, stop: Option<StopRequest>) {
        let Some((why, since)) = self.closing.filter(|_| !self.running.is_being_ended()) else { return };
        let is_kept = self.pipes.is_some();
        if why == Closing::Stopped {
            let stop = stop.unwrap_or_default();
            let is_patient = is_kept && stop.signal != libc::SIGKILL;
            let kill_after = Duration::from_millis(stop.kill_after_ms);
            let patience = if is_patient { BEFORE_STOP.min(kill_after) } else { Duration::ZERO };
            if since.elapsed() >= patience {
                self.running.end(stop.signal, kill_after.saturating_sub(since.elapsed()));
            }
        } else if let Some(stop) = stop {
            self.running.end(stop.signal, Duration::from_millis(stop.kill_after_ms));
        } else if is_kept
            && match why {
                // Its answers count no more, so it is never done.
                Closing::Void => since.elapsed() >= GRACE,
                Closing::Deaf => self.is_mute || since.elapsed() >= GRACE,
                _ => self.busy.max(since).elapsed() >= GRACE,
            }
        {
            self.running.end(libc::SIGTERM, GRACE);
        }
    }

    /// Lets go of its lock and its guard, once it has ended.
    pub fn release(&mut self) {
        if let Some((lock, guard)) = self.own.take() {
            guard.release();
            lock.release();
        }
    }
}

impl Pool<'_, '_> {
    /// Starts the handler of a consumer that is no pool, and records its process.
    pub(super) fn start_the_handler(&mut self) -> Result<()> {
        let supervisor = self.supervisor;
        let terms = supervisor.terms(self.lock, &supervisor.guard, true);
        let (running, pipes) = match handler::start_kept(supervisor.files, &self.current, terms) {
            Ok(started) => started,
            Err(failed) => {
                let update = RunUpdate::state(self.current.state.idle());
                let queue = open(supervisor, &mut self.queue)?;
                supervisor.retrying(|| queue.store.update_run(&self.current, &update))?;
                return Err(failed);
            }
        };
        let process = running.process();
        self.places.push(Place::new(ONLY, None, running, Some(pipes)));
        self.log_start();
        // Pausing and the like may change the row during that time. A replacement is noticed later.
        let (seen, queue) = (&self.current, open(supervisor, &mut self.queue)?);
        let noted = supervisor.retrying(|| {
            control::update(queue, seen, |current| {
                let state = RunState { handler: process.clone(), ..current.state.clone() };
                Some(RunUpdate::state(state))
            })
        })?;
        // If the cursor was set, that has to be noticed: what the handlers were to be given is not known any more. Events
        // that others have finished are not given.
        if let Some(now) = noted.filter(|now| now.rewinds == self.current.rewinds) {
            self.accept(Some(now))?;
        }
        Ok(())
    }

    /// Starts a handler that is kept, at a place. Returns false if that is not possible.
    pub(super) fn start_kept(&mut self, number: u32, lock: Lock) -> bool {
        let supervisor = self.supervisor;
        let guard = Guard::new(supervisor.files.location(), supervisor.consumer);
        let terms = Terms { place: Some(number), ..supervisor.terms(&lock, &guard, true) };
        let started = handler::start_kept(supervisor.files, &self.current, terms);
        match started {
            Ok((running, pipes)) => {
                let place = Place::new(number, Some((lock, guard)), running, Some(pipes));
                self.places.push(Place { holds: self.holds_lines(), ..place });
                self.asks = 0;
                self.log_start();
                true
            }
            Err(failed) => {
                self.cannot_start(failed);
                false
            }
        }
    }

    /// Starts a run on stdin, at a place. Returns false if that is not possible.
    pub(super) fn start_run(
        &mut self,
        number: u32,
        lock: Lock,
        task: Task,
        attempt: u32,
        stdin: &[u8],
    ) -> bool {
        let supervisor = self.supervisor;
        let guard = Guard::new(supervisor.files.location(), supervisor.consumer);
        let mut subscription = self.current.clone();
        subscription.state.attempts = attempt;
        let terms = Terms { place: Some(number), ..supervisor.terms(&lock, &guard, false) };
        let started = open(supervisor, &mut self.queue)
            .and_then(|queue| handler::stdin_file(queue, stdin))
            .and_then(|stdin| handler::start(supervisor.files, &subscription, task, Some(stdin), terms));
        match started {
            Ok(running) => {
                let place = Place::new(number, Some((lock, guard)), running, None);
                self.places.push(Place { attempt, ..place });
                self.log_start();
                true
            }
            Err(failed) => {
                lock.release();
                self.cannot_start(failed);
                false
            }
        }
    }

    fn log_start(&self) {
        let command = abridged(&self.current.handler_cmd);
        let (consumer, command) = (self.supervisor.consumer, Quoted(&command));
        log!(self.supervisor.files, Info, "dispatch: consumer={consumer} spawned handler_cmd={command}");
    }

    /// It never ran, so no attempt is counted. What may pass is tried again; otherwise, the next push or dispatch does so.
    fn cannot_start(&mut self, failed: Error) {
        if failed.may_pass() {
            let (files, consumer) = (self.supervisor.files, self.supervisor.consumer);
            log!(files, Warn, "dispatch: consumer={consumer} tries again: {failed}");
            self.starts_after = Some(Instant::now() + RETRY_AFTER);
        } else {
            self.failed.get_or_insert(failed);
            self.close(Closing::Asked);
        }
    }

    /// A place at which no process is left, with its lock.
    pub(super) fn free_place(&mut self) -> Result<Option<(u32, Lock)>> {
        let supervisor = self.supervisor;
        let most = self.current.options.concurrency.unwrap_or(ONLY);
        // There may be fewer places than before.
        if self.places.len() + self.due.len() + self.strangers.len() >= self.most_places() as usize {
            self.wants = true;
            return Ok(None);
        }
        for number in 1..=most {
            let is_taken = self.places.iter().any(|place| place.number == number)
                || self.due.iter().any(|due| due.place == number)
                || self.strangers.contains(&number);
            if is_taken {
                continue;
            }
            let name = supervisor.files.place_lock(supervisor.consumer, number);
            match Lock::try_take(supervisor.files, name) {
                Ok(Some(lock)) => return Ok(Some((number, lock))),
                Ok(None) => drop(self.strangers.insert(number)),
                Err(failed) if failed.may_pass() => {
                    self.cannot_start(failed);
                    break;
                }
                Err(failed) => return Err(failed),
            }
        }
        Ok(None)
    }

    /// Lets handlers that are kept end, if there are more than there may be.
    pub(super) fn close_surplus(&mut self) {
        let most = self.most_places() as usize;
        let mut open: Vec<&mut Place> = self.places.iter_mut().filter(|place| place.is_open()).collect();
        open.sort_by_key(|place| place.given.is_empty());
        open.into_iter().skip(most).for_each(|place| place.close(Closing::Idle));
    }

    /// Finds the places with processes that another supervisor has started.
    pub(super) fn find_strangers(&mut self) -> Result<()> {
        self.strangers = self.supervisor.files.places(self.supervisor.consumer).into_iter().collect();
        self.look_at_strangers()
    }

    /// Whether processes of another supervisor may be at work on events of which nothing is known: on a dead letter, or on
    /// what they had when the cursor was moved or the subscription replaced.
    pub(super) fn has_unknown_strangers(&self) -> bool {
        let own = self.supervisor.machine();
        let is_here = |claim: &&Claim| claim.machine.is_none() || claim.machine.as_deref() == own;
        let claims = self.window.ledger().claims().values().filter(is_here);
        let known: BTreeSet<u32> = claims.map(|claim| claim.place).collect();
        !self.strangers.is_subset(&known)
    }

    /// Takes over from the runs of other supervisors that are over.
    pub(super) fn look_at_strangers(&mut self) -> Result<()> {
        let (files, consumer) = (self.supervisor.files, self.supervisor.consumer);
        let mut left = BTreeMap::new();
        for place in std::mem::take(&mut self.strangers) {
            match Lock::try_take(files, files.place_lock(consumer, place))? {
                Some(lock) => lock.release(),
                None => drop(left.insert(place, ())),
            }
        }
        self.strangers = left.into_keys().collect();
        let mut over: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
        for (id, claim) in self.window.ledger().claims() {
            let is_ours = self.places.iter().any(|place| place.number == claim.place)
                || self.due.iter().any(|due| due.place == claim.place)
                // See `Pool::take_over`.
                || claim.machine.as_deref().is_some_and(|of| Some(of) != self.supervisor.machine());
            if !is_ours && !self.strangers.contains(&claim.place) {
                over.entry(claim.place).or_default().push(*id);
            }
        }
        if !over.is_empty() && !self.is_void() {
            // Some may have gone to sleep.
            self.look_again()?;
        }
        for (place, events) in over {
            log!(files, Warn, "dispatch: consumer={consumer} place={place} abandoned by its supervisor");
            self.abandoned(events);
        }
        Ok(())
    }

    /// Writes what handlers take now.
    pub(super) fn write(&mut self) {
        let (files, consumer) = (self.supervisor.files, self.supervisor.consumer);
        for place in &mut self.places {
            if !place.given.is_empty() || place.dead.is_some() {
                place.busy = Instant::now();
            }
            let Some(pipes) = &mut place.pipes else { continue };
            pipes.write();
            if place.closing.is_none() && !(pipes.takes_input() && pipes.gives_output()) {
                log!(files, Warn, "handler: consumer={consumer} closed its stdin or stdout");
                place.is_mute = !pipes.gives_output();
                place.close(Closing::Deaf);
            }
        }
    }

    /// Tells the guards that their handlers go on.
    pub(super) fn keep_guarded(&mut self) {
        let supervisor = self.supervisor;
        for place in &mut self.places {
            let guard = place.own.as_ref().map_or(&supervisor.guard, |(_, guard)| guard);
            let is_kept = place.pipes.is_some();
            if !supervisor.keep_guarded(&place.running, guard, is_kept) && !place.running.is_being_ended() {
                place.is_interrupted = true;
                place.running.end(libc::SIGKILL, GRACE);
            }
        }
    }

    /// Takes what handlers have printed, and the ends of those that have ended. Returns whether there may be more.
    pub(super) fn look_at_places(&mut self) -> Result<bool> {
        if !self.strangers.is_empty() {
            self.look_at_strangers()?;
        }
        let (mut more, mut at) = (false, 0);
        // All stay where they are: what they have is not given to others if something is taken over meanwhile.
        while at < self.places.len() {
            if let Some(exit) = self.places[at].running.poll() {
                // What it has answered before its end counts.
                while self.read(at)? {}
                self.place_ended(at, exit)?;
                continue;
            }
            let place = &mut self.places[at];
            if place.running.end_rest() && place.pipes.is_none() {
                let (files, consumer) = (self.supervisor.files, self.supervisor.consumer);
                let rest = "failed, and left processes behind, which are ended";
                log!(files, Warn, "dispatch: consumer={consumer} {rest}");
            }
            more |= self.read(at)?;
            at += 1;
        }
        Ok(more)
    }
}
