//! Shared by `pop` and `peek`: printing events as NDJSON, once, after a wait, or as they come.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags};

use super::output::{self, Reader};
use super::progress::Progress;
use super::{environment, limit};
use crate::failure::{Result, timed_out};
use crate::files::CONTROL;
use crate::files::watch::{LOOK_EVERY, Watcher};
use crate::model::duration;
use crate::model::event::Row;
use crate::model::subscription::ConsumerId;
use crate::queue::{Queue, Remaining, Selection};
use crate::run::claims::{self, Refused};
use crate::store::ScanRange;

/// How many events are printed by default.
const LIMIT: u64 = 100;

/// Approximate size of a page, in bytes.
const PAGE_BYTES: usize = 256 * 1024;

#[derive(Args)]
pub struct ReadingArgs {
    /// The most events to print [default: 100 after an id or the cursor, without --follow; else no limit]
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    pub limit: Option<u64>,
    /// If there are none, wait up to this long for one, e.g. 30s or 5m; with --follow, end after this long
    /// without one
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub wait: Option<Duration>,
    /// Keep printing events as they come
    #[arg(short = 'f', long)]
    pub follow: bool,
    /// Exit 3 if nothing was printed
    #[arg(long)]
    fail_if_none: bool,
}

/// Appends an event, including its final newline, or breaks, to read no further.
pub type Write<'w> = dyn FnMut(&Row<'_>, &mut Vec<u8>) -> ControlFlow<()> + 'w;

/// Why a wait ended.
pub enum Woken {
    /// Something may have been stored.
    Look,
    TimedOut,
    /// The reader of stdout is gone.
    ReaderGone,
}

impl ReadingArgs {
    /// Whether it waits for events.
    pub fn waits(&self) -> bool {
        self.follow || self.wait.is_some()
    }

    /// The most events to print; `None` if unlimited.
    pub fn limit_or_default(&self) -> Option<u64> {
        self.limit.or((!self.follow).then_some(LIMIT))
    }

    /// Prints the events of `selection` page by page, with no read transaction open while it writes, so that a slow
    /// reader does not pin the WAL; then waits for more, with --wait or --follow. `cut_noted`: prints a note if the
    /// limit left events out.
    ///
    /// # Errors
    ///
    /// Exit code 3 if nothing was printed and --fail-if-none is set; those of reading and printing.
    pub fn print(
        &self,
        queue: &mut Queue,
        mut selection: Selection,
        write: &mut Write<'_>,
        cut_noted: bool,
    ) -> Result<()> {
        let printed = self.print_all(queue, &mut selection, write)?;
        if cut_noted && selection.limit == Some(0) && has_more(queue, &selection)? {
            output::note(format_args!(
                "there are more events; this is the default limit of {LIMIT}, give --limit for another"
            ));
        }
        if printed { Ok(()) } else { self.none_printed() }
    }

    /// Takes the next event, or up to --limit, and prints it with its claim.
    ///
    /// # Errors
    ///
    /// Those of [`claims::take`]; exit code 3 if there is none and --fail-if-none is set.
    pub fn print_claimed(&self, queue: &mut Queue, consumer: &ConsumerId, length: Duration) -> Result<()> {
        let watcher = self.wait.is_some().then(|| queue.watcher());
        if let Some(watcher) = &watcher {
            // Touched when others end their claims.
            watcher.add(queue.files(), CONTROL);
        }
        let end = self.wait.map(|wait| Instant::now() + wait);
        loop {
            let taken = claims::take(queue, consumer, self.limit.unwrap_or(1), length)?;
            if taken.count > 0 {
                return output::bytes(&taken.lines).map(drop);
            }
            let Some((watcher, end)) = watcher.as_ref().zip(end).filter(|(_, end)| Instant::now() < *end)
            else {
                note_refused(consumer, taken.refused);
                return self.none_printed();
            };
            let again = taken.again.and_then(|again| Instant::now().checked_add(again));
            match wait(queue, watcher, Some(again.map_or(end, |again| again.min(end))))? {
                Woken::Look | Woken::TimedOut => {}
                Woken::ReaderGone => return Ok(()),
            }
        }
    }

    /// # Errors
    ///
    /// Exit code 3, if --fail-if-none is set.
    pub fn none_printed(&self) -> Result<()> {
        if !self.fail_if_none {
            return Ok(());
        }
        match self.wait {
            Some(_) => timed_out("no event came in time", "wait longer with --wait"),
            None => timed_out("there is no such event", "wait for one with --wait <duration>"),
        }
    }

