//! Giving the space of deleted events back to the file system.
//!
//! A database with `auto_vacuum = INCREMENTAL` can be shortened a few pages at a time: the last
//! pages of the file are moved to free places nearer its beginning. That is done in short
//! transactions, between which others push. An older database has to be written anew once, as a
//! whole, to get there; meanwhile others wait.

use std::time::{Duration, Instant};

use rusqlite::TransactionBehavior;

use super::Store;
use crate::error::{Result, database};

/// A step holds the write lock for about this long.
const STEP_TIME: Duration = Duration::from_millis(40);

/// How many pages are given back between two looks at the clock.
const PAGES: i64 = 64;

/// A step gives back no more pages than these, so that the WAL stays short.
const MOST_PAGES: i64 = 1024;

/// The size of the database in bytes, without its WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub before: u64,
    pub after: u64,
}

impl Store {
    /// How many bytes the database has.
    pub fn size(&self) -> Result<u64> {
        let measured = self.pragma("page_size").and_then(|size| Ok(size * self.pragma("page_count")?));
        measured.map_err(|e| database(&e, "measuring the database"))
    }

    /// Prepares for [`Store::compact_step`]: an older database is written anew, once.
    pub fn begin_compacting(&mut self) -> Result<()> {
        let failed = |e: rusqlite::Error| database(&e, "giving space back");
        self.must_be_writable("giving space back")?;
        let can_be_shortened = self.pragma("auto_vacuum").map_err(failed)? != 0;
        if !can_be_shortened && self.pragma("freelist_count").map_err(failed)? > 0 {
            let anew = "PRAGMA auto_vacuum = INCREMENTAL; VACUUM";
            self.shown("writing the database anew", |conn| conn.execute_batch(anew)).map_err(failed)?;
        }
        Ok(())
    }

    /// Shortens the database by as many pages as one short transaction takes. False when there is
    /// nothing left that could be given back.
    pub fn compact_step(&mut self) -> Result<bool> {
        let failed = |e: rusqlite::Error| database(&e, "giving space back");
        let transaction =
            self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let began = Instant::now();
        let start = free_pages(&transaction).map_err(failed)?;
        let mut free = start;
        while free > 0 && start - free < MOST_PAGES && began.elapsed() < STEP_TIME {
            let sql = format!("PRAGMA incremental_vacuum({PAGES})");
            transaction.execute_batch(&sql).map_err(failed)?;
            free = free_pages(&transaction).map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
        Ok(0 < free && free < start)
    }

    fn pragma(&self, name: &str) -> rusqlite::Result<u64> {
        self.conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
    }
}

fn free_pages(conn: &rusqlite::Connection) -> rusqlite::Result<i64> {
    conn.query_row("PRAGMA freelist_count", [], |row| row.get(0))
}
