//! The space and memory that a thread and its processes take, sampled over time.

use std::fs;
use std::path::Path;

use thread_testkit::World;

/// One sample, in bytes; a file or process that vanishes in the meantime counts as zero.
pub struct Weight {
    /// The database and its WAL.
    database: u64,
    /// The directory `run`, and the current file of the JSONL log; sealed files are kept for ever.
    others: u64,
    /// The logs of the handlers and of `thread`, which are rotated at 10 MiB.
    logs: u64,
    /// Of the largest process.
    memory: u64,
    processes: u64,
}

impl Weight {
    pub fn of(world: &World) -> Weight {
        let processes = world.processes();
        let (mut database, mut others, mut logs) = (0, 0, 0);
        for entry in fs::read_dir(world.path("inbox")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            match &*name {
                name if name.starts_with("events.db") => database += size(&entry.path()),
                "run" | "events.jsonl" => others += size(&entry.path()),
                "logs" => logs += size(&entry.path()),
                _ => {}
            }
        }
        let memory = processes.iter().map(|pid| resident(*pid)).max().unwrap_or(0);
        Weight { database, others, logs, memory, processes: processes.len() as u64 }
    }
}

fn size(path: &Path) -> u64 {
    let files = fs::read_dir(path).into_iter().flatten().flatten();
    let below: u64 = files.map(|entry| size(&entry.path())).sum();
    below + fs::metadata(path).ok().filter(fs::Metadata::is_file).map_or(0, |about| about.len())
}

fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Prints the means of the four quarters of a run. In a long run, the last must not exceed the third by more than a
/// fifth and a small constant.
pub fn print_and_check(all: &[Weight], long: bool) {
    check("bytes of the database", all.iter().map(|weight| weight.database), long.then_some(100_000));
    check("bytes of other files", all.iter().map(|weight| weight.others), long.then_some(1_000_000));
    check("bytes of logs", all.iter().map(|weight| weight.logs), None);
    check(
        "bytes of memory of the largest process",
        all.iter().map(|weight| weight.memory),
        long.then_some(5_000_000),
    );
    check("processes", all.iter().map(|weight| weight.processes), long.then_some(3));
}

fn check(name: &str, values: impl Iterator<Item = u64>, slack: Option<u64>) {
    let values: Vec<u64> = values.collect();
    let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
    let quarters: Vec<u64> = values.chunks(values.len().div_ceil(4).max(1)).map(mean).collect();
    eprintln!("{name}, on average in each quarter: {quarters:?}");
    if let (Some(slack), [.., third, fourth]) = (slack, &quarters[..]) {
        assert!(*fourth <= third + third / 5 + slack, "{name} still grow: {quarters:?}");
    }
}
