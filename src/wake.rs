//! Waking the consumers after something was stored: through a notifier, by ourselves, or not.
//!
//! A notifier that answers "queued already" may mean a task whose dispatch has looked before the
//! event came. So a detached helper asks again for a while, and then does it itself. There is one
//! helper per thread, under a lock that the pusher takes and passes on; whoever finds it held had
//! committed before, and the helper looks once more after letting go.

use std::fs::File;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::dispatch::{Step, defect, dispatch, dispatch_others, is_idle, next_step, somebody_waits};
use crate::error::{Failure, OrFix, Result};
use crate::event::NewEvent;
use crate::files::Files;
use crate::interrupt::PutOff;
use crate::lock::Lock;
use crate::log::{self, Level};
use crate::notifier::{self, Answer, Choice};
use crate::output;
use crate::rule::Cause;
use crate::spawn;
use crate::subscription::{ConsumerId, Subscription};
use crate::supervisor::OnCall;
use crate::thread::Thread;

/// The hidden subcommand that the helper runs as.
pub const COMMAND: &str = "_ask-again";

/// The helper's first pause; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// How long the helper asks in all.
const ASKING: Duration = Duration::from_secs(5);

/// How many consumers a push considers before it stores its event: each holds it up a little.
const CONSIDERED: usize = 4;

/// How long a supervisor that is called may take to answer before its consumer is dispatched without it.
const ANSWERING: Duration = Duration::from_secs(1);

/// What became of the waking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waking {
    /// A notifier will run a dispatch.
    Queued,
    /// A notifier had such a task already.
    AlreadyQueued,
    /// This process dispatched.
    Embedded,
    /// Waking is switched off.
    Off,
    /// The thread belongs to somebody else, whose next push or dispatch will see to it.
    LeftToOwner,
    /// It failed; the log says why.
    Failed,
}

impl Waking {
    pub fn as_str(self) -> &'static str {
        match self {
            Waking::Queued => "queued",
            Waking::AlreadyQueued => "already-queued",
            Waking::Embedded => "embedded",
            Waking::Off => "off",
            Waking::LeftToOwner => "left-to-owner",
            Waking::Failed => "failed",
        }
    }
}

/// Supervisors on call, with their consumers.
#[derive(Debug, Default)]
pub struct OnCalls {
    all: Vec<(ConsumerId, OnCall)>,
    /// Held by whoever has supervisors on call: of many who push at once, only one starts them.
    only: Option<Lock>,
}

impl OnCalls {
    /// Has them look, and answers with the consumers of those who do.
    fn call(mut self) -> Vec<ConsumerId> {
        for (_, on_call) in &mut self.all {
            on_call.call();
        }
        let end = Instant::now() + ANSWERING;
        self.all
            .into_iter()
            .filter_map(|(consumer, called)| called.answers(end).then_some(consumer))
            .collect()
    }
}

/// Starts supervisors for consumers whom `event` will wake, so that they are ready by the time it is
/// stored. What cannot be told or done before is done after that.
pub fn put_on_call(thread: &mut Thread, event: &NewEvent<'_>) -> OnCalls {
    let mut on_calls = OnCalls::default();
    if !thread.files.is_owner() || notifier::choice() != Choice::Embedded {
        return on_calls;
    }
    let subscriptions = thread.store.subscriptions().unwrap_or_default();
    for subscription in subscriptions.into_iter().filter(is_idle).take(CONSIDERED) {
        if !would_match(thread, &subscription, event) || defect(&subscription).is_some() {
            continue;
        }
        if on_calls.only.is_none() {
            let run = File::open(thread.dir().join("run"));
            let Ok(Some(only)) = run.and_then(Lock::try_take) else { break };
            on_calls.only = Some(only);
        }
        if let Ok(on_call) = OnCall::start(thread, &subscription) {
            on_calls.all.push((subscription.consumer, on_call));
        }
    }
    on_calls
}

/// Wakes whoever has something new, in the way `THREAD_NOTIFIER` says, on behalf of `source`.
///
/// # Errors
///
/// When this process was to dispatch and could not.
pub fn wake(thread: &mut Thread, source: &str, on_calls: OnCalls) -> Result<Waking> {
    if !thread.files.is_owner() {
        thread.log(Level::Info, "wake: left to the owner of the thread");
        return Ok(Waking::LeftToOwner);
    }
    let program = match notifier::choice() {
        Choice::Off => return Ok(Waking::Off),
        Choice::Embedded => return embedded(thread, on_calls),
        Choice::Program(program) => program,
    };
    let answer = notifier::ask(&program, thread.dir(), source);
    match answer {
        Answer::Queued => {
            thread.log(Level::Info, "notifier: queued a dispatch");
            Ok(Waking::Queued)
        }
        Answer::AlreadyQueued => {
            thread.log(Level::Info, "notifier: a dispatch is queued already");
            ask_again_later(thread, source)?;
            Ok(Waking::AlreadyQueued)
        }
        Answer::Failed(why) => {
            thread.log(Level::Warn, format_args!("notifier: {why}; dispatching without it"));
            embedded(thread, on_calls)
        }
    }
}

