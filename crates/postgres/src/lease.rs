//! The lease of a consumer's runs: which machine has them for itself, and since which epoch.
//!
//! No two clocks are compared. The holder counts from when it sent its last renewal. Another machine takes the
//! lease once it was given back, or once it has itself seen the same epoch and renewal for a whole lease. A writer
//! names its epoch, if it has one, and is refused if that is not the newest.
//!
//! Of a pool, each machine that works for it has a lease of its own, with a row under the consumer's name, a tilde and the
//! machine. The consumer's own row then counts the epochs, and has a holder and a length with which older programs leave the
//! pool to others. A machine's row is there as long as the lease is not given back, or ended by another machine once it is
//! over.
//!
//! The number of a renewal is the server's time in milliseconds, for people, or one more than the number before, if that
//! is greater. Nothing but its change means anything to other machines.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use thread::files::{COMMIT, CONTROL};
use thread::model::run::{RunState, StopRequest};
use thread::model::subscription::ConsumerId;
use thread::store::{Lease, Leased};
use thread::{Error, Result};

use crate::clock::now;
use crate::connection::Turn;
use crate::holders::{self, NEXT, Registered, Row};
use crate::json::from_json;
use crate::link::{Link, Locks, Session, int, text};
use crate::machine::Machine;

const DOING: &str = "taking the lease of a consumer";

/// How often to check whether the end of the run was requested.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a renewal waits for others.
const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// For how long a change that was passed on makes a request for a look superfluous, in milliseconds.
const PASSED_ON_FOR: i64 = 1000;

/// How long to wait until a lease was given back, and for a connection for that.
const GIVING_BACK: Duration = Duration::from_secs(3);
const FOR_GIVING_BACK: Duration = Duration::from_secs(2);

/// The holder of the lease of a pool, which machines share.
pub const ALL: &str = "~";

/// How long nobody takes that lease, in milliseconds.
const FOREVER: i64 = i64::MAX / 4;

/// The epochs of the leases that this process has, by the base of the thread and the consumer.
static EPOCHS: Mutex<Option<HashMap<(PathBuf, ConsumerId), i64>>> = Mutex::new(None);

/// Refuses writes under an epoch that is no longer the newest: that of a lease which this process has, or that of
/// the handler whose child it is. Called in a transaction that has the lock of the consumer.
///
/// # Errors
///
/// [`Error::Fenced`].
pub fn fence(session: &mut Session<'_>, consumer: &ConsumerId) -> Result<()> {
    let Some(epoch) = own_epoch(session, consumer) else { return Ok(()) };
    // No epoch is given twice, so it does not matter which of them has it; and a handler may have another state
    // directory than its machine.
    let sql = "SELECT epoch FROM @leases WHERE thread = $1 AND epoch = $3 \
               AND (consumer_id = $2 OR starts_with(consumer_id, $2 || '~'))";
    match session.number(sql, &[text(&consumer.as_str()), int(&epoch)])? {
        Some(_) => Ok(()),
        None => Err(Error::Fenced(consumer.clone())),
    }
}

/// The name of the lease that a machine has of a pool.
fn name_of(consumer: &ConsumerId, machine: &str) -> String {
    format!("{}~{machine}", consumer.as_str())
}

fn own_epoch(session: &Session<'_>, consumer: &ConsumerId) -> Option<i64> {
    let key = (session.target.base().ok()?, consumer.clone());
    let epochs = EPOCHS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(epoch) = epochs.as_ref().and_then(|epochs| epochs.get(&key)) {
        return Some(*epoch);
    }
    let is = |name: &str, value: &std::ffi::OsStr| std::env::var_os(name).is_some_and(|found| found == value);
    let is_own = is("THREAD_CONSUMER", consumer.as_str().as_ref())
        && is("THREAD_DIR", session.target.location.as_os_str());
    std::env::var("THREAD_EPOCH").ok().filter(|_| is_own)?.parse().ok()
}

