//! How far long work has come, on a terminal's stderr and nowhere else.
//!
//! Nothing is drawn or made in the first half second, so a quick command shows nothing; then at
//! most ten times a second; and at the end the line is gone. Where there is no terminal, or one
//! that cannot move its cursor, all of this costs a look at an empty option.
//!
//! ```no_run
//! # use thread::progress::Progress;
//! let mut progress = Progress::of("counting", Some(300_000));
//! for _ in 0..300_000 {
//!     progress.advance(1);
//! }
//! // Dropping it clears the line.
//! ```

use std::io::{self, IsTerminal, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::interrupt;

/// Work that takes no longer is not talked about.
const QUIET: Duration = Duration::from_millis(500);

/// The time between two drawings.
const PAUSE: Duration = Duration::from_millis(100);

/// So many units of work go by between two looks at the clock; a unit may be a large event.
const UNITS: u64 = 64;

/// Whether a line stands on the terminal now.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// One piece of work under way, on any thread. Dropping it clears its line.
pub struct Progress(Option<Box<Meter>>);

struct Meter {
    what: &'static str,
    total: Option<u64>,
    began: Instant,
    next_drawing: Instant,
    done: u64,
    /// As many units were done when the clock was last looked at.
    done_then: u64,
    /// Made when it is first drawn.
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Work described as in "reading the batch". With a `total`, in any unit, the share done and the
    /// time left are shown; without, how many events are done and how fast, or, where nobody counts
    /// them, that it goes on.
    pub fn of(what: &'static str, total: Option<u64>) -> Progress {
        if !is_seen() {
            return Progress(None);
        }
        let began = Instant::now();
        let next_drawing = began + QUIET;
        Progress(Some(Box::new(Meter { what, total, began, next_drawing, done: 0, done_then: 0, bar: None })))
    }

    /// Shows nothing.
    pub fn none() -> Progress {
        Progress(None)
    }

    /// So many more units are done. Cheap enough for each event of many.
    #[inline]
    pub fn advance(&mut self, units: u64) {
        let Some(meter) = &mut self.0 else { return };
        meter.done += units;
        if meter.done - meter.done_then >= UNITS {
            meter.tick();
        }
    }

    /// It goes on: draws what was counted, if it is time. For steps that may take long each.
    pub fn tick(&mut self) {
        if let Some(meter) = &mut self.0 {
            meter.tick();
        }
    }
}

/// Whether anybody would see it.
pub fn is_seen() -> bool {
    let can_move = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    can_move && io::stderr().is_terminal()
}

/// Whether a line stands on the terminal, which whoever ends the process at once has to clear.
pub fn is_drawn() -> bool {
    DRAWN.load(Ordering::SeqCst)
}

impl Meter {
    fn tick(&mut self) {
        self.done_then = self.done;
        let now = Instant::now();
        if now < self.next_drawing {
            return;
        }
        self.next_drawing = now + PAUSE;
        DRAWN.store(true, Ordering::SeqCst);
        let bar = match &self.bar {
            Some(bar) => bar,
            None => {
                interrupt::clear_line_first();
                self.bar.insert(self.bar())
            }
        };
        bar.set_position(self.done);
    }

    fn bar(&self) -> ProgressBar {
        let template = match self.total {
            Some(_) => "{msg}: {percent}% [{bar:25}] {left}",
            None => "{spinner} {msg}{counted}",
        };
        // By the mean of all the time: what was done before the first drawing counts too.
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let style =
            style.progress_chars("=> ").with_key("left", write_left).with_key("counted", write_counted);
        ProgressBar::with_draw_target(self.total, ProgressDrawTarget::stderr())
            .with_style(style)
            .with_message(self.what)
            .with_elapsed(self.began.elapsed())
    }
}

/// The time left, as in "12 seconds left".
fn write_left(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    let (done, total) = (state.pos(), state.len().unwrap_or_default());
    if done > 0 {
        let left = state.elapsed().mul_f64(total.saturating_sub(done) as f64 / done as f64);
        out.write_fmt(format_args!("{} left", HumanDuration(left))).ok();
    }
}

/// As in ": 120,000 events, 80,000 a second".
fn write_counted(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    let done = state.pos();
    if done > 0 {
        let rate = (done as f64 / state.elapsed().as_secs_f64()) as u64;
        out.write_fmt(format_args!(": {} events, {} a second", HumanCount(done), HumanCount(rate))).ok();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            DRAWN.store(false, Ordering::SeqCst);
        }
    }
}

/// Input that shows how far it is read: with a `size` in bytes the share of it, or else how many
/// lines.
pub struct Watched<R> {
    input: R,
    size: Option<u64>,
    progress: Progress,
}

impl<R: Read> Watched<R> {
    pub fn new(input: R, what: &'static str, size: Option<u64>) -> Watched<R> {
        Watched { input, size, progress: Progress::of(what, size) }
    }
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(into)?;
        if self.progress.0.is_some() {
            let lines = || memchr::memchr_iter(b'\n', &into[..read]).count();
            let units = if self.size.is_some() { read } else { lines() };
            self.progress.advance(units as u64);
            self.progress.tick();
        }
        Ok(read)
    }
}
