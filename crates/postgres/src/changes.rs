//! In which threads of a schema something has happened, asked for all of them at once.
//!
//! A row says by its `xmin` which transaction wrote it. What was committed since the last look was written by transactions
//! that were in progress then, or began later: by none that is older than the oldest one in progress. So the rows with
//! such a number are asked for, and with them come, as long as an old transaction is in progress, some that are known
//! already. A transaction becomes visible at once, so it is enough to remember which were seen in which thread. That
//! another one with a greater number became visible before makes no difference.
//!
//! Nothing is read if no transaction has ended since the last look. What is deleted is not seen; that makes nothing due.
//!
//! A lease that is over changes no row. So the leases that are held are remembered, with the time at which each was last
//! seen to be renewed. As long as nobody takes one that is over, its thread is named again, ever more seldom: who looked at
//! it may have been mistaken, or may have failed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use postgres::Row;
use postgres::types::Type;
use thread::Result;
use thread::model::location::Location;
use thread::store::{Changed, Changes, ChangesOf};

use crate::clock::now;
use crate::connection::Connection;
use crate::error::Doing;
use crate::lease::ALL;
use crate::link::Param;
use crate::location::Target;
use crate::machine::Machine;
use crate::{migrate, workers};

const DOING: &str = "asking for changes";

/// The tables with rows whose change can make a handler due, each with a condition. What is scheduled, and what finishes
/// events, changes a row of these too. Of the leases, only those count that are given back, or changed by another machine.
const TABLES: [(&str, &str); 5] = [
    ("config", "true"),
    ("consumers", "true"),
    ("counters", "true"),
    ("cursors", "true"),
    ("dead_letters", "r.retry"),
];

const LEASES: &str = "leases";
const THREADS: &str = "threads";

/// By how many milliseconds the server's clock may differ from what was expected. Beyond that it was set, and something
/// may be due.
const DRIFT: i64 = 1000;

/// What asks for the changes of these threads, one for each schema of a server and the role that asks. Others are left out.
pub fn changes(locations: &[Location]) -> Vec<ChangesOf> {
    let mut all: Vec<(Vec<Location>, Asker)> = Vec::new();
    for location in locations {
        let Ok(target) = Target::of_any(location) else { continue };
        let is_same =
            |asker: &Asker| asker.target.settings == target.settings && asker.target.schema == target.schema;
        let at = all.iter().position(|(_, asker)| is_same(asker)).unwrap_or_else(|| {
            all.push((Vec::new(), Asker::new(target.clone())));
            all.len() - 1
        });
        let (of, asker) = &mut all[at];
        of.push(location.clone());
        match target.thread.is_empty() {
            true => asker.whole.push(target),
            false => asker.named.entry(target.thread).or_default().push(location.clone()),
        }
    }
    all.into_iter().map(|(of, asker)| -> ChangesOf { (of, Box::new(asker)) }).collect()
}

struct Asker {
    /// One of the threads, or all.
    target: Target,
    /// As it was named if all threads are meant,
    whole: Vec<Target>,
    /// and as each thread was named by itself.
    named: BTreeMap<String, Vec<Location>>,
    /// One of its own: if it is lost, the server may have crashed, and lost transactions that were not synced.
    connection: Option<Connection>,
    /// Which of the tables there are.
    tables: String,
    /// As of the last look; `None` if it is unknown what has happened since then.
    seen: Option<Seen>,
}

struct Seen {
    server: Server,
    /// In which threads which transactions were seen, since the oldest one in progress.
    transactions: HashSet<(i64, String)>,
    leases: HashMap<(String, String), Lease>,
}

/// What is known of the server.
struct Server {
    /// The snapshot of the look.
    snapshot: String,
    /// When it was started.
    started: String,
    /// By how much its clock differs from that of this machine, in milliseconds; `None` if its answer came too late to
    /// say.
    offset: Option<i64>,
}

impl Server {
    /// Which transaction is the next.
    fn next(&self) -> u64 {
        self.snapshot.split(':').nth(1).and_then(|xid| xid.parse().ok()).unwrap_or(0)
    }

    /// Whether this is the server of the last look, and nothing was undone since.
    fn follows(&self, before: &Server) -> bool {
        self.started == before.started
            && self.next() >= before.next()
            && self.offset.zip(before.offset).is_none_or(|(now, before)| (now - before).abs() <= DRIFT)
    }
}

/// A lease that somebody has.
#[derive(Clone, Copy)]
struct Lease {
    epoch: i64,
    renewal: i64,
    length_ms: i64,
    /// When this renewal was seen first.
    since: i64,
    /// How long after that its thread is named, in milliseconds.
    after: i64,
}

