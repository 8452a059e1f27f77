//! The process that stands beside a handler from its start to its end.
//!
//! `spawn` hands a consumer's lock to a new process of this program. That process holds the lock,
//! starts the handler (which holds a copy of it), reaps it, unlocks, and looks again. Whoever
//! pushed while the lock was held was turned away, but had committed before: the second look sees
//! what he stored, so no wake-up is lost. The database is not open while the handler runs.
//!
//! A supervisor whose thread was moved or removed meanwhile ends and touches nothing.

use std::os::fd::RawFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

use crate::dispatch;
use crate::error::{Failure, OrFix, Result};
use crate::event;
use crate::files::Files;
use crate::lock::Lock;
use crate::log::{self, Level, Quoted};
use crate::process::Identity;
use crate::spawn;
use crate::subscription::{ConsumerId, Run, Subscription};
use crate::thread::Thread;

/// The hidden subcommand that a supervisor runs as.
pub const COMMAND: &str = "_supervise";

/// Starts a supervisor for `subscription` and passes `lock` on to it.
pub fn spawn(thread: &Thread, subscription: &Subscription, lock: &Lock) -> Result<()> {
    let fix = "check the limits on processes and memory, then run `thread dispatch`";
    let mut command = spawn::own_program().or_fix("cannot find this program", fix)?;
    command.arg(COMMAND).arg("--thread").arg(thread.dir());
    command.arg("--consumer").arg(subscription.consumer.as_str());
    command.arg("--lock-fd").arg(lock.as_raw_fd().to_string());
    // Nobody here waits for it: it is to outlive this process, and init reaps it.
    spawn::detached(&mut command, Some(lock.as_raw_fd()))
        .spawn()
        .map(drop)
        .or_fix("cannot start a supervisor", fix)
}

/// Refuses a subscription whose working directory is gone.
pub fn check_directory(subscription: &Subscription) -> Result<()> {
    match &subscription.cwd {
        Some(cwd) if !cwd.is_dir() => Err(Failure::could_not(
            format_args!("its working directory {} is gone", cwd.display()),
            "make that directory again, or subscribe anew from another",
        )),
        _ => Ok(()),
    }
}

/// What a run left behind for the look after it.
struct Past {
    subscription: Subscription,
    /// The newest event at the run's start: later ones were not pending then.
    newest: i64,
}

enum Ended {
    Ran(Past),
    /// Nothing was pending any more, or the subscription had changed.
    NothingToDo,
}

/// The life of a supervisor. `lock_fd` is the lock its starter passed on.
///
/// # Errors
///
/// When it was not started by a dispatcher, or cannot start the handler.
pub fn run(dir: &Path, consumer: &ConsumerId, lock_fd: RawFd) -> Result<()> {
    let not_ours = || {
        Failure::asked_wrongly(
            "a supervisor is started by a dispatcher, which passes it the consumer's lock",
            "use `thread dispatch`",
        )
    };
    let files = Files::of(dir.to_owned()).ok_or_else(not_ours)?;
    let mut lock = Lock::adopt(lock_fd, &files.consumer_lock(consumer)).ok_or_else(not_ours)?;
    let mut past = None;
    loop {
        let ended = run_once(&files, consumer, &lock);
        lock.release();
        match ended {
            Ok(Ended::Ran(run)) => past = Some(run),
            Ok(Ended::NothingToDo) => {}
            Err(failure) => return give_up(&files, consumer, failure),
        }
        match look_again(&files, consumer, past.as_ref()) {
            Ok(Some(again)) => lock = again,
            Ok(None) => return Ok(()),
            Err(failure) => return give_up(&files, consumer, failure),
        }
    }
}

/// Logs why this supervisor ends early, unless its thread is gone.
fn give_up(files: &Files, consumer: &ConsumerId, failure: Failure) -> Result<()> {
    if files.still_there() {
        log::write(files, Level::Error, format_args!("supervise: consumer={consumer} {failure}"));
    }
    Err(failure)
}

