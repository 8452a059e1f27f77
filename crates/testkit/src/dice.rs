//! Random numbers.

/// A random number generator, seeded by `THREAD_SEED` or else from the clock. The seed is printed, so that a run can be
/// repeated.
#[derive(Debug)]
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

    /// A number from 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (most + 1)
    }
}