/// A thread is named for so many times the length of a lease that is over, each time after twice as long.
const NAMED_FOR: i64 = 1000;

/// A row of the answer: a thread, and a transaction that has changed it, or a lease.
struct Found {
    thread: i64,
    name: String,
    transaction: String,
    /// The name of the lease, its epoch, its last renewal and its length, if somebody has it.
    lease: Option<(String, i64, i64, Option<i64>)>,
}

impl Found {
    fn of(row: &Row) -> Option<Found> {
        let name: Option<String> = row.get(5);
        let lease: Option<String> = row.get(7);
        let number = |column: usize| row.get::<_, Option<i64>>(column).unwrap_or(0);
        let length_ms: Option<i64> = row.get(10);
        Some(Found {
            thread: number(4),
            name: name?,
            transaction: row.get::<_, Option<String>>(6).unwrap_or_default(),
            lease: lease.map(|name| (name, number(8), number(9), length_ms)),
        })
    }
}

impl Changes for Asker {
    fn ask(&mut self) -> Result<Changed> {
        // A look at a thread would do so, but there may be none for long.
        workers::renew(&self.target);
        let answer = self.look();
        if answer.is_err() {
            (self.connection, self.seen) = (None, None);
            self.tables.clear();
        }
        answer
    }
}

impl Asker {
    fn new(target: Target) -> Asker {
        let (whole, named) = (Vec::new(), BTreeMap::new());
        Asker { target, whole, named, connection: None, tables: String::new(), seen: None }
    }

    fn look(&mut self) -> Result<Changed> {
        loop {
            let sent = now();
            let rows = self.query()?;
            let asked = now();
            let first = &rows[0];
            let tables: String = first.get::<_, Option<String>>(2).unwrap_or_default();
            if tables != self.tables {
                // There are others since the last look, or this is the first one.
                self.tables = tables;
                continue;
            }
            // The longer the answer took, the less is known of the clock.
            let offset = (asked - sent <= DRIFT).then(|| first.get::<_, i64>(3) - asked);
            let mut server = Server { snapshot: first.get(0), started: first.get(1), offset };
            let found: Vec<Found> = rows.iter().filter_map(Found::of).collect();
            let Some(seen) = &mut self.seen else {
                self.seen = Some(Seen::new(server, &found, asked));
                let names = found.iter().filter(|found| found.lease.is_none());
                let threads = self.locations(names.map(|found| found.name.as_str()));
                return Ok(Changed { threads, is_everything: true });
            };
            if !server.follows(&seen.server) {
                self.seen = None;
                continue;
            }
            server.offset = server.offset.or(seen.server.offset);
            let mut changed = seen.take(server, found, asked);
            for ((thread, name), Lease { epoch, renewal, since, .. }) in seen.ended(asked) {
                let target = Target { thread: thread.clone(), ..self.target.clone() };
                // Where that cannot be noted, the look begins to wait for its end.
                if let Ok(machine) = Machine::of(&target) {
                    machine.seen_since(&name, epoch, renewal, since);
                }
                changed.insert(thread);
            }
            let threads = self.locations(changed.iter().map(String::as_str));
            return Ok(Changed { threads, is_everything: false });
        }
    }

    /// The locations of the threads with these names.
    fn locations<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<Location> {
        let (mut all, mut known) = (Vec::new(), HashSet::new());
        for name in names {
            all.extend(self.whole.iter().map(|target| target.sibling(name)));
            all.extend(self.named.get(name).into_iter().flatten().cloned());
        }
        all.retain(|location| known.insert(location.clone()));
        all
    }

