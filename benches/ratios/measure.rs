//! Timing whole processes, alternating between two kinds of work.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Time and memory of one run of a process.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub wall: Duration,
    /// Peak memory in bytes; at least that of this program when it started the process.
    pub peak: u64,
}

/// Runs a command to its end.
///
/// # Panics
///
/// If it cannot be started or fails: its time would be meaningless.
pub fn run(command: &mut Command) -> Run {
    let began = Instant::now();
    let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    let (status, peak) = reap(child).unwrap_or_else(|e| panic!("cannot wait for {command:?}: {e}"));
    let wall = began.elapsed();
    assert!(status.success(), "{command:?} ended with {status}");
    Run { wall, peak }
}

/// Waits for a child. Returns its exit status and its peak memory in bytes.
pub fn reap(child: Child) -> io::Result<(ExitStatus, u64)> {
    let mut status = 0;
    // SAFETY: both are plain data that the call fills in; nothing else waits for this child.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        if libc::wait4(child.id() as libc::pid_t, &raw mut status, 0, &raw mut usage) < 0 {
            return Err(io::Error::last_os_error());
        }
        usage
    };
    Ok((ExitStatus::from_raw(status), usage.ru_maxrss as u64 * 1024))
}

/// Times of two kinds of work, measured alternately.
#[derive(Debug, Clone, Default)]
pub struct Pairs {
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Pairs {
    /// Runs each once to warm up, then both alternately, `rounds` times.
    pub fn measure(
        rounds: usize,
        mut ours: impl FnMut() -> Duration,
        mut theirs: impl FnMut() -> Duration,
    ) -> Pairs {
        ours();
        theirs();
        let mut pairs = Pairs::default();
        for _ in 0..rounds {
            pairs.ours.push(ours().as_secs_f64());
            pairs.theirs.push(theirs().as_secs_f64());
        }
        pairs
    }

    /// Pairs that were measured elsewhere.
    pub fn of(ours: Vec<Duration>, theirs: Vec<Duration>) -> Pairs {
        let seconds = |times: Vec<Duration>| times.iter().map(Duration::as_secs_f64).collect();
        Pairs { ours: seconds(ours), theirs: seconds(theirs) }
    }

    /// Median seconds of ours and theirs.
    pub fn medians(&self) -> (f64, f64) {
        (quantile(&self.ours, 0.5), quantile(&self.theirs, 0.5))
    }

    /// The ratio of each pair: lower quartile, median, upper quartile.
    pub fn ratio(&self) -> [f64; 3] {
        let ratios: Vec<f64> = self.ours.iter().zip(&self.theirs).map(|(a, b)| a / b).collect();
        [0.25, 0.5, 0.75].map(|part| quantile(&ratios, part))
    }
}

/// The quantile `part`, 0 to 1, of `values`, which must not be empty.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}
