//! Reading and writing rows as they are, to move them.

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, TransactionBehavior, params_from_iter};

use super::error::{Doing, commit};
use super::{Sqlite, closed, config, ledger, migrate, newest, scheduled, steps};
use crate::error::Result;
use crate::model::closed::Closed;
use crate::model::rows::{Is, Table, Value, Values, size};
use crate::model::run::Options;
use crate::store::Rewrite;

/// A page of rows ends after the row with which it reaches this many bytes.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// SQLite's page cache for a piece of an import, in KiB.
const CACHE_KIB: u32 = 16_000;

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Number(number) => ValueRef::Integer(*number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// What to read a table's columns from; `None` if there is none yet.
fn source(conn: &Connection, table: &Table) -> rusqlite::Result<Option<String>> {
    let source = match table.kind {
        "consumer" => {
            "(SELECT s.consumer_id, s.handler_cmd, s.filter, c.cwd, c.options, c.run, c.rewinds, c.filter_errors, \
                     c.filter_error_id FROM subscriptions s LEFT JOIN consumers c USING (consumer_id))"
        }
        "cursor" => "consumer_progress",
        "wait" if conn.table_exists(Some("main"), table.name)? && !ledger::has_asleep(conn)? => {
            "(SELECT *, 0 AS asleep FROM waits)"
        }
        "setting" if conn.table_exists(Some("main"), table.name)? => {
            "(SELECT name, value FROM config WHERE substr(name, 1, 1) <> '_')"
        }
        _ if conn.table_exists(Some("main"), table.name)? => table.name,
        _ => return Ok(None),
    };
    Ok(Some(source.to_owned()))
}

pub fn read(
    conn: &Connection,
    table: &'static Table,
    after: Option<&[Value]>,
    most: usize,
) -> rusqlite::Result<Vec<Values>> {
    if table.kind == "thread" {
        let row = vec![Value::Number(newest(conn)?), Value::Number(last_scheduled(conn)?)];
        return Ok(if after.is_none() { vec![row] } else { Vec::new() });
    }
    let Some(source) = source(conn, table)? else { return Ok(Vec::new()) };
    let columns: Vec<&str> = table.names().collect();
    let (key, marks) = (columns[..table.key].join(", "), vec!["?"; table.key].join(", "));
    let condition = after.map(|_| format!("WHERE ({key}) > ({marks})")).unwrap_or_default();
    let sql = format!("SELECT {} FROM {source} {condition} ORDER BY {key} LIMIT {most}", columns.join(", "));
    let mut statement = conn.prepare_cached(&sql)?;
    let mut found = statement.query(params_from_iter(after.unwrap_or_default()))?;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        let values = table.columns.iter().enumerate().map(|(at, column)| {
            let value = row.get_ref(at)?;
            Ok(match (column.is, value) {
                (_, ValueRef::Null) if column.may_be_null => Value::Null,
                (Is::Number, value) => Value::Number(value.as_i64().unwrap_or(0)),
                (Is::Flag, value) => Value::Number(i64::from(value.as_i64().unwrap_or(0) != 0)),
                (Is::Text | Is::Json | Is::Bytes | Is::Blob, value) => {
                    Value::of_bytes(value.as_bytes().unwrap_or_default())
                }
            })
        });
        let mut values = values.collect::<rusqlite::Result<Values>>()?;
        if let Some(leave) = table.leave {
            leave(&mut values);
        }
        bytes += size(&values);
        rows.push(values);
        if bytes >= PAGE_BYTES {
            break;
        }
    }
    Ok(rows)
}

/// The number that was last given to something scheduled.
fn last_scheduled(conn: &Connection) -> rusqlite::Result<i64> {
    if !scheduled::has_tables(conn)? {
        return Ok(0);
    }
    let sql =
        "SELECT coalesce((SELECT CAST(seq AS INTEGER) FROM sqlite_sequence WHERE name = 'scheduled'), 0)";
    conn.query_row(sql, [], |row| row.get(0))
}

/// Runs `work` in a transaction, also if the thread is closed.
pub fn rewrite(store: &mut Sqlite, work: &mut dyn FnMut(&mut dyn Rewrite) -> Result<()>) -> Result<()> {
    let doing = "moving rows";
    store.must_be_writable(doing)?;
    store.conn.execute_batch(&format!("PRAGMA cache_size = -{CACHE_KIB}")).doing(doing)?;
    let transaction = store.conn.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
    work(&mut Rewriter { conn: &transaction })?;
    transaction.commit().map_err(|e| commit(e, doing))
}

struct Rewriter<'t> {
    conn: &'t Connection,
}

const DOING: &str = "storing rows";

