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
    /// Whether a copy of the exchanges before it is what the client shows.
    pub can_be_copied: bool,
}

impl Fit {
    /// What the next message follows: the message of the exchange before it, 0 at the beginning.
    pub fn follows(&self, path: &Path) -> i64 {
        self.at.checked_sub(1).and_then(|last| path.exchanges.get(last)).map_or(0, |last| last.message)
    }

    /// Which of two fits is the better one. A chat program may ask several agents the same: each has a session.
    pub fn rank(&self, is_same_agent: bool) -> (usize, bool, bool) {
        (self.equal_users, is_same_agent, self.is_end)
    }
}

/// Where a client's conversation continues in a session; `None` if the session is another conversation. `begins` says
/// whether the text of an answer begins with another, both in normal form. It is also asked about an empty text: a
/// client that stopped reading before anything came shows no answer.
pub fn fit(past: &[Brought], path: &Path, begins: &mut dyn FnMut(&Exchange, &str) -> bool) -> Option<Fit> {
    let shown = path.exchanges.get(..past.len()).filter(|_| !path.is_too_long)?;
    let (mut equal_users, mut beginning, mut can_be_copied) = (0, None, true);
    for (at, (brought, exchange)) in past.iter().zip(shown).enumerate() {
        let is_same_user = brought.user_digest() == exchange.user;
        equal_users += usize::from(is_same_user);
        can_be_copied &= exchange.is_copied_as(brought);
        if exchange.is_shown_by(brought) {
            continue;
        }
        let answer = brought.answer();
        let may_be_cut = at + 1 == past.len();
        let is_sure = is_same_user || answer.chars().count() >= SURE;
        if !may_be_cut || !is_sure || !begins(exchange, &answer) {
            return None;
        }
        beginning = Some(digest(&answer));
    }
    let is_end = past.len() == path.exchanges.len();
    Some(Fit { at: past.len(), is_end, equal_users, beginning, can_be_copied })
}

#[cfg(test)]
mod tests;
