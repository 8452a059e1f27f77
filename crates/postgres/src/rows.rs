//! Reading and writing rows as they are, to move them.

use std::cell::Cell;

use postgres::Row;
use thread::Result;
use thread::model::closed::{CLOSED, Closed};
use thread::model::rows::{Column, Is, Table, Value, Values};
use thread::model::run::Options;
use thread::store::Rewrite;

use crate::connection::Connection;
use crate::copy::{self, Copy};
use crate::link::{Link, Locks, Param, Session, int, text};
use crate::{config, error, known, migrate, scheduled};

const DOING: &str = "moving rows";

/// A page ends after the row with which it reaches this many bytes.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Why a row cannot be stored here.
pub fn refusal(table: &'static Table, row: &[Value]) -> Option<String> {
    for (column, value) in table.columns.iter().zip(row) {
        let name = column.name;
        match value {
            Value::Bytes(_) if name != "cwd" && column.is != Is::Blob => {
                return Some(format!("has bytes in its {name} that are not UTF-8"));
            }
            Value::Text(text) if !matches!(column.is, Is::Bytes | Is::Blob) && text.contains('\0') => {
                return Some(format!("has a NUL character in its {name}"));
            }
            value if value.bytes().is_some_and(|bytes| bytes.len() > LONGEST) => {
                return Some(format!("has more than 1 GB in its {name}"));
            }
            value if is_indexed(name) && value.bytes().is_some_and(|bytes| bytes.len() > LONGEST_KEY) => {
                return Some(format!("has more than {LONGEST_KEY} bytes in its {name}"));
            }
            _ => {}
        }
    }
    None
}

/// The server takes no larger value, and a COPY no larger row.
const LONGEST: usize = 1_000_000_000;

/// What fits on a page of an index, of which a third is allowed, whatever it is compressed to.
const LONGEST_KEY: usize = 2600;

fn is_indexed(column: &str) -> bool {
    ["idempotency_key", "consumer_id", "name"].contains(&column)
}

/// Whether the tables of this kind are there: some are made when they are needed for the first time.
fn is_there(session: &mut Session<'_>, table: &Table) -> Result<bool> {
    let sql = format!(
        "SELECT ($1::bigint IS NOT NULL AND to_regclass($$@{}$$) IS NOT NULL)::int::int8",
        table.name
    );
    Ok(session.number(&sql, &[])? == Some(1))
}

/// What is left out of a table: settings that are private to the store.
fn condition(table: &Table) -> &'static str {
    if table.kind == "setting" { " AND left(name, 1) <> '_'" } else { "" }
}

pub fn read(
    session: &mut Session<'_>,
    table: &'static Table,
    after: Option<&[Value]>,
    most: usize,
) -> Result<Vec<Values>> {
    if table.kind == "thread" {
        return match after {
            Some(_) => Ok(Vec::new()),
            None => Ok(vec![vec![Value::Number(session.newest()?), Value::Number(last_scheduled(session)?)]]),
        };
    }
    if !is_there(session, table)? {
        return Ok(Vec::new());
    }
    let columns: Vec<&str> = table.names().collect();
    let (columns, key) = (columns.join(", "), columns[..table.key].join(", "));
    // A schema without steps lacks the column.
    let stored = match table.kind == "wait" && !is_there(session, Table::steps())? {
        true => columns.replace("asleep", "0::bigint AS asleep"),
        false => columns.clone(),
    };
    let sizes = table.columns.iter().filter(|column| !matches!(column.is, Is::Number | Is::Flag));
    let sizes = sizes.map(|column| format!("coalesce(octet_length({}), 0)::bigint", column.name));
    let size = sizes.chain(["100".to_owned()]).collect::<Vec<_>>().join(" + ");
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let keys: Vec<Param<'_>> = after.unwrap_or_default().iter().map(param).collect();
    let marks: Vec<String> = (0..keys.len()).map(|at| format!("${}", at + 3)).collect();
    let after =
        if keys.is_empty() { String::new() } else { format!(" AND ({key}) > ({})", marks.join(", ")) };
    let condition = condition(table);
    let sql = format!(
        "SELECT {columns} FROM (\
           SELECT *, sum({size}) OVER (ORDER BY {key}) - ({size}) AS before_it FROM (\
             SELECT {stored} FROM @{} WHERE thread = $1{condition}{after} ORDER BY {key} LIMIT $2) AS r) AS r \
         WHERE before_it < {PAGE_BYTES} ORDER BY {key}",
        table.name
    );
    let params: Vec<Param<'_>> = [int(&most)].into_iter().chain(keys).collect();
    let rows = session.rows(&sql, &params)?;
    Ok(rows.iter().map(|row| values_of(table, row)).collect())
}