    fn query(&mut self) -> Result<Vec<Row>> {
        let names: Vec<&str> = self.named.keys().map(String::as_str).collect();
        let snapshot = self.seen.as_ref().map_or("", |seen| &*seen.server.snapshot);
        let values: [Param<'_>; 2] = [(&snapshot, Type::TEXT), (&names, Type::TEXT_ARRAY)];
        let sql = self.statement().replace('@', &migrate::prefix(&self.target.schema));
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(&self.target.settings)?),
        };
        connection.client.query_typed(&sql, &values).doing(DOING)
    }

    fn statement(&self) -> String {
        let has = |table: &str| self.tables.split(' ').any(|there| there == table);
        let chosen = match self.whole.is_empty() {
            true => "r.thread = ANY(ARRAY(SELECT thread FROM @threads WHERE name = ANY($2)))",
            false => "$2::text[] IS NOT NULL",
        };
        let (is_first, mut parts) = (self.seen.is_none(), Vec::new());
        let recent = match is_first {
            true => "true".to_owned(),
            false => "(SELECT now::text <> $1 FROM server) AND age(r.xmin) BETWEEN 0 AND \
                 (SELECT age(pg_snapshot_xmin($1::pg_snapshot)::xid))"
                .to_owned(),
        };
        let no_lease = "NULL::text COLLATE \"C\" AS lease, NULL::bigint AS epoch, NULL::bigint AS renewal, \
                        NULL::bigint AS length_ms";
        let mut part = |table: &str, lease: &str, condition: &str| {
            parts.push(format!(
                "SELECT r.thread, r.xmin AS transaction, {lease} FROM @{table} AS r \
                 WHERE {chosen} AND {recent} AND {condition}"
            ));
        };
        if has(THREADS) {
            part(THREADS, no_lease, "true");
            if !is_first {
                for (table, condition) in TABLES.iter().filter(|(table, _)| has(table)) {
                    part(table, no_lease, condition);
                }
            }
            if has(LEASES) {
                let held = format!("coalesce(r.holder <> '{ALL}', false)");
                let lease = format!(
                    "r.consumer_id AS lease, r.epoch, r.renewal, CASE WHEN {held} THEN r.length_ms END AS length_ms"
                );
                part(LEASES, &lease, if is_first { &held } else { "true" });
            }
        }
        // Those with something new come first, so that they are looked at first.
        let order = match is_first && ["consumers", "counters", "cursors"].into_iter().all(has) {
            true => {
                "ORDER BY found.thread IN (SELECT c.thread FROM @consumers AS c JOIN @counters AS n USING (thread) \
                 LEFT JOIN @cursors AS p USING (thread, consumer_id) \
                 WHERE coalesce(p.last_acked_id, 0) < n.newest) DESC, found.thread"
            }
            false => "",
        };
        let found = match parts.is_empty() {
            true => format!(
                "SELECT NULL::bigint AS thread, NULL::text AS name, NULL::xid AS transaction, {no_lease}"
            ),
            false => format!(
                "SELECT t.thread, t.name, r.transaction, r.lease, r.epoch, r.renewal, r.length_ms \
                 FROM ({}) AS r JOIN @threads AS t USING (thread)",
                parts.join(" UNION ALL ")
            ),
        };
        let mut tables: Vec<&str> = TABLES.iter().map(|(table, _)| *table).collect();
        tables.extend([LEASES, THREADS]);
        format!(
            "WITH server AS MATERIALIZED (SELECT pg_current_snapshot() AS now) \
             SELECT server.now::text, pg_postmaster_start_time()::text, \
                    (SELECT string_agg(name, ' ') FROM unnest(ARRAY['{}']) AS name \
                     WHERE to_regclass($$@$$ || name) IS NOT NULL \
                       AND (name <> 'config' OR has_table_privilege(to_regclass($$@$$ || name), 'SELECT'))), \
                    (extract(epoch FROM clock_timestamp()) * 1000)::bigint, \
                    found.thread, found.name, found.transaction::text, \
                    found.lease, found.epoch, found.renewal, found.length_ms \
             FROM server LEFT JOIN ({found}) AS found ON $1 IS NOT NULL AND $2 IS NOT NULL {order}",
            tables.join("','")
        )
    }
}

impl Seen {
    /// After a first look, which found all threads, and the leases that are held.
    fn new(server: Server, found: &[Found], asked: i64) -> Seen {
        let mut seen = Seen { server, transactions: HashSet::new(), leases: HashMap::new() };
        for found in found {
            seen.note_lease(found, asked);
        }
        seen
    }

    /// Takes note of what was found. Returns the names of the threads in which something is new.
    fn take(&mut self, server: Server, found: Vec<Found>, asked: i64) -> BTreeSet<String> {
        let before = std::mem::replace(&mut self.server, server);
        // Nothing was read if there is nothing new.
        if before.snapshot == self.server.snapshot {
            return BTreeSet::new();
        }
        let (mut changed, mut transactions) = (BTreeSet::new(), HashSet::new());
        for found in found {
            if self.note_lease(&found, asked) {
                continue;
            }
            let key = (found.thread, found.transaction);
            if !self.transactions.contains(&key) {
                changed.insert(found.name);
            }
            transactions.insert(key);
        }
        self.transactions = transactions;
        changed
    }

