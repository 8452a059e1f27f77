//! Which workers follow a thread. In a directory each signs in, in a file, and whether it lives is seen from its process;
//! where several machines share a thread, each records in the store that it is there, again and again.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use chrono::Utc;
use serde::{Deserialize, Serialize};

use super::process::Liveness;
use crate::error::{IoContext, Result};
use crate::files::lock::Lock;
use crate::files::log::log;
use crate::files::{Access, Files, host};
use crate::model::run::ProcessId;
use crate::model::time::Time;
use crate::queue::Queue;
use crate::store::RecordedWorker;

/// A line of JSON for each worker that has signed in and may be alive. Also the lock of those that change it.
const WORKERS: &str = "run/_workers";

/// How long to wait for another worker that signs in.
const WAIT: Duration = Duration::from_secs(1);

/// At most so many lines are kept of workers in other containers, of which nobody here knows whether they live.
const UNKNOWN_KEPT: usize = 20;

#[derive(Serialize, Deserialize)]
struct Line {
    process: ProcessId,
    host: String,
    since: Time,
}

/// Says in a thread's directory that this process follows it.
pub(super) fn sign_in(files: &Files) {
    let own = Line { process: ProcessId::own(), host: host(), since: Utc::now() };
    change(files, Some(own));
}

/// Says that it does no more.
pub(super) fn sign_out(files: &Files) {
    if files.still_there() {
        change(files, None);
    }
}

/// Replaces the line of this process, and removes those of processes that are gone.
fn change(files: &Files, own: Option<Line>) {
    if !files.location().backend().has_database_file {
        return;
    }
    let changed = Lock::take(files, WORKERS, WAIT).and_then(|lock| {
        let mut lines = read(lock.file()).at("read", &files.path_of(WORKERS))?;
        lines.retain(|line| line.process != ProcessId::own());
        let mut unknown = lines.iter().filter(|line| line.process.liveness() == Liveness::Unknown).count();
        lines.retain(|line| match line.process.liveness() {
            Liveness::Alive => true,
            Liveness::Dead => false,
            Liveness::Unknown => {
                unknown -= 1;
                unknown < UNKNOWN_KEPT
            }
        });
        let lines =
            lines.iter().chain(&own).map(|line| serde_json::to_string(line).unwrap_or_default() + "\n");
        let text: String = lines.collect();
        let write = || {
            lock.file().set_len(0)?;
            lock.file().write_all_at(text.as_bytes(), 0)
        };
        write().at("write", &files.path_of(WORKERS))?;
        lock.release();
        Ok(())
    });
    if let Err(e) = changed {
        // It is only for others to see.
        log!(files, Warn, "dispatch: a worker is not listed: {e}");
    }
}

/// Lines that are not complete are left out.
fn read(mut file: &std::fs::File) -> io::Result<Vec<Line>> {
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// The workers that follow a thread, those that began first at the beginning, without those of which it is known here
/// that they are gone.
pub fn workers(queue: &mut Queue) -> Result<Vec<RecordedWorker>> {
    if !queue.files.location().backend().has_database_file {
        let mut all = queue.store.workers()?;
        all.retain(|worker| !worker.process.is_here() || worker.process.liveness() == Liveness::Alive);
        return Ok(all);
    }
    let path = queue.files.path_of(WORKERS);
    let file = queue.files.open_file(WORKERS, Access::Read).if_there().at("read", &path)?;
    let lines = file.map(|file| read(&file)).transpose().at("read", &path)?.unwrap_or_default();
    let mut all = Vec::new();
    for Line { process, host, since } in lines {
        let seen = match process.liveness() {
            Liveness::Alive => Some((Utc::now(), Duration::ZERO)),
            Liveness::Dead => continue,
            Liveness::Unknown => None,
        };
        all.push(RecordedWorker { process, host, since, seen });
    }
    Ok(all)
}
