//! Delays for clients that keep sending wrong tokens.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Wrong tokens from one address within [`WINDOW`] that are answered without delay.
const UNDELAYED: usize = 10;
/// The time over which wrong tokens are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// Delay of the answer to each further wrong token.
const DELAY: Duration = Duration::from_secs(2);

/// How many addresses are remembered. While as many have sent wrong tokens within [`WINDOW`], those of all
/// other addresses are delayed, too.
const MOST_ADDRESSES: usize = 1024;

#[derive(Default)]
pub struct Throttle(Mutex<HashMap<IpAddr, VecDeque<Instant>>>);

impl Throttle {
    /// Records a wrong token. Returns how long to delay the answer.
    pub fn failed(&self, address: IpAddr, now: Instant) -> Duration {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_ADDRESSES && !all.contains_key(&address) {
            all.retain(|_, times| times.back().is_some_and(|last| now.duration_since(*last) < WINDOW));
            if all.len() >= MOST_ADDRESSES {
                return DELAY;
            }
        }
        let times = all.entry(address).or_default();
        while times.front().is_some_and(|first| now.duration_since(*first) >= WINDOW) {
            times.pop_front();
        }
        let slow = times.len() >= UNDELAYED;
        times.push_back(now);
        if times.len() > UNDELAYED {
            times.pop_front();
        }
        if slow { DELAY } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eleventh_in_a_minute_waits_and_nobody_else() {
        let throttle = Throttle::default();
        let (bad, other): (IpAddr, IpAddr) = ([127, 0, 0, 1].into(), [10, 0, 0, 1].into());
        let start = Instant::now();
        for _ in 0..UNDELAYED {
            assert_eq!(throttle.failed(bad, start), Duration::ZERO);
        }
        assert_eq!(throttle.failed(bad, start + WINDOW / 2), DELAY);
        assert_eq!(throttle.failed(other, start + WINDOW / 2), Duration::ZERO);
        assert_eq!(throttle.failed(bad, start + 2 * WINDOW), Duration::ZERO);
    }
}
