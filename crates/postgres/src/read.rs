//! Reading events, and evaluating filters on them.
//!
//! Both go in pages that are in memory before anything is done with them, so that a slow reader keeps no snapshot at
//! the server. A page is limited in rows and in bytes.

use std::time::Instant;

use postgres::Row;
use thread::Result;
use thread::model::event::{CappedRow, Row as EventRow};
use thread::model::filter::Filter;
use thread::store::{FilterFailure, Scan, ScanRange};

use crate::link::{Session, int};

/// The most rows of a page.
const PAGE_ROWS: usize = 1000;

/// A page ends after the event with which it reaches this many bytes.
const PAGE_BYTES: i64 = 4 * 1024 * 1024;

/// A filter fails on a longer value that it reads, so no more than this is fetched of one.
const MOST_EVALUATED: i64 = 1024 * 1024 + 4;

/// The columns of a whole event, as [`event_of`] expects them.
pub const EVENT: &str = "id, created_at, source, type, subtype, content, metadata, \
                         octet_length(content)::bigint AS content_len, octet_length(metadata)::bigint AS metadata_len";

/// The event of a row.
pub fn event_of(row: &Row) -> CappedRow<'_> {
    let bytes = |column: usize| row.get::<_, Option<&str>>(column).map(str::as_bytes);
    let length = |column: usize| row.get::<_, Option<i64>>(column).map(i64::unsigned_abs);
    let metadata_len = length(8);
    let event = EventRow {
        id: row.get(0),
        created_at: bytes(1).unwrap_or_default(),
        source: bytes(2).unwrap_or_default(),
        kind: bytes(3).unwrap_or_default(),
        subtype: bytes(4),
        content: row.get::<_, Option<&[u8]>>(5).unwrap_or_default(),
        metadata: bytes(6).or(metadata_len.map(|_| &b""[..])),
    };
    CappedRow { row: event, content_len: length(7).unwrap_or(0), metadata_len: metadata_len.unwrap_or(0) }
}

/// A statement for the next events with ids in `($2, $3]`, at most `$4`, with these columns; `size` is what an event
/// adds to the bytes of its page.
fn page_of(columns: &str, size: &str) -> String {
    format!(
        "SELECT {columns} FROM (\
           SELECT *, sum({size}) OVER (ORDER BY id) - {size} AS before FROM (\
             SELECT * FROM @events WHERE thread = $1 AND id > $2 AND id <= $3 ORDER BY id LIMIT $4) AS e) AS e \
         WHERE before < {PAGE_BYTES} ORDER BY id"
    )
}

/// Where reading has got to.
pub struct Page {
    pub after: i64,
    pub upto: i64,
    pub limit: usize,
}

impl Page {
    /// The next rows, without their texts longer than `cap` bytes; `None` after the last one.
    pub fn next(&mut self, session: &mut Session<'_>, cap: u64) -> Result<Option<Vec<Row>>> {
        if self.limit == 0 || self.after >= self.upto {
            return Ok(None);
        }
        // No text is longer than the largest one.
        let (columns, size) = match i32::try_from(cap) {
            Err(_) => (EVENT.to_owned(), SIZE.to_owned()),
            Ok(cap) => {
                let capped =
                    |text: &str| format!("CASE WHEN octet_length({text}) <= {cap} THEN {text} END AS {text}");
                let texts =
                    ["created_at", "source", "type", "subtype", "content", "metadata"].map(capped).join(", ");
                let lengths = "octet_length(content)::bigint AS content_len, \
                               octet_length(metadata)::bigint AS metadata_len";
                let bytes = |text: &str| {
                    format!("CASE WHEN octet_length({text}) <= {cap} THEN octet_length({text}) ELSE 0 END")
                };
                let size = format!("({} + coalesce({}, 0) + 100)", bytes("content"), bytes("metadata"));
                (format!("id, {texts}, {lengths}"), size)
            }
        };
        let most = self.limit.min(PAGE_ROWS) as i64;
        let rows =
            session.rows(&page_of(&columns, &size), &[int(&self.after), int(&self.upto), int(&most)])?;
        match rows.last() {
            Some(last) => self.after = last.get(0),
            None => return Ok(None),
        }
        self.limit -= rows.len().min(self.limit);
        let size = |row: &Row| {
            let CappedRow { content_len, metadata_len, .. } = event_of(row);
            content_len + metadata_len + 100
        };
        if rows.len() < most as usize && rows.iter().map(size).sum::<u64>() < PAGE_BYTES.unsigned_abs() {
            // Nothing was cut off, so this was all.
            self.limit = 0;
        }
        Ok(Some(rows))
    }
}

