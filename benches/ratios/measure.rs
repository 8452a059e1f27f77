//! Timing whole processes, alternating between two kinds of work.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::ptr::null_mut;
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

/// Runs a shell command in the cheapest way: spawned, in a session of its own, with its output in a file.
pub fn run_shell(command: &CStr, output: &File) {
    let args =
        [c"sh".as_ptr().cast_mut(), c"-c".as_ptr().cast_mut(), command.as_ptr().cast_mut(), null_mut()];
    let environment = [c"PATH=/usr/bin:/bin".as_ptr().cast_mut(), null_mut()];
    // SAFETY: the texts are constants in arrays that end with null, and what is initialised is destroyed.
    unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        libc::posix_spawnattr_init(&raw mut attributes);
        for descriptor in [1, 2] {
            libc::posix_spawn_file_actions_adddup2(&raw mut actions, output.as_raw_fd(), descriptor);
        }
        #[cfg(target_os = "linux")]
        libc::posix_spawnattr_setflags(&raw mut attributes, libc::POSIX_SPAWN_SETSID as libc::c_short);
        let (mut pid, mut status) = (0, 0);
        let program = c"/bin/sh".as_ptr();
        let (args, environment) = (args.as_ptr(), environment.as_ptr());
        let (with, like) = (&raw const actions, &raw const attributes);
        assert_eq!(libc::posix_spawn(&raw mut pid, program, with, like, args, environment), 0, "sh starts");
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        libc::posix_spawnattr_destroy(&raw mut attributes);
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid, "sh ends");
        assert_eq!(status, 0, "sh succeeds");
    }
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
