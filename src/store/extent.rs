//! How many events there are, and between which ids.

use std::thread::JoinHandle;

use super::Store;
use crate::error::{Result, database};

/// From this many ids on, and with this many consumers to look at meanwhile, counting is worth a
/// thread of its own.
const MANY_IDS: i64 = 100_000;
const MANY_LOOKS: usize = 32;

/// How many events there are, and since which id, which is 0 when there are none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extent {
    pub count: u64,
    pub oldest: i64,
    /// The newest id ever given, also when its event is gone.
    pub newest_ever: i64,
}

impl Extent {
    /// Whether no id is missing from the oldest on.
    pub(super) fn is_gapless(&self) -> bool {
        self.newest_ever.checked_sub(self.oldest).is_some_and(|span| span.unsigned_abs() + 1 == self.count)
    }
}

/// The extent of a database, where it is large counted while other work goes on.
pub struct Counting {
    counter: Option<JoinHandle<Result<Extent>>>,
    known: Option<Extent>,
}

impl Counting {
    /// Begins to count while so many consumers are looked at.
    pub fn begin(store: &Store, looks: usize) -> Counting {
        let path = store.path.clone();
        let count = move || {
            let mut store = Store::open(&path)?;
            store.folds_wal = false;
            store.extent()
        };
        let many = looks >= MANY_LOOKS && store.newest_ever().is_ok_and(|newest| newest >= MANY_IDS);
        let counter = many.then(|| std::thread::Builder::new().spawn(count).ok()).flatten();
        Counting { counter, known: None }
    }

    /// What was counted, once that is done. Where there was no thread or file for it, it is counted
    /// now, through `store`.
    pub fn extent(&mut self, store: &Store) -> Result<Extent> {
        if let Some(extent) = self.known {
            return Ok(extent);
        }
        let counted = self.counter.take().and_then(|counter| counter.join().ok());
        let extent = counted.and_then(Result::ok).map_or_else(|| store.extent(), Ok)?;
        self.known = Some(extent);
        Ok(extent)
    }
}

impl Store {
    /// How many events are stored.
    pub fn count(&self) -> Result<u64> {
        // All pages of an index are read, and of each only how many entries it has: to look at the
        // entries would take as long again. No page is read twice, and to find memory for one takes
        // longer than to read it.
        let size = self.conn.query_row("PRAGMA cache_size", [], |row| row.get::<_, i64>(0));
        let counted = size.and_then(|size| {
            self.conn.execute_batch("PRAGMA cell_size_check = OFF; PRAGMA cache_size = 20")?;
            let counted = self.conn.query_row("SELECT count(*) FROM events", [], |row| row.get::<_, i64>(0));
            let usual = format!("PRAGMA cell_size_check = ON; PRAGMA cache_size = {size}");
            self.conn.execute_batch(&usual).and(counted)
        });
        counted.map(i64::unsigned_abs).map_err(|e| database(&e, "counting the events"))
    }

    /// How many events are stored, and between which ids, all at one moment.
    pub fn extent(&self) -> Result<Extent> {
        let failed = |e: rusqlite::Error| database(&e, "counting the events");
        let _moment = self.conn.unchecked_transaction().map_err(failed)?;
        let oldest = "SELECT coalesce(min(id), 0) FROM events";
        Ok(Extent {
            count: self.count()?,
            oldest: self.conn.query_row(oldest, [], |row| row.get(0)).map_err(failed)?,
            newest_ever: self.newest_ever()?,
        })
    }
}
