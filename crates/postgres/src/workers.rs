//! The workers of a schema's threads. Each has one row, however many threads it follows, and renews it once a minute.
//!
//! The table is made with a new schema, or by the first worker in an older one. It is outside of the schema's versions:
//! programs that do not know it need not be refused.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postgres::types::Type;
use thread::Result;
use thread::files::host;
use thread::model::run::ProcessId;
use thread::model::time;
use thread::store::RecordedWorker;

use crate::connection::Connection;
use crate::json::to_json;
use crate::known::Known;
use crate::link::{Link, Locks, Session, lock_key, text};
use crate::location::Target;
use crate::migrate;

/// How often a worker renews its row, and how soon it tries again if that fails.
const RENEW_EVERY: Duration = Duration::from_secs(60);
const TRY_EVERY: Duration = Duration::from_secs(10);

/// How long a renewal waits for others.
const BUSY_LIMIT: Duration = Duration::from_secs(1);

/// How long to wait until its row is removed when it ends.
const LEAVING: Duration = Duration::from_secs(2);

/// What this process has recorded in each schema, by the base of that.
static RECORDED: Mutex<Option<HashMap<PathBuf, Recorded>>> = Mutex::new(None);

struct Recorded {
    target: Target,
    /// Those that it follows; `None` for all.
    threads: Option<BTreeSet<i64>>,
    due: Instant,
    has_failed: bool,
}

fn recorded() -> MutexGuard<'static, Option<HashMap<PathBuf, Recorded>>> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that this process follows the thread, or with `of_all` all of the schema, unless it has done so within the
/// last minute. Only the first failure is an error.
pub fn record(link: &mut Link, of_all: bool) -> Result<()> {
    let base = link.target.base_of("")?;
    let threads: Option<Vec<i64>> = {
        let mut all = recorded();
        let own = all.get_or_insert_default().entry(base.clone()).or_insert_with(|| Recorded {
            target: link.target.clone(),
            threads: Some(BTreeSet::new()),
            due: Instant::now(),
            has_failed: false,
        });
        let is_new = match &mut own.threads {
            None => false,
            Some(_) if of_all => own.threads.take().is_some(),
            Some(threads) => threads.insert(link.thread),
        };
        if !is_new && own.due > Instant::now() {
            return Ok(());
        }
        own.threads.as_ref().map(|threads| threads.iter().copied().collect())
    };
    update(link, &base, threads.as_deref())
}

/// Renews what this process has recorded in a schema, if that is due. What fails is tried again later.
pub fn renew(target: &Target) {
    let Ok(base) = target.base_of("") else { return };
    let due = {
        let all = recorded();
        let own = all.as_ref().and_then(|all| all.get(&base)).filter(|own| own.due <= Instant::now());
        own.map(|own| (own.target.clone(), own.threads.as_ref().map(|all| all.iter().copied().collect())))
    };
    let Some((target, threads)): Option<(Target, Option<Vec<i64>>)> = due else { return };
    let prefix = migrate::prefix(&target.schema);
    let mut link = Link::new(target, None, prefix, (0, Known::default()), BUSY_LIMIT);
    drop(update(&mut link, &base, threads.as_deref()));
}

fn update(link: &mut Link, base: &Path, threads: Option<&[i64]>) -> Result<()> {
    let done = write(link, threads);
    let mut all = recorded();
    let Some(own) = all.as_mut().and_then(|all| all.get_mut(base)) else { return done };
    own.due = Instant::now() + if done.is_ok() { RENEW_EVERY } else { TRY_EVERY };
    let had_failed = std::mem::replace(&mut own.has_failed, done.is_err());
    if had_failed { Ok(()) } else { done }
}

fn write(link: &mut Link, threads: Option<&[i64]>) -> Result<()> {
    let (process, host) = (to_json(&ProcessId::own()), host());
    link.transact("recording a worker", Locks::None, false, |session| {
        if !has_table(session)? {
            // Without the lock, two processes that make it at once would disturb each other.
            let lock = lock_key(&[&session.target.schema, "schema"]);
            session.batch(&format!("SELECT pg_advisory_xact_lock({lock}); {}", migrate::WORKERS))?;
        }
        // Those of machines that are gone remove nothing themselves.
        let sql = "WITH gone AS (DELETE FROM @workers WHERE seen < clock_timestamp() - interval '1 day') \
                   INSERT INTO @workers (process, host, threads, since, seen) \
                   SELECT $2, $3, $4, clock_timestamp(), clock_timestamp() WHERE $1 IS NOT NULL \
                   ON CONFLICT (process) DO UPDATE SET threads = $4, seen = clock_timestamp()";
        session.rows(sql, &[text(&process), text(&host), (&threads, Type::INT8_ARRAY)]).map(drop)
    })
}

fn has_table(session: &mut Session<'_>) -> Result<bool> {
    let sql = "SELECT ($1::bigint IS NOT NULL AND to_regclass($$@workers$$) IS NOT NULL)::int::int8";
    Ok(session.number(sql, &[])? == Some(1))
}

/// The workers that follow the thread, those that began first at the beginning.
pub fn list(session: &mut Session<'_>) -> Result<Vec<RecordedWorker>> {
    if !has_table(session)? {
        return Ok(Vec::new());
    }
    let utc =
        |column: &str| format!("to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')");
    let sql = format!(
        "SELECT process, host, {}, {}, (extract(epoch FROM clock_timestamp() - seen) * 1000)::bigint \
         FROM @workers WHERE threads IS NULL OR $1 = ANY(threads) ORDER BY since, process",
        utc("since"),
        utc("seen")
    );
    let rows = session.rows(&sql, &[])?;
    let time = |text: &str| time::parse(text).unwrap_or_default();
    Ok(rows
        .iter()
        .filter_map(|row| {
            // What another program may have stored in another form is left out.
            let process: ProcessId = serde_json::from_str(row.get(0)).ok()?;
            let age = Duration::from_millis(u64::try_from(row.get::<_, i64>(4)).unwrap_or(0));
            let (since, seen) = (time(row.get(2)), Some((time(row.get(3)), age)));
            Some(RecordedWorker { process, host: row.get(1), since, seen })
        })
        .collect())
}

/// Removes what this process has recorded. Does not wait long for a server that is away.
pub fn leave() {
    let all = recorded().take().unwrap_or_default();
    let (ends, ended) = channel::<()>();
    for Recorded { target, .. } in all.into_values() {
        let ends = ends.clone();
        let remove = move || {
            let sql =
                "DELETE FROM @workers WHERE process = $1".replace('@', &migrate::prefix(&target.schema));
            if let Ok(mut connection) = Connection::take(&target.settings) {
                drop(connection.client.query_typed(&sql, &[(&to_json(&ProcessId::own()), Type::TEXT)]));
            }
            drop(ends);
        };
        drop(std::thread::Builder::new().name("leave".to_owned()).spawn(remove));
    }
    drop(ends);
    // Ends with an error once all are done.
    ended.recv_timeout(LEAVING).ok();
}
