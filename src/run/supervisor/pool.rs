//! Handlers whose events finish singly: what they are given, what they answer, and their ends.
//!
//! [`Window`] says what may be given. A handler that is kept is given events and answers them as long as it lives; a run
//! on stdin is given some, and its end answers for all of them. In a pool, several are at work at once, each at a place
//! of its own, with that place's lock; otherwise there is one handler, which shares the consumer's lock. What is answered
//! is stored together; what was not stored when this process is killed is given again, once no process of the run is
//! left. The database is open only while there is something to do.

mod answers;
mod crews;
mod giving;
mod places;
mod recording;
mod runs;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use rustix::event::PollFd;

use self::giving::{Due, MOST_DUE};
use self::places::Place;
use self::recording::Then;
use super::{Next, Supervisor};
use crate::error::{Error, Result};
use crate::files::COMMIT;
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::files::stamp::Stamp;
use crate::files::watch::{LOOK_EVERY, Notice, WITHOUT_NOTICES};
use crate::model::filter::Filter;
use crate::model::run::{Deliver, Options, Phase, Run, RunState, Task};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::model::window::Window;
use crate::pending::{checked_filter, checked_key};
use crate::queue::{Queue, Selection};
use crate::run::control;
use crate::run::dispatch::Start;
use crate::run::handler::NextTask;
use crate::run::settle::Tally;
use crate::run::spawn::need_open_files;
use crate::run::waits::DRIFT;
use crate::store::{DeadLetterUpdate, FilterFailure, RunUpdate};

/// How long answers are collected before they are stored.
const COLLECT: Duration = Duration::from_millis(5);

/// How often, at least, what is answered is synced.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// After so long without anything to do, the database is closed.
const CLOSE_AFTER: Duration = Duration::from_secs(1);

/// How long a pool stays without anything to do while many events wait or are held back, and how many are many.
const LINGER: Duration = Duration::from_secs(10);
const MANY: usize = 100;

/// How often to look whether processes that another supervisor has started are gone.
const STRANGERS_EVERY: Duration = Duration::from_millis(50);

/// Why handlers are given nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// It has had nothing to do for long.
    Idle,
    /// This process is to end, or no handler can be started.
    Asked,
    Paused,
    Stopped,
    /// It has closed its stdin or its stdout.
    Deaf,
    /// The consumer stalls.
    Stalled,
    /// The cursor was moved, or the subscription was replaced: its answers are for nothing.
    Void,
}

/// The handlers of a consumer, and what is to be stored.
struct Pool<'s, 'a> {
    supervisor: &'s Supervisor<'a>,
    /// The consumer's own lock.
    lock: &'s Lock,
    queue: Option<Queue>,
    /// As it was stored last.
    current: Subscription,
    window: Window,
    selection: Selection,
    key: Option<Filter>,
    /// Events whose key could not be evaluated.
    without_key: Vec<FilterFailure>,
    /// There were no further events at the last look.
    is_exhausted: bool,
    /// How many events to read at least at the next look.
    page: u64,
    /// When the last look was.
    looked: Option<Instant>,
    /// There may be a few more, for which a look is not worth it yet.
    holds_back: bool,
    places: Vec<Place>,
    /// Runs that begin once it is stored that their events are claimed.
    due: Vec<Due>,
    /// The places with processes that another supervisor has started.
    strangers: BTreeSet<u32>,
    /// When it began, by both clocks.
    began: (Time, Instant),
    /// When there was something to do last.
    busy: Instant,
    /// Dead letters are not given before this.
    dead_after: Option<Instant>,
    /// When something was first changed that is not stored.
    changed: Option<Instant>,
    /// Since when what is stored has not been synced.
    unsynced: Option<Instant>,
    tally: Tally,
    dead_letters: Vec<DeadLetterUpdate>,
    runs: Vec<Run>,
    closing: Option<(Closing, Instant)>,
    /// The newest event when it began.
    newest: i64,
    /// Why the consumer stalls, if it is to.
    stalls: Option<String>,
    /// No handler is started before this.
    starts_after: Option<Instant>,
    /// What the consumer does once no handler is left.
    then: Then,
    /// The consumer was stalled: one run is to succeed first.
    is_probe: bool,
    /// How often in a row dead letters were deferred.
    deferred: u32,
    /// Why no handler can be started.
    failed: Option<Error>,
    /// Its handlers may have gone to sleep.
    uses_steps: bool,
    /// The events that were given since something was stored last. Where other machines have places of the pool too, they
    /// are not given before that.
    unstored: BTreeSet<i64>,
    /// More handlers could be started if other machines had fewer.
    wants: bool,
    /// How many places this machine is to have, where it has to say so before it starts a handler.
    asks: u32,
    /// Claims may be those of machines that are gone.
    has_lost: bool,
    looked_at_others: Instant,
    /// What others have stored, or were told, may make a difference at once.
    looks_again: bool,
    /// What was decided was not stored, as others had changed the row since.
    was_refused: bool,
}

