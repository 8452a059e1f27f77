//! Benchmarks: the selection on the command line, our work and that of others measured in turns, and the table of
//! results.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Which benchmarks to run, and how thoroughly: `cargo bench -- [--full] [--program PATH] [WORD]…`.
pub struct Plan {
    /// The program to measure.
    pub program: PathBuf,
    pub full: bool,
    only: Vec<String>,
}

impl Plan {
    /// Parses the arguments of this process. `program` is measured unless they name another build.
    ///
    /// # Panics
    ///
    /// If the program is not there.
    pub fn from_args(program: &str) -> Plan {
        let mut plan = Plan { program: program.into(), full: false, only: Vec::new() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                // Passed by `cargo bench` itself.
                "--bench" => {}
                "--full" => plan.full = true,
                "--program" => plan.program = args.next().expect("--program needs a path").into(),
                _ => plan.only.push(arg),
            }
        }
        plan.program = plan.program.canonicalize().expect("the program to measure is there");
        plan
    }

    /// Whether this benchmark is selected: its name contains one of the words, or there are none.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word.as_str()))
    }

    /// Returns the value for the quick or the full run.
    pub fn pick<N>(&self, quick: N, full: N) -> N {
        if self.full { full } else { quick }
    }

    /// Prints what is measured on which machine, and the head of the table.
    pub fn head(&self, what: &str) {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let field = info.lines().find(|line| line.starts_with("model name"));
        let name = field.and_then(|line| line.split_once(": ")).map_or("a processor", |(_, name)| name);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (system, load) = (std::env::consts::OS, read("/proc/loadavg"));
        println!("{what} on {cores} cores of {name}, {system}, load {}\n", load.trim());
        line("work, against", "ours", "theirs", ["ratio", "quartiles"], "goal");
    }
}

fn line(work: &str, ours: &str, theirs: &str, [ratio, quartiles]: [&str; 2], goal: &str) {
    let line = format!("{work:<58} {ours:>10} {theirs:>10} {ratio:>6} {quartiles:>13} {goal:>8}");
    println!("{}", line.trim_end());
}

/// Prints one line of the table, with the quartiles of a ratio.
pub fn row(work: &str, ours: &str, theirs: &str, [low, ratio, high]: [f64; 3], goal: &str) {
    line(work, ours, theirs, [&format!("{ratio:.2}"), &format!("{low:.2}..{high:.2}")], goal);
}

/// Prints a figure that is not a ratio, and perhaps that of another program.
pub fn figure(work: &str, ours: &str, theirs: &str, goal: &str) {
    line(work, ours, theirs, ["", ""], goal);
}

/// A time as the table shows it.
pub fn time(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.2} ms", seconds * 1000.0) } else { format!("{seconds:.2} s") }
}

/// The median time that a sync of 4 kB takes in this directory.
///
/// # Panics
///
/// If nothing can be written there.
pub fn sync_time(dir: &Path) -> f64 {
    let mut file = File::create(dir.join("sync")).expect("a file");
    let sync = |_| {
        file.write_all(&[0; 4096]).expect("a write");
        let began = Instant::now();
        file.sync_data().expect("a sync");
        began.elapsed().as_secs_f64()
    };
    quantile(&(0..100).map(sync).collect::<Vec<_>>(), 0.5)
}

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

    /// Pairs of times that the caller has measured.
    pub fn of(ours: Vec<Duration>, theirs: Vec<Duration>) -> Pairs {
        let seconds = |times: Vec<Duration>| times.iter().map(Duration::as_secs_f64).collect();
        Pairs { ours: seconds(ours), theirs: seconds(theirs) }
    }

    /// Median seconds of our work and of the other.
    pub fn medians(&self) -> (f64, f64) {
        (quantile(&self.ours, 0.5), quantile(&self.theirs, 0.5))
    }

    /// Prints these times as a line of the table. `goal` is the largest acceptable ratio.
    pub fn row(&self, work: &str, goal: Option<f64>) {
        let (ours, theirs) = self.medians();
        let goal = goal.map_or(String::new(), |goal| format!("<= {goal:.2}"));
        row(work, &time(ours), &time(theirs), self.ratio(), &goal);
    }

    /// The ratio of each pair: lower quartile, median, upper quartile.
    pub fn ratio(&self) -> [f64; 3] {
        ratio(&self.ours, &self.theirs)
    }
}

/// The ratio of each pair: lower quartile, median, upper quartile.
pub fn ratio(ours: &[f64], theirs: &[f64]) -> [f64; 3] {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
    [0.25, 0.5, 0.75].map(|part| quantile(&ratios, part))
}

/// The quantile `part`, 0 to 1, of `values`, which must not be empty.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}
