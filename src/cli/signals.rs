//! Signal handling of commands.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use signal_hook::consts::*;
use signal_hook::low_level;

use super::{capture, output};
use crate::failure::{Failure, Result, WithHint};
use crate::run::shutdown::Shutdown;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Signals that [`defer`] does not block: job control, children, and faults of this process.
const NEVER_DEFERRED: [i32; 12] =
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SIGCHLD, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU];

/// The signal mask before [`defer`]; `None` unless that was called.
static PREVIOUS_MASK: Mutex<Option<libc::sigset_t>> = Mutex::new(None);

/// Resets SIGCHLD, so that this process can wait for its children even if its parent ignored or blocked it,
/// and ignores SIGXFSZ, so that a write past the limit on file sizes returns an error.
pub fn init() {
    // SAFETY: these calls take plain values or a set that lives on this stack.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

/// Undoes the part of [`init`] that another program would inherit through exec.
pub fn restore_for_exec() {
    // SAFETY: takes plain values.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
    }
}

/// Makes INT, TERM and HUP print `failure` and end the process at once, wherever it is: reading an idle
/// pipe, waiting for another writer, or inside a transaction, which the database then rolls back as after a
/// crash. Without a failure, the one that was given before counts; if there is none, they end it silently. A
/// progress line is cleared first.
///
/// Has no effect in a session, whose commands end with it.
pub fn on_interrupt(failure: Option<&Failure>, as_json: bool) -> Result<()> {
    if capture::is_on() {
        return Ok(());
    }
    static LINE: AtomicPtr<String> = AtomicPtr::new(std::ptr::null_mut());
    static LISTENS: AtomicBool = AtomicBool::new(false);
    if let Some(failure) = failure {
        // Leaked, because a handler may be printing the earlier one.
        LINE.store(Box::leak(Box::new(output::failure_line(failure, as_json))), Ordering::SeqCst);
    }
    if LISTENS.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    for signal in SIGNALS.into_iter().filter(|&signal| !is_ignored(signal)) {
        let end = move || {
            if output::PROGRESS_DRAWN.load(Ordering::SeqCst) {
                write_stderr(output::CLEAR_LINE);
            }
            // SAFETY: null, or a line that is never freed.
            match unsafe { LINE.load(Ordering::SeqCst).as_ref() } {
                Some(line) => {
                    write_stderr(line);
                    low_level::exit(128 + signal);
                }
                None => drop(low_level::emulate_default_handler(signal)),
            }
        };
        // SAFETY: the handler is async-signal-safe: it reads atomics, writes a line prepared before, and ends
        // the process. It neither allocates, frees nor locks.
        unsafe { low_level::register(signal, end) }
            .with_hint("cannot listen to signals", "check the limits on this process")?;
    }
    Ok(())
}

/// Blocks signals until the process ends or calls [`allow`]: a process that has stored something, or holds
/// a lock that others give up on, must finish its work. Job control and the signals of faults still work. No
/// other thread gets them either: those that are started later inherit the mask, and there are no earlier ones.
pub fn defer() {
    PREVIOUS_MASK.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| {
        // SAFETY: these calls take sets that live on this stack.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut set);
            for signal in NEVER_DEFERRED {
                libc::sigdelset(&mut set, signal);
            }
            let mut previous = set;
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut previous);
            previous
        }
    });
}

/// Undoes [`defer`], for a command that from here on only waits. INT, TERM and HUP, also one that is pending,
/// then print `failure` and end the process at once; other signals behave as before.
pub fn allow(failure: &Failure, as_json: bool) -> Result<()> {
    on_interrupt(Some(failure), as_json)?;
    if let Some(previous) = &*PREVIOUS_MASK.lock().unwrap_or_else(PoisonError::into_inner) {
        restore(previous);
    }
    Ok(())
}

/// Undoes [`defer`], for a session after each command.
pub fn end_deferral() {
    if let Some(previous) = PREVIOUS_MASK.lock().unwrap_or_else(PoisonError::into_inner).take() {
        restore(&previous);
    }
}

fn restore(mask: &libc::sigset_t) {
    // SAFETY: takes a set that the system filled in.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// Turns these signals into requests of the returned [`Shutdown`]. Signals that the parent made this
/// process ignore stay ignored.
pub fn as_shutdown_requests(signals: &[i32]) -> Result<Shutdown> {
    let listening = || -> std::io::Result<Shutdown> {
        let shutdown = Shutdown::new()?;
        for &signal in signals.iter().filter(|&&signal| !is_ignored(signal)) {
            low_level::pipe::register(signal, shutdown.sender().try_clone()?)?;
        }
        Ok(shutdown)
    };
    listening().with_hint("cannot listen to signals", "check the limits on this process")
}

/// The exit code of a process that has stored something; [`NOT_STORED`] before that.
static CODE_ONCE_STORED: AtomicU8 = AtomicU8::new(NOT_STORED);

const NOT_STORED: u8 = u8::MAX;

/// Records that the events are stored, so that this process must not fail with exit 1 any more: a caller
/// that pushes again after such a failure would store them twice. A later failure exits with `code`.
pub fn set_stored(code: u8) {
    CODE_ONCE_STORED.store(code, Ordering::SeqCst);
}

/// Forgets what an earlier command of a session has stored.
pub fn forget_stored() {
    CODE_ONCE_STORED.store(NOT_STORED, Ordering::SeqCst);
}

/// The exit code that replaces that of a failure; `None` unless the events are stored.
pub fn code_once_stored() -> Option<u8> {
    Some(CODE_ONCE_STORED.load(Ordering::SeqCst)).filter(|code| *code != NOT_STORED)
}

#[expect(clippy::disallowed_methods, reason = "in a signal handler, where no lock may be taken")]
fn write_stderr(text: &str) {
    // There is nowhere left to report that this failed.
    rustix::io::write(rustix::stdio::stderr(), text.as_bytes()).ok();
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: only reads the current action, into a zeroed struct, which is a valid value.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}
