//! Where in which session a client's conversation continues.
//!
//! The texts of the assistant decide; those of users only between sessions in which it has said the same, because chat
//! programs rewrite them. The last text may be the beginning of an answer: that is what a client has that stopped
//! reading. Pure; property tests edit conversations at random, as people do in chat programs.

use super::conversation::Exchange as Brought;
use super::path::{Exchange, Path};
use super::text::{Digest, digest};

/// How long a beginning must be, in characters, if the user's text before it is another.
const SURE: usize = 24;

/// A place in a session whose exchanges before it are those that a client shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// How many exchanges are before it.
    pub at: usize,
    /// Whether nothing comes after it.
    pub is_end: bool,
    /// How many texts of users are equal, too.
    pub equal_users: usize,
    /// If the client shows only the beginning of the last answer, the digest of that.
    pub beginning: Option<Digest>,
}

impl Fit {
    /// Whether a copy of the exchanges before the place is what the client shows: each was answered, and none is shown
    /// in part.
    pub fn can_be_copied(&self, path: &Path) -> bool {
        self.beginning.is_none()
            && path.exchanges[..self.at].iter().all(|one| one.is_answered && !one.is_open)
    }

    /// What the next message follows: the message of the exchange before it, 0 at the beginning.
    pub fn follows(&self, path: &Path) -> i64 {
        self.at.checked_sub(1).and_then(|last| path.exchanges.get(last)).map_or(0, |last| last.message)
    }

    /// Which of two fits is the better one.
    pub fn rank(&self) -> (usize, bool) {
        (self.equal_users, self.is_end)
    }
}

/// Where a client's conversation continues in a session; `None` if the session is another conversation. `begins` says
/// whether the text of an answer begins with another, both in normal form.
pub fn fit(past: &[Brought], path: &Path, begins: &mut dyn FnMut(&Exchange, &str) -> bool) -> Option<Fit> {
    let shown = path.exchanges.get(..past.len())?;
    let (mut equal_users, mut beginning) = (0, None);
    for (at, (brought, exchange)) in past.iter().zip(shown).enumerate() {
        let is_same_user = brought.user_digest() == exchange.user;
        equal_users += usize::from(is_same_user);
        if exchange.is_shown_by(brought) {
            continue;
        }
        let answer = brought.answer();
        let may_be_cut = at + 1 == past.len() && !answer.is_empty();
        let is_sure = is_same_user || answer.chars().count() >= SURE;
        if !may_be_cut || !is_sure || !begins(exchange, &answer) {
            return None;
        }
        beginning = Some(digest(&answer));
    }
    Some(Fit { at: past.len(), is_end: past.len() == path.exchanges.len(), equal_users, beginning })
}

#[cfg(test)]
mod tests;