impl Supervisor<'_> {
    /// Starts handlers and gives them events as long as there are any, and, if they are kept, some time longer.
    pub(super) fn run_pool(
        &self,
        mut queue: Queue,
        found: &Subscription,
        start: Start,
        lock: &Lock,
    ) -> Result<Next> {
        if self.shutdown.requests() > 0 {
            return Ok(Next::Unlock);
        }
        let given = NextTask { task: Task::Pool, events: 0, given_upto: None, stdin: None };
        let joins = self.is_at_work_elsewhere(found);
        let stored = match joins {
            true => self.retrying(|| self.join(&mut queue, found))?,
            false => {
                let mut state = RunState { handler: None, ..self.started(found, &given, start.newest) };
                if let Some(own) = self.machine() {
                    state.crews.insert(own.to_owned(), self.crew(found, &state));
                }
                // Others have to see that it was there, whatever becomes of the server.
                let update = RunUpdate { durable: self.machine().is_some(), ..RunUpdate::state(state) };
                self.retrying(|| queue.store.update_run(found, &update))?
            }
        };
        let Some(subscription) = stored else { return Ok(Next::Again) };
        let ledger = self.retrying(|| queue.store.ledger(self.consumer))?;
        // A stalled consumer tries one event.
        let probed = start.first.filter(|_| found.state.phase == Phase::Stalled).unwrap_or(0);
        let window = Window::new(ledger, &subscription.options, subscription.single_upto().max(probed));
        let selection =
            Selection { after: window.reached(), limit: None, filter: checked_filter(&subscription)? };
        let mut pool = Pool {
            supervisor: self,
            lock,
            queue: Some(queue),
            selection,
            key: checked_key(&subscription)?,
            without_key: Vec::new(),
            current: subscription,
            window,
            is_exhausted: false,
            page: 1,
            looked: None,
            holds_back: false,
            places: Vec::new(),
            due: Vec::new(),
            strangers: BTreeSet::new(),
            began: (Utc::now(), Instant::now()),
            busy: Instant::now(),
            dead_after: None,
            changed: None,
            unsynced: None,
            tally: Tally::default(),
            dead_letters: Vec::new(),
            runs: Vec::new(),
            closing: None,
            newest: start.newest,
            stalls: None,
            starts_after: None,
            then: Then::Idle,
            is_probe: found.state.phase == Phase::Stalled,
            deferred: 0,
            failed: None,
            uses_steps: false,
            unstored: BTreeSet::new(),
            wants: false,
            asks: 0,
            has_lost: true,
            looked_at_others: Instant::now(),
            looks_again: false,
            was_refused: false,
        };
        if joins {
            // They may have to store what they give from now on.
            control::notify_supervisors(open(self, &mut pool.queue)?);
        }
        pool.raise_limits(&pool.current.options);
        pool.find_keys()?;
        pool.find_strangers()?;
        if !pool.is_pool() {
            pool.start_the_handler()?;
        }
        pool.serve()?;
        pool.ended()?;
        Ok(Next::Unlock)
    }
}

