//! A progress line on stderr, if that is a terminal.
//!
//! Nothing is drawn in the first half second, so a quick command shows nothing. The line is cleared at the
//! end.

use std::io::{IsTerminal, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::output::{CLEAR_LINE, PROGRESS_DRAWN};
use super::{capture, environment, signals};
use crate::model::duration;

/// Time before the first drawing.
const QUIET: Duration = Duration::from_millis(500);

/// Time between two drawings.
const PAUSE: Duration = Duration::from_millis(100);

/// Progress of one piece of work. Dropping it clears its line.
pub struct Progress {
    what: &'static str,
    total: Option<u64>,
    done: u64,
    began: Instant,
    /// `None` if progress is not shown.
    next_drawing: Option<Instant>,
}

impl Progress {
    /// `what` describes the work: "reading the batch". With a `total`, in any unit, the line shows the
    /// percentage done and the time left; without, the number of units done.
    pub fn of(what: &'static str, total: Option<u64>) -> Progress {
        let moves_cursor = environment::variable("TERM").is_some_and(|term| term != "dumb");
        let began = Instant::now();
        let next_drawing =
            (moves_cursor && !capture::is_on() && environment::stderr().is_terminal()).then(|| began + QUIET);
        Progress { what, total, done: 0, began, next_drawing }
    }

    /// Hides the progress unless `wanted`.
    pub fn only_if(self, wanted: bool) -> Progress {
        Progress { next_drawing: self.next_drawing.filter(|_| wanted), ..self }
    }

    /// Adds finished units. Reads the clock, so call it per page of events rather than per event.
    pub fn advance(&mut self, units: u64) {
        self.done += units;
        let now = Instant::now();
        if self.next_drawing.is_none_or(|at| now < at) {
            return;
        }
        self.next_drawing = Some(now + PAUSE);
        if !PROGRESS_DRAWN.swap(true, Ordering::SeqCst) {
            // If no handler can be installed, an interrupt merely leaves the line on the terminal.
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
        // There is nowhere left to report that this failed.
        drop(write!(environment::stderr(), "{CLEAR_LINE}{line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.next_drawing.is_some() && PROGRESS_DRAWN.swap(false, Ordering::SeqCst) {
            drop(write!(environment::stderr(), "{CLEAR_LINE}"));
        }
    }
}
