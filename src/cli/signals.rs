//! Signal handling of commands.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Once, OnceLock};

use signal_hook::consts::*;
use signal_hook::low_level;

use super::error::{Failure, Result, WithHint};
use super::output;
use crate::run::shutdown::Shutdown;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Signals that [`defer`] does not block: job control, children, and faults of this process.
const NEVER_DEFERRED: [i32; 12] =
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SIGCHLD, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU];

/// The signal mask before [`defer`].
static PREVIOUS_MASK: OnceLock<libc::sigset_t> = OnceLock::new();

/// Whether this command was interrupted, or can no longer be. Whoever sets it first wins.
static INTERRUPT_DECIDED: AtomicBool = AtomicBool::new(false);

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
/// crash. Without a failure they end it silently. A progress line is cleared first.
pub fn on_interrupt(failure: Option<&Failure>, as_json: bool) -> Result<()> {
    let line = failure.map(|failure| output::failure_line(failure, as_json));
    for signal in SIGNALS.into_iter().filter(|&signal| !is_ignored(signal)) {
        let line = line.clone();
        let end = move || {
            if INTERRUPT_DECIDED.swap(true, Ordering::SeqCst) {
                return;
            }
            if output::PROGRESS_DRAWN.load(Ordering::SeqCst) {
                write_stderr(output::CLEAR_LINE);
            }
            match &line {
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
/// a lock that others give up on, must finish its work. Job control and the signals of faults still work.
/// Only the first call has an effect.
pub fn defer() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if INTERRUPT_DECIDED.swap(true, Ordering::SeqCst) {
            // A signal came first, and its handler on another thread is about to exit.
            loop {
                std::thread::park();
            }
        }
        // SAFETY: these calls take a set that lives on this stack.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut set);
            for signal in NEVER_DEFERRED {
                libc::sigdelset(&mut set, signal);
            }
            let mut previous = set;
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut previous);
            PREVIOUS_MASK.set(previous).ok();
        }
    });
}

/// Undoes [`defer`], for a command that from here on only waits. INT, TERM and HUP, also one that is
/// pending, then end the process at once and silently; other signals behave as before.
pub fn allow() {
    // SAFETY: these calls take plain values, or a set that the system filled in.
    unsafe {
        for signal in SIGNALS.into_iter().filter(|&signal| !is_ignored(signal)) {
            libc::signal(signal, libc::SIG_DFL);
        }
        if let Some(previous) = PREVIOUS_MASK.get() {
            libc::pthread_sigmask(libc::SIG_SETMASK, previous, std::ptr::null_mut());
        }
    }
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

/// What to print in place of the result if the process aborts: a line, and its length.
static FALLBACK_LINE: OnceLock<([u8; 160], usize)> = OnceLock::new();

/// Whether printing the result was attempted.
static RESULT_PRINTED: AtomicBool = AtomicBool::new(false);

/// The exit code of a process that has stored something and cannot continue.
static CODE_ONCE_STORED: AtomicU8 = AtomicU8::new(0);

/// Records that the events are stored, so that this process must not fail any more: a caller that pushes
/// again after a failure would store them twice. If the process aborts, as it does when memory runs out, it
/// prints `fallback_line` and a warning, and exits with `code`. Allocates nothing.
pub fn set_stored(code: u8, fallback_line: fmt::Arguments<'_>) {
    CODE_ONCE_STORED.store(code, Ordering::SeqCst);
    let mut line = [0; 160];
    let mut rest = &mut line[..];
    let length = match rest.write_fmt(fallback_line) {
        Ok(()) => 160 - rest.len(),
        Err(_) => 0,
    };
    if FALLBACK_LINE.set((line, length)).is_ok() {
        // SAFETY: the handler is async-signal-safe: it reads atomics and what was set before, writes, and
        // ends the process.
        unsafe { libc::signal(libc::SIGABRT, exit_as_stored as *const () as libc::sighandler_t) };
    }
}

/// The exit code that replaces that of a failure; `None` unless the events are stored.
pub fn code_once_stored() -> Option<u8> {
    FALLBACK_LINE.get().map(|_| CODE_ONCE_STORED.load(Ordering::SeqCst))
}

/// Records that the result was printed, or cannot be, and sets the exit code of later failures.
pub fn set_result_printed(code: u8) {
    RESULT_PRINTED.store(true, Ordering::SeqCst);
    CODE_ONCE_STORED.store(code, Ordering::SeqCst);
}

extern "C" fn exit_as_stored(_: libc::c_int) {
    if let Some((line, length)) = FALLBACK_LINE.get()
        && !RESULT_PRINTED.load(Ordering::SeqCst)
    {
        // A failure here is ignored: the warning follows in any case.
        rustix::io::write(rustix::stdio::stdout(), &line[..*length]).ok();
    }
    write_stderr(
        "Warning: this push was cut short, probably for lack of memory; what was pushed is stored; \
         the next push or `thread dispatch` does the rest\n",
    );
    low_level::exit(CODE_ONCE_STORED.load(Ordering::SeqCst).into());
}

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
