//! Random numbers.

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

    /// How many things happen in a schedule, `most` at the most. In most schedules they are few: the fewer they are, the more
    /// schedules can be run, and most errors need few.
    pub fn length(&mut self, most: u64) -> u64 {
        let most = if self.one_in(12) { most } else { most.min(6) };
        1 + self.below(most)
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