    /// Remembers the lease that was found, if there is one and somebody has it.
    fn note_lease(&mut self, found: &Found, asked: i64) -> bool {
        let Some((name, epoch, renewal, length_ms)) = &found.lease else { return false };
        let key = (found.name.clone(), name.clone());
        let Some(length_ms) = *length_ms else {
            self.leases.remove(&key);
            return false;
        };
        let (epoch, renewal) = (*epoch, *renewal);
        let known = self.leases.get(&key);
        if known.is_none_or(|known| (known.epoch, known.renewal) != (epoch, renewal)) {
            let (since, after) = (asked, length_ms.max(1));
            self.leases.insert(key, Lease { epoch, renewal, length_ms, since, after });
        }
        true
    }

    /// The leases that are over, each with the thread and its name, if it is time to name it.
    fn ended(&mut self, asked: i64) -> Vec<((String, String), Lease)> {
        let mut ended = Vec::new();
        self.leases.retain(|key, lease| {
            if asked - lease.since >= lease.after {
                ended.push((key.clone(), *lease));
                lease.after = lease.after.saturating_mul(2);
            }
            lease.after / NAMED_FOR <= lease.length_ms
        });
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(next: u64, started: &str, offset: i64) -> Server {
        Server { snapshot: format!("{next}:{next}:"), started: started.to_owned(), offset: Some(offset) }
    }

    #[test]
    fn what_is_known_of_a_server_counts_until_it_is_another_one_goes_back_or_its_clock_is_set() {
        let before = server(700, "today", -20);
        for (next, started, offset, follows) in [
            (700, "today", -20, true),
            (900, "today", -20, true),
            (699, "today", -20, false),
            (900, "now", -20, false),
            (900, "today", 980, true),
            (900, "today", 981, false),
            (900, "today", -1020, true),
            (900, "today", -1021, false),
        ] {
            let after = server(next, started, offset);
            assert_eq!(after.follows(&before), follows, "{next} {started} {offset}");
        }
        // As it came late, it says nothing of the clock.
        assert!(Server { offset: None, ..server(900, "today", 0) }.follows(&before));
        assert!(!Server { offset: None, ..server(900, "now", -20) }.follows(&before));
    }

    #[test]
    fn a_transaction_is_new_once_and_remembered_only_as_long_as_it_is_asked_for() {
        let mut seen = Seen::new(server(700, "today", 0), &[], 0);
        let mut take = |next: u64, found: &[(i64, &str)]| {
            let found = found.iter().map(|(thread, transaction)| Found {
                thread: *thread,
                name: format!("t{thread}"),
                transaction: (*transaction).to_owned(),
                lease: None,
            });
            let changed = seen.take(server(next, "today", 0), found.collect(), 0);
            (Vec::from_iter(changed).join(" "), seen.transactions.len())
        };
        assert_eq!(take(702, &[(1, "700"), (2, "700"), (1, "701")]), ("t1 t2".to_owned(), 3));
        assert_eq!(take(703, &[(1, "700"), (2, "700"), (1, "702")]), ("t1".to_owned(), 3));
        assert_eq!(take(704, &[(2, "702")]), ("t2".to_owned(), 1));
        // Nothing was read.
        assert_eq!(take(704, &[]), (String::new(), 1));
        assert_eq!(take(705, &[]), (String::new(), 0));
    }

    #[test]
    fn the_thread_of_a_lease_that_is_over_is_named_ever_more_seldom_until_somebody_takes_it() {
        let mut seen = Seen::new(server(700, "today", 0), &[], 0);
        let lease = |renewal: i64, length_ms: Option<i64>| Found {
            thread: 1,
            name: "t".to_owned(),
            transaction: String::new(),
            lease: Some(("bot".to_owned(), 1, renewal, length_ms)),
        };
        let named = |seen: &mut Seen, times: std::ops::Range<i64>| -> Vec<i64> {
            times.step_by(1000).filter(|at| !seen.ended(*at).is_empty()).collect()
        };
        seen.note_lease(&lease(5, Some(4000)), 0);
        assert_eq!(named(&mut seen, 0..20_000), [4000, 8000, 16_000]);
        // It is seen again, and then renewed.
        seen.note_lease(&lease(5, Some(4000)), 20_000);
        assert_eq!(named(&mut seen, 20_000..40_000), [32_000]);
        seen.note_lease(&lease(6, Some(4000)), 40_000);
        assert_eq!(named(&mut seen, 40_000..50_000), [44_000, 48_000]);
        seen.note_lease(&lease(6, None), 50_000);
        assert!(named(&mut seen, 50_000..100_000).is_empty());
        // Not for ever.
        for length in [-1, 0, 1, 4000] {
            seen.note_lease(&lease(length, Some(length)), 0);
            assert!(named(&mut seen, 0..10_000_000).len() <= 11 && seen.leases.is_empty(), "{length}");
        }
    }
}
