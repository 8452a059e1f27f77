//! The rows of a thread, as they are moved to another one.
//!
//! [`TABLES`] lists every kind of row that a thread has, whichever store keeps it: to add a kind, add it there. The
//! stores read and write rows by that list, an export is one line of JSON for each row ([`mod@line`]), and two threads are
//! compared by the number of rows and a digest of each kind ([`Tallies`]).
//!
//! What belongs to a machine or to a moment is not moved: claims, runs under way, leases, how far filters were evaluated.

pub mod line;
mod tables;
mod tally;

use std::borrow::Cow;

pub use self::tables::TABLES;
pub use self::tally::{Tallies, Tally};

/// The largest id that can be moved: larger ones are not exact in every reader of JSON.
pub const MAX_ID: i64 = (1 << 53) - 1;

/// A value of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    Null,
    Number(i64),
    Text(String),
    /// What is not UTF-8. Other programs may have stored it.
    Bytes(Vec<u8>),
}

/// The values of a row, in the order of its table's columns.
pub type Values = Vec<Value>;

impl Value {
    /// A text or, if they are no UTF-8, bytes.
    pub fn of_bytes(bytes: &[u8]) -> Value {
        match std::str::from_utf8(bytes) {
            Ok(text) => Value::Text(text.to_owned()),
            Err(_) => Value::Bytes(bytes.to_owned()),
        }
    }

    /// Empty if it has none.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Value::Text(text) => Cow::Borrowed(text),
            Value::Bytes(bytes) => String::from_utf8_lossy(bytes),
            Value::Null | Value::Number(_) => Cow::Borrowed(""),
        }
    }

    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Text(text) => Some(text.as_bytes()),
            Value::Bytes(bytes) => Some(bytes),
            Value::Null | Value::Number(_) => None,
        }
    }

    /// 0 if it is none.
    pub fn number(&self) -> i64 {
        match self {
            Value::Number(number) => *number,
            _ => 0,
        }
    }
}

/// What a column has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    Number,
    /// 0 or 1.
    Flag,
    Text,
    /// A text that is usually a JSON object.
    Json,
    /// A text that may have U+0000, or a path.
    Bytes,
    /// Any bytes, which are no text even if they could be.
    Blob,
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub name: &'static str,
    pub is: Is,
    pub may_be_null: bool,
}

/// A kind of row.
#[derive(Debug)]
pub struct Table {
    /// The word for a row.
    pub kind: &'static str,
    /// The name of the table, unless a store has another one for it.
    pub name: &'static str,
    pub columns: &'static [Column],
    /// So many of the first columns identify a row, and rows are in their order. 0: there is one row.
    pub key: usize,
    /// Says what is wrong with a row; completes "line 3 …".
    pub check: fn(&[Value]) -> Result<(), String>,
    /// Takes off what is not moved.
    pub leave: Option<fn(&mut Values)>,
    /// Changes what is different in the other thread.
    pub arrive: Option<fn(&mut Values)>,
}

impl PartialEq for Table {
    fn eq(&self, other: &Table) -> bool {
        self.kind == other.kind
    }
}

impl Table {
    /// Its place in [`TABLES`].
    pub fn index(&self) -> usize {
        TABLES.iter().position(|table| table == self).unwrap_or_default()
    }

    pub fn of(kind: &str) -> Option<&'static Table> {
        TABLES.iter().find(|table| table.kind == kind)
    }

    /// The events, which are the first table.
    pub fn events() -> &'static Table {
        &TABLES[0]
    }

    /// What handlers have done for events.
    pub fn steps() -> &'static Table {
        Table::of("step").unwrap_or(Table::events())
    }

    pub fn key_of<'v>(&self, row: &'v [Value]) -> &'v [Value] {
        &row[..self.key.min(row.len())]
    }

    /// A row for people: `event 17`.
    pub fn name_of(&self, row: &[Value]) -> String {
        let mut name = self.kind.replace('_', " ");
        for value in self.key_of(row) {
            match value {
                Value::Number(number) => name.push_str(&format!(" {number}")),
                value => name.push_str(&format!(" '{}'", value.text().escape_debug())),
            }
        }
        name
    }

    /// The names of its columns.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.columns.iter().map(|column| column.name)
    }
}

/// About how many bytes a row takes.
pub fn size(row: &[Value]) -> usize {
    row.iter().map(|value| 16 + value.bytes().map_or(0, <[u8]>::len)).sum()
}

/// Checks that rows come in the order of an export, each once, and refer to nothing that cannot be.
#[derive(Debug, Default)]
pub struct Order {
    table: usize,
    key: Values,
    /// The newest id ever assigned, once that row has come.
    newest: Option<i64>,
}

impl Order {
    /// # Errors
    ///
    /// What is wrong; completes "line 3 …".
    pub fn check(&mut self, table: &'static Table, row: &[Value]) -> Result<(), String> {
        (table.check)(row)?;
        let (index, key) = (table.index(), table.key_of(row));
        if index < self.table {
            return Err(format!("is a {} after a {}", table.kind, TABLES[self.table].kind));
        }
        if index == self.table && !self.key.is_empty() && self.key.as_slice() >= key {
            return Err(format!("is a {} that is not after the one before it", table.kind));
        }
        if table.kind == "thread" {
            let newest = row[0].number();
            if self.table == 0 && self.key.first().is_some_and(|last| last.number() > newest) {
                return Err(format!("says that {newest} is the newest id, and a larger one came before it"));
            }
            if self.newest.replace(newest).is_some() {
                return Err("is a second row about the thread itself".to_owned());
            }
        } else if index > 0 {
            let Some(newest) = self.newest else {
                return Err(format!("is a {} before the row about the thread itself", table.kind));
            };
            for (column, value) in table.columns.iter().zip(row) {
                let is_event = matches!(column.name, "last_acked_id" | "last_id" | "event_id");
                if is_event && value.number() > newest {
                    return Err(format!("is about the event {}, which does not exist", value.number()));
                }
            }
        }
        (self.table, self.key) = (index, key.to_vec());
        Ok(())
    }

    /// # Errors
    ///
    /// Something is missing; completes "the export …".
    pub fn end(&self) -> Result<(), String> {
        match self.newest {
            Some(_) => Ok(()),
            None => Err("lacks the row about the thread itself".to_owned()),
        }
    }
}
