//! Random numbers, and what is driven by them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// A random number generator, seeded by `THREAD_SEED` or else from the clock. The seed is printed, so that a run can be
/// repeated.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Default for Dice {
    fn default() -> Dice {
        Dice::new()
    }
}

impl Dice {
    pub fn new() -> Dice {
        let seed = std::env::var("THREAD_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64) | 1;
        eprintln!("THREAD_SEED={seed}");
        Dice(seed)
    }

    /// For the schedule of this number.
    pub fn of(seed: u64) -> Dice {
        let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Dice((mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1)
    }

    /// A number from 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (most + 1)
    }

    /// A number less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.up_to(end - 1)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn pick<'c, T>(&mut self, choices: &'c [T]) -> &'c T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

/// For how long the long form goes on.
const LONG: Duration = Duration::from_secs(60);

/// Runs a schedule for each seed from 0 on: `short` of them, or with `THREAD_FAULTS=long` as many as a minute takes. A
/// failure names its seed; with `THREAD_SEED` that one alone is run.
pub fn schedules(short: u64, mut schedule: impl FnMut(u64)) {
    let only = std::env::var("THREAD_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let is_long = std::env::var("THREAD_FAULTS").is_ok_and(|form| form == "long");
    let (began, mut count) = (Instant::now(), 0);
    while if is_long && only.is_none() { began.elapsed() < LONG } else { count < only.map_or(short, |_| 1) } {
        let seed = only.unwrap_or(count);
        if let Err(failed) = catch_unwind(AssertUnwindSafe(|| schedule(seed))) {
            eprintln!("THREAD_SEED={seed} repeats the schedule that failed after {count} others");
            resume_unwind(failed);
        }
        count += 1;
    }
    eprintln!("{count} schedules, {:.0} a minute", count as f64 * 60.0 / began.elapsed().as_secs_f64());
}