/// Wakes one consumer after something was changed for it, if that made it ready to be started. The
/// change stands: trouble here is a warning.
pub fn wake_consumer(thread: &mut Thread, consumer: &ConsumerId) {
    let ready = thread.store.subscription(consumer).and_then(|subscription| match subscription {
        Some(subscription) => next_step(thread, &subscription, Cause::News),
        None => Ok(Step::Rest { pending: false }),
    });
    let woken = ready.and_then(|step| match step {
        Step::Start { .. } | Step::WaitUntil(_) => wake(thread, "self", OnCalls::default()).map(drop),
        Step::Rest { .. } => Ok(()),
    });
    if let Err(e) = woken {
        thread.log(Level::Warn, format_args!("wake: consumer={consumer} not woken: {e}"));
        output::warn(format_args!("'{consumer}' was not woken: {e}"));
    }
}

/// Whether a filter will match the event, as far as can be told.
fn would_match(thread: &mut Thread, subscription: &Subscription, event: &NewEvent<'_>) -> bool {
    subscription.filter_text().is_none_or(|text| thread.store.would_match(text, event))
}

fn embedded(thread: &mut Thread, on_calls: OnCalls) -> Result<Waking> {
    dispatch_others(thread, Cause::News, &on_calls.call()).map(|_| Waking::Embedded)
}

/// Starts the helper if anybody needs it and none is at work.
fn ask_again_later(thread: &mut Thread, source: &str) -> Result<()> {
    if !somebody_waits(thread)? {
        return Ok(());
    }
    let _signals = PutOff::begin();
    let Some(lock) = take_lock(&thread.files)? else { return Ok(()) };
    let started = spawn::hidden(COMMAND, thread.dir())
        .and_then(|mut command| spawn::holding(command.arg("--source").arg(source), &lock).spawn());
    if started.is_err() {
        lock.release();
    }
    started.map(drop).or_fix("cannot start a helper", "run `thread dispatch`")
}

fn take_lock(files: &Files) -> Result<Option<Lock>> {
    Lock::try_take_in(files, &files.run("_ask-again.lock"))
}

/// The life of the helper.
///
/// # Errors
///
/// When a push did not start it, or the thread cannot be read or dispatched.
pub fn ask_again(dir: &Path, source: &str, lock_fd: RawFd) -> Result<()> {
    let not_ours = || Failure::asked_wrongly("this helper is started by a push", "use `thread dispatch`");
    let files = Files::of(dir.to_owned()).ok_or_else(not_ours)?;
    let mut lock = Lock::adopt(lock_fd, &files.run("_ask-again.lock")).ok_or_else(not_ours)?;
    loop {
        let asked = ask_until_heard(&files, source);
        lock.release();
        if !files.still_there() {
            return Ok(());
        }
        // Somebody may have been turned away since the last look: whoever pushed, or made a consumer
        // ready to be started in another way.
        let (mut thread, seen) = asked?;
        if thread.store.data_version()? == seen || !somebody_waits(&mut thread)? {
            return Ok(());
        }
        match take_lock(&files)? {
            Some(again) => lock = again,
            None => return Ok(()),
        }
    }
}

/// Asks until the notifier takes a new task, nobody waits any more, or time is up. Answers with
/// the thread, and which version of it this has certainly taken care of.
fn ask_until_heard(files: &Files, source: &str) -> Result<(Thread, i64)> {
    let (mut pause, mut asked) = (FIRST_PAUSE, Duration::ZERO);
    while asked < ASKING {
        std::thread::sleep(pause);
        asked += pause;
        pause = (pause * 2).min(ASKING.saturating_sub(asked)).max(FIRST_PAUSE);
        let mut thread = Thread::open(files.dir())?;
        let seen = thread.store.data_version()?;
        if !somebody_waits(&mut thread)? {
            return Ok((thread, seen));
        }
        let Choice::Program(program) = notifier::choice() else { break };
        match notifier::ask(&program, files.dir(), source) {
            Answer::Queued => return Ok((thread, seen)),
            Answer::AlreadyQueued => {}
            Answer::Failed(why) => {
                log::write(files, Level::Warn, format_args!("notifier: {why}; dispatching without it"));
                break;
            }
        }
    }
    let mut thread = Thread::open(files.dir())?;
    let seen = thread.store.data_version()?;
    dispatch(&mut thread, Cause::News)?;
    Ok((thread, seen))
}
