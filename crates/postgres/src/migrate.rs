//! The schema, its versions, and the threads in it.

use postgres::types::Type;
use postgres::{Client, IsolationLevel};
use thread::error::Code;
use thread::model::location::Location;
use thread::{Error, Result};

use crate::error::{Doing, failed, problem};
use crate::known::Known;
use crate::link::lock_key;

/// Each brings a schema from the version that is its place in this list to the next one.
const STEPS: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("leases.sql"),
    include_str!("ledger.sql"),
    include_str!("scheduled.sql"),
    include_str!("steps.sql"),
];

/// The table of workers, which is not a part of any version.
pub const WORKERS: &str = include_str!("workers.sql");

/// The version this program knows.
const VERSION: i64 = STEPS.len() as i64;

/// The version of a schema without consumers that finish events singly. Older programs understand it.
const PLAIN_VERSION: i64 = 2;

/// The oldest server that is supported, as it writes its version.
const OLDEST_SERVER: i64 = 150_000;

/// A schema as it is found.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    /// 0 if there is none.
    version: i64,
    thread: Option<i64>,
    has_figures: bool,
}

/// The schema's name in front of that of a table.
pub fn prefix(schema: &str) -> String {
    format!("\"{}\".", schema.replace('"', "\"\""))
}

/// The table of figures, which is not a part of any version either.
pub const FIGURES: &str = include_str!("figures.sql");

/// Whether that table is there, and this role may do with it all that has to be done. Completes a statement.
pub const HAS_FIGURES: &str = "(SELECT coalesce(bool_and(has_table_privilege(to_regclass($$@figures$$), p)), false) \
                               FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p)";

/// The number of a thread, and which tables there are; an older schema is brought up to date.
///
/// # Errors
///
/// [`Error::NotAThread`], [`Error::NewerSchema`]; the server is too old.
pub fn open(client: &mut Client, location: &Location, schema: &str, thread: &str) -> Result<(i64, Known)> {
    let found = find(client, location, schema, thread)?;
    if (1..PLAIN_VERSION).contains(&found.version) {
        bring_up_to_date(client, schema, PLAIN_VERSION)?;
    }
    let thread = found.thread.ok_or_else(|| Error::NotAThread(location.as_os_str().into()))?;
    let mut known = Known { figures: found.has_figures, ..Known::default() };
    known.note(found.version);
    Ok((thread, known))
}

/// Creates a thread, and the schema if it is missing.
///
/// # Errors
///
/// [`Error::AlreadyAThread`], [`Error::NewerSchema`]; the server is too old.
pub fn create(client: &mut Client, location: &Location, schema: &str, thread: &str) -> Result<()> {
    let found = find(client, location, schema, thread)?;
    let already = || Error::AlreadyAThread(location.as_os_str().into());
    if found.thread.is_some() {
        return Err(already());
    }
    if found.version < PLAIN_VERSION {
        bring_up_to_date(client, schema, PLAIN_VERSION)?;
    }
    let sql = "WITH made AS (INSERT INTO @threads (name) VALUES ($1) ON CONFLICT DO NOTHING RETURNING thread) \
               INSERT INTO @counters (thread) SELECT thread FROM made RETURNING thread";
    let sql = sql.replace('@', &prefix(schema));
    let made = client.query_typed(&sql, &[(&thread, Type::TEXT)]).doing("making the thread")?;
    // Another process may have been quicker.
    if made.is_empty() { Err(already()) } else { Ok(()) }
}

/// The names of all threads; none if there is no schema yet.
pub fn threads(client: &mut Client, schema: &str) -> Result<Vec<String>> {
    let sql = "SELECT name FROM @threads ORDER BY thread".replace('@', &prefix(schema));
    match client.query_typed(&sql, &[]) {
        Ok(rows) => Ok(rows.iter().map(|row| row.get(0)).collect()),
        Err(e) if is_missing(&e) => Ok(Vec::new()),
        Err(e) => Err(failed(&e, "listing the threads")),
    }
}

/// Whether there is no schema, or it lacks a table.
fn is_missing(error: &postgres::Error) -> bool {
    error.code().is_some_and(|code| ["3F000", "42P01"].contains(&code.code()))
}

