//! A handler that is kept: what it is given, its answers, and its end.
//!
//! [`Window`] says what may be given. Answers are stored together, those of a few milliseconds at a time; what was not
//! stored when this process is killed is given again. The database is open only while there is something to do.

mod answers;
mod giving;
mod recording;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::Utc;
use rustix::event::PollFd;

use super::runs::SHUTDOWN_GRACE;
use super::{Next, Supervisor};
use crate::error::Result;
use crate::files::COMMIT;
use crate::files::lock::Lock;
use crate::files::log::{Quoted, abridged, log};
use crate::files::stamp::Stamp;
use crate::files::watch::{LOOK_EVERY, Notice, WITHOUT_NOTICES};
use crate::model::run::{Exit, Phase, Run, RunState, Task};
use crate::model::subscription::Subscription;
use crate::model::time::Time;
use crate::model::window::Window;
use crate::pending::checked_filter;
use crate::queue::{Queue, Selection};
use crate::run::control;
use crate::run::dispatch::Start;
use crate::run::handler::{self, NextTask, Running};
use crate::run::pipes::Pipes;
use crate::run::settle::Tally;
use crate::store::{DeadLetterUpdate, RunUpdate};

/// How long answers are collected before they are stored.
const COLLECT: Duration = Duration::from_millis(5);

/// How often, at least, what is answered is synced.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// After so long without anything to do, the database is closed.
const CLOSE_AFTER: Duration = Duration::from_secs(1);

/// No more is given while the handler has left so many bytes unread.
const UNREAD: usize = 1024 * 1024;

/// How long a handler has to end once it has nothing left to answer: until TERM, and from then until KILL.
const GRACE: Duration = Duration::from_secs(10);

/// How long a handler that is stopped has to answer before it gets the signal.
const BEFORE_STOP: Duration = Duration::from_secs(1);

/// How much is kept of what a handler says about an event, in bytes.
const ERROR_KEPT: usize = 2048;

/// Why a handler is given nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// It has had nothing to do for long.
    Idle,
    /// This process is to end, or the consumer was paused.
    Asked,
    Stopped,
    /// It has closed its stdin or its stdout.
    Deaf,
    /// The consumer stalls.
    Stalled,
    /// The cursor was moved, or the subscription was replaced: its answers are for nothing.
    Void,
}

/// The events at a handler, and what is to be stored.
struct Desk<'s, 'a> {
    supervisor: &'s Supervisor<'a>,
    queue: Option<Queue>,
    /// As it was stored last.
    current: Subscription,
    window: Window,
    selection: Selection,
    /// There were no further events at the last look.
    is_exhausted: bool,
    /// When the last look was.
    looked: Option<Instant>,
    /// There may be a few more, for which a look is not worth it yet.
    holds_back: bool,
    given_at: BTreeMap<i64, Instant>,
    /// When it began, by both clocks.
    began: (Time, Instant),
    last_answer: Instant,
    /// The dead letter that is at the handler.
    dead: Option<i64>,
    /// Dead letters are not given before this.
    dead_after: Option<Instant>,
    /// When something was first changed that is not stored.
    changed: Option<Instant>,
    /// Since when what is stored has not been synced.
    unsynced: Option<Instant>,
    tally: Tally,
    dead_letters: Vec<DeadLetterUpdate>,
    runs: Vec<Run>,
    /// How many events it has acknowledged.
    answered: u64,
    closing: Option<(Closing, Instant)>,
    /// It has closed its stdout.
    is_mute: bool,
    /// It is ended because nothing can guard it.
    is_unguarded: bool,
    /// The newest event when it began.
    newest: i64,
    /// Why the consumer stalls, if it is to.
    stalls: Option<String>,
}