fn param(value: &Value) -> Param<'_> {
    match value {
        Value::Number(number) => int(number),
        Value::Text(value) => text(value),
        Value::Null | Value::Bytes(_) => text(&""),
    }
}

fn values_of(table: &Table, row: &Row) -> Values {
    let value = |(at, column): (usize, &Column)| match column.is {
        Is::Number => row.get::<_, Option<i64>>(at).map_or(Value::Null, Value::Number),
        Is::Flag => Value::Number(row.get::<_, bool>(at).into()),
        Is::Text | Is::Json => {
            row.get::<_, Option<&str>>(at).map_or(Value::Null, |text| Value::Text(text.to_owned()))
        }
        Is::Bytes | Is::Blob => row.get::<_, Option<&[u8]>>(at).map_or(Value::Null, Value::of_bytes),
    };
    let mut values: Values = table.columns.iter().enumerate().map(value).collect();
    if let Some(leave) = table.leave {
        leave(&mut values);
    }
    values
}

/// The number that was last given to something scheduled in the thread, as far as that is known: other threads use the
/// same sequence.
fn last_scheduled(session: &mut Session<'_>) -> Result<i64> {
    let sql = "SELECT ($1::bigint IS NOT NULL AND to_regclass($$@scheduled$$) IS NOT NULL)::int::int8";
    if session.number(sql, &[])? != Some(1) {
        return Ok(0);
    }
    // Nothing was ever scheduled in a thread that was not moved here, and has no row.
    let sql = "SELECT value::bigint FROM @config WHERE thread = $1 AND name = $2";
    let moved = match config::has_table(session)? {
        true => session.number(sql, &[text(&SCHEDULED)])?.unwrap_or(0),
        false => 0,
    };
    let sql = "SELECT coalesce(max(id), 0) FROM @scheduled WHERE thread = $1";
    Ok(session.number(sql, &[])?.unwrap_or(0).max(moved))
}

/// The private setting with the number that was last given to something scheduled before the thread was moved here.
const SCHEDULED: &str = "_scheduled";

/// Runs `work` in a transaction, also if the thread is closed.
pub fn rewrite(link: &mut Link, work: &mut dyn FnMut(&mut dyn Rewrite) -> Result<()>) -> Result<()> {
    link.begin(DOING, Locks::All, true)?;
    let mut rewriter = Rewriter { link };
    let sql = "UPDATE @counters SET newest = newest WHERE thread IN ($1, -$1) RETURNING newest";
    let locked = rewriter.session().number(sql, &[]);
    let worked = locked.and_then(|found| found.ok_or_else(error::gone)).and_then(|_| work(&mut rewriter));
    link.end(DOING, worked)
}

struct Rewriter<'l> {
    link: &'l mut Link,
}

