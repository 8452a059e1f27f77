//! Which of many sessions have changed.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use thread_sessions::SessionId;
use tokio::sync::Notify;

/// Rung by sessions that have changed, for one who hears several of them.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<Rung>,
    notify: Notify,
}

#[derive(Default)]
struct Rung {
    order: VecDeque<SessionId>,
    known: HashSet<SessionId>,
}

impl Bell {
    pub fn ring(&self, session: SessionId) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        if rung.known.insert(session) {
            rung.order.push_back(session);
            self.notify.notify_one();
        }
    }

    /// Waits for a session that has changed. May be dropped at any time: nothing is lost.
    pub async fn next(&self) -> SessionId {
        loop {
            if let Some(session) = self.take() {
                return session;
            }
            self.notify.notified().await;
        }
    }

    fn take(&self) -> Option<SessionId> {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let session = rung.order.pop_front()?;
        rung.known.remove(&session);
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_session_that_rings_often_is_told_once() {
        let (bell, one, two) = (Bell::default(), SessionId::random(), SessionId::random());
        for session in [one, two, one] {
            bell.ring(session);
        }
        assert_eq!((bell.next().await, bell.next().await, bell.take()), (one, two, None));
        bell.ring(one);
        assert_eq!(bell.next().await, one);
    }
}