impl Supervisor<'_> {
    /// Starts the handler and gives it events as long as there are any, and some time longer.
    pub(super) fn run_kept(
        &self,
        mut queue: Queue,
        found: &Subscription,
        start: Start,
        lock: &Lock,
    ) -> Result<Next> {
        if self.shutdown.requests() > 0 {
            return Ok(Next::Unlock);
        }
        let given = NextTask { task: Task::Kept, events: 0, stdin: None };
        let update =
            RunUpdate::state(RunState { handler: None, ..self.started(found, &given, start.newest) });
        let Some(mut subscription) = self.retrying(|| queue.store.update_run(found, &update))? else {
            return Ok(Next::Again);
        };
        let started = handler::start_kept(self.files, &subscription, self.kept_terms(lock));
        let (mut running, mut pipes) = match started {
            Ok(started) => started,
            Err(failed) => {
                let update = RunUpdate::state(subscription.state.idle());
                self.retrying(|| queue.store.update_run(&subscription, &update))?;
                return Err(failed);
            }
        };
        let process = running.process();
        // Pausing and the like may change the row meanwhile. A replacement is noticed below.
        let noted = self.retrying(|| {
            control::update(&mut queue, &subscription, |current| {
                let state = RunState { handler: process.clone(), ..current.state.clone() };
                Some(RunUpdate::state(state))
            })
        })?;
        if let Some(now) = noted {
            subscription = now;
        }
        let (consumer, command) = (self.consumer, abridged(&subscription.handler_cmd));
        let command = Quoted(&command);
        log!(self.files, Info, "dispatch: consumer={consumer} spawned handler_cmd={command}");
        let ledger = self.retrying(|| queue.store.ledger(consumer))?;
        let size = usize::try_from(subscription.options.batch_size).unwrap_or(usize::MAX);
        // A stalled consumer tries one event.
        let probed = start.first.filter(|_| found.state.phase == Phase::Stalled).unwrap_or(0);
        let window = Window::new(ledger, size, subscription.single_upto().max(probed));
        let mut desk = Desk {
            supervisor: self,
            queue: Some(queue),
            selection: Selection {
                after: window.reached(),
                limit: None,
                filter: checked_filter(&subscription)?,
            },
            current: subscription,
            window,
            is_exhausted: false,
            looked: None,
            holds_back: false,
            given_at: BTreeMap::new(),
            began: (Utc::now(), Instant::now()),
            last_answer: Instant::now(),
            dead: None,
            dead_after: None,
            changed: None,
            unsynced: None,
            tally: Tally::default(),
            dead_letters: Vec::new(),
            runs: Vec::new(),
            answered: 0,
            closing: None,
            is_mute: false,
            is_unguarded: false,
            newest: start.newest,
            stalls: None,
        };
        let began = Instant::now();
        let (exit, timed_out) = desk.serve(&mut running, &mut pipes)?;
        running.kill_rest();
        self.guard.release();
        let after = began.elapsed();
        let exit = if timed_out { Exit::TimedOut } else { exit };
        desk.ended(running, exit, after)?;
        Ok(Next::Unlock)
    }
}

