//! The process that stands beside a handler from its start to its end, and through the waits
//! between its attempts.
//!
//! `spawn` hands a consumer's lock to a new process of this program. That process holds the lock,
//! starts the handler (which holds a copy of it), reaps it, unlocks, and looks again. Whoever
//! pushed while the lock was held was turned away, but had committed before: the second look sees
//! what he stored, so no wake-up is lost. Each run has a lock description of its own, so that what
//! one run leaves in the background cannot keep the next one's lock.
//!
//! The database is not open while the handler runs or the supervisor waits. A supervisor whose
//! thread was moved or removed meanwhile ends and touches nothing.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use chrono::Utc;

use crate::dispatch::{self, Step};
use crate::error::{Failure, OrFix, Result};
use crate::files::Files;
use crate::handler::{self, Running};
use crate::lock::Lock;
use crate::log::{Level, Quoted};
use crate::rule::{Cause, Exit, Phase, Task, Time};
use crate::signals::Signals;
use crate::spawn;
use crate::subscription::{ConsumerId, Subscription};
use crate::thread::Thread;

/// The hidden subcommand that a supervisor runs as.
pub const COMMAND: &str = "_supervise";

/// A call, and the answer to it.
const CALL: &[u8] = b"\n";

/// How often a wait looks whether the database was changed by somebody who cannot signal.
const TICK: Duration = Duration::from_secs(1);

/// How long processes have between TERM and KILL when a run takes too long.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);

/// Starts a supervisor for `subscription` and passes `lock` on to it.
pub fn spawn(thread: &Thread, subscription: &Subscription, lock: &Lock, cause: Cause) -> Result<()> {
    let started = command(thread, subscription).and_then(|mut command| {
        if cause == Cause::Asked {
            command.arg("--asked");
        }
        spawn::holding(&mut command, lock).spawn()
    });
    let fix = "check the limits on processes and memory, then run `thread dispatch`";
    started.map(drop).or_fix("cannot start a supervisor", fix)
}

fn command(thread: &Thread, subscription: &Subscription) -> io::Result<Command> {
    let mut command = spawn::hidden(COMMAND, thread.dir())?;
    command.arg("--consumer").arg(subscription.consumer.as_str());
    // What a handler is told belongs to that handler, even when it is its push that starts this one.
    for name in spawn::own_variables() {
        command.env_remove(name);
    }
    Ok(command)
}

/// A supervisor that was started before there is anything for it to do. It looks when it is called,
/// and also when whoever started it is gone.
#[derive(Debug)]
pub struct OnCall(UnixStream);

impl OnCall {
    /// Starts one for `subscription`.
    pub fn start(thread: &Thread, subscription: &Subscription) -> io::Result<OnCall> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = command(thread, subscription)?;
        command.arg("--on-call").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn()?;
        Ok(OnCall(ours))
    }

    /// Has it look.
    pub fn call(&mut self) {
        // Whether it heard that is seen by its answer.
        drop(self.0.write_all(CALL));
    }

    /// Whether it has answered by `end`: that it has the consumer's lock and is detached, or that
    /// somebody else has the lock.
    pub fn answers(mut self, end: Instant) -> bool {
        // No time at all would be for ever.
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.0.set_read_timeout(Some(left)).is_ok() && self.0.read_exact(&mut [0]).is_ok()
    }
}

