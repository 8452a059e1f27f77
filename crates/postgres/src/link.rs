//! The connection of an open thread, its transactions, and statements in them.
//!
//! In the SQL of this crate, `@` stands for the name of the schema and a dot. No statement has a name, settings and
//! locks belong to a transaction, and nothing else is left at the server, so a pooler may give each transaction
//! another connection.

use std::time::Duration;

use postgres::types::{ToSql, Type};
use postgres::{Client, Row, SimpleQueryMessage};
use sha1::{Digest, Sha1};
use thread::error::DatabaseErrorKind as Kind;
use thread::model::closed::{CLOSED, Closed};
use thread::model::subscription::ConsumerId;
use thread::{Error, Result};

use crate::connection::{Connection, PATIENT, Turn, is_sparing};
use crate::error::{self, Doing, failed};
use crate::known::Known;
use crate::location::Target;

/// How long a transaction may wait for this process, which may be cut off or stopped, before the server ends it. Others
/// wait for its locks: for less time than the shortest lease, of 4 seconds, has left when it is renewed.
const LONGEST_PAUSE: &str = "2s";

/// The same for a reader, which excludes nobody and waits for the program that takes its output.
const LONGEST_READING: &str = "1min";

/// The time, as events have it.
pub const NOW: &str = r#"to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"#;

/// A parameter of a statement, and its type: with it, a statement needs one round trip and no name.
pub type Param<'p> = (&'p (dyn ToSql + Sync), Type);

pub fn int(value: &i64) -> Param<'_> {
    (value, Type::INT8)
}

pub fn text(value: &(dyn ToSql + Sync)) -> Param<'_> {
    (value, Type::TEXT)
}

pub fn bytes(value: &(dyn ToSql + Sync)) -> Param<'_> {
    (value, Type::BYTEA)
}

/// The key of an advisory lock.
pub fn lock_key(of: &[&str]) -> i64 {
    let digest = Sha1::digest(["thread", &of.join("\0")].join("\0").as_bytes());
    i64::from_be_bytes(digest[..8].try_into().expect("it is longer"))
}

/// An open thread.
pub struct Link {
    pub target: Target,
    prefix: String,
    pub thread: i64,
    pub known: Known,
    /// The table of figures was not there, or could not be used.
    pub has_tried_figures: bool,
    /// `None` before it is needed, and while it is lent.
    connection: Option<Connection>,
    /// How long operations wait for others.
    busy_limit: Duration,
    /// Something failed while a transaction was open, so the connection is not used again.
    is_spoilt: bool,
    /// A snapshot is read, which another connection would not have.
    in_snapshot: bool,
    /// A transaction is open.
    in_transaction: bool,
    /// That transaction is still to be written in, and has the lock of this consumer.
    held: Option<ConsumerId>,
    /// How it comes by a connection.
    pub turn: Turn,
}

/// Whom a transaction excludes.
#[derive(Debug, Clone, Copy)]
pub enum Locks<'l> {
    /// Nothing beyond what its statements exclude by themselves.
    None,
    /// Changes of the same consumer.
    Consumer(&'l ConsumerId),
    /// Changes of any consumer of the thread.
    Consumers,
    /// The same, also if the thread is closed.
    All,
}

impl Link {
    /// `thread` is its number, in the schema with this name in front of those of tables.
    pub fn new(
        target: Target,
        connection: Option<Connection>,
        prefix: String,
        (thread, known): (i64, Known),
        busy_limit: Duration,
    ) -> Link {
        Link {
            target,
            prefix,
            thread,
            known,
            has_tried_figures: false,
            connection,
            busy_limit,
            is_spoilt: false,
            in_snapshot: false,
            in_transaction: false,
            held: None,
            turn: PATIENT,
        }
    }

    /// The same thread, by another connection, which is taken when it is needed.
    pub fn again(&self, busy_limit: Duration) -> Link {
        let (target, prefix) = (self.target.clone(), self.prefix.clone());
        let thread = (self.thread, self.known);
        Link::new(target, None, prefix, thread, busy_limit)
    }