const SIZE: &str = "(octet_length(content) + coalesce(octet_length(metadata), 0) + 100)";

pub fn content(session: &mut Session<'_>, id: i64, offset: u64, most: usize) -> Result<Option<Vec<u8>>> {
    // As integers of the server, which are large enough for any text.
    let offset = i32::try_from(offset).map_or(i32::MAX, |offset| offset.saturating_add(1));
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    // No further than the end, so that the sum of both does not overflow.
    let sql = format!(
        "SELECT substring(content FROM {offset} FOR least({most}, greatest(octet_length(content) - {offset} + 1, 0))) \
         FROM @events WHERE thread = $1 AND id = $2"
    );
    Ok(session.row(&sql, &[int(&id)])?.map(|row| row.get(0)))
}

/// Evaluates a filter on events, page by page.
pub struct Scanner<'f> {
    filter: &'f Filter,
    range: ScanRange,
    pub scan: Scan,
    pub is_done: bool,
    /// What is fetched of each event.
    sql: String,
}

impl Scanner<'_> {
    pub fn new(filter: &Filter, range: ScanRange) -> Scanner<'_> {
        // A filter spells the names of the columns that it reads. What it does not read need not be fetched.
        let text = filter.text().to_ascii_lowercase();
        // It gets the length of a value without the value.
        let whole = text.contains("octet_length");
        let content = match text.contains("content") {
            true if whole => "content".to_owned(),
            true => format!("substring(content FROM 1 FOR {MOST_EVALUATED})"),
            false => "''::bytea".to_owned(),
        };
        let metadata = match text.contains("metadata") {
            true if whole => "metadata".to_owned(),
            true => format!("left(metadata, {MOST_EVALUATED})"),
            false => "NULL::text".to_owned(),
        };
        let columns = format!(
            "id, created_at, source, type, subtype, {content} AS content, {metadata} AS metadata, \
             octet_length(content)::bigint AS content_len, NULL::bigint AS metadata_len"
        );
        let size = if content.starts_with("''") && metadata.starts_with("NULL") { "100" } else { SIZE };
        let is_done = range.most == 0 || range.after >= range.upto;
        let scan = Scan { upto: range.after, ..Scan::default() };
        Scanner { filter, range, scan, is_done, sql: page_of(&columns, size) }
    }

    /// The next events to evaluate the filter on.
    pub fn page(&self, session: &mut Session<'_>) -> Result<Vec<Row>> {
        // A search for one match usually finds it soon.
        let first = self.scan.upto == self.range.after;
        let rows = if first && self.range.most == 1 { PAGE_ROWS / 10 } else { PAGE_ROWS } as i64;
        session.rows(&self.sql, &[int(&self.scan.upto), int(&self.range.upto), int(&rows)])
    }

    /// Evaluates the filter on the events of a page.
    pub fn take(&mut self, rows: &[Row]) {
        for row in rows {
            let mut event = event_of(row).row;
            // A part of a text is not to end within a character.
            if let Err(e) = std::str::from_utf8(event.content) {
                event.content = &event.content[..e.valid_up_to()];
            }
            match self.filter.matches(&event) {
                Ok(true) => self.scan.ids.push(event.id),
                Ok(false) => {}
                Err(e) => self.scan.failures.push(FilterFailure { id: event.id, message: e.0 }),
            }
            self.scan.upto = event.id;
            if self.scan.ids.len() == self.range.most
                || self.range.until.is_some_and(|end| Instant::now() >= end)
            {
                self.is_done = true;
                return;
            }
        }
        if rows.is_empty() {
            self.scan.upto = self.range.upto;
            self.is_done = true;
        }
    }
}
