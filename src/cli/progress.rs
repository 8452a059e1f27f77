//! How far long work has come, on a terminal's stderr and nowhere else.
//!
//! Nothing is drawn in the first half second, so a quick command shows nothing; and at the end the
//! line is gone.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::output::{CLEAR_LINE, PROGRESS_DRAWN};
use super::signals;
use crate::model::duration;

/// Work that takes no longer is not shown.
const QUIET: Duration = Duration::from_millis(500);

/// The time between two drawings.
const PAUSE: Duration = Duration::from_millis(100);

/// One piece of work under way. Dropping it clears its line.
pub struct Progress {
    what: &'static str,
    total: Option<u64>,
    done: u64,
    began: Instant,
    /// `None` if it is not shown.
    next_drawing: Option<Instant>,
}

impl Progress {
    /// Work described as in "reading the batch". With a `total`, in any unit, the share done and the
    /// time left are shown; without, how many events are done.
    pub fn of(what: &'static str, total: Option<u64>) -> Progress {
        let moves_cursor = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
        let began = Instant::now();
        let next_drawing = (moves_cursor && io::stderr().is_terminal()).then(|| began + QUIET);
        Progress { what, total, done: 0, began, next_drawing }
    }

    /// The same, shown only if `wanted`.
    pub fn only_if(self, wanted: bool) -> Progress {
        Progress { next_drawing: self.next_drawing.filter(|_| wanted), ..self }
    }

    /// So many more units are done. For each page of events rather than for each event.
    pub fn advance(&mut self, units: u64) {
        self.done += units;
        let now = Instant::now();
        if self.next_drawing.is_none_or(|at| now < at) {
            return;
        }
        self.next_drawing = Some(now + PAUSE);
        if !PROGRESS_DRAWN.swap(true, Ordering::SeqCst) {
            // Where signals cannot be heard, an interrupt leaves the line on the terminal, no more.
            drop(signals::on_interrupt(None, false));
        }
        let (what, done) = (self.what, self.done);
        let line = match self.total {
            Some(total) => {
                let left = total.saturating_sub(done) as f64 / done.max(1) as f64;
                let left = duration::rough(self.began.elapsed().mul_f64(left));
                format!("{what}: {}%, {left} left", done * 100 / total.max(1))
            }
            None => format!("{what}: {done}"),
        };
        // There is nowhere to say that a line could not be drawn.
        drop(write!(io::stderr(), "{CLEAR_LINE}{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.next_drawing.is_some() && PROGRESS_DRAWN.swap(false, Ordering::SeqCst) {
            drop(write!(io::stderr(), "{CLEAR_LINE}"));
        }
    }
}
