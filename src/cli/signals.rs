//! What signals do to a command.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level;

use super::error::{Failure, Result, WithHint};
use super::{output, progress};
use crate::run::shutdown::Shutdown;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Whether it is too late to interrupt this command, or it has been.
static DECIDED: AtomicBool = AtomicBool::new(false);

/// Lets this process hear of its children's ends, even when whoever started it ignored or blocked the
/// signal that says so, and makes a write past the limit on file sizes an error of that write.
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
            if progress::is_drawn() {
                write_stderr(progress::CLEAR);
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

/// From now on INT, TERM and HUP wait until the process ends: whoever has stored something, or holds a
/// lock at which others are turned away, carries through what follows. Only the first call does
/// anything.
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
            libc::sigemptyset(&mut set);
            for signal in SIGNALS {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
    });
}

/// Ends what [`defer`] began: from now on INT, TERM and HUP end this process at once and silently, and
/// so does one that came meanwhile. For whoever only waits now.
pub fn allow() {
    // SAFETY: these calls take plain values, or a set that lives on this stack.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in SIGNALS {
            libc::sigaddset(&mut set, signal);
            if !is_ignored(signal) {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

/// From now on these signals end nothing, but are requests to end. Those that this process was started
/// to ignore are ignored.
pub fn as_requests(signals: &[i32]) -> Result<Shutdown> {
    let listening = || -> std::io::Result<Shutdown> {
        let (shutdown, sender) = Shutdown::new()?;
        for &signal in signals.iter().filter(|&&signal| !is_ignored(signal)) {
            low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(shutdown)
    };
    listening().with_hint("cannot listen to signals", "check the limits on this process")
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
