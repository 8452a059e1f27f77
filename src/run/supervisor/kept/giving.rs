//! Giving a handler its events.

use std::ops::ControlFlow;
use std::time::Instant;

use super::{COLLECT, Desk, UNREAD, open};
use crate::error::Result;
use crate::model::window::Turn;
use crate::queue::Remaining;
use crate::run::pipes::Pipes;
use crate::store::DeadLetterUpdate;

impl Desk<'_, '_> {
    /// Gives the handler what it may have.
    pub(super) fn give(&mut self, pipes: &mut Pipes) -> Result<()> {
        self.holds_back = false;
        if self.gives_dead_letter(pipes)? {
            return Ok(());
        }
        while pipes.untaken() < UNREAD {
            let (id, room) = match self.window.turn(self.now()) {
                Turn::Full | Turn::Wait(_) => break,
                Turn::Again(id) => (Some(id), 0),
                Turn::Next(room) => (None, room),
            };
            if let Some(id) = id {
                self.window.give_again(id);
                if !self.write_event(id, pipes)? {
                    // It was pruned, so there is nothing to deliver.
                    self.window.finish(id);
                    self.changed.get_or_insert_with(Instant::now);
                }
                continue;
            }
            if self.is_exhausted {
                break;
            }
            // While the handler has something to do, a few more are not worth a look for each of its answers.
            let has_enough = self.window.given() > 0 && room < self.current.options.batch_size as usize / 2;
            self.holds_back = has_enough && self.looked.is_some_and(|looked| looked.elapsed() < COLLECT);
            if self.holds_back {
                break;
            }
            self.looked = Some(Instant::now());
            let now = self.now();
            let supervisor = self.supervisor;
            let queue = open(supervisor, &mut self.queue)?;
            self.selection.limit = Some(room as u64);
            let (window, selection, given_at) = (&mut self.window, &mut self.selection, &mut self.given_at);
            let mut wants_more = true;
            let remaining = supervisor.retrying(|| {
                queue.read_page(selection, &mut |row| {
                    if window.found(row.id) {
                        row.write_line(pipes.outbox());
                        given_at.insert(row.id, Instant::now());
                    }
                    wants_more = matches!(window.turn(now), Turn::Next(_)) && pipes.untaken() < UNREAD;
                    if wants_more { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })
            })?;
            supervisor.retrying(|| queue.note_failures(&mut self.current))?;
            self.is_exhausted = remaining == Remaining::None && wants_more && self.selection.limit != Some(0);
            if !self.window.changes().is_empty() {
                self.changed.get_or_insert_with(Instant::now);
            }
        }
        Ok(())
    }

    /// A dead letter to be retried is given alone. Returns whether one is at the handler, or is to be.
    pub(super) fn gives_dead_letter(&mut self, pipes: &mut Pipes) -> Result<bool> {
        let waits = self.dead_after.is_some_and(|after| Instant::now() < after);
        if self.dead.is_some() || !self.current.has_retry() || waits {
            return Ok(self.dead.is_some());
        }
        if self.window.given() > 0 {
            return Ok(true);
        }
        self.store()?;
        let supervisor = self.supervisor;
        let queue = open(supervisor, &mut self.queue)?;
        let letters = supervisor.retrying(|| queue.store.dead_letters(Some(supervisor.consumer)))?;
        let Some(letter) = letters.into_iter().find(|letter| letter.retry) else { return Ok(false) };
        if self.write_event(letter.event_id, pipes)? {
            self.dead = Some(letter.event_id);
        } else {
            self.dead_letters.push(DeadLetterUpdate::Remove { event_id: letter.event_id });
            self.changed.get_or_insert_with(Instant::now);
        }
        Ok(true)
    }

    /// Writes an event for the handler. Returns false if it is not stored any more.
    pub(super) fn write_event(&mut self, id: i64, pipes: &mut Pipes) -> Result<bool> {
        let supervisor = self.supervisor;
        let queue = open(supervisor, &mut self.queue)?;
        let mut found = false;
        supervisor.retrying(|| {
            queue.store.read(id - 1, id, 1, &mut |row| {
                found = true;
                row.write_line(pipes.outbox());
                ControlFlow::Break(())
            })
        })?;
        if found {
            self.given_at.insert(id, Instant::now());
        }
        Ok(found)
    }
}
