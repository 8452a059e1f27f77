//! How far long work has come, on a terminal's stderr and nowhere else.
//!
//! Nothing is drawn in the first half second, so a quick command shows nothing; and at the end the
//! line is gone.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::signals;
use crate::model::duration;

/// Work that takes no longer is not shown.
const QUIET: Duration = Duration::from_millis(500);

/// The time between two drawings.
const PAUSE: Duration = Duration::from_millis(100);

/// So many units of work go by between two looks at the clock.
const UNITS: u64 = 64;

/// Clears the line.
pub const CLEAR: &str = "\r\x1b[K";

static DRAWN: AtomicBool = AtomicBool::new(false);

/// Whether a line is on the terminal now.
pub fn is_drawn() -> bool {
    DRAWN.load(Ordering::SeqCst)
}

/// One piece of work under way. Dropping it clears its line.
pub struct Progress(Option<Meter>);

struct Meter {
    what: &'static str,
    total: Option<u64>,
    began: Instant,
    next_drawing: Instant,
    done: u64,
    /// As many units were done when the clock was last looked at.
    done_then: u64,
}

impl Progress {
    /// Work described as in "reading the batch". With a `total`, in any unit, the share done and the
    /// time left are shown; without, how many events are done.
    pub fn of(what: &'static str, total: Option<u64>) -> Progress {
        let moves_cursor = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
        if !moves_cursor || !io::stderr().is_terminal() {
            return Progress(None);
        }
        let began = Instant::now();
        let next_drawing = began + QUIET;
        Progress(Some(Meter { what, total, began, next_drawing, done: 0, done_then: 0 }))
    }

    /// Shows nothing.
    pub fn none() -> Progress {
        Progress(None)
    }

    /// So many more units are done. Cheap enough for each event of many.
    pub fn advance(&mut self, units: u64) {
        let Some(meter) = &mut self.0 else { return };
        meter.done += units;
        if meter.done - meter.done_then >= UNITS {
            meter.draw();
        }
    }
}

impl Meter {
    fn draw(&mut self) {
        self.done_then = self.done;
        let now = Instant::now();
        if now < self.next_drawing {
            return;
        }
        self.next_drawing = now + PAUSE;
        if !DRAWN.swap(true, Ordering::SeqCst) {
            // Where signals cannot be heard, an interrupt leaves the line on the terminal, no more.
            drop(signals::on_interrupt(None, false));
        }
        // There is nowhere to say that a line could not be drawn.
        drop(write!(io::stderr(), "{CLEAR}{}", self.line()));
    }

    fn line(&self) -> String {
        let (what, done) = (self.what, self.done);
        match self.total {
            Some(total) => {
                let left =
                    self.began.elapsed().mul_f64(total.saturating_sub(done) as f64 / done.max(1) as f64);
                format!("{what}: {}%, {} left", done * 100 / total.max(1), duration::rough(left))
            }
            None => format!("{what}: {done}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.0.is_some() && DRAWN.swap(false, Ordering::SeqCst) {
            drop(write!(io::stderr(), "{CLEAR}"));
        }
    }
}
