//! Pauses between tries, which double while nothing comes of them.

use std::time::Duration;

/// The pauses of one thing that is tried again and again.
#[derive(Debug, Clone, Copy)]
pub struct ExponentialBackoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl ExponentialBackoff {
    pub const fn new(first: Duration, longest: Duration) -> ExponentialBackoff {
        ExponentialBackoff { first, longest, next: first }
    }

    /// The pause before the next try. The one after it is twice as long, up to the longest.
    pub fn pause(&mut self) -> Duration {
        let longer = self.next.saturating_mul(2).min(self.longest);
        std::mem::replace(&mut self.next, longer)
    }

    /// What was tried has worked: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Whether nothing has been tried since the beginning or the last success.
    pub fn is_first(&self) -> bool {
        self.next == self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again() {
        let mut backoff = ExponentialBackoff::new(Duration::from_millis(2), Duration::from_millis(7));
        let pauses: Vec<u128> = (0..4).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses, [2, 4, 7, 7]);
        assert!(!backoff.is_first());
        backoff.reset();
        assert!(backoff.is_first());
        assert_eq!(backoff.pause(), Duration::from_millis(2));
    }
}