impl Desk<'_, '_> {
    /// Gives events and takes answers until the handler has ended. Returns how, and whether it took too long.
    fn serve(&mut self, running: &mut Running, pipes: &mut Pipes) -> Result<(Exit, bool)> {
        let supervisor = self.supervisor;
        let watcher = &supervisor.watcher;
        let commits = watcher.add(supervisor.files, COMMIT);
        let has_notices = commits.is_some() && watcher.notices().is_some();
        let look_every = if has_notices { LOOK_EVERY } else { WITHOUT_NOTICES };
        let (mut timed_out, mut noted) = (false, false);
        let (mut looked, mut stamp) = (Instant::now(), None);
        let mut busy = Instant::now();
        // Before it is looked at: even a handler that ends at once has failed at an event.
        self.give(pipes)?;
        pipes.write();
        let done = loop {
            if let Some(exit) = running.poll() {
                // What it has answered before its end counts.
                while self.read(running, pipes)? {}
                break (exit, timed_out);
            }
            running.end_rest();
            self.follow_requests(running, pipes);
            if !noted && supervisor.shutdown.requests() > 0 {
                noted = true;
                log!(
                    supervisor.files,
                    Info,
                    "dispatch: consumer={} ends after this run",
                    supervisor.consumer
                );
            }
            // Answers make room for more.
            let more = self.read(running, pipes)?;
            if self.closing.is_none() {
                self.give(pipes)?;
            }
            pipes.write();
            if self.closing.is_none() && !(pipes.takes_input() && pipes.gives_output()) {
                log!(
                    supervisor.files,
                    Warn,
                    "handler: consumer={} closed its stdin or stdout",
                    supervisor.consumer
                );
                self.is_mute = !pipes.gives_output();
                self.close(Closing::Deaf, pipes);
            }
            let is_busy = self.window.given() > 0 || self.dead.is_some() || self.changed.is_some();
            if is_busy {
                busy = Instant::now();
            }
            self.store_when_due()?;
            self.end_when_due(running, busy);
            if self.has_timed_out() && !running.is_being_ended() {
                timed_out = true;
                running.end(libc::SIGTERM, GRACE);
            }
            if self.closing.is_none() && busy.elapsed() >= self.current.options.idle {
                self.close(Closing::Idle, pipes);
                self.is_exhausted = false;
            }
            if !is_busy && self.queue.is_some() && busy.elapsed() >= CLOSE_AFTER {
                self.sync()?;
                self.queue = None;
            }
            let timeout = if more { Duration::ZERO } else { self.patience(running, busy).min(look_every) };
            let (notice, longest) = running.wait_for();
            let mut fds: Vec<PollFd<'_>> = notice.into_iter().chain(pipes.poll_fds()).collect();
            fds.push(supervisor.shutdown.poll_fd());
            let timeout = timeout.min(longest);
            supervisor.guard.watched(|guard| watcher.poll(timeout, fds.into_iter().chain(guard)));
            let (mut asked, mut pushed) = (!has_notices, !has_notices);
            for notice in watcher.take() {
                match notice {
                    Notice::Touched(watch) if Some(watch) == commits => pushed = true,
                    Notice::Touched(_) => asked = true,
                    Notice::Gone(_) | Notice::Overflow => (asked, pushed) = (true, true),
                }
            }
            if looked.elapsed() >= look_every {
                looked = Instant::now();
                // A commit by another program gives no notice.
                let now = Stamp::of(supervisor.files.location(), supervisor.files.path());
                pushed |= now != stamp;
                stamp = now;
                if !supervisor.keep_guarded(running, true) && !running.is_being_ended() {
                    self.is_unguarded = true;
                    running.end(libc::SIGKILL, GRACE);
                }
            }
            self.is_exhausted &= !pushed;
            if asked {
                self.look_at_row(pipes)?;
            }
        };
        if let Some(watch) = commits {
            watcher.remove(watch);
        }
        Ok(done)
    }

    fn is_void(&self) -> bool {
        matches!(self.closing, Some((Closing::Void, _)))
    }

    /// The time, which goes on if the clock is set back, so that waits end.
    fn now(&self) -> Time {
        let (time, instant) = self.began;
        Utc::now().max(time + instant.elapsed())
    }

    /// Gives nothing more: the handler may answer what it has, and is to end.
    fn close(&mut self, why: Closing, pipes: &mut Pipes) {
        self.closing = Some((why, Instant::now()));
        pipes.close_stdin();
    }

    /// Follows requests to this process.
    fn follow_requests(&mut self, running: &mut Running, pipes: &mut Pipes) {
        let supervisor = self.supervisor;
        if supervisor.shutdown.requests() > 0 && self.closing.is_none() {
            self.close(Closing::Asked, pipes);
        }
        if !supervisor.files.still_there() && self.closing.is_none() {
            self.close(Closing::Void, pipes);
        }
        if let Some((Closing::Stalled, _)) = self.closing {
            pipes.close_stdin();
        }
        if supervisor.shutdown.requests() > 1 && !running.is_being_ended() {
            running.end(libc::SIGTERM, SHUTDOWN_GRACE);
        }
        if let Some(lease) = supervisor.lease.as_ref()
            && supervisor.lease_is_ending()
            && !running.is_being_ended()
        {
            self.close(Closing::Asked, pipes);
            log!(
                supervisor.files,
                Warn,
                "dispatch: consumer={} is ended: its lease was not renewed",
                supervisor.consumer
            );
            running.end(libc::SIGTERM, lease.left().saturating_sub(lease.length() / 8));
        }
        if let Some(stop) =
            supervisor.lease.as_ref().and_then(|lease| lease.stop_request(&self.current.token))
        {
            self.current.state.stop.get_or_insert(stop);
        }
        if self.current.state.stop.is_some()
            && !matches!(self.closing, Some((Closing::Stopped | Closing::Void, _)))
        {
            self.close(Closing::Stopped, pipes);
        }
    }