impl Rewriter<'_> {
    fn session(&mut self) -> Session<'_> {
        self.link.in_transaction(DOING)
    }

    /// Makes the tables that are made when they are needed for the first time.
    fn prepare(&mut self, table: &Table, rows: &[Values]) -> Result<()> {
        let finishes_singly = |row: &Values| {
            serde_json::from_str(&row[4].text()).is_ok_and(|options: Options| options.finishes_singly())
        };
        match table.kind {
            "setting" => config::prepare(&mut self.session()),
            "finished" => self.raise_version(known::WITH_LEDGERS),
            "wait" if !self.link.known.steps => self.raise_version(known::WITH_LEDGERS),
            "consumer" if rows.iter().any(finishes_singly) => self.raise_version(known::WITH_LEDGERS),
            "scheduled" | "schedule" => scheduled::prepare(self.link),
            "thread" if rows[0][1].number() > 0 => scheduled::prepare(self.link),
            _ => Ok(()),
        }
    }

    /// By a connection of its own, because it has a transaction of its own.
    fn raise_version(&mut self, to: i64) -> Result<()> {
        let target = &self.link.target;
        let mut connection = Connection::take(&target.settings)?;
        migrate::raise_version(&mut connection.client, &target.schema, to)?;
        connection.keep(&target.settings);
        Ok(())
    }

    /// Later numbers of what is scheduled are larger than this one.
    fn pass_scheduled(&mut self, last: i64) -> Result<()> {
        let mut session = self.session();
        // It keeps others from taking a number until the transaction ends.
        session.batch("ALTER SEQUENCE @scheduled_ids CACHE 1")?;
        let sql = "SELECT setval($$@scheduled_ids$$, greatest($2, (SELECT last_value FROM @scheduled_ids))) \
                   WHERE $1::bigint IS NOT NULL";
        session.rows(sql, &[int(&last)])?;
        config::set(&mut session, SCHEDULED, Some(&last.to_string())).map(drop)
    }

    fn copy(&mut self, table: &'static Table, rows: &[Values]) -> Result<()> {
        // A schema without steps lacks the last column of waits, and no event sleeps in it.
        let lacks_one = table.kind == "wait" && !self.link.known.steps;
        let described = &table.columns[..table.columns.len() - usize::from(lacks_one)];
        let columns = described.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
        let sql = format!("COPY @{} (thread, {columns}) FROM STDIN (FORMAT binary)", table.name);
        let (thread, (connection, sql)) = (self.link.thread.to_be_bytes(), self.link.lend(&sql));
        let copy = Copy::begin(connection, sql, DOING)?;
        let is_sent = Cell::new(true);
        let mut data = Vec::new();
        let mut failed = None;
        for row in rows {
            let numbers: Vec<[u8; 8]> = row.iter().map(|value| value.number().to_be_bytes()).collect();
            let value = |((column, value), number): ((&Column, _), _)| bytes_of(column, value, number);
            let values = described.iter().zip(row).zip(&numbers).map(value);
            let values: Vec<Option<&[u8]>> = [Some(&thread[..])].into_iter().chain(values).collect();
            if copy::write_row(&mut data, &values).is_err() {
                failed = Some(error::too_large());
                break;
            }
            if data.len() >= PAGE_BYTES {
                is_sent.set(copy.send(std::mem::take(&mut data)));
            }
            if !is_sent.get() {
                break;
            }
        }
        let is_whole = failed.is_none() && is_sent.get() && (data.is_empty() || copy.send(data));
        let (connection, copied) = copy.end(is_whole);
        self.link.take_back(connection);
        failed.map_or(copied, Err)
    }
}

/// A value as a COPY has it.
fn bytes_of<'v>(column: &Column, value: &'v Value, number: &'v [u8; 8]) -> Option<&'v [u8]> {
    match (value, column.is) {
        (Value::Null, _) => None,
        // The last byte of the number.
        (Value::Number(_), Is::Flag) => Some(&number[7..]),
        (Value::Number(_), _) => Some(number),
        (value, _) => value.bytes(),
    }
}

impl Rewrite for Rewriter<'_> {
    fn closed(&mut self) -> Result<Option<Closed>> {
        self.session().closed()
    }

    fn set_closed(&mut self, to: Option<&Closed>) -> Result<()> {
        let mut session = self.session();
        config::set(&mut session, CLOSED, to.map(Closed::to_json).as_deref())?;
        let sql = match to {
            Some(_) => "UPDATE @counters SET thread = -$1 WHERE thread = $1",
            None => "UPDATE @counters SET thread = $1 WHERE thread = -$1",
        };
        session.rows(sql, &[]).map(drop)
    }

    fn put(&mut self, table: &'static Table, rows: &[Values]) -> Result<()> {
        let Some(last) = rows.last() else { return Ok(()) };
        self.prepare(table, rows)?;
        let set_newest = "UPDATE @counters SET newest = greatest(newest, $2) WHERE thread IN ($1, -$1)";
        if table.kind == "thread" {
            let (newest, scheduled) = (last[0].number(), last[1].number());
            self.session().rows(set_newest, &[int(&newest)])?;
            return if scheduled > 0 { self.pass_scheduled(scheduled) } else { Ok(()) };
        }
        self.copy(table, rows)?;
        if table.kind == "event" {
            self.session().rows(set_newest, &[int(&last[0].number())])?;
        }
        Ok(())
    }

    fn clear(&mut self, table: &'static Table) -> Result<()> {
        let mut session = self.session();
        if table.kind == "thread" || !is_there(&mut session, table)? {
            return Ok(());
        }
        let sql = format!("DELETE FROM @{} WHERE thread = $1{}", table.name, condition(table));
        session.rows(&sql, &[]).map(drop)
    }
}
