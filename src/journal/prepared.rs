//! Lines of the copy that are made while their events are being stored, so that they need not be read
//! from the table afterwards.
//!
//! They wait in an unlinked file, and count only when the events were given the very ids for which
//! the lines were made.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use crate::event::NewEvent;
use crate::store::Stored;

/// No more than this is prepared, in bytes: for a moment it takes that much room on the disk.
const MOST: u64 = 64 * 1024 * 1024;

/// Lines are written in blocks of about this many bytes.
const BLOCK: usize = 256 * 1024;

/// The lines of events with ids from `first` to `last`.
pub struct Prepared {
    pub(super) first: i64,
    pub(super) last: i64,
    /// How many bytes they are.
    pub(super) bytes: u64,
    created_at: String,
    file: File,
    block: Vec<u8>,
    /// More lines may be added.
    goes_on: bool,
}

impl Prepared {
    /// For the events of one transaction, which will be given ids from `first` on and all bear the
    /// time `created_at`. `room` is the directory where their lines wait. Nothing where that cannot be.
    pub fn new(room: &Path, first: i64, created_at: &str) -> Option<Prepared> {
        Some(Prepared {
            first,
            last: first.checked_sub(1)?,
            bytes: 0,
            created_at: created_at.to_owned(),
            file: tempfile::tempfile_in(room).ok()?,
            block: Vec::with_capacity(BLOCK + BLOCK / 4),
            goes_on: true,
        })
    }

    /// Adds the line of the next event.
    pub fn add(&mut self, event: &NewEvent<'_>) {
        // One with a key may be stored already, and be given no id.
        self.goes_on &= event.idempotency_key.is_none() && self.bytes < MOST;
        let Some(id) = self.last.checked_add(1).filter(|_| self.goes_on) else { return };
        let before = self.block.len();
        event.row(id, &self.created_at).write_line(&mut self.block);
        self.bytes += (self.block.len() - before) as u64;
        self.last = id;
        if self.block.len() >= BLOCK && self.write_block().is_err() {
            self.give_up();
        }
    }

    /// The lines, now that it is known what was stored.
    pub fn of(mut self, stored: &Stored) -> Option<Prepared> {
        let last = stored.first_id?.checked_add(i64::try_from(stored.count).ok()? - 1)?;
        let as_foreseen = stored.first_id == Some(self.first) && stored.last_id == Some(last);
        let usable = as_foreseen && self.first <= self.last && self.last <= last;
        (usable && self.write_block().is_ok() && self.file.rewind().is_ok()).then_some(self)
    }

    /// Hands on all lines, in blocks.
    pub(super) fn write_to(&mut self, out: &mut impl Write) -> io::Result<()> {
        let mut left = self.bytes;
        while left > 0 {
            self.block.clear();
            let read = (&self.file).take(left.min(BLOCK as u64)).read_to_end(&mut self.block)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            out.write_all(&self.block)?;
            left -= read as u64;
        }
        Ok(())
    }

    fn write_block(&mut self) -> io::Result<()> {
        self.file.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }

    /// Gives the room back: others may need it more.
    fn give_up(&mut self) {
        self.goes_on = false;
        self.last = self.first.saturating_sub(1);
        self.block = Vec::new();
        drop(self.file.set_len(0));
    }
}