    /// Ends a handler that was given the time to end by itself.
    fn end_when_due(&mut self, running: &mut Running, busy: Instant) {
        let Some((why, since)) = self.closing.filter(|_| !running.is_being_ended()) else { return };
        if why == Closing::Stopped {
            let stop = self.current.state.stop.unwrap_or_default();
            let patience = if stop.signal == libc::SIGKILL { Duration::ZERO } else { BEFORE_STOP };
            let kill_after = Duration::from_millis(stop.kill_after_ms);
            let patience = patience.min(kill_after);
            if since.elapsed() >= patience {
                running.end(stop.signal, kill_after.saturating_sub(since.elapsed()));
            }
        } else if let Some(stop) = self.current.state.stop {
            running.end(stop.signal, Duration::from_millis(stop.kill_after_ms));
        } else if match why {
            // Its answers count no more, so it is never done.
            Closing::Void => since.elapsed() >= GRACE,
            Closing::Deaf => self.is_mute || since.elapsed() >= GRACE,
            _ => busy.max(since).elapsed() >= GRACE,
        } {
            running.end(libc::SIGTERM, GRACE);
        }
    }

    /// Whether the oldest event at the handler took longer than allowed.
    fn has_timed_out(&self) -> bool {
        self.deadline().is_some_and(|at| at <= Instant::now())
    }

    fn deadline(&self) -> Option<Instant> {
        let timeout = self.current.options.timeout?;
        let oldest = self.dead.or_else(|| self.window.unanswered().next())?;
        Some(self.given_at.get(&oldest).copied()?.max(self.last_answer) + timeout)
    }

    /// How long to wait for something to happen.
    fn patience(&self, running: &Running, busy: Instant) -> Duration {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        let mut patience = self.changed.map_or(Duration::MAX, |since| left(since + COLLECT));
        patience = patience.min(self.deadline().map_or(Duration::MAX, left));
        if let Some(end) = self.window.next_end().filter(|_| self.closing.is_none()) {
            let now = self.now();
            // What is overdue cannot be given now.
            patience = match (end - now).to_std() {
                Ok(wait) => patience.min(wait),
                Err(_) => patience.min(LOOK_EVERY),
            };
        }
        if self.closing.is_none() {
            patience = patience.min(left(busy + self.current.options.idle));
        }
        if self.holds_back {
            patience = patience.min(self.looked.map_or(Duration::MAX, |looked| left(looked + COLLECT)));
        }
        if self.queue.is_some() {
            patience = patience.min(CLOSE_AFTER);
        }
        if self.closing.is_some() && !running.is_being_ended() {
            patience = patience.min(Duration::from_millis(100));
        }
        patience
    }

    /// Looks at the consumer's row, after somebody has changed it.
    fn look_at_row(&mut self, pipes: &mut Pipes) -> Result<()> {
        let supervisor = self.supervisor;
        let queue = open(supervisor, &mut self.queue)?;
        let now = supervisor.retrying(|| queue.store.subscription(supervisor.consumer))?;
        let is_same = |now: &Subscription| now.is_same(&self.current);
        let stop = now.as_ref().filter(|now| is_same(now)).and_then(|now| now.state.stop);
        if self.is_void() || !self.accept(now)? {
            if !self.is_void() {
                self.close(Closing::Void, pipes);
            }
            self.current.state.stop = stop;
        } else if self.current.state.paused && self.closing.is_none() {
            self.close(Closing::Asked, pipes);
        }
        Ok(())
    }
}

fn open<'q>(supervisor: &Supervisor<'_>, kept: &'q mut Option<Queue>) -> Result<&'q mut Queue> {
    supervisor.reuse(kept)
}
