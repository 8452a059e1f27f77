//! The lease of a consumer's runs: which machine has them for itself, and since which epoch.
//!
//! No two clocks are compared. The holder counts from when it sent its last renewal. Another machine takes the
//! lease once it was given back, or once it has itself seen the same epoch and renewal for a whole lease. A writer
//! names its epoch, if it has one, and is refused if that is not the newest.
//!
//! The number of a renewal is the server's time in milliseconds, for people, or one more than the number before, if that
//! is greater. Nothing but its change means anything to other machines.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use thread::files::CONTROL;
use thread::model::run::{RunState, StopRequest};
use thread::model::subscription::ConsumerId;
use thread::store::{Lease, Leased};
use thread::{Error, Result};

use crate::clock::now;
use crate::json::from_json;
use crate::link::{Link, Locks, Session, int, text};
use crate::machine::Machine;

/// The number of the next renewal.
const NEXT: &str = "greatest(l.renewal + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)";

const DOING: &str = "taking the lease of a consumer";

/// How often to check whether the end of the run was requested.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a renewal waits for others.
const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait until a lease was given back.
const GIVING_BACK: Duration = Duration::from_secs(3);

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
    let sql = "SELECT epoch FROM @leases WHERE thread = $1 AND consumer_id = $2";
    match session.number(sql, &[text(&consumer.as_str())])? {
        Some(newest) if newest == epoch => Ok(()),
        _ => Err(Error::Fenced(consumer.clone())),
    }
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
    pub holder: Option<String>,
    pub epoch: i64,
    pub renewal: i64,
    pub length_ms: i64,
}

impl Stored {
    /// Whether another machine has it and may be alive. `asked` is the time before the row was asked for.
    pub fn is_held_elsewhere(&self, machine: &Machine, consumer: &ConsumerId, asked: i64) -> bool {
        match &self.holder {
            Some(holder) if *holder != machine.id() => {
                let seen = machine.first_seen(consumer, self.epoch, self.renewal);
                asked - seen < self.length_ms
            }
            _ => false,
        }
    }
}

/// Takes the lease for this machine, unless another one has it.
pub fn take(link: &mut Link, consumer: &ConsumerId, length: Duration) -> Result<Leased> {
    let machine = Machine::of(&link.target)?;
    let length_ms = i64::try_from(length.as_millis()).unwrap_or(i64::MAX / 4);
    let asked = now();
    let epoch = link.transact(DOING, Locks::Consumer(consumer), true, |session| {
        let sql =
            "SELECT holder, epoch, renewal, length_ms FROM @leases WHERE thread = $1 AND consumer_id = $2";
        let stored = session.row(sql, &[text(&consumer.as_str())])?.map(|row| Stored {
            holder: row.get(0),
            epoch: row.get(1),
            renewal: row.get(2),
            length_ms: row.get(3),
        });
        if stored.is_some_and(|stored| stored.is_held_elsewhere(&machine, consumer, asked)) {
            return Ok(None);
        }
        let sql = format!(
            "INSERT INTO @leases AS l (thread, consumer_id, epoch, renewal, holder, host, length_ms) \
             VALUES ($1, $2, 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $3, $4, $5) \
             ON CONFLICT (thread, consumer_id) DO UPDATE \
             SET epoch = l.epoch + 1, renewal = {NEXT}, holder = $3, host = $4, length_ms = $5 \
             RETURNING epoch"
        );
        session.number(
            &sql,
            &[text(&consumer.as_str()), text(&machine.id()), text(&machine.host()), int(&length_ms)],
        )
    })?;
    let Some(epoch) = epoch else { return Ok(Leased::Elsewhere) };
    let key = (link.target.base()?, consumer.clone());
    let shared = Arc::new(Shared {
        until: AtomicI64::new(asked.saturating_add(length_ms)),
        state: Mutex::default(),
        noticed: Condvar::new(),
    });
    let (ends, ended) = channel();
    let renewer = Renewer {
        consumer: consumer.clone(),
        epoch,
        length_ms,
        renewed: asked,
        revision: None,
        control: key.0.join(CONTROL),
        shared: Arc::clone(&shared),
        ends,
    };
    // A separate connection, which nothing else delays. A short run never needs it.
    let mut link = link.again(BUSY_LIMIT);
    let spawned = std::thread::Builder::new().name("lease".to_owned()).spawn(move || renewer.run(&mut link));
    spawned.map_err(|source| Error::Spawn { what: "a thread", source })?;
    let mut epochs = EPOCHS.lock().unwrap_or_else(PoisonError::into_inner);
    epochs.get_or_insert_default().insert(key.clone(), epoch);
    Ok(Leased::Taken(Box::new(Held { key, epoch, length, shared, ended })))
}

