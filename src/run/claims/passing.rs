//! Passing over events that are held back. Each program that takes events looks at them again, so the consumer's row says
//! up to where there are only such, and of which keys: see [`Held`].

use std::ops::ControlFlow;

use super::Round;
use crate::error::Result;
use crate::model::run::Held;
use crate::pending::key_of;
use crate::queue::{Queue, Selection};

/// Fewer are read again and again.
const LEAST: usize = 64;

/// What is noted has at most so many keys, and so many bytes in them.
const MOST_KEYS: usize = 64;
const MOST_BYTES: usize = 4096;

/// So many events that wait are looked at by themselves; if there are more, all events are read.
const MOST_WAITS: usize = 256;

/// It is noted by itself if it saves reading so many events.
const WORTH_A_WRITE: i64 = 1000;

impl Round {
    /// Passes over what is held back, if it still is: for each key, an older event was noted that is claimed or waits, or
    /// has been found now.
    pub(super) fn pass(&mut self, queue: &mut Queue, selection: &mut Selection) -> Result<()> {
        let (window, Some(held)) = (&mut self.window, &self.current.state.held) else { return Ok(()) };
        let (reached, ledger) = (window.reached(), window.ledger());
        let holds = |(holder, key): &(i64, String)| {
            let is_found = || window.first_of(key).is_some_and(|id| id <= reached);
            ledger.claims().contains_key(holder) || ledger.waits().contains_key(holder) || is_found()
        };
        if !self.may_pass
            || self.passed
            || self.takings.refused.is_some()
            || held.upto <= reached
            || held.rewinds != self.current.rewinds
            || !held.by.iter().all(holds)
        {
            return Ok(());
        }
        let waits = ledger.waits().range(reached + 1..=held.upto).map(|(id, _)| *id);
        let waits: Vec<i64> = waits.take(MOST_WAITS + 1).collect();
        // Those that were found by now are open.
        let count = held.count.saturating_sub(self.found);
        if waits.len() > MOST_WAITS || !window.may_pass(count + waits.len()) {
            return Ok(());
        }
        let mut found = Vec::with_capacity(waits.len());
        for id in waits {
            let mut key = None;
            queue.store.read(id - 1, id, 1, &mut |row| {
                key = Some(self.key.as_ref().and_then(|of| key_of(of, &row, &mut Vec::new())));
                ControlFlow::Break(())
            })?;
            // It was deleted, and holds back nothing any more.
            let Some(key) = key else { return Ok(()) };
            found.push((id, key));
        }
        found.into_iter().for_each(|(id, key)| window.waits(id, key));
        window.pass(held.upto, count);
        selection.after = selection.after.max(held.upto);
        self.passed = true;
        Ok(())
    }

    /// What is to be noted.
    pub(super) fn held(&self) -> Option<Held> {
        let (mut by, mut count) = self.window.held()?;
        let before = self.current.state.held.as_ref().filter(|_| self.passed);
        for (_, key) in before.into_iter().flat_map(|held| &held.by) {
            let holder = self.window.first_of(key).filter(|id| {
                let ledger = self.window.ledger();
                ledger.claims().contains_key(id) || ledger.waits().contains_key(id)
            })?;
            by.insert(key.as_str().into(), holder);
        }
        count += before.map_or(0, |held| held.count.saturating_sub(self.found));
        let bytes: usize = by.keys().map(|key| key.len()).sum();
        if count < LEAST || by.len() > MOST_KEYS || bytes > MOST_BYTES {
            return None;
        }
        Some(Held {
            upto: self.window.reached(),
            by: by.into_iter().map(|(key, holder)| (holder, key.to_string())).collect(),
            count,
            rewinds: self.current.rewinds,
        })
    }

    /// Whether it is to be noted though nothing else has changed.
    pub(super) fn is_worth_noting(&self, held: Option<&Held>) -> bool {
        let known = self.current.state.held.as_ref().map_or(0, |known| known.upto);
        held.is_some_and(|held| held.upto - known >= WORTH_A_WRITE)
    }
}