    /// The connection; a new one if it was lost.
    pub fn connection(&mut self) -> Result<&mut Connection> {
        let settings = &self.target.settings;
        let is_lost = |now: &Connection| self.is_spoilt || now.client.is_closed();
        if self.in_snapshot && self.connection.as_ref().is_none_or(is_lost) {
            let message = "the connection was lost".to_owned();
            return Err(error::database(Kind::Unreachable, "reading rows", message, "try again"));
        }
        let connection = match self.connection.take() {
            None => Connection::take_in(settings, self.turn)?,
            Some(now) if is_lost(&now) => {
                if self.held.take().is_some() {
                    self.in_transaction = false;
                }
                drop(now);
                Connection::open_in(settings, self.turn)?
            }
            Some(now) => now,
        };
        self.is_spoilt = false;
        Ok(self.connection.insert(connection))
    }

    /// Statements outside of a transaction, each of which sees what is committed when it begins.
    fn session(&mut self, doing: &'static str) -> Result<Session<'_>> {
        self.connection()?;
        Ok(self.in_transaction(doing))
    }

    /// Runs a read, once more if the connection turns out to be lost.
    pub fn reading<T>(
        &mut self,
        doing: &'static str,
        mut work: impl FnMut(&mut Session<'_>) -> Result<T>,
    ) -> Result<T> {
        let done = match work(&mut self.session(doing)?) {
            Err(Error::Database(e)) if e.kind == Kind::Unreachable => {
                self.is_spoilt = true;
                work(&mut self.session(doing)?)
            }
            done => done,
        };
        if done.is_err() {
            // Nothing more can be done in that transaction.
            self.release();
        }
        self.give_back();
        done
    }

    /// Begins a transaction that has the lock of a consumer until the next write, or [`Link::release`].
    pub fn hold(&mut self, consumer: &ConsumerId) -> Result<()> {
        if self.held.is_none() {
            self.begin("taking turns at a pool", Locks::Consumer(consumer), true)?;
            self.held = Some(consumer.clone());
        }
        Ok(())
    }

    /// Ends that transaction without a write.
    pub fn release(&mut self) {
        if self.held.take().is_some() {
            self.roll_back();
            self.in_transaction = false;
            self.give_back();
        }
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        self.release();
        self.connection = None;
    }

    /// Gives the connection back after an operation, in a process that is sparing.
    pub fn give_back(&mut self) {
        if is_sparing() && !self.in_snapshot && !self.in_transaction {
            let connection = self.connection.take().filter(|_| !self.is_spoilt);
            connection.into_iter().for_each(|connection| connection.keep(&self.target.settings));
        }
    }

    /// Executes a statement about any threads of the schema, in a transaction of its own that ends without this process.
    /// `@` stands for the schema's name.
    pub fn at_once(&mut self, doing: &'static str, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let sql = sql.replace('@', &self.prefix);
        let connection = self.connection()?;
        connection.was_warned();
        let done = connection.client.query_typed(&sql, params).doing(doing);
        let is_done = done.is_ok() && !connection.was_warned();
        self.is_spoilt |= done.is_err();
        match done {
            Ok(_) if !is_done => {
                let message = "the server has it, but perhaps no standby".to_owned();
                Err(error::database(Kind::OutcomeUnknown, doing, message, error::UNKNOWN))
            }
            done => done,
        }
    }

    /// Runs `work` in a transaction, which is rolled back if it fails. If it is not `durable`, a crash of the
    /// server may undo it.
    pub fn transact<T>(
        &mut self,
        doing: &'static str,
        locks: Locks<'_>,
        durable: bool,
        work: impl FnOnce(&mut Session<'_>) -> Result<T>,
    ) -> Result<T> {
        match locks {
            Locks::Consumer(consumer) if self.held.as_ref() == Some(consumer) => self.held = None,
            _ => self.begin(doing, locks, durable)?,
        }
        let done = work(&mut self.in_transaction(doing));
        self.end(doing, done)
    }

    /// Begins a transaction, once more if the connection turns out to be lost.
    pub fn begin(&mut self, doing: &'static str, locks: Locks<'_>, durable: bool) -> Result<()> {
        self.release();
        let of_thread = lock_key(&[&self.target.schema, &self.thread.to_string()]);
        // See `Session::closed`.
        let look = format!("SELECT 'closed' FROM {}counters WHERE thread = -{}", self.prefix, self.thread);
        let locks = match locks {
            Locks::None => String::new(),
            Locks::All => format!("; SELECT pg_advisory_xact_lock({of_thread})"),
            Locks::Consumers => format!("; SELECT pg_advisory_xact_lock({of_thread}); {look}"),
            Locks::Consumer(consumer) => {
                let own = lock_key(&[&self.target.schema, &self.thread.to_string(), consumer.as_str()]);
                format!(
                    "; SELECT pg_advisory_xact_lock_shared({of_thread}); SELECT pg_advisory_xact_lock({own}); {look}"
                )
            }
        };
        let durability = match durable {
            // An administrator may have switched it off for others.
            true => {
                "SELECT set_config('synchronous_commit', 'on', true) \
                 WHERE current_setting('synchronous_commit') = 'off'"
            }
            false => "SET LOCAL synchronous_commit = off",
        };
        let busy_limit = self.busy_limit.as_millis().clamp(1, i32::MAX as u128);
        let sql = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {busy_limit}; \
             SET LOCAL idle_in_transaction_session_timeout = '{LONGEST_PAUSE}'; {durability}{locks}"
        );
        for last in [false, true] {
            let connection = self.connection()?;
            connection.was_warned();
            match connection.client.simple_query(&sql) {
                Ok(answers) if answers.iter().any(says_closed) => {
                    let closed = self.in_transaction(doing).closed();
                    self.roll_back();
                    return Err(closed?.map_or_else(error::gone, Error::from));
                }
                Ok(_) => {
                    self.in_transaction = true;
                    return Ok(());
                }
                Err(e) if !last && error::is_unreachable(&e) => self.is_spoilt = true,
                Err(e) => {
                    self.roll_back();
                    return Err(failed(&e, doing));
                }
            }
        }
        Ok(())
    }

    /// Ends a transaction: commits it, or rolls it back if its work failed.
    pub fn end<T>(&mut self, doing: &'static str, done: Result<T>) -> Result<T> {
        let done = self.end_with(doing, done);
        self.in_transaction = false;
        self.give_back();
        done
    }

    fn end_with<T>(&mut self, doing: &'static str, done: Result<T>) -> Result<T> {
        if done.is_err() {
            self.roll_back();
            return done;
        }
        let Some(connection) = &mut self.connection else { return done };
        if let Err(e) = connection.client.batch_execute("COMMIT") {
            self.is_spoilt = true;
            return Err(error::commit(&e, doing));
        }
        // A wait for the standbys that was cut short: the commit is on this server, and perhaps on no other.
        if connection.was_warned() {
            let message = "the server has it, but perhaps no standby".to_owned();
            return Err(error::database(Kind::OutcomeUnknown, doing, message, error::UNKNOWN));
        }
        done
    }

    /// Calls `work` in a transaction that sees what was committed when it began.
    pub fn in_snapshot(&mut self, work: impl FnOnce(&mut Link) -> Result<()>) -> Result<()> {
        let doing = "reading rows";
        let begin = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; \
             SET LOCAL idle_in_transaction_session_timeout = '{LONGEST_READING}'"
        );
        self.release();
        self.connection()?.client.batch_execute(&begin).doing(doing)?;
        self.in_snapshot = true;
        let worked = work(self);
        self.in_snapshot = false;
        self.end(doing, worked)
    }

    /// Looks for tables that others have made since. A process that never reads consumers learns of them only here.
    pub fn look_again(&mut self) -> Result<()> {
        match self.known.steps {
            true => Ok(()),
            false => self.reading("reading the schema's version", |session| session.look_again()),
        }
    }

    /// Executes what may fail.
    pub fn try_out(&mut self, sql: &str) {
        self.release();
        if let Ok(connection) = self.connection() {
            self.is_spoilt |= connection.client.batch_execute(sql).is_err();
        }
        self.give_back();
    }

    fn roll_back(&mut self) {
        if let Some(connection) = &mut self.connection {
            self.is_spoilt |= connection.client.batch_execute("ROLLBACK").is_err();
        }
    }

    /// Gives away the connection, in a transaction, and a statement for it.
    pub fn lend(&mut self, sql: &str) -> (Connection, String) {
        let sql = sql.replace('@', &self.prefix);
        (self.connection.take().expect("it was opened before"), sql)
    }

    /// Takes the connection back.
    pub fn take_back(&mut self, connection: Connection) {
        self.connection = Some(connection);
    }

    pub fn in_transaction(&mut self, doing: &'static str) -> Session<'_> {
        let Link { connection, target, prefix, thread, known, .. } = self;
        let connection = connection.as_mut().expect("it was opened before");
        Session { client: &mut connection.client, target, prefix, thread: *thread, known, doing }
    }
}

/// Whether the answer to the beginning of a transaction says that the thread is closed.
fn says_closed(answer: &SimpleQueryMessage) -> bool {
    matches!(answer, SimpleQueryMessage::Row(row) if row.try_get(0).ok().flatten() == Some("closed"))
}

impl Drop for Link {
    fn drop(&mut self) {
        self.release();
        if let Some(connection) = self.connection.take().filter(|_| !self.is_spoilt) {
            connection.keep(&self.target.settings);
        }
    }
}

/// Where statements of one operation are executed.
pub struct Session<'s> {
    pub client: &'s mut Client,
    pub target: &'s Target,
    prefix: &'s str,
    pub thread: i64,
    pub known: &'s mut Known,
    doing: &'static str,
}

impl Session<'_> {
    /// Executes a statement and returns its rows. `@` stands for the schema's name, `$1` is the number of the
    /// thread, and the other parameters come after it.
    pub fn rows(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let mut all = vec![int(&self.thread)];
        all.extend_from_slice(params);
        self.client.query_typed(&sql.replace('@', self.prefix), &all).doing(self.doing)
    }

