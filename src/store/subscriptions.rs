//! Rows of `subscriptions`, with the cursor and the count of dead letters that belong to them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::types::{ToSql, Value};
use rusqlite::{Connection, TransactionBehavior, params};

use super::{Moved, Store, bytes_of, move_in, text_of};
use crate::duration;
use crate::error::{Result, database};
use crate::process::Identity;
use crate::rule::{Deliver, Phase, Policy, State, StopRequest, Task, parse_time};
use crate::subscription::{ConsumerId, Mark, Subscription};

/// What `subscribe` is given.
#[derive(Debug, Clone)]
pub struct NewSubscription<'a> {
    pub consumer: &'a ConsumerId,
    pub handler_cmd: &'a str,
    /// Checked already; none for no filter.
    pub filter: Option<&'a str>,
    pub cwd: &'a Path,
    pub policy: &'a Policy,
    /// Where to set the cursor; none leaves what is stored.
    pub from: Option<i64>,
}

/// What became of a new subscription.
#[derive(Debug, PartialEq, Eq)]
pub enum Subscribed {
    /// It stands, and its cursor was moved if that was asked.
    Added(Option<Moved>),
    /// One of that name stands; nothing was changed.
    Exists,
}

const COLUMNS: &str = "\
    s.consumer_id, s.handler_cmd, s.filter, s.cwd, s.token, s.mark_filter, s.mark_from, s.mark_upto, s.filter_errors, \
    s.filter_error_id, s.deliver, s.batch_size, s.max_attempts, s.backoff, s.timeout_ms, s.phase, s.paused, s.reason, \
    s.attempts, s.next_try, s.run_boot, s.run_pid, s.run_start, s.handler_pid, s.handler_start, s.run_since, \
    s.run_began, s.run_ended, s.run_exit, s.run_task, s.run_last, s.run_cursor, s.run_newest, s.narrow_upto, s.dead_streak, \
    s.stop_signal, s.stop_kill_ms, p.last_acked_id, p.updated_at, \
    (SELECT count(*) FROM dead_letters d WHERE d.consumer_id = s.consumer_id) AS dead, \
    (SELECT count(*) FROM dead_letters d WHERE d.consumer_id = s.consumer_id AND d.retry) AS dead_to_retry";

impl Store {
    /// All subscriptions, by name.
    pub fn subscriptions(&self) -> Result<Vec<Subscription>> {
        let failed = |e: rusqlite::Error| database(&e, "reading the subscriptions");
        // The statement for all of a subscription costs more than looking whether there is one.
        let any = self.conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM subscriptions)");
        if !any.and_then(|mut s| s.query_row([], |row| row.get(0))).map_err(failed)? {
            return Ok(Vec::new());
        }
        all(&self.conn).map_err(failed)
    }

    /// The subscription of that consumer, if there is one.
    pub fn subscription(&self, consumer: &ConsumerId) -> Result<Option<Subscription>> {
        one(&self.conn, consumer).map_err(|e| database(&e, "reading the subscriptions"))
    }

    /// Registers a consumer, unless one of that name is registered.
    pub fn subscribe(&mut self, new: &NewSubscription<'_>) -> Result<Subscribed> {
        let failed = |e: rusqlite::Error| database(&e, "subscribing");
        self.must_be_writable("subscribing")?;
        let transaction =
            self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let timeout = new.policy.timeout.map(millis);
        let added = transaction
            .execute(
                "INSERT INTO subscriptions (consumer_id, handler_cmd, filter, cwd, token, deliver, batch_size, \
                        max_attempts, backoff, timeout_ms) \
                 VALUES (?, ?, ?, ?, lower(hex(randomblob(8))), ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                params![
                    new.consumer.as_str(),
                    new.handler_cmd,
                    new.filter,
                    path_value(new.cwd),
                    new.policy.deliver.as_str(),
                    i64::try_from(new.policy.batch_size).unwrap_or(i64::MAX),
                    new.policy.max_attempts,
                    duration::format_list(&new.policy.backoff),
                    timeout
                ],
            )
            .map_err(failed)?;
        if added == 0 {
            return Ok(Subscribed::Exists);
        }
        let moved = match new.from {
            Some(id) => Some(move_in(&transaction, new.consumer, id, true).map_err(failed)?),
            None => None,
        };
        transaction.commit().map_err(failed)?;
        Ok(Subscribed::Added(moved))
    }

    /// Removes a consumer's subscription; its cursor and its dead letters stay. Answers with what
    /// was removed.
    pub fn unsubscribe(&mut self, consumer: &ConsumerId) -> Result<Option<Subscription>> {
        let failed = |e: rusqlite::Error| database(&e, "unsubscribing");
        self.must_be_writable("unsubscribing")?;
        let transaction =
            self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let removed = one(&transaction, consumer).map_err(failed)?;
        if removed.is_some() {
            let sql = "DELETE FROM subscriptions WHERE consumer_id = ?";
            transaction.execute(sql, [consumer.as_str()]).map_err(failed)?;
            transaction.commit().map_err(failed)?;
        }
        Ok(removed)
    }
}