impl Rewrite for Rewriter<'_> {
    fn closed(&mut self) -> Result<Option<Closed>> {
        closed::load(self.conn).doing("opening the thread")
    }

    fn set_closed(&mut self, to: Option<&Closed>) -> Result<()> {
        closed::set(self.conn, to).doing("closing the thread")
    }

    fn put(&mut self, table: &'static Table, rows: &[Values]) -> Result<()> {
        self.put_rows(table, rows).doing(DOING)
    }

    fn clear(&mut self, table: &'static Table) -> Result<()> {
        let conn = self.conn;
        let clear = || match table.kind {
            "thread" => Ok(0),
            "consumer" => conn.execute("DELETE FROM subscriptions", []),
            "cursor" => conn.execute("DELETE FROM consumer_progress", []),
            "setting" if conn.table_exists(Some("main"), table.name)? => {
                conn.execute("DELETE FROM config WHERE substr(name, 1, 1) <> '_'", [])
            }
            _ if conn.table_exists(Some("main"), table.name)? => {
                conn.execute(&format!("DELETE FROM {}", table.name), [])
            }
            _ => Ok(0),
        };
        clear().map(drop).doing("removing rows")
    }
}

impl Rewriter<'_> {
    fn put_rows(&self, table: &'static Table, rows: &[Values]) -> rusqlite::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        self.prepare(table, rows)?;
        let columns: Vec<&str> = table.names().collect();
        let insert = |name: &str, columns: &[&str]| {
            let marks = vec!["?"; columns.len()].join(", ");
            self.conn.prepare_cached(&format!("INSERT INTO {name} ({}) VALUES ({marks})", columns.join(", ")))
        };
        match table.kind {
            "thread" => {
                for (name, number) in [("events", &rows[0][0]), ("scheduled", &rows[0][1])] {
                    if number.number() > 0 {
                        self.set_sequence(name, number)?;
                    }
                }
            }
            "consumer" => {
                let mut subscribe = insert("subscriptions", &columns[..3])?;
                // A trigger inserts the row.
                let set = columns[3..].iter().map(|column| format!("{column} = ?"));
                let set = set.collect::<Vec<_>>().join(", ");
                let update = format!("UPDATE consumers SET {set} WHERE consumer_id = ?");
                let mut update = self.conn.prepare_cached(&update)?;
                for row in rows {
                    subscribe.execute(params_from_iter(&row[..3]))?;
                    update.execute(params_from_iter(row[3..].iter().chain(&row[..1])))?;
                }
            }
            _ => {
                let name = if table.kind == "cursor" { "consumer_progress" } else { table.name };
                let mut insert = insert(name, &columns)?;
                for row in rows {
                    let values = table.columns.iter().zip(row).map(|(column, value)| match column.is {
                        Is::Blob => {
                            Ok(ToSqlOutput::Borrowed(value.bytes().map_or(ValueRef::Null, ValueRef::Blob)))
                        }
                        _ => value.to_sql(),
                    });
                    let values = values.collect::<rusqlite::Result<Vec<ToSqlOutput<'_>>>>()?;
                    insert.execute(params_from_iter(values))?;
                }
            }
        }
        Ok(())
    }

    /// Makes the tables that are made when they are needed for the first time.
    fn prepare(&self, table: &Table, rows: &[Values]) -> rusqlite::Result<()> {
        let finishes_singly = |row: &Values| {
            serde_json::from_str(&row[4].text()).is_ok_and(|options: Options| options.finishes_singly())
        };
        match table.kind {
            "setting" => config::prepare(self.conn),
            "wait" if rows.iter().any(|row| row[6].number() != 0) => steps::prepare(self.conn),
            "finished" | "wait" => ledger::prepare(self.conn).and_then(|()| ledger::add_asleep(self.conn)),
            "step" => steps::prepare(self.conn),
            "consumer" if rows.iter().any(finishes_singly) => ledger::prepare(self.conn),
            "scheduled" | "schedule" => scheduled::prepare(self.conn),
            "thread" if rows[0][1].number() > 0 => scheduled::prepare(self.conn),
            "run" => migrate::add_table(self.conn, "runs"),
            _ => Ok(()),
        }
    }

    /// Sets the number from which SQLite continues.
    fn set_sequence(&self, name: &str, number: &Value) -> rusqlite::Result<()> {
        self.conn.execute("DELETE FROM sqlite_sequence WHERE name = ?", [name])?;
        self.conn.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, number)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_other_programs_are_read_as_what_they_count_as() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        crate::Queue::init(&path).unwrap();
        let store = Sqlite::open(&path.join("events.db")).unwrap();
        store
            .conn
            .execute_batch(
                "INSERT INTO events (source, type, content, metadata) VALUES ('a', 'message', x'ff00', 'no object'); \
                 INSERT INTO consumer_progress VALUES ('c', 'many', '');",
            )
            .unwrap();
        let event = &read(&store.conn, Table::events(), None, 9).unwrap()[0];
        assert_eq!((&event[5], &event[6]), (&Value::Bytes(vec![0xff, 0]), &Value::Text("no object".into())));
        let cursor = &read(&store.conn, Table::of("cursor").unwrap(), None, 9).unwrap()[0];
        assert_eq!(cursor[1], Value::Number(0));
    }
}
