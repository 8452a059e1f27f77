//! What Ctrl-C does to a command that has to say what became of its work, or has drawn a line.
//!
//! Left alone, a signal ends a process without a word, and whoever pushed a batch would not know
//! whether it is stored. A signal that was ignored when the program began stays ignored.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level;

use crate::error::{Failure, OrFix, Result};
use crate::{output, progress};

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Takes back the line that [`progress`] has drawn.
const CLEAR: &str = "\r\x1b[K";

/// Whether an [`Interruptible`] answers the signals of this process.
static IS_ANSWERED: AtomicBool = AtomicBool::new(false);

/// A stretch of work that a signal ends at once, with a word, until it is [settled](Self::settle).
///
/// The process simply goes away, wherever it is: reading a pipe that says nothing, waiting for
/// another writer, or inside a transaction, which the database then drops as after a crash.
pub struct Interruptible {
    is_over: Arc<AtomicBool>,
}

impl Interruptible {
    /// From now on such a signal prints `failure` and ends the process with 128 and its number.
    pub fn begin(failure: &Failure, as_json: bool) -> Result<Interruptible> {
        IS_ANSWERED.store(true, Ordering::SeqCst);
        let is_over = Arc::new(AtomicBool::new(false));
        let line = output::failure_line(failure, as_json);
        for signal in SIGNALS.into_iter().filter(|&signal| !is_ignored(signal)) {
            let (is_over, line) = (Arc::clone(&is_over), line.clone());
            // In one piece, so that nothing is drawn between the two.
            let after_bar = format!("{CLEAR}{line}");
            let end = move || {
                if is_over.swap(true, Ordering::SeqCst) {
                    return;
                }
                let text = if progress::is_drawn() { &after_bar } else { &line };
                write_stderr(text);
                low_level::exit(128 + signal);
            };
            // SAFETY: what runs inside a signal handler may only do what the system allows there:
            // it looks at atomics, writes what was made before, and exits. It frees and locks nothing.
            unsafe { low_level::register(signal, end) }
                .or_fix("cannot listen to signals", "check the limits on this process")?;
        }
        Ok(Interruptible { is_over })
    }

    /// From now on signals are not heeded: what comes next is carried through.
    pub fn settle(&self) {
        if self.is_over.swap(true, Ordering::SeqCst) {
            // On another thread of this process a signal was first, and is about to exit.
            loop {
                std::thread::park();
            }
        }
    }
}

/// From now on a signal that ends the process clears the line first, where one is drawn. Only the
/// first call does anything, and nothing where an [`Interruptible`] answers.
pub fn clear_line_first() {
    static ONCE: Once = Once::new();
    if IS_ANSWERED.load(Ordering::SeqCst) {
        return;
    }
    ONCE.call_once(|| {
        for signal in SIGNALS.into_iter().filter(|&signal| !is_ignored(signal)) {
            let end = move || {
                if progress::is_drawn() {
                    write_stderr(CLEAR);
                }
                low_level::emulate_default_handler(signal).ok();
            };
            // SAFETY: as above; ending as the signal usually does takes only such calls, too.
            // Where it fails, a line is left on the terminal, no more.
            unsafe { low_level::register(signal, end) }.ok();
        }
    });
}

/// Signals wait as long as this lives.
///
/// For whoever holds a lock at which others are turned away: they rely on its being handed on or on a
/// second look, which a signal in between would prevent.
pub struct PutOff {
    /// What this thread had blocked before.
    before: libc::sigset_t,
}

impl PutOff {
    /// Begins now, for this thread.
    pub fn begin() -> PutOff {
        // SAFETY: these calls take sets that live on this stack, where zeros are a set.
        unsafe {
            let (mut set, mut before) = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in SIGNALS {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before);
            PutOff { before }
        }
    }
}

impl Drop for PutOff {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was in force.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut());
        }
    }
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