/// One run of the handler, under the lock.
fn run_once(files: &Files, consumer: &ConsumerId, lock: &Lock) -> Result<Ended> {
    let mut thread = open(files)?;
    let Some(subscription) = thread.store.subscription(consumer)? else { return Ok(Ended::NothingToDo) };
    let look = dispatch::look(&mut thread, &subscription)?;
    if look.first_pending.is_none() {
        return Ok(Ended::NothingToDo);
    }
    check_directory(&subscription)?;
    let run = Run { process: Identity::own(), since: event::now() };
    let Some(subscription) = thread.store.begin_run(&subscription, &run)? else {
        return Ok(Ended::NothingToDo);
    };
    let began = Instant::now();
    let started = start_handler(&thread, &subscription, lock);
    if started.is_err() {
        thread.store.end_run(&subscription)?;
    }
    let mut handler = started?;
    let command = Quoted(&subscription.handler_cmd);
    thread.log(Level::Info, format_args!("dispatch: consumer={consumer} spawned handler_cmd={command}"));
    drop(thread);

    let status = handler.wait().or_fix("cannot wait for the handler", "see the log")?;
    let after = began.elapsed().as_secs_f64();

    let mut thread = open(files)?;
    let acked = match thread.store.subscription(consumer)? {
        Some(now) if now.is_same(&subscription) => now.last_acked_id,
        _ => subscription.last_acked_id,
    };
    let outcome = describe(status);
    thread.log(
        Level::Info,
        format_args!("dispatch: consumer={consumer} ended {outcome} after={after:.1}s acked={acked}"),
    );
    thread.store.end_run(&subscription)?;
    Ok(Ended::Ran(Past { subscription, newest: look.newest }))
}

/// Opens the thread, provided it is still the same one.
fn open(files: &Files) -> Result<Thread> {
    let gone = || Failure::could_not("the thread was moved or removed", "push to it at its new place");
    if !files.still_there() {
        return Err(gone());
    }
    let thread = Thread::open(files.dir())?;
    if files.still_there() { Ok(thread) } else { Err(gone()) }
}

fn start_handler(thread: &Thread, subscription: &Subscription, lock: &Lock) -> Result<Child> {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(&subscription.handler_cmd);
    for name in spawn::own_variables() {
        command.env_remove(name);
    }
    command.env("THREAD_DIR", thread.dir());
    command.env("THREAD_CONSUMER", subscription.consumer.as_str());
    command.env("THREAD_LAST_ACKED_ID", subscription.last_acked_id.to_string());
    if let Some(cwd) = &subscription.cwd {
        command.current_dir(cwd);
    }
    spawn::detached(&mut command, Some(lock.as_raw_fd())).spawn().or_fix(
        "cannot start the handler",
        "check the limits on processes and memory, then run `thread dispatch`",
    )
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit={code}"),
        (None, Some(signal)) => format!("signal={signal}"),
        (None, None) => "exit=?".to_owned(),
    }
}

/// Looks whether another run is due, now that the lock is free, and takes it again for that.
///
/// After a run of the same subscription, only when that run moved the cursor forward or something
/// matching has come that was not there at its start: a handler that does nothing must not spin.
fn look_again(files: &Files, consumer: &ConsumerId, past: Option<&Past>) -> Result<Option<Lock>> {
    if !files.still_there() {
        return Ok(None);
    }
    let mut thread = open(files)?;
    let Some(subscription) = thread.store.subscription(consumer)? else { return Ok(None) };
    if dispatch::look(&mut thread, &subscription)?.first_pending.is_none() {
        return Ok(None);
    }
    if let Some(past) = past
        && past.subscription.is_same(&subscription)
        && subscription.last_acked_id <= past.subscription.last_acked_id
    {
        let since =
            Subscription { last_acked_id: past.newest.max(subscription.last_acked_id), ..subscription };
        if dispatch::look(&mut thread, &since)?.first_pending.is_none() {
            return Ok(None);
        }
    }
    dispatch::take_lock(&thread, consumer)
}
