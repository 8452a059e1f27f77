//! What `doctor` asks of the database, and the mending of it.
//!
//! Looking changes nothing: the connection is told so, and a log that has grown is not folded back
//! into a database that may be damaged.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use super::{Store, configure, newest_ever, schema, text_of, wal};
use crate::error::{Result, database};
use crate::event;
use crate::filter::Dates;

/// An index that belongs to the schema: name, column, whether it is unique, and how it is made.
const INDEXES: [(&str, &str, bool, &str); 3] = [
    ("idx_events_source", "source", false, "CREATE INDEX idx_events_source ON events (source)"),
    ("idx_events_type", "type", false, "CREATE INDEX idx_events_type ON events (type)"),
    ("idx_events_idempotency_key", "idempotency_key", true, schema::KEY_INDEX),
];

/// A number of a consumer that points where it cannot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Astray {
    pub consumer: String,
    /// As the table has it.
    pub value: String,
}

impl Store {
    /// Opens a database to look at it. It must be a thread's; it is neither brought up to date nor
    /// checked any further.
    ///
    /// # Errors
    ///
    /// It cannot be read, is not a thread's, or is newer than this program. It is left as it was.
    pub fn open_to_examine(path: &Path) -> Result<Store> {
        let doing = "opening the database";
        let failed = |e: rusqlite::Error| database(&e, doing);
        let wal = wal::path_of(path);
        let had_wal = wal.exists();
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut conn = Connection::open_with_flags(path, flags).map_err(failed)?;
        let opened = configure(&mut conn)
            .map_err(|e| schema::foreign_or(&e, path, doing))
            .and_then(|()| schema::refuse_strangers(&conn, path));
        // One that is refused closes as in any other command.
        if opened.is_ok() || had_wal {
            wal::keep(&conn).map_err(failed)?;
        }
        opened?;
        conn.execute_batch("PRAGMA query_only = ON").map_err(failed)?;
        Ok(Store {
            conn,
            checker: None,
            dates: Dates::default(),
            path: path.to_owned(),
            wal,
            folds_wal: false,
            new_wal: false,
        })
    }

    /// Lets this connection write, after the database was found whole.
    pub fn allow_writing(&mut self) -> Result<()> {
        let failed = |e: rusqlite::Error| database(&e, "preparing to mend");
        self.must_be_writable("preparing to mend")?;
        self.conn.execute_batch("PRAGMA query_only = OFF").map_err(failed)
    }

    /// SQLite's own complaints about the file, the first hundred; none when it is whole.
    pub fn complaints(&mut self) -> Result<Vec<String>> {
        let ask = |conn: &Connection| -> rusqlite::Result<Vec<String>> {
            let mut statement = conn.prepare("PRAGMA main.integrity_check(100)")?;
            let lines = statement.query_map([], |row| row.get_ref(0).map(text_of))?;
            lines.map(|line| line.map(Option::unwrap_or_default)).collect()
        };
        let lines =
            self.shown("checking the database", ask).map_err(|e| database(&e, "checking the database"))?;
        Ok(lines
            .into_iter()
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .filter(|l| l != "ok")
            .collect())
    }

    /// Makes the contents of an index anew.
    pub fn rebuild_index(&mut self, name: &str) -> Result<()> {
        let name = name.replace('"', "\"\"");
        let sql = format!("REINDEX main.\"{name}\"");
        self.conn.execute_batch(&sql).map_err(|e| database(&e, "rebuilding an index"))
    }

    /// Whether the schema lacks what this program adds to it.
    pub fn is_older(&self) -> Result<bool> {
        schema::is_older(&self.conn).map_err(|e| database(&e, "reading the schema"))
    }

    /// Brings an older schema up to date.
    pub fn migrate(&mut self) -> Result<()> {
        schema::migrate(&mut self.conn).map_err(|e| database(&e, "bringing the schema up to date"))
    }

    /// Makes up for what an older schema lacks, for this connection alone.
    pub fn stand_in_for_missing(&mut self) -> Result<()> {
        // What stands in is this connection's own, but counts as written.
        let made = self
            .conn
            .execute_batch("PRAGMA query_only = OFF")
            .and_then(|()| schema::stand_in(&self.conn))
            .and_then(|()| self.conn.execute_batch("PRAGMA query_only = ON"));
        made.map_err(|e| database(&e, "reading an older schema"))
    }

    /// The mode of the journal; a thread's is `wal`.
    pub fn journal_mode(&self) -> Result<String> {
        self.conn
            .query_row("PRAGMA main.journal_mode", [], |row| row.get(0))
            .map_err(|e| database(&e, "reading the schema"))
    }

    /// Switches to write-ahead logging.
    pub fn use_wal(&mut self, path: &Path) -> Result<()> {
        schema::use_wal(&self.conn, path)
    }

    /// Whether ids of events that are gone are never given again.
    pub fn never_repeats_ids(&self) -> Result<bool> {
        let sql = "SELECT upper(sql) LIKE '%AUTOINCREMENT%' FROM main.sqlite_schema WHERE name = 'events'";
        self.conn.query_row(sql, [], |row| row.get(0)).map_err(|e| database(&e, "reading the schema"))
    }