impl Pool<'_, '_> {
    /// Allows this process as many open files as a pool needs.
    fn raise_limits(&self, options: &Options) {
        if let Some(places) = options.concurrency {
            // For each place its lock, the pipes or files, and the process.
            need_open_files(u64::from(places) * 8 + 64);
        }
    }

    fn is_pool(&self) -> bool {
        self.current.options.is_pool()
    }

    /// Whether its handlers are kept.
    fn is_kept(&self) -> bool {
        self.current.options.deliver == Deliver::Ndjson
    }

    /// Gives events and takes answers until no handler is left, nor a reason to start one.
    fn serve(&mut self) -> Result<()> {
        let supervisor = self.supervisor;
        let watcher = &supervisor.watcher;
        let commits = watcher.add(supervisor.files, COMMIT);
        let has_notices = commits.is_some() && watcher.notices().is_some();
        let look_every = if has_notices { LOOK_EVERY } else { WITHOUT_NOTICES };
        let mut noted = false;
        let (mut looked, mut stamp, mut asked) = (Instant::now(), None, true);
        // Before a handler is looked at: even one that ends at once has failed at an event.
        self.give()?;
        self.write();
        loop {
            self.take_over()?;
            let more = self.look_at_places()?;
            self.follow_requests(asked);
            if !noted && supervisor.shutdown.requests() > 0 {
                noted = true;
                let ends = "ends after this run";
                log!(supervisor.files, Info, "dispatch: consumer={} {ends}", supervisor.consumer);
            }
            self.take_turn()?;
            // Answers make room for more.
            self.give()?;
            self.write();
            if self.changed.is_some() || (self.is_kept() && self.window.given() > 0) {
                self.busy = Instant::now();
            }
            self.store_when_due()?;
            if let Some(queue) = &mut self.queue {
                queue.store.release();
                supervisor.keeper.borrow_mut().keep(queue);
            }
            let has_more_to_start = self.due.len() == MOST_DUE;
            self.start_due()?;
            let looks_again = std::mem::take(&mut self.looks_again);
            if self.places.is_empty() && self.due.is_empty() && !looks_again && !self.lingers() {
                break;
            }
            self.end_places_when_due();
            if self.changed.is_none() && self.unsynced.is_some_and(|since| since.elapsed() >= SYNC_EVERY) {
                self.sync()?;
            }
            if self.queue.is_some() && self.busy.elapsed() >= CLOSE_AFTER {
                self.sync()?;
                self.queue = None;
            }
            let is_busy = more || has_more_to_start || looks_again;
            let timeout = if is_busy { Duration::ZERO } else { self.patience().min(look_every) };
            self.wait(timeout);
            self.follow_clock();
            let mut pushed = !has_notices;
            asked = !has_notices;
            for notice in watcher.take() {
                match notice {
                    Notice::Touched(watch) if Some(watch) == commits => pushed = true,
                    Notice::Touched(_) => asked = true,
                    Notice::Gone(_) | Notice::Overflow => (asked, pushed) = (true, true),
                }
            }
            if looked.elapsed() >= look_every {
                looked = Instant::now();
                if !supervisor.lease.as_ref().is_some_and(|lease| lease.tells_of_events()) {
                    // A commit by another program gives no notice.
                    let now = Stamp::of(supervisor.files.location(), supervisor.files.path());
                    pushed |= now != stamp;
                    stamp = now;
                }
                self.keep_guarded();
                asked |= self.looks_at_others();
            }
            self.is_exhausted &= !pushed;
            if asked {
                self.look_at_row()?;
            }
        }
        if let Some(watch) = commits {
            watcher.remove(watch);
        }
        Ok(())
    }

    /// Whether there is a reason to stay though no handler is at work.
    fn lingers(&self) -> bool {
        let is_due = |at: Instant| Instant::now() < at;
        self.closing.is_none()
            && self.is_pool()
            // Somebody else's runs are awaited; so are space on the disk and the like, and a dead letter that was put off,
            // which holds back no events.
            && (!self.strangers.is_empty()
                || self.starts_after.is_some_and(is_due)
                // Alone, the consumer would wait. With others at work, only this machine does.
                || (self.is_joined() && matches!(self.then, Then::Wait(until) if until > self.now()))
                // Other machines are to let go of places, or to say what they have.
                || self.waits_for_others()
                || (self.current.has_retry() && self.dead_after.is_some_and(is_due))
                // What is known of many is not read again for each push.
                || (self.window.waiting() >= MANY && is_due(self.busy + LINGER)))
    }