/// The life of a supervisor. `lock_fd` is the lock its starter passed on; one without is on call.
///
/// # Errors
///
/// When it was not started by a dispatcher, or cannot go on.
pub fn run(dir: &Path, consumer: &ConsumerId, lock_fd: Option<RawFd>, cause: Cause) -> Result<()> {
    let not_ours = || {
        Failure::asked_wrongly(
            "a supervisor is started by a dispatcher, which passes it the consumer's lock",
            "use `thread dispatch`",
        )
    };
    let files = Files::of(dir.to_owned()).filter(Files::is_owner).ok_or_else(not_ours)?;
    let adopt = |fd| Lock::adopt(fd, &files.consumer_lock(consumer)).ok_or_else(not_ours);
    let lock = lock_fd.map(adopt).transpose()?;
    if lock.is_none() {
        spawn::detach().or_fix("cannot begin a session", "see the log")?;
    }
    let supervisor = Supervisor { files: &files, consumer, signals: prepare()? };
    let (mut lock, mut ready) = match lock {
        Some(lock) => (lock, None),
        None => match supervisor.wait_for_call()? {
            Some((lock, thread)) => (lock, Some(thread)),
            None => return Ok(()),
        },
    };
    let mut cause = cause;
    loop {
        let done = supervisor.act(&lock, cause, ready.take());
        lock.release();
        cause = Cause::News;
        match done.and_then(|()| supervisor.look_again())? {
            Some(again) => lock = again,
            None => return Ok(()),
        }
    }
}

/// Makes this process fit for its task before anybody can know of it: signals must not end it, and
/// what its handlers leave behind becomes its own children, to be reaped.
fn prepare() -> Result<Signals> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .or_fix("cannot become a subreaper", "see the log")?;
    Signals::listen().or_fix("cannot listen to signals", "check the limit on open files")
}

/// Tells the supervisor recorded for a subscription that its row has changed. Nothing happens when
/// it is gone; what it would have done is then done by the next dispatch.
pub fn nudge(subscription: &Subscription) {
    if let Some(supervisor) = &subscription.state.supervisor {
        // One that cannot be signalled looks by itself before long.
        supervisor.signal(crate::signals::NUDGE).ok();
    }
}

struct Supervisor<'a> {
    files: &'a Files,
    consumer: &'a ConsumerId,
    signals: Signals,
}

