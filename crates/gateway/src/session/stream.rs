//! How long the stream of a run is kept: its tokens and thinking, which are not needed once it has ended.
//!
//! A sweep deletes those of runs that ended long enough ago, and the sealed logs of that age. What remains, and
//! the time of a session's last activity, do not change. A session that was last active before the events that
//! the sweep before has deleted is not opened: there is nothing left to do.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use thread::Queue;
use thread::files::{DB, JSONL};
use thread::maintenance::prune::{self, Old, Request};
use thread::model::time::{self, Time};
use thread_agent::sub_agent::threads_in;
use thread_sessions::root::BUSY;
use thread_sessions::turns::Threads;
use thread_sessions::{Kind, RequestError, Result, open_runs};

use super::blocking_pool::blocking;
use super::context::Context;
use super::event::for_each;

/// The subtypes of the events that are deleted.
const STREAM: [&str; 2] = ["token", "thinking"];

/// The file in the root with the time up to which all sessions are swept.
const SWEPT: &str = "swept";

/// The longest pause between two sweeps.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// A database is compacted once this fraction of it was deleted.
const WORTHWHILE: u64 = 4;

/// Sweeps all sessions, now and from then on.
pub async fn sweep_forever(context: &Context, keep: Duration) {
    let thread = Threads::new(1);
    let pause = keep.clamp(Duration::from_secs(1), LONGEST_PAUSE);
    loop {
        if let Err(e) = sweep(context, &thread, keep).await {
            e.log("a sweep of the sessions");
        }
        tokio::time::sleep(pause).await;
    }
}

/// Deletes the streams that have been kept for long enough. Sessions are handled one after the other, each in turn
/// with its clients' requests. A damaged session is logged and left as it is; a locked one is left for the next
/// sweep.
async fn sweep(context: &Context, thread: &Threads, keep: Duration) -> Result<()> {
    let before = SystemTime::now() - keep;
    let (root, file) = (context.root.clone(), context.root.dir().join(SWEPT));
    let own = file.clone();
    let (swept, entries) = blocking(thread, move || {
        let swept = fs::read_to_string(own).ok().and_then(|text| time::parse(text.trim()));
        Ok((swept.map(SystemTime::from), root.entries().map_err(|e| root.failed(e))?))
    })
    .await?;
    let mut is_complete = true;
    // The most recently active come first.
    for listed in entries.into_iter().take_while(|listed| swept.is_none_or(|swept| listed.active > swept)) {
        let dir = context.root.path_of(listed.id);
        let work = move || sweep_session(&dir, before, swept);
        match context.pool.run(listed.id, Kind::Write, work).await {
            Ok(()) | Err(RequestError::UnknownSession(_)) => {}
            Err(RequestError::Locked) => is_complete = false,
            Err(e) => e.log(&format!("session {}: its stream cannot be deleted", listed.id)),
        }
    }
    if is_complete && context.root.is_there() {
        let text = time::format(before.into());
        blocking(thread, move || write(&file, &text).map_err(|e| RequestError::Disk(file, e))).await?;
    }
    Ok(())
}

/// Writes a file that only its owner may read. A torn one has no time in it: then all sessions are swept again.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let mut opened = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
    opened.write_all(text.as_bytes())
}

/// Sweeps a session and its sub-agents.
fn sweep_session(dir: &Path, before: SystemTime, swept: Option<SystemTime>) -> Result<()> {
    let is_new = |thread: &PathBuf| {
        let written = fs::metadata(thread.join(JSONL)).and_then(|about| about.modified());
        swept.is_none_or(|swept| written.is_ok_and(|written| written > swept))
    };
    sweep_thread(dir, before.into())?;
    threads_in(dir)
        .iter()
        .filter(|thread| is_new(thread))
        .try_for_each(|dir| sweep_thread(dir, before.into()))
}

fn sweep_thread(dir: &Path, before: Time) -> Result<()> {
    let mut queue = match Queue::open_waiting(dir, BUSY) {
        // It was deleted in the meantime.
        Err(thread::Error::NotAThread(_)) => return Ok(()),
        opened => opened?,
    };
    let size = queue.files().size(DB);
    let newest = queue.newest()?.0;
    let old = last_stored_before(&mut queue, before, newest)?;
    let (limit, is_idle) = end_of_old_runs(&mut queue, old)?;
    let mut deleted = 0;
    for subtype in STREAM {
        let request =
            Request { old: Old::BeforeId(limit + 1), subtype: Some(subtype), force: false, dry_run: false };
        let report = prune::prune(&mut queue, &request, &mut |_| {})?;
        deleted += report.pruned.bytes;
        if let Some(e) = report.failed {
            return Err(e.into());
        }
    }
    // While the session is in use, new events fill the free space.
    if is_idle && deleted >= size.div_ceil(WORTHWHILE) {
        prune::compact(&mut queue)?;
    }
    // Those of a thread that is older as a whole, too: it will not be swept again.
    let sealed_before = if old == newest { SystemTime::now().into() } else { before };
    prune::prune_sealed(&mut queue, sealed_before, false)?;
    Ok(())
}

/// The newest event that was stored before a time.
fn last_stored_before(queue: &mut Queue, before: Time, newest: i64) -> Result<i64> {
    // As a rule all of them or none, and there is no index of times.
    match queue.stored_at(newest)? {
        Some(stored) if stored < time::format(before) => Ok(newest),
        _ => Ok(queue.last_before(before)?),
    }
}

/// The id up to which no event belongs to a run that is open, or has ended after the event `old`. Also returns
/// whether no run is open.
fn end_of_old_runs(queue: &mut Queue, old: i64) -> Result<(i64, bool)> {
    let (_, runs, _) = open_runs(queue)?;
    // A message that waits has no stream yet.
    let begun = runs.iter().filter(|run| run.attempts > 0).map(|run| run.id() - 1);
    let mut limit = begun.min().unwrap_or(old).min(old);
    let condition = "type = 'message' OR subtype IN ('error', 'cancelled')";
    for_each(queue, old, condition, &mut |event| {
        if let Some(message) = event.ends {
            limit = limit.min(message - 1);
        }
    })?;
    Ok((limit, runs.active().is_none()))
}
