//! Random numbers.

/// A random number generator seeded from the clock. Tests print it when they fail.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new() -> Dice {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Dice(now.as_nanos() as u64 | 1)
    }

    /// A number from 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (most + 1)
    }
}
