//! A window among those of other machines, which give events of the same consumer.
//!
//! Each decides on what it knows, and stores that an event is claimed before it gives it. Storing is refused if somebody
//! else has stored anything since. Then what was not stored is taken back, what the store has is taken over, and it is
//! decided again.

use std::collections::BTreeSet;

use super::{Open, Window};
use crate::model::ledger::{Claim, Ledger, LedgerChange};

impl Window {
    /// Takes over what the store has. `mine` are the events that this machine's handlers have, and no others: all else that
    /// was to be given is not. What has happened to these counts further on, but nothing that was decided about an event
    /// which another machine has claimed since.
    pub fn share(&mut self, stored: Ledger, mine: &BTreeSet<i64>, machine: &str) {
        let known = std::mem::replace(&mut self.ledger, stored);
        let changes = std::mem::take(&mut self.changes);
        let is_theirs = |claim: &Claim| claim.machine.as_deref() != Some(machine);
        let theirs = self.ledger.claims().iter().filter(|(id, claim)| is_theirs(claim) && !mine.contains(id));
        let theirs: BTreeSet<i64> = theirs.map(|(id, _)| *id).collect();
        // After a crash of a server that has lost what was stored last: see `Window::reload`.
        let upto_cursor = (self.ledger.cursor().saturating_add(1), known.cursor());
        for (first, last) in std::iter::once(upto_cursor).chain(known.finished()) {
            if first <= last && self.ledger.finished_upto(first).is_none_or(|upto| upto < last) {
                self.finish_around(first, last, &theirs);
            }
        }
        for (id, claim) in known.claims() {
            let is_untouched = self.ledger.waits().get(id) == known.waits().get(id);
            if mine.contains(id)
                && !is_theirs(claim)
                && is_untouched
                && !self.ledger.claims().contains_key(id)
            {
                self.change(LedgerChange::Claim { id: *id, claim: Some(claim.clone()) });
            }
        }
        for change in changes {
            match change {
                LedgerChange::Finish { first, last } => self.finish_around(first, last, &theirs),
                LedgerChange::Claim { id, claim: Some(_) } if !mine.contains(&id) => {}
                LedgerChange::Claim { id, .. } | LedgerChange::Wait { id, .. } if theirs.contains(&id) => {}
                change => self.change(change),
            }
        }
        let claims = self.ledger.claims();
        self.open.retain(|id, open| !open.is_extra || mine.contains(id) || claims.contains_key(id));
        for (id, open) in &mut self.open {
            open.is_given = claims.contains_key(id) || (mine.contains(id) && open.is_given);
        }
        for (id, claim) in claims {
            let open = || Open { is_extra: claim.is_dead_letter, ..Open::given(*id, None) };
            self.open.entry(*id).or_insert_with(open);
        }
        let ledger = &self.ledger;
        let over: Vec<(i64, Open)> = self
            .open
            .extract_if(.., |id, open| !open.is_extra && ledger.finished_upto(*id).is_some())
            .collect();
        for (id, open) in over {
            // Those before it that do not match are finished with it.
            if self.ledger.finished_upto(open.from).is_none() {
                self.change(LedgerChange::Finish { first: open.from, last: id });
            }
        }
        self.arrange();
    }

    /// All of these ids are finished, but those that others have.
    fn finish_around(&mut self, first: i64, last: i64, theirs: &BTreeSet<i64>) {
        let mut first = first;
        for &id in theirs.range(first..=last) {
            if first < id {
                self.change(LedgerChange::Finish { first, last: id - 1 });
            }
            first = id + 1;
        }
        if first <= last {
            self.change(LedgerChange::Finish { first, last });
        }
    }

    /// Those of other machines whose keys are not known, though events after them were looked at.
    pub fn without_known_key(&self) -> Vec<i64> {
        let is_unknown = |(id, open): &(&i64, &Open)| {
            let is_past = open.is_extra || **id <= self.reached;
            open.key.is_none() && is_past && self.ledger.claims().contains_key(id)
        };
        self.open.iter().filter(is_unknown).map(|(id, _)| *id).collect()
    }

    /// Finds out again which events may be given.
    pub fn arrange(&mut self) {
        self.given = self.open.values().filter(|open| open.is_given).count();
        self.keys.clear();
        self.by_end.clear();
        self.at_once.clear();
        self.asleep.clear();
        for (id, open) in &mut self.open {
            open.ready = None;
            if let Some(key) = &open.key {
                self.keys.entry(key.clone()).or_default().insert(*id);
            }
        }
        let may_be_given = |(id, open): (&i64, &Open)| {
            let is_next = open.key.as_ref().is_none_or(|key| {
                let same = self.keys.get(key);
                let is_first = same.and_then(|same| same.first()) == Some(id);
                // A dead letter is given whatever is before it.
                let is_busy = same.is_some_and(|same| same.iter().any(|other| self.has_given(*other)));
                is_first && !is_busy && !self.released.contains(key)
            });
            (!open.is_given && is_next).then_some(*id)
        };
        let ready: Vec<i64> = self.open.iter().filter_map(may_be_given).collect();
        ready.into_iter().for_each(|id| self.set_ready(id));
        for id in self.open.keys().copied().collect::<Vec<_>>() {
            self.note_sleep(id);
        }
    }
}

#[cfg(test)]
mod tests;