impl Supervisor<'_> {
    /// Does all that can be done before a call, waits for it, takes the lock, and answers. Nothing
    /// when somebody else has the lock, who looks again after letting go.
    fn wait_for_call(&self) -> Result<Option<(Lock, Thread)>> {
        let ready = self.open().ok();
        if let Some(thread) = &ready {
            // Once it is called, reading it again takes half the time.
            drop(thread.store.subscription(self.consumer));
        }
        let mut line =
            File::from(io::stdin().as_fd().try_clone_to_owned().or_fix("has no stdin", "see the log")?);
        // One whose starter is gone is called, too: nobody else may know what has been stored.
        drop(line.read_exact(&mut [0; CALL.len()]));
        if !self.files.still_there() {
            return Ok(None);
        }
        let thread = ready.map_or_else(|| self.open(), Ok)?;
        let lock = dispatch::take_lock(&thread, self.consumer)?;
        if lock.is_none() {
            dispatch::log_turned_away(&thread, self.consumer);
        }
        // Whoever called may be gone.
        drop(line.write_all(CALL));
        Ok(lock.map(|lock| (lock, thread)))
    }

    /// Does what is to be done now, under the lock: a run, or a wait and then a run. The thread may
    /// be open already.
    fn act(&self, lock: &Lock, cause: Cause, mut ready: Option<Thread>) -> Result<()> {
        let mut cause = cause;
        loop {
            let mut thread = ready.take().map_or_else(|| self.open(), Ok)?;
            let Some(mut subscription) = thread.store.subscription(self.consumer)? else { return Ok(()) };
            if subscription.state.phase == Phase::Running {
                // Whoever supervised that run is dead, or the lock would not be ours.
                match self.settle_abandoned(&mut thread, &subscription)? {
                    Some(settled) => subscription = settled,
                    None => continue,
                }
                // Settling it was what was asked: if that was its last attempt, it stalls.
                cause = Cause::News;
            }
            match dispatch::next_step(&mut thread, &subscription, cause)? {
                Step::Rest { pending } => return lie_down(&mut thread, &subscription, pending),
                Step::Start { newest } => {
                    if self.run_handler(thread, &subscription, newest, lock)? {
                        return Ok(());
                    }
                }
                Step::WaitUntil(time) => {
                    if !self.wait(thread, &subscription, time)? {
                        return Ok(());
                    }
                    // What was asked has been granted: the wait is over, or somebody changed the row.
                    cause = Cause::News;
                }
            }
        }
    }

    /// Settles a run whose supervisor was killed. Its end is unknown, so the wait after it is
    /// counted from its beginning.
    fn settle_abandoned(
        &self,
        thread: &mut Thread,
        subscription: &Subscription,
    ) -> Result<Option<Subscription>> {
        let pending = dispatch::is_pending(thread, subscription)?;
        let began = subscription.state.since.unwrap_or_else(Utc::now).min(Utc::now());
        thread.log(
            Level::Warn,
            format_args!("dispatch: consumer={} abandoned by its supervisor", self.consumer),
        );
        thread.store.settle_run(subscription, Exit::Unknown, pending, "", began)
    }

    /// Waits until `time`, a nudge that changed something, or the end of the thread. False when
    /// there is nothing more to do here.
    fn wait(&self, mut thread: Thread, subscription: &Subscription, time: Time) -> Result<bool> {
        // Taken first: a change that comes while the wait is recorded must be noticed.
        let mut seen = self.files.database_stamp();
        let Some(waiting) = thread.store.begin_wait(subscription, time, Utc::now())? else { return Ok(true) };
        thread.log(
            Level::Info,
            format_args!(
                "dispatch: consumer={} waiting until={} attempts={}",
                self.consumer,
                crate::rule::format_time(time),
                waiting.state.attempts
            ),
        );
        drop(thread);
        // By a clock that nobody sets back.
        let end = Instant::now() + (time - Utc::now()).to_std().unwrap_or_default();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || time <= Utc::now() {
                return Ok(true);
            }
            let nudged = self.signals.wait(Some(left.min(TICK)));
            handler::reap();
            if !self.files.still_there() {
                return Ok(false);
            }
            let stamp = self.files.database_stamp();
            if !nudged && stamp == seen {
                continue;
            }
            seen = stamp;
            let mut thread = self.open()?;
            let Some(current) = thread.store.subscription(self.consumer)? else { return Ok(false) };
            if current.state.stop.is_some() {
                thread.store.stopped(&current, Utc::now())?;
                thread.log(Level::Info, format_args!("stop: consumer={} no longer waits", self.consumer));
                return Ok(false);
            }
            if !current.is_same(&waiting) || current.state.phase != Phase::Waiting || current.state.paused {
                return Ok(true);
            }
        }
    }

    /// One run of the handler, from the record of its start to the record of its end. False when
    /// things changed before it could begin.
    fn run_handler(
        &self,
        mut thread: Thread,
        found: &Subscription,
        newest: i64,
        lock: &Lock,
    ) -> Result<bool> {
        let consumer = self.consumer;
        let Some((task, stdin)) = handler::next_task(&mut thread, found)? else { return Ok(true) };
        let Some(subscription) = thread.store.begin_run(found, task, newest, Utc::now())? else {
            return Ok(false);
        };
        let began = Instant::now();
        let started = handler::start(&thread, &subscription, task, stdin, lock);
        let mut running = match started {
            Ok(running) => running,
            Err(failure) => {
                // It never ran: no attempt is counted, and the next push or dispatch tries again.
                thread.store.abandon_run(&subscription)?;
                return Err(failure);
            }
        };
        if let Err(failure) = thread.store.record_handler(&subscription, running.identity()) {
            // It runs, and must be attended to whether or not others can find it.
            thread.log(Level::Error, format_args!("dispatch: consumer={consumer} {failure}"));
        }
        let command = Quoted(&subscription.handler_cmd);
        thread.log(Level::Info, format_args!("dispatch: consumer={consumer} spawned handler_cmd={command}"));
        drop(thread);

        let exit = self.attend(&mut running, &subscription)?;
        let output = running.finish(exit);
        let after = began.elapsed().as_secs_f64();

        let mut thread = self.open()?;
        if let (Task::Batch(last) | Task::Single(last), Exit::Code(0)) = (task, exit) {
            thread.store.acknowledge_run(&subscription, last)?;
        }
        let current = thread.store.subscription(consumer)?.filter(|current| current.is_same(&subscription));
        let acked = current.as_ref().unwrap_or(&subscription).last_acked_id;
        thread.log(
            Level::Info,
            format_args!("dispatch: consumer={consumer} ended {exit} after={after:.1}s acked={acked}"),
        );
        let Some(current) = current else { return Ok(true) };
        let pending = dispatch::is_pending(&mut thread, &current)?;
        if let Some(settled) = thread.store.settle_run(&current, exit, pending, &output, Utc::now())? {
            self.log_settled(&thread, &current, &settled, task);
        }
        Ok(true)
    }

    /// Waits for the run's end, and brings it about when its time is up or somebody says `stop`.
    fn attend(&self, running: &mut Running, subscription: &Subscription) -> Result<Exit> {
        let mut deadline = subscription.policy.timeout.map(|timeout| Instant::now() + timeout);
        let mut timed_out = false;
        let mut followed = None;
        loop {
            if let Some(exit) = running.poll()? {
                return Ok(if timed_out { Exit::TimedOut } else { exit });
            }
            let pause = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let nudged = self.signals.wait(running.pause(pause));
            if deadline.is_some_and(|at| at <= Instant::now()) {
                (deadline, timed_out) = (None, true);
                running.end(libc::SIGTERM, TIMEOUT_GRACE);
            }
            if nudged
                && let Some(stop) = self.stop_request(subscription)
                && followed != Some(stop)
            {
                // Once for each request: whoever asks nudges until the run is gone.
                followed = Some(stop);
                running.end(stop.signal, stop.kill_after);
            }
        }
    }

    fn stop_request(&self, subscription: &Subscription) -> Option<crate::rule::StopRequest> {
        // A nudge is only a hint. What cannot be read now was no request this run can follow.
        let thread = self.open().ok()?;
        let current = thread.store.subscription(self.consumer).ok()??;
        if current.is_same(subscription) { current.state.stop } else { None }
    }

    fn log_settled(&self, thread: &Thread, before: &Subscription, after: &Subscription, task: Task) {
        let consumer = self.consumer;
        if after.state.dead_streak
            && !before.state.dead_streak
            && let Task::Single(id) = task
        {
            thread.log(
                Level::Warn,
                format_args!(
                    "dispatch: consumer={consumer} id={id} is a dead letter attempts={}",
                    before.state.attempts
                ),
            );
        }
        if after.state.phase == Phase::Stalled {
            let reason = Quoted(after.state.reason.as_deref().unwrap_or_default());
            thread.log(Level::Warn, format_args!("dispatch: consumer={consumer} stalled reason={reason}"));
        }
    }

    /// Looks, now that the lock is free, whether more is to be done, and takes it again for that.
    fn look_again(&self) -> Result<Option<Lock>> {
        if !self.files.still_there() {
            return Ok(None);
        }
        let mut thread = self.open()?;
        let Some(subscription) = thread.store.subscription(self.consumer)? else { return Ok(None) };
        match dispatch::next_step(&mut thread, &subscription, Cause::News)? {
            Step::Rest { .. } => Ok(None),
            Step::Start { .. } | Step::WaitUntil(_) => dispatch::take_lock(&thread, self.consumer),
        }
    }

    /// Opens the thread, provided it is still the same one.
    fn open(&self) -> Result<Thread> {
        let gone = || Failure::could_not("the thread was moved or removed", "push to it at its new place");
        if !self.files.still_there() {
            return Err(gone());
        }
        let thread = Thread::open(self.files.dir())?;
        if self.files.still_there() { Ok(thread) } else { Err(gone()) }
    }
}

/// Records that this process has nothing more to do for the consumer.
fn lie_down(thread: &mut Thread, subscription: &Subscription, pending: bool) -> Result<()> {
    if !pending && subscription.state.phase == Phase::Waiting {
        return thread.store.rest(subscription);
    }
    match &subscription.state.supervisor {
        Some(_) => thread.store.leave(subscription),
        None => Ok(()),
    }
}
