//! How much stored data may be in memory at a time, for all readers together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All that may be read and not yet dropped, in MiB.
const MOST: u32 = 64;

/// What a page takes, in MiB: its events, and the frames that are made from them.
pub const PAGE: u32 = 1;

pub struct Budget(Arc<Semaphore>);

/// A part of the budget, given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Share {
    /// The share, in MiB, for a page of one event with so long a content, which is in memory as text and as
    /// frames.
    pub fn mib_for(bytes: u64) -> u32 {
        u32::try_from(3 * bytes.div_ceil(1024 * 1024)).unwrap_or(MOST)
    }
}

impl Default for Budget {
    fn default() -> Budget {
        Budget(Arc::new(Semaphore::new(MOST as usize)))
    }
}

impl Budget {
    /// Waits until there is room.
    pub async fn share(&self, mib: u32) -> Share {
        // The semaphore is never closed.
        Share { _permit: self.0.clone().acquire_many_owned(mib.min(MOST)).await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::fixture::now;

    #[test]
    fn a_share_has_room_for_the_text_and_its_frames_and_is_never_more_than_all() {
        let mib = 1024 * 1024;
        assert_eq!([1, mib, mib + 1, 16 * mib].map(Share::mib_for), [3, 3, 6, 48]);
        assert_eq!(Share::mib_for(u64::MAX / 4), MOST);
        let budget = Budget::default();
        let all = now(budget.share(MOST + 1)).expect("it is cut to what there is");
        assert!(now(budget.share(1)).is_none());
        drop(all);
        assert!(now(budget.share(MOST)).is_some());
    }
}