    /// Returns whether anything was printed, or the reader of stdout is gone.
    pub fn print_all(
        &self,
        queue: &mut Queue,
        selection: &mut Selection,
        write: &mut Write<'_>,
    ) -> Result<bool> {
        let waits = self.waits();
        // Created before the first read, so that no commit between the read and the wait is missed.
        let watcher = waits.then(|| queue.watcher());
        let mut progress = progress_of(queue, selection, !waits && output::stdout_is_off_terminal())?;
        let mut last_event = Instant::now();
        let mut page = Vec::new();
        let mut printed = false;
        loop {
            page.clear();
            let before = selection.after;
            let mut is_cut = false;
            let remaining = queue.read_page(selection, &mut |row| {
                if write(&row, &mut page).is_break() {
                    is_cut = true;
                    return ControlFlow::Break(());
                }
                if page.len() < PAGE_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            progress.advance(selection.after.abs_diff(before));
            if !page.is_empty() {
                printed = true;
                last_event = Instant::now();
                if output::bytes(&page)? == Reader::Gone {
                    return Ok(printed);
                }
            }
            if is_cut {
                return Ok(printed);
            }
            if remaining == Remaining::Some {
                continue;
            }
            let enough = selection.limit == Some(0) || (!self.follow && printed);
            let Some(watcher) = watcher.as_ref().filter(|_| !enough) else { return Ok(printed) };
            let deadline = self.wait.map(|wait| last_event + wait);
            match wait(queue, watcher, deadline)? {
                Woken::Look => {}
                Woken::TimedOut => return Ok(printed),
                // Not a failure with --fail-if-none: the reader of stdout is gone.
                Woken::ReaderGone => return Ok(true),
            }
        }
    }
}

/// Says why there is nothing to take though there may be events.
fn note_refused(consumer: &ConsumerId, why: Option<Refused>) {
    match why {
        Some(Refused::Paused) => {
            output::note(format_args!("'{consumer}' is paused; `thread resume` continues"))
        }
        Some(Refused::Stalled) => {
            output::note(format_args!(
                "'{consumer}' is stalled; see `thread info`, and `thread resume` continues"
            ));
        }
        Some(Refused::Busy) | None => {}
    }
}

/// Waits until something may have been stored, `deadline`, or the reader of stdout is gone.
pub fn wait(queue: &Queue, watcher: &Watcher, deadline: Option<Instant>) -> Result<Woken> {
    let left = deadline.map_or(LOOK_EVERY, |end| end.saturating_duration_since(Instant::now()));
    if left.is_zero() {
        return Ok(Woken::TimedOut);
    }
    queue.files().must_be_there()?;
    // Even without requested events, poll reports that the reader of a pipe is gone.
    let stdout = environment::stdout();
    watcher.wait(left.min(LOOK_EVERY), Some(PollFd::new(&stdout, PollFlags::empty())));
    Ok(if output::reader_is_gone() { Woken::ReaderGone } else { Woken::Look })
}

/// Whether there are more events past the limit of `selection`, as far as a short scan shows.
fn has_more(queue: &mut Queue, selection: &Selection) -> Result<bool> {
    const LOOK_FOR: Duration = Duration::from_millis(100);
    let Some(filter) = &selection.filter else {
        return Ok(queue.store.first_after(selection.after)?.is_some());
    };
    let (upto, until) = (queue.store.newest()?, Some(Instant::now() + LOOK_FOR));
    let range = ScanRange { after: selection.after, upto, most: 1, until };
    Ok(!queue.store.scan(filter, range)?.ids.is_empty())
}

/// Progress through `selection`, by ids. `shown` must be false if the events themselves may appear on the
/// terminal.
fn progress_of(queue: &mut Queue, selection: &Selection, shown: bool) -> Result<Progress> {
    let newest = if shown { queue.store.newest()? } else { 0 };
    let to_end = newest.saturating_sub(selection.after).try_into().unwrap_or(0);
    // With a filter, the id of the last selected event is unknown.
    let left = selection.limit.filter(|_| selection.filter.is_none()).unwrap_or(to_end);
    Ok(Progress::of("reading events", Some(to_end.min(left))).only_if(shown))
}