/// The subscription of that consumer, as this connection sees it.
pub(super) fn one(conn: &Connection, consumer: &ConsumerId) -> rusqlite::Result<Option<Subscription>> {
    Ok(between(conn, &consumer.as_str(), &consumer.as_str())?.pop())
}

pub(super) fn all(conn: &Connection) -> rusqlite::Result<Vec<Subscription>> {
    // Every text sorts before every blob, and blobs, which other programs may have stored, before
    // the longest of the largest bytes.
    between(conn, &"", &[0xff_u8; 256])
}

/// One statement for one and for all, because to prepare it takes longer than to run it.
fn between(conn: &Connection, first: &dyn ToSql, last: &dyn ToSql) -> rusqlite::Result<Vec<Subscription>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM subscriptions s LEFT JOIN consumer_progress p USING (consumer_id) \
         WHERE s.consumer_id BETWEEN ? AND ? ORDER BY s.consumer_id"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    // Looked up here: to find forty columns by name is most of the work on a row.
    let columns: Columns =
        statement.column_names().enumerate().map(|(at, name)| (name.to_owned(), at)).collect();
    statement.query_map([first, last], |row| map(row, &columns))?.collect()
}

/// Where in a row each column stands.
type Columns = HashMap<String, usize>;

fn map(row: &rusqlite::Row<'_>, columns: &Columns) -> rusqlite::Result<Subscription> {
    let value = |column: &str| row.get_ref(columns[column]);
    let text = |column: &str| value(column).map(text_of);
    // What is no number was not written by this program, and must not hide the other rows.
    let number = |column: &str| value(column).map(|value| value.as_i64().ok());
    let count = |column: &str| number(column).map(|n| n.unwrap_or(0));
    let time = |column: &str| text(column).map(|text| text.as_deref().and_then(parse_time));
    let boot = text("run_boot")?.unwrap_or_default();
    let process = |pid: &str, start: &str| -> rusqlite::Result<Option<Identity>> {
        let pid = number(pid)?.and_then(|pid| u32::try_from(pid).ok());
        Ok(pid.zip(number(start)?).map(|(pid, start)| Identity { pid, start, boot: boot.clone() }))
    };
    let mark = match (text("mark_filter")?, number("mark_from")?, number("mark_upto")?) {
        (Some(filter), Some(from), Some(upto)) => Some(Mark { filter, from, upto }),
        _ => None,
    };
    let plain = Policy::default();
    let policy = Policy {
        deliver: text("deliver")?.as_deref().and_then(Deliver::parse).unwrap_or(plain.deliver),
        batch_size: number("batch_size")?
            .and_then(|n| u64::try_from(n).ok())
            .unwrap_or(plain.batch_size)
            .max(1),
        max_attempts: number("max_attempts")?
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(plain.max_attempts),
        backoff: text("backoff")?
            .and_then(|list| duration::parse_list(&list).ok())
            .filter(|list| !list.is_empty())
            .unwrap_or(plain.backoff),
        timeout: span(number("timeout_ms")?),
    };
    let stop = match (number("stop_signal")?, span(number("stop_kill_ms")?)) {
        (Some(signal), Some(kill_after)) => {
            i32::try_from(signal).ok().map(|signal| StopRequest { signal, kill_after })
        }
        _ => None,
    };
    let task = match text("run_task")? {
        Some(kind) => Some(Task::from_columns(&kind, count("run_last")?)),
        None => None,
    };
    let state = State {
        phase: Phase::parse(text("phase")?.as_deref()),
        paused: count("paused")? != 0,
        reason: text("reason")?,
        attempts: u32::try_from(count("attempts")?).unwrap_or(0),
        next_try: time("next_try")?,
        supervisor: process("run_pid", "run_start")?,
        handler: process("handler_pid", "handler_start")?,
        since: time("run_since")?,
        began: time("run_began")?,
        ended: time("run_ended")?,
        last_exit: text("run_exit")?,
        task,
        run_cursor: count("run_cursor")?,
        run_newest: count("run_newest")?.max(0),
        narrow_upto: count("narrow_upto")?,
        dead_streak: count("dead_streak")? != 0,
        stop,
    };
    Ok(Subscription {
        consumer: ConsumerId::stored(text("consumer_id")?.unwrap_or_default()),
        handler_cmd: text("handler_cmd")?.unwrap_or_default(),
        filter: text("filter")?,
        cwd: bytes_of(value("cwd")?).map(|bytes| PathBuf::from(OsString::from_vec(bytes.to_vec()))),
        token: text("token")?,
        mark,
        filter_errors: count("filter_errors")?,
        filter_error_id: count("filter_error_id")?,
        policy,
        state,
        dead: count("dead")?,
        dead_to_retry: count("dead_to_retry")?,
        last_acked_id: count("last_acked_id")?.max(0),
        updated_at: text("updated_at")?,
    })
}

/// A span in whole milliseconds.
pub(super) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

fn span(millis: Option<i64>) -> Option<Duration> {
    millis.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)
}

/// A path as TEXT where it is text, else as a BLOB of its bytes.
fn path_value(path: &Path) -> Value {
    match path.to_str() {
        Some(text) => Value::Text(text.to_owned()),
        None => Value::Blob(path.as_os_str().as_bytes().to_vec()),
    }
}