/// What the holder of a lease and its renewer share.
struct Shared {
    /// Until when no other machine can have it, on the clock of [`now`].
    until: AtomicI64,
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
    length: Duration,
    shared: Arc<Shared>,
    ended: Receiver<()>,
}

impl Lease for Held {
    fn epoch(&self) -> i64 {
        self.epoch
    }

    fn length(&self) -> Duration {
        self.length
    }

    fn left(&self) -> Duration {
        let left = self.shared.until.load(Ordering::SeqCst).saturating_sub(now());
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
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

/// Renews a lease on a dedicated thread, and passes on requests of other machines.
struct Renewer {
    consumer: ConsumerId,
    epoch: i64,
    length_ms: i64,
    /// When the last renewal was sent.
    renewed: i64,
    /// The consumer's row as it was last seen.
    revision: Option<(String, i64)>,
    /// The file that the supervisor watches.
    control: PathBuf,
    shared: Arc<Shared>,
    /// Dropped at the end.
    ends: Sender<()>,
}

impl Renewer {
    fn run(mut self, link: &mut Link) {
        let step = LOOK_EVERY.min(Duration::from_millis((self.length_ms / 16).max(1).unsigned_abs()));
        loop {
            let idle = |state: &mut State| !state.is_given_back && !state.looks;
            let waited = self.shared.noticed.wait_timeout_while(self.shared.state(), step, idle);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.looks = false;
            if state.is_given_back {
                break;
            }
            drop(state);
            let due = now() - self.renewed >= self.length_ms / 4;
            // What fails is tried again with the next step.
            if due && matches!(self.renew(link), Ok(false)) {
                // Another machine has it.
                self.shared.until.store(0, Ordering::SeqCst);
                break;
            }
            drop(self.pass_on(link));
        }
        drop(self.give_back(link));
        drop(self.ends);
    }

    /// Returns false if another machine has taken the lease.
    fn renew(&mut self, link: &mut Link) -> Result<bool> {
        let sent = now();
        // Synced: after a crash, others must not see an earlier renewal again.
        let is_ours = link.transact("renewing a lease", Locks::None, true, |session| {
            let sql = format!(
                "UPDATE @leases AS l SET renewal = {NEXT} \
                 WHERE thread = $1 AND consumer_id = $2 AND epoch = $3 RETURNING epoch"
            );
            Ok(session.row(&sql, &[text(&self.consumer.as_str()), int(&self.epoch)])?.is_some())
        })?;
        if is_ours {
            self.renewed = sent;
            self.shared.until.store(sent.saturating_add(self.length_ms), Ordering::SeqCst);
        }
        Ok(is_ours)
    }

    /// Passes requests of other machines, and changes of the consumer's row, to the supervisor.
    fn pass_on(&mut self, link: &mut Link) -> Result<()> {
        let sql = "SELECT token, revision, run FROM @consumers WHERE thread = $1 AND consumer_id = $2";
        let row =
            link.reading("asking for changes", |session| session.row(sql, &[text(&self.consumer.as_str())]))?;
        let state: Option<RunState> = row.as_ref().map(|row| from_json(row.get(2)));
        let revision = row.map(|row| (row.get(0), row.get(1)));
        if self.revision != revision {
            let stop = state.and_then(|state| state.stop);
            self.shared.state().stop = revision.clone().map(|(token, _)| token).zip(stop);
            self.revision = revision;
            if let Ok(file) = File::options().write(true).open(&self.control) {
                drop(file.set_modified(SystemTime::now()));
            }
        }
        Ok(())
    }

    fn give_back(&self, link: &mut Link) -> Result<()> {
        link.transact("giving back a lease", Locks::None, true, |session| {
            let sql =
                "UPDATE @leases SET holder = NULL WHERE thread = $1 AND consumer_id = $2 AND epoch = $3";
            session.rows(sql, &[text(&self.consumer.as_str()), int(&self.epoch)]).map(drop)
        })
    }
}