    /// The indexes that are missing or not as they should be.
    pub fn wrong_indexes(&self) -> Result<Vec<&'static str>> {
        let found = |name: &str| -> rusqlite::Result<Option<(String, bool)>> {
            let sql = "SELECT (SELECT group_concat(name) FROM pragma_index_info(l.name, 'main')), \"unique\" \
                       FROM pragma_index_list('events', 'main') l WHERE name = ?";
            let row = self.conn.query_row(sql, [name], |row| {
                Ok((row.get_ref(0).map(text_of)?.unwrap_or_default(), row.get(1)?))
            });
            row.optional()
        };
        let mut wrong = Vec::new();
        for (name, column, unique, _) in INDEXES {
            let found = found(name).map_err(|e| database(&e, "reading the schema"))?;
            if found != Some((column.to_owned(), unique)) {
                wrong.push(name);
            }
        }
        Ok(wrong)
    }

    /// Makes one of these indexes anew.
    pub fn make_index(&mut self, name: &str) -> Result<()> {
        let failed = |e: rusqlite::Error| database(&e, "making an index");
        let transaction =
            self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        for (index, _, _, sql) in INDEXES.iter().filter(|(index, ..)| *index == name) {
            transaction
                .execute_batch(&format!("DROP INDEX IF EXISTS main.{index}; {sql}"))
                .map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    /// The last id that SQLite remembers to have given, when there are events beyond it.
    pub fn sequence_behind(&self) -> Result<Option<i64>> {
        let sql = "SELECT seq FROM (SELECT coalesce((SELECT CAST(seq AS INTEGER) FROM main.sqlite_sequence \
                   WHERE name = 'events'), 0) AS seq) WHERE seq < (SELECT max(id) FROM main.events)";
        let seq = self.conn.query_row(sql, [], |row| row.get(0)).optional();
        seq.map_err(|e| database(&e, "reading the schema"))
    }

    /// Sets that to the newest id.
    pub fn mend_sequence(&mut self) -> Result<()> {
        let failed = |e: rusqlite::Error| database(&e, "mending the sequence of ids");
        let transaction =
            self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let newest = newest_ever(&transaction).map_err(failed)?;
        let changed =
            transaction.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'events'", [newest]);
        if changed.map_err(failed)? == 0 {
            let sql = "INSERT INTO sqlite_sequence (name, seq) VALUES ('events', ?)";
            transaction.execute(sql, [newest]).map_err(failed)?;
        }
        transaction.commit().map_err(failed)
    }

    /// Cursors beyond the newest event ever, and cursors that are no number.
    pub fn cursors_astray(&self) -> Result<Vec<Astray>> {
        let sql =
            format!("SELECT consumer_id, last_acked_id FROM main.consumer_progress WHERE {CURSOR_ASTRAY}");
        self.astray(&sql)
    }

    /// Sets such cursors to the newest event, or, where they are no number, to 0, as they were taken.
    pub fn mend_cursors(&mut self) -> Result<()> {
        let sql = format!(
            "UPDATE consumer_progress SET updated_at = ?2, last_acked_id = \
                    CASE WHEN typeof(last_acked_id) = 'integer' THEN max(0, min(last_acked_id, ?1)) ELSE 0 END \
             WHERE {CURSOR_ASTRAY}"
        );
        self.mend(&sql, "mending cursors")
    }

    /// Consumers for which it is remembered that events were looked at which there never were.
    pub fn memories_astray(&self) -> Result<Vec<Astray>> {
        let sql = format!(
            "SELECT consumer_id, max(coalesce(mark_upto, 0), coalesce(run_newest, 0)) FROM subscriptions \
             WHERE {MEMORY_ASTRAY}"
        );
        self.astray(&sql)
    }

    /// Forgets that.
    pub fn mend_memories(&mut self) -> Result<()> {
        let sql = format!(
            "UPDATE subscriptions SET mark_filter = NULL, mark_from = NULL, mark_upto = NULL, \
                    run_newest = min(run_newest, ?1) WHERE {MEMORY_ASTRAY} AND ?2 <> ''"
        );
        self.mend(&sql, "mending what is remembered of a filter")
    }

    fn astray(&self, sql: &str) -> Result<Vec<Astray>> {
        let ask = || -> rusqlite::Result<Vec<Astray>> {
            // On one snapshot: the newest id is asked for inside the statement.
            let sql = sql.replace("?1", NEWEST_EVER);
            let mut statement = self.conn.prepare(&format!("{sql} ORDER BY consumer_id"))?;
            let rows = statement.query_map([], |row| {
                let value: rusqlite::types::Value = row.get(1)?;
                let value = match value {
                    rusqlite::types::Value::Integer(number) => number.to_string(),
                    rusqlite::types::Value::Text(text) => format!("'{text}'"),
                    _ => "no whole number".to_owned(),
                };
                Ok(Astray { consumer: row.get_ref(0).map(text_of)?.unwrap_or_default(), value })
            })?;
            rows.collect()
        };
        ask().map_err(|e| database(&e, "reading the cursors"))
    }

    /// Runs a statement with the newest id ever and the time of day.
    fn mend(&mut self, sql: &str, doing: &str) -> Result<()> {
        let failed = |e: rusqlite::Error| database(&e, doing);
        let transaction =
            self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let newest = newest_ever(&transaction).map_err(failed)?;
        transaction.execute(sql, rusqlite::params![newest, event::now()]).map_err(failed)?;
        transaction.commit().map_err(failed)
    }
}

/// In these conditions, `?1` is the newest id ever.
const CURSOR_ASTRAY: &str = "(typeof(last_acked_id) <> 'integer' OR last_acked_id > ?1 OR last_acked_id < 0)";
const MEMORY_ASTRAY: &str = "(mark_upto > ?1 OR run_newest > ?1)";

const NEWEST_EVER: &str = "max(coalesce((SELECT max(CAST(seq AS INTEGER)) FROM main.sqlite_sequence WHERE name = 'events'), 0), \
                           coalesce((SELECT max(id) FROM main.events), 0))";
