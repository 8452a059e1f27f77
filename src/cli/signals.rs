//! What signals do to a command.

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

/// What is heard even by a process that must not end now.
const HEARD: [i32; 12] =
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SIGCHLD, SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU];

/// What was blocked before signals were deferred.
static BEFORE: OnceLock<libc::sigset_t> = OnceLock::new();

/// Whether it is too late to interrupt this command, or it has been.
static DECIDED: AtomicBool = AtomicBool::new(false);

/// Lets this process notice the end of its children, even if the process that started it ignored or
/// blocked the signal for that, and makes a write past the limit on file sizes an error of that write.
pub fn begin() {
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

/// Undoes what another program would inherit of it.
pub fn end() {
    // SAFETY: takes plain values.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
    }
}

/// From now on INT, TERM and HUP print `failure` and end the process at once, wherever it is: reading a
/// pipe that says nothing, waiting for another writer, or inside a transaction, which the database
/// then drops as after a crash. Without a failure they end it silently. Either way a progress bar is
/// cleared first.
pub fn on_interrupt(failure: Option<&Failure>, as_json: bool) -> Result<()> {
    let line = failure.map(|failure| output::failure_line(failure, as_json));
    for signal in SIGNALS.into_iter().filter(|&signal| !is_ignored(signal)) {
        let line = line.clone();
        let end = move || {
            if DECIDED.swap(true, Ordering::SeqCst) {
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
        // SAFETY: a signal handler may only do what the system allows there: this one looks at atomics,
        // writes what was made before, and ends the process. It frees and locks nothing.
        unsafe { low_level::register(signal, end) }
            .with_hint("cannot listen to signals", "check the limits on this process")?;
    }
    Ok(())
}

/// From now on signals wait until the process ends: one that has stored something, or holds a lock that
/// turns others away, must finish what follows. Job control still works, and so do the signals
/// that say that this process is broken. Only the first call does anything.
pub fn defer() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if DECIDED.swap(true, Ordering::SeqCst) {
            // On another thread of this process a signal was first, and is about to exit.
            loop {
                std::thread::park();
            }
        }
        // SAFETY: these calls take a set that lives on this stack.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut set);
            for signal in HEARD {
                libc::sigdelset(&mut set, signal);
            }
            let mut before = set;
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            BEFORE.set(before).ok();
        }
    });
}

/// Ends what [`defer`] began: signals are what they were, but that INT, TERM and HUP end this process at
/// once and silently, and so does one that came meanwhile. For a command that only waits now.
pub fn allow() {
    // SAFETY: these calls take plain values, or a set that was made by the system.
    unsafe {
        for signal in SIGNALS.into_iter().filter(|&signal| !is_ignored(signal)) {
            libc::signal(signal, libc::SIG_DFL);
        }
        if let Some(before) = BEFORE.get() {
            libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut());
        }
    }
}

/// From now on these signals end nothing, but are requests to end. Those that this process was started
/// to ignore are ignored.
pub fn as_requests(signals: &[i32]) -> Result<Shutdown> {
    let listening = || -> std::io::Result<Shutdown> {
        let shutdown = Shutdown::new()?;
        for &signal in signals.iter().filter(|&&signal| !is_ignored(signal)) {
            low_level::pipe::register(signal, shutdown.sender().try_clone()?)?;
        }
        Ok(shutdown)
    };
    listening().with_hint("cannot listen to signals", "check the limits on this process")
}

/// What to print instead of the answer if memory runs out: a line, and its length.
static SHORT_ANSWER: OnceLock<([u8; 160], usize)> = OnceLock::new();

/// Whether the answer was printed, as far as it could be.
static ANSWERED: AtomicBool = AtomicBool::new(false);

/// The exit code of a process that has stored something and cannot go on.
static CODE: AtomicU8 = AtomicU8::new(0);

/// From now on this process does not fail, whatever becomes of it: what it was asked to store is stored,
/// and a caller that pushes again after a failure would store it twice. Where memory runs out, which
/// aborts the process, it prints `short_answer` and a warning, and ends with `code`. Needs no memory
/// itself.
pub fn stored(code: u8, short_answer: fmt::Arguments<'_>) {
    CODE.store(code, Ordering::SeqCst);
    let mut line = [0; 160];
    let mut rest = &mut line[..];
    let length = match rest.write_fmt(short_answer) {
        Ok(()) => 160 - rest.len(),
        Err(_) => 0,
    };
    if SHORT_ANSWER.set((line, length)).is_ok() {
        // SAFETY: the handler does only what a signal handler may: it reads what was set before and what
        // is atomic, writes, and ends the process.
        unsafe { libc::signal(libc::SIGABRT, end_as_stored as *const () as libc::sighandler_t) };
    }
}

/// The exit code in place of that of a failure, once what this process was asked to store is stored.
pub fn code_once_stored() -> Option<u8> {
    SHORT_ANSWER.get().map(|_| CODE.load(Ordering::SeqCst))
}

/// The answer was printed, or cannot be. The code is `code` from now on.
pub fn answered(code: u8) {
    ANSWERED.store(true, Ordering::SeqCst);
    CODE.store(code, Ordering::SeqCst);
}

extern "C" fn end_as_stored(_: libc::c_int) {
    if let Some((line, length)) = SHORT_ANSWER.get()
        && !ANSWERED.load(Ordering::SeqCst)
    {
        // The warning follows in any case.
        rustix::io::write(rustix::stdio::stdout(), &line[..*length]).ok();
    }
    write_stderr(
        "Warning: this push was cut short, probably for lack of memory; what was pushed is stored; \
         the next push or `thread dispatch` does the rest\n",
    );
    low_level::exit(CODE.load(Ordering::SeqCst).into());
}

fn write_stderr(text: &str) {
    // There is nowhere left to say that this failed.
    rustix::io::write(rustix::stdio::stderr(), text.as_bytes()).ok();
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: asks for the present action only, into room made for it, where zeros are an action.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}