/// A lease as it is stored.
pub struct Stored {
    pub name: String,
    pub holder: Option<String>,
    pub epoch: i64,
    pub renewal: i64,
    pub length_ms: i64,
    pub host: String,
    /// How long ago it was renewed, by the server's clock, in milliseconds.
    pub age: i64,
}

impl Stored {
    /// Whether another machine has it and may be alive. `asked` is the time before the row was asked for.
    pub fn is_held_elsewhere(&self, machine: &Machine, asked: i64) -> bool {
        match &self.holder {
            Some(holder) if *holder == ALL => false,
            Some(holder) if *holder != machine.id() => {
                let seen = machine.first_seen(&self.name, self.epoch, self.renewal);
                asked - seen < self.length_ms
            }
            _ => false,
        }
    }
}

/// The leases of a consumer: its own, and those of machines that share a pool.
fn of_consumer(session: &mut Session<'_>, consumer: &ConsumerId) -> Result<Vec<Stored>> {
    let sql = "SELECT consumer_id, holder, epoch, renewal, length_ms, host, \
                      (extract(epoch FROM clock_timestamp()) * 1000)::bigint - renewal FROM @leases \
               WHERE thread = $1 AND (consumer_id = $2 OR starts_with(consumer_id, $2 || '~'))";
    let rows = session.rows(sql, &[text(&consumer.as_str())])?;
    Ok(rows
        .iter()
        .map(|row| Stored {
            name: row.get(0),
            holder: row.get(1),
            epoch: row.get(2),
            renewal: row.get(3),
            length_ms: row.get(4),
            host: row.get(5),
            age: row.get(6),
        })
        .collect())
}

/// Those of the machines that share a pool.
pub fn of_pool(session: &mut Session<'_>, consumer: &ConsumerId) -> Result<Vec<Stored>> {
    let mut all = of_consumer(session, consumer)?;
    all.retain(|lease| lease.name != consumer.as_str());
    Ok(all)
}

/// Ends the lease of another machine that works for a pool, if it is over. Returns whether it is.
pub fn end(link: &mut Link, consumer: &ConsumerId, machine: &str) -> Result<bool> {
    let own = Machine::of(&link.target)?;
    let name = name_of(consumer, machine);
    link.transact("ending the lease of another machine", Locks::Consumer(consumer), true, |session| {
        let asked = now();
        let all = of_consumer(session, consumer)?;
        let Some(lease) = all.iter().find(|lease| lease.name == name) else { return Ok(true) };
        if lease.is_held_elsewhere(&own, asked) {
            return Ok(false);
        }
        remove(session, &name, lease.epoch)?;
        // It may be the newest one, which is refused now.
        let sql = "UPDATE @leases SET epoch = $3 WHERE thread = $1 AND consumer_id = $2";
        session.rows(sql, &[text(&consumer.as_str()), int(&next_epoch(&all))])?;
        Ok(true)
    })
}

fn next_epoch(all: &[Stored]) -> i64 {
    all.iter().map(|lease| lease.epoch).max().unwrap_or(0) + 1
}

fn remove(session: &mut Session<'_>, name: &str, epoch: i64) -> Result<()> {
    let sql = "DELETE FROM @leases WHERE thread = $1 AND consumer_id = $2 AND epoch = $3";
    session.rows(sql, &[text(&name), int(&epoch)]).map(drop)
}