    /// Executes statements without parameters and results.
    pub fn batch(&mut self, sql: &str) -> Result<()> {
        self.client.batch_execute(&sql.replace('@', self.prefix)).doing(self.doing)
    }

    /// The only row.
    pub fn row(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Option<Row>> {
        Ok(self.rows(sql, params)?.pop())
    }

    /// The integer in the only row.
    pub fn number(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Option<i64>> {
        Ok(self.row(sql, params)?.and_then(|row| row.get(0)))
    }

    /// As [`Link::look_again`].
    pub fn look_again(&mut self) -> Result<()> {
        if !self.known.steps {
            let sql = "SELECT max(version) FROM @versions WHERE $1::bigint IS NOT NULL";
            let version = self.number(sql, &[])?;
            self.known.note(version.unwrap_or(0));
        }
        Ok(())
    }

    /// The newest id ever assigned.
    pub fn newest(&mut self) -> Result<i64> {
        Ok(self.number("SELECT newest FROM @counters WHERE thread IN ($1, -$1)", &[])?.unwrap_or(0))
    }

    /// Why the thread is closed, if it is. It then has its counter row under the negative of its number: so a push finds
    /// none, and nothing has to look for each push. What changes consumers looks for it when its transaction begins.
    pub fn closed(&mut self) -> Result<Option<Closed>> {
        if self.number("SELECT thread FROM @counters WHERE thread = -$1", &[])?.is_none() {
            return Ok(None);
        }
        let sql = "SELECT value FROM @config WHERE thread = $1 AND name = $2";
        let json = self.row(sql, &[text(&CLOSED)])?.map(|row| row.get::<_, String>(0));
        Ok(Some(Closed::of_json(&json.unwrap_or_default())))
    }
}