    /// Waits until something happens, for `timeout` at the longest.
    fn wait(&self, timeout: Duration) {
        let supervisor = self.supervisor;
        let mut fds: Vec<PollFd<'_>> = vec![supervisor.shutdown.poll_fd()];
        let mut timeout = timeout;
        for place in &self.places {
            let (notice, longest) = place.running.wait_for();
            fds.extend(notice);
            fds.extend(place.pipes.iter().flat_map(|pipes| pipes.poll_fds()));
            timeout = timeout.min(longest);
        }
        supervisor.guard.watched(|guard| supervisor.watcher.poll(timeout, fds.into_iter().chain(guard)));
    }

    fn is_void(&self) -> bool {
        matches!(self.closing, Some((Closing::Void, _)))
    }

    /// The time, which advances even if the clock is set back, so that waits end.
    fn now(&self) -> Time {
        let (time, instant) = self.began;
        Utc::now().max(time + instant.elapsed())
    }

    /// If the clock was set back, all that waits goes back with it: it takes no longer because of that, and what others
    /// put off from now on waits as long as they say.
    fn follow_clock(&mut self) {
        // Not more than by which it was set back, however long this process is held up in between.
        let (time, instant) = self.began;
        let expected = time + instant.elapsed();
        let (clock, instant) = (Utc::now(), Instant::now());
        let by = expected - clock;
        if by > TimeDelta::zero() && by.to_std().unwrap_or_default() <= DRIFT {
            return;
        }
        self.began = (clock, instant);
        if by <= TimeDelta::zero() {
            return;
        }
        // What waits by the clock of another machine stays.
        let since = self.supervisor.machine().map_or(Time::MIN_UTC, |_| clock);
        self.window.set_back(by, since);
        self.current.state.asleep.values_mut().for_each(|sleep| sleep.until -= by);
        if let Then::Wait(until) = &mut self.then {
            *until -= by;
        }
        if !self.window.changes().is_empty() {
            self.changed.get_or_insert(instant);
        }
    }

    /// Gives nothing more: the handlers may answer what they have, and are to end.
    fn close(&mut self, why: Closing) {
        self.closing = Some((why, Instant::now()));
        self.places.iter_mut().for_each(|place| place.close(why));
    }

    /// Follows requests to this process; `asked`: there may be one in the consumer's row.
    fn follow_requests(&mut self, asked: bool) {
        let supervisor = self.supervisor;
        if supervisor.shutdown.requests() > 0 && self.closing.is_none() {
            self.close(Closing::Asked);
        }
        if !supervisor.files.still_there() && self.closing.is_none() {
            self.close(Closing::Void);
        }
        if let Some((why, _)) = self.closing {
            // Those that are not told yet.
            self.places.iter_mut().filter(|place| place.closing.is_none()).for_each(|place| place.close(why));
        }
        if supervisor.shutdown.requests() > 1 {
            self.places.iter_mut().for_each(Place::shut_down);
        }
        if let Some(lease) = supervisor.lease.as_ref()
            && supervisor.lease_is_ending()
            && self.places.iter().any(|place| !place.running.is_being_ended())
        {
            self.close(Closing::Asked);
            let why = "is ended: its lease was not renewed";
            log!(supervisor.files, Warn, "dispatch: consumer={} {why}", supervisor.consumer);
            let left = lease.left().saturating_sub(lease.length() / 8);
            self.places.iter_mut().for_each(|place| place.interrupt(left));
        }
        let lease = supervisor.lease.as_ref().filter(|_| asked);
        if let Some(stop) = lease.and_then(|lease| lease.stop_request(&self.current.token)) {
            self.current.state.stop.get_or_insert(stop);
        }
        if self.current.state.stop.is_some()
            && !matches!(self.closing, Some((Closing::Stopped | Closing::Void, _)))
        {
            self.close(Closing::Stopped);
        }
    }