fn find(client: &mut Client, location: &Location, schema: &str, thread: &str) -> Result<Found> {
    let doing = "opening the thread";
    let sql = format!(
        "SELECT current_setting('server_version_num')::bigint, (SELECT max(version) FROM @versions), \
                (SELECT thread FROM @threads WHERE name = $1), {}",
        HAS_FIGURES
    );
    let sql = sql.replace('@', &prefix(schema));
    let (server, found): (i64, Found) = match client.query_typed(&sql, &[(&thread, Type::TEXT)]) {
        Ok(rows) => {
            let row = &rows[0];
            let version = row.get::<_, Option<i64>>(1).unwrap_or(0);
            (row.get(0), Found { version, thread: row.get(2), has_figures: row.get(3) })
        }
        Err(e) if is_missing(&e) => {
            let sql = "SELECT current_setting('server_version_num')::bigint";
            (client.query_typed(sql, &[]).doing(doing)?[0].get(0), Found::default())
        }
        Err(e) => return Err(failed(&e, doing)),
    };
    if server < OLDEST_SERVER {
        let (major, minor) = (server / 10_000, server % 10_000);
        return Err(problem(
            Code::DatabaseFailed,
            format!("the server is PostgreSQL {major}.{minor}, which is too old"),
            "use PostgreSQL 15 or later",
        ));
    }
    if found.version > VERSION {
        let path = location.as_os_str().into();
        return Err(Error::NewerSchema { path, found: found.version, known: VERSION });
    }
    Ok(found)
}

/// Adds the tables of later versions up to this one.
pub fn raise_version(client: &mut Client, schema: &str, to: i64) -> Result<()> {
    let sql = "SELECT max(version) FROM @versions".replace('@', &prefix(schema));
    let rows = client.query_typed(&sql, &[]).doing("reading the schema's version")?;
    let version: Option<i64> = rows[0].get(0);
    if version < Some(to) { bring_up_to_date(client, schema, to) } else { Ok(()) }
}

/// Creates what is missing in the schema up to a version, in one transaction. Only one process does so at a time; the others then
/// find nothing to do.
fn bring_up_to_date(client: &mut Client, schema: &str, to: i64) -> Result<()> {
    let doing = "bringing the schema up to date";
    let encoding: String = client.query_typed("SHOW server_encoding", &[]).doing(doing)?[0].get(0);
    if encoding != "UTF8" {
        return Err(problem(
            Code::DatabaseFailed,
            format!("the database has the encoding {encoding}"),
            "create one with `createdb --encoding UTF8 --template template0`",
        ));
    }
    let prefix = prefix(schema);
    let name = prefix.trim_end_matches('.');
    let lock = lock_key(&[schema, "schema"]);
    let isolation = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    let mut transaction = isolation.start().doing(doing)?;
    transaction.batch_execute(&format!("SELECT pg_advisory_xact_lock({lock})")).doing(doing)?;
    // A role that may not create a schema may use an existing one.
    let exists = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1";
    if transaction.query_typed(exists, &[(&schema, Type::TEXT)]).doing(doing)?.is_empty() {
        transaction.batch_execute(&format!("CREATE SCHEMA {name}")).doing(doing)?;
    }
    let versions = format!("CREATE TABLE IF NOT EXISTS {prefix}versions (version bigint PRIMARY KEY)");
    transaction.batch_execute(&versions).doing(doing)?;
    let version = format!("SELECT coalesce(max(version), 0) FROM {prefix}versions");
    let version: i64 = transaction.query_typed(&version, &[]).doing(doing)?[0].get(0);
    for (at, step) in (0..to).zip(STEPS).skip_while(|(at, _)| *at < version) {
        transaction.batch_execute(&step.replace('@', &prefix)).doing(doing)?;
        let reached = format!("INSERT INTO {prefix}versions VALUES ({})", at + 1);
        transaction.batch_execute(&reached).doing(doing)?;
    }
    for table in [WORKERS, FIGURES] {
        transaction.batch_execute(&table.replace('@', &prefix)).doing(doing)?;
    }
    transaction.commit().doing(doing)
}