/// Takes the lease for this machine, unless another one has it. `is_shared` says whether it is that of a pool.
pub fn take(
    link: &mut Link,
    consumer: &ConsumerId,
    length: Duration,
    is_shared: impl FnOnce(&mut Session<'_>) -> Result<bool>,
) -> Result<Leased> {
    let machine = Machine::of(&link.target)?;
    let length_ms = i64::try_from(length.as_millis()).unwrap_or(i64::MAX / 4);
    let asked = now();
    let taken = link.transact(DOING, Locks::Consumer(consumer), true, |session| {
        let all = of_consumer(session, consumer)?;
        let is_shared = is_shared(session)?;
        let excludes = |lease: &&Stored| !is_shared || lease.name == consumer.as_str();
        if all.iter().filter(excludes).any(|lease| lease.is_held_elsewhere(&machine, asked)) {
            return Ok(None);
        }
        let epoch = next_epoch(&all);
        let mut write = |name: &str, holder: &str, length_ms: i64| {
            let sql = format!(
                "INSERT INTO @leases AS l (thread, consumer_id, epoch, renewal, holder, host, length_ms) \
                 VALUES ($1, $2, $6, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $3, $4, $5) \
                 ON CONFLICT (thread, consumer_id) DO UPDATE \
                 SET epoch = $6, renewal = {NEXT}, holder = $3, host = $4, length_ms = $5"
            );
            let (length_ms, epoch) = (int(&length_ms), int(&epoch));
            session
                .rows(&sql, &[text(&name), text(&holder), text(&machine.host()), length_ms, epoch])
                .map(drop)
        };
        if is_shared {
            write(consumer.as_str(), ALL, FOREVER)?;
            write(&name_of(consumer, machine.id()), machine.id(), length_ms)?;
        } else {
            write(consumer.as_str(), machine.id(), length_ms)?;
            for lease in all.iter().filter(|lease| lease.name != consumer.as_str()) {
                remove(session, &lease.name, lease.epoch)?;
            }
        }
        Ok(Some((epoch, is_shared.then(|| machine.id().to_owned()))))
    })?;
    let Some((epoch, machine)) = taken else { return Ok(Leased::Elsewhere) };
    let key = (link.target.base()?, consumer.clone());
    let shared = Arc::new(Shared {
        until: AtomicI64::new(asked.saturating_add(length_ms)),
        is_asked_for: AtomicBool::new(false),
        state: Mutex::default(),
        noticed: Condvar::new(),
    });
    let (ends, ended) = channel();
    let renewer = Renewer {
        consumer: consumer.clone(),
        name: machine.as_deref().map_or_else(|| consumer.as_str().to_owned(), |own| name_of(consumer, own)),
        machine: machine.clone(),
        epoch,
        length_ms,
        renewed: asked,
        row: None,
        asked: 0,
        passed_on: asked - PASSED_ON_FOR,
        base: key.0.clone(),
        shared: Arc::clone(&shared),
        ends,
    };
    // A separate connection, which nothing else delays. A short run never needs it.
    let mut link = link.again(BUSY_LIMIT);
    let spawned = std::thread::Builder::new().name("lease".to_owned()).spawn(move || renewer.run(&mut link));
    spawned.map_err(|source| Error::Spawn { what: "a thread", source })?;
    let mut epochs = EPOCHS.lock().unwrap_or_else(PoisonError::into_inner);
    epochs.get_or_insert_default().insert(key.clone(), epoch);
    Ok(Leased::Taken(Box::new(Held { key, epoch, machine, length, shared, ended })))
}

/// What the holder of a lease and its renewer share.
struct Shared {
    /// Until when no other machine can have it, on the clock of [`now`].
    until: AtomicI64,
    /// The process that renews leases asks for this consumer, too.
    is_asked_for: AtomicBool,
    state: Mutex<State>,
    noticed: Condvar,
}

#[derive(Default)]
struct State {
    is_given_back: bool,
    /// The renewer is to look at the consumer's row at once.
    looks: bool,
    /// The subscription's token, and the request to end its run.
    stop: Option<(String, StopRequest)>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Held {
    key: (PathBuf, ConsumerId),
    epoch: i64,
    machine: Option<String>,
    length: Duration,
    shared: Arc<Shared>,
    ended: Receiver<()>,
}

impl Lease for Held {
    fn epoch(&self) -> i64 {
        self.epoch
    }

    fn machine(&self) -> Option<&str> {
        self.machine.as_deref()
    }

    fn length(&self) -> Duration {
        self.length
    }

    fn left(&self) -> Duration {
        let left = self.shared.until.load(Ordering::SeqCst).saturating_sub(now());
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }

    fn tells_of_events(&self) -> bool {
        self.shared.is_asked_for.load(Ordering::SeqCst)
    }

    fn stop_request(&self, token: &str) -> Option<StopRequest> {
        let mut state = self.shared.state();
        state.looks = true;
        self.shared.noticed.notify_all();
        state.stop.as_ref().filter(|(of, _)| of == token).map(|(_, stop)| *stop)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.state().is_given_back = true;
        self.shared.noticed.notify_all();
        // Ends with an error once the renewer is done. If that takes longer, others wait until the lease is over.
        self.ended.recv_timeout(GIVING_BACK).ok();
        let mut epochs = EPOCHS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(epochs) = epochs.as_mut().filter(|epochs| epochs.get(&self.key) == Some(&self.epoch)) {
            epochs.remove(&self.key);
        }
    }
}

fn touch(path: &Path) {
    if let Ok(file) = File::options().write(true).open(path) {
        drop(file.set_modified(SystemTime::now()));
    }
}

/// Renews a lease on a dedicated thread, and passes on requests of other machines.
struct Renewer {
    consumer: ConsumerId,
    /// That of the lease.
    name: String,
    /// Of a pool.
    machine: Option<String>,
    epoch: i64,
    length_ms: i64,
    /// When the last renewal was sent.
    renewed: i64,
    /// The consumer's row as it was last seen, and when it was asked for.
    row: Option<Row>,
    asked: i64,
    /// When a change of it was last passed on.
    passed_on: i64,
    /// Where the files are that the supervisor watches.
    base: PathBuf,
    shared: Arc<Shared>,
    /// Dropped at the end.
    ends: Sender<()>,
}

impl Renewer {
    fn run(mut self, link: &mut Link) {
        let step = LOOK_EVERY.min(Duration::from_millis((self.length_ms / 16).max(1).unsigned_abs()));
        // Not for a short run.
        let mut registered = None;
        let mut is_first = true;
        loop {
            let idle = |state: &mut State| !state.is_given_back && !state.looks;
            let waited = self.shared.noticed.wait_timeout_while(self.shared.state(), step, idle);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let looks = std::mem::take(&mut state.looks);
            if state.is_given_back {
                break;
            }
            drop(state);
            if std::mem::take(&mut is_first) {
                let entry = Registered::new(link, &self.name, self.epoch, self.length_ms, self.renewed);
                registered = entry.ok();
                holders::attend(link);
            }
            match self.step(link, registered.as_mut(), looks) {
                // What fails is tried again with the next step.
                Ok(true) | Err(_) => {}
                Ok(false) => {
                    // Another machine has it.
                    self.shared.until.store(0, Ordering::SeqCst);
                    break;
                }
            }
        }
        drop(registered);
        link.turn = Turn::Within(FOR_GIVING_BACK);
        drop(self.give_back(link));
        drop(self.ends);
    }

    /// Takes note of what was done for it, and does the rest itself. Returns false if another machine has taken the lease.
    fn step(
        &mut self,
        link: &mut Link,
        mut registered: Option<&mut Registered>,
        looks: bool,
    ) -> Result<bool> {
        let answer = registered.as_ref().and_then(|registered| registered.answer());
        let is_attended = registered.as_ref().is_some_and(|registered| registered.is_attended());
        let mut is_asked_for =
            is_attended && registered.as_ref().is_some_and(|registered| registered.is_new());
        if let Some(answer) = answer {
            if answer.sent > self.renewed {
                self.note(answer.sent, registered.as_deref_mut());
            }
            is_asked_for |= is_attended && answer.asked > 0;
            // It may have been asked for in the same millisecond as the own look.
            if answer.asked >= self.asked {
                self.pass_on(answer.row, answer.asked);
            }
        }
        let is_known = is_asked_for && self.row.is_some();
        self.shared.is_asked_for.store(is_known, Ordering::SeqCst);
        let age = now() - self.renewed;
        // The process that renews for others may need two steps, and this one another.
        if age >= self.length_ms / 16 * if is_attended { 7 } else { 4 } {
            let is_urgent = age >= self.length_ms / 16 * 9;
            link.turn = if is_urgent { Turn::Within(Duration::ZERO) } else { Turn::OrNever };
            let sent = now();
            match self.renew(link) {
                Ok(true) => self.note(sent, registered),
                Ok(false) => return Ok(false),
                Err(_) => {}
            }
        }
        if !is_asked_for || looks && now() - self.passed_on >= PASSED_ON_FOR {
            link.turn = Turn::OrNever;
            self.look(link)?;
        }
        Ok(true)
    }

    /// Takes note of a renewal.
    fn note(&mut self, sent: i64, registered: Option<&mut Registered>) {
        self.renewed = sent;
        self.shared.until.store(sent.saturating_add(self.length_ms), Ordering::SeqCst);
        if let Some(registered) = registered {
            registered.note(sent);
        }
    }

    /// Returns false if another machine has taken the lease.
    fn renew(&self, link: &mut Link) -> Result<bool> {
        // Synced: after a crash, others must not see an earlier renewal again.
        link.transact("renewing a lease", Locks::None, true, |session| {
            let sql = format!(
                "UPDATE @leases AS l SET renewal = {NEXT} \
                 WHERE thread = $1 AND consumer_id = $2 AND epoch = $3 RETURNING epoch"
            );
            Ok(session.row(&sql, &[text(&self.name), int(&self.epoch)])?.is_some())
        })
    }

    /// Asks for the consumer's row.
    fn look(&mut self, link: &mut Link) -> Result<()> {
        let asked = now();
        let sql = "SELECT c.token, c.revision, c.run, n.newest FROM @consumers AS c \
                   JOIN @counters AS n ON n.thread IN (c.thread, -c.thread) \
                   WHERE c.thread = $1 AND c.consumer_id = $2";
        let row =
            link.reading("asking for changes", |session| session.row(sql, &[text(&self.consumer.as_str())]))?;
        let found = row.map(|row| Row {
            token: row.get(0),
            revision: row.get(1),
            stop: from_json::<RunState>(row.get(2)).stop,
            newest: row.get(3),
        });
        self.pass_on(found, asked);
        Ok(())
    }

    /// Passes requests of other machines, changes of the consumer's row, and new events to the supervisor.
    fn pass_on(&mut self, row: Option<Row>, asked: i64) {
        self.asked = asked;
        let newest = |row: &Option<Row>| row.as_ref().map(|row| row.newest);
        if newest(&self.row) != newest(&row) {
            touch(&self.base.join(COMMIT));
        }
        let about = |row: &Option<Row>| row.as_ref().map(|row| (row.token.clone(), row.revision, row.stop));
        let is_changed = about(&self.row) != about(&row);
        self.row = row;
        if is_changed {
            let stop = self.row.as_ref().and_then(|row| Some((row.token.clone(), row.stop?)));
            self.shared.state().stop = stop;
            self.passed_on = now();
            touch(&self.base.join(CONTROL));
        }
    }

    fn give_back(&self, link: &mut Link) -> Result<()> {
        let consumer = self.consumer.as_str();
        link.transact("giving back a lease", Locks::Consumer(&self.consumer), true, |session| match &self.machine {
            None => {
                let sql =
                    "UPDATE @leases SET holder = NULL WHERE thread = $1 AND consumer_id = $2 AND epoch = $3";
                session.rows(sql, &[text(&consumer), int(&self.epoch)]).map(drop)
            }
            // As long as it is among the crews, it may have handlers.
            Some(machine) => {
                let sql = "DELETE FROM @leases WHERE thread = $1 AND consumer_id = $2 AND epoch = $3 \
                           AND NOT EXISTS (SELECT 1 FROM @consumers WHERE thread = $1 AND consumer_id = $4 \
                             AND (run::json -> 'crews' -> $5) IS NOT NULL)";
                let lease = [text(&self.name), int(&self.epoch), text(&consumer), text(machine)];
                session.rows(sql, &lease).map(drop)
            }
        })
    }
}
