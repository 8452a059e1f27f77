//! What `pop` and `peek` share: printing events as NDJSON, once, after a wait, or as they come.

use std::time::{Duration, Instant};

use clap::Args;

use crate::cmd::limit;
use crate::duration;
use crate::error::Result;
use crate::output::{self, Reader};
use crate::progress::{self, Progress};
use crate::store::{Reading, Store};
use crate::thread::Thread;
use crate::watch::{Watch, Woken};

/// How many events are printed when nobody says.
const LIMIT: u64 = 100;

#[derive(Args)]
pub struct ReadingArgs {
    /// The most events to print [default: 100; with --follow, no limit]
    #[arg(long, value_name = "N", value_parser = limit, allow_negative_numbers = true)]
    limit: Option<u64>,
    /// When there are none, wait so long for one, e.g. 30s or 5m; with --follow, end after so long without
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Go on printing events as they come
    #[arg(short = 'f', long)]
    pub follow: bool,
}

impl ReadingArgs {
    /// The most events to print; none is no limit. `number` is how many were asked for otherwise.
    pub fn limit_or(&self, number: Option<u64>) -> Option<u64> {
        self.limit.or((!self.follow).then(|| number.unwrap_or(LIMIT)))
    }

    /// Prints the events of `reading`, page by page, with no read transaction open while the reader
    /// takes his time; then waits for more, if that was asked.
    pub fn print(&self, thread: &mut Thread, mut reading: Reading<'_>) -> Result<()> {
        let patient = self.follow || self.wait.is_some();
        let limit = reading.left;
        // Begun before the first look, so that nothing falls between the two.
        let mut watch = if patient { Some(Watch::start(&thread.files, &thread.store)?) } else { None };
        let mut last_event = Instant::now();
        let mut progress = if patient { Progress::none() } else { progress_of(thread, &reading)? };
        let mut page = Vec::new();
        loop {
            let before = reading.after;
            let more = print_next(&mut thread.store, &mut reading, &mut page, &mut progress)?;
            let Some(more) = more else { return Ok(()) };
            // With a filter, ids may be passed over that are not printed.
            if !page.is_empty() || (reading.filter.is_none() && before != reading.after) {
                last_event = Instant::now();
            }
            if more {
                continue;
            }
            let enough = reading.left == Some(0) || (!self.follow && reading.left != limit);
            let Some(watch) = watch.as_mut().filter(|_| !enough) else { return Ok(()) };
            let deadline = self.wait.map(|wait| last_event + wait);
            match watch.wait(&thread.files, &thread.store, deadline)? {
                Woken::Changed => {}
                Woken::TimedOut | Woken::ReaderGone => return Ok(()),
            }
        }
    }
}

/// Prints the next events; whether there may be more. Nothing when the reader has gone.
fn print_next(
    store: &mut Store,
    reading: &mut Reading<'_>,
    page: &mut Vec<u8>,
    progress: &mut Progress,
) -> Result<Option<bool>> {
    page.clear();
    let before = reading.after;
    let mut reader = Reader::There;
    let mut more = true;
    if let Some(upto) = store.far_ahead(reading)? {
        store.read_in_turns(before, upto, |page| {
            reading.left = reading.left.map(|left| left.saturating_sub(page.events));
            reader = output::bytes(&page.lines)?;
            progress.advance(page.last_id.abs_diff(reading.after));
            progress.tick();
            reading.after = page.last_id;
            Ok(reader == Reader::There)
        })?;
        reading.after = upto;
    } else {
        more = store.read_page(reading, page)?;
        progress.advance(reading.after.abs_diff(before));
        progress.tick();
        if !page.is_empty() {
            reader = output::bytes(page)?;
        }
    }
    Ok((reader == Reader::There).then_some(more))
}

/// How far `reading` has come, by ids. Shown only where no events are seen on the same terminal.
fn progress_of(thread: &Thread, reading: &Reading<'_>) -> Result<Progress> {
    if !output::is_put_away() || !progress::is_seen() {
        return Ok(Progress::none());
    }
    let to_end = thread.store.newest_ever()?.saturating_sub(reading.after).try_into().unwrap_or(0);
    // With a filter, nobody knows where the last of so many events is.
    let left = reading.left.filter(|_| reading.filter.is_none()).unwrap_or(to_end);
    Ok(Progress::of("reading events", Some(to_end.min(left))))
}