    /// Ends handlers that were given the time to end by themselves, or took too long.
    fn end_places_when_due(&mut self) {
        let (options, stop) = (&self.current.options, self.current.state.stop);
        let idle = if self.is_kept() { options.idle } else { Duration::MAX };
        for place in &mut self.places {
            place.end_when_due(stop);
            if place.deadline(options.timeout).is_some_and(|at| at <= Instant::now()) {
                place.time_out();
            }
            if place.closing.is_none() && place.busy.elapsed() >= idle {
                place.close(Closing::Idle);
            }
        }
    }

    /// How long to wait for something to happen.
    fn patience(&self) -> Duration {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        let mut patience = self.changed.map_or(Duration::MAX, |since| left(since + COLLECT));
        if let Some(end) = self.window.next_end().filter(|_| self.closing.is_none()) {
            let now = self.now();
            // What is overdue cannot be given now.
            patience = match (end - now).to_std() {
                Ok(wait) => patience.min(wait),
                Err(_) => patience.min(LOOK_EVERY),
            };
        }
        let options = &self.current.options;
        for place in &self.places {
            patience = patience.min(place.deadline(options.timeout).map_or(Duration::MAX, left));
            let is_timed = place.pipes.is_some() || self.current.state.stop.is_some();
            if is_timed && place.closing.is_some() && !place.running.is_being_ended() {
                patience = patience.min(Duration::from_millis(100));
            } else if self.is_kept() && place.closing.is_none() {
                patience = patience.min(left(place.busy + options.idle));
            }
        }
        if self.holds_back {
            patience = patience.min(self.looked.map_or(Duration::MAX, |looked| left(looked + COLLECT)));
        }
        if self.queue.is_some() {
            patience = patience.min(left(self.busy + CLOSE_AFTER));
        }
        if let Some(since) = self.unsynced {
            patience = patience.min(left(since + SYNC_EVERY));
        }
        // What could be done since then has to wait for something else.
        let later = [self.dead_after.filter(|_| self.current.has_retry()), self.starts_after];
        for after in later.into_iter().flatten().filter(|after| *after > Instant::now()) {
            patience = patience.min(left(after));
        }
        if let Then::Wait(until) = self.then
            && let Ok(wait) = (until - self.now()).to_std()
        {
            patience = patience.min(wait.max(Duration::from_millis(1)));
        }
        if self.places.is_empty() {
            patience = patience.min(LINGER);
        }
        if !self.strangers.is_empty() {
            patience = patience.min(STRANGERS_EVERY);
        }
        patience
    }

    /// Looks at the consumer's row, after somebody has changed it.
    fn look_at_row(&mut self) -> Result<()> {
        let supervisor = self.supervisor;
        let queue = open(supervisor, &mut self.queue)?;
        let now = supervisor.retrying(|| queue.store.subscription(supervisor.consumer))?;
        let is_same = |now: &Subscription| now.is_same(&self.current);
        let stop = now.as_ref().filter(|now| is_same(now)).and_then(|now| now.state.stop);
        if self.is_void() || !self.accept(now)? {
            if !self.is_void() {
                self.close(Closing::Void);
            }
            self.current.state.stop = stop;
        } else if self.end_lost()? {
            // What it had is taken over.
        } else if self.current.state.paused && self.closing.is_none() {
            self.close(Closing::Paused);
        } else if self.is_pool()
            && !self.current.state.paused
            && matches!(self.closing, Some((Closing::Paused, _)))
        {
            self.closing = None;
            // Those on stdin were told nothing.
            let told_nothing = |place: &&mut Place| place.pipes.is_none();
            self.places.iter_mut().filter(told_nothing).for_each(|place| place.closing = None);
        }
        Ok(())
    }
}

fn open<'q>(supervisor: &Supervisor<'_>, kept: &'q mut Option<Queue>) -> Result<&'q mut Queue> {
    supervisor.reuse(kept)
}
