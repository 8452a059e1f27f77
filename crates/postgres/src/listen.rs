//! Announcements between machines, by NOTIFY and LISTEN. They are hints: waiters also look once a second, so
//! nothing is lost where there is no LISTEN, as behind a pooler that gives each transaction another connection.
//!
//! On each machine, one process of a user listens for all threads of a schema, and touches the files in their bases
//! that waiters watch. Which one it is, a lock decides; the others take over within a second.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fallible_iterator::FallibleIterator;
use thread::files::{COMMIT, CONTROL};
use thread::model::exponential_backoff::ExponentialBackoff;
use thread::model::location::Location;
use thread::store::Notice;

use crate::connection::Connection;
use crate::link::lock_key;
use crate::location::Target;

/// How often a process tries to become the one that listens.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// The longest pause between two attempts to connect; the first is [`TRY_EVERY`].
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long a notice to oneself may take before there is no LISTEN here, and how long to do without it then.
const OWN_NOTICE: Duration = Duration::from_secs(5);
const WITHOUT: Duration = Duration::from_secs(600);

/// How often an idle connection is checked.
const CHECK_EVERY: Duration = Duration::from_secs(20);

pub fn channel(target: &Target) -> String {
    format!("thread_{:016x}", lock_key(&[&target.schema, "notices"]))
}

/// The letter with which an announcement begins; the name of the thread follows.
fn letter(what: Notice) -> char {
    match what {
        Notice::Stored => 'e',
        Notice::Asked => 'c',
    }
}

/// Statements that announce something. In a transaction of its own and not synced: NOTIFY makes commits wait for
/// each other, and this one can be lost.
pub fn announcement(target: &Target, what: Notice) -> String {
    let payload = format!("{}{}", letter(what), target.thread.replace('\'', "''"));
    let channel = channel(target);
    format!("BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {channel}, '{payload}'; COMMIT")
}

/// Starts to listen on a dedicated thread, unless this process does so already.
pub fn listen(location: &Location) {
    static ALREADY: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);
    let Ok(target) = Target::of(location) else { return };
    // The empty name is no thread's.
    let Ok(lock) = target.base_of("").map(|base| base.with_extension("listen")) else { return };
    let mut already = ALREADY.lock().unwrap_or_else(PoisonError::into_inner);
    if already.get_or_insert_default().insert(lock.clone()) {
        // Without it, waiters look once a second.
        drop(std::thread::Builder::new().name("listen".to_owned()).spawn(move || run(&target, &lock)));
    }
}

fn run(target: &Target, lock: &PathBuf) -> ! {
    let mut backoff = ExponentialBackoff::new(TRY_EVERY, LONGEST_PAUSE);
    loop {
        let followed = match try_lock(lock) {
            Ok(Some(_lock)) => Some(follow(target)),
            _ => None,
        };
        if followed != Some(Err(false)) {
            backoff.reset();
        }
        std::thread::sleep(match followed {
            Some(Ok(())) => WITHOUT,
            Some(Err(false)) => backoff.pause(),
            Some(Err(true)) | None => TRY_EVERY,
        });
    }
}

fn try_lock(path: &PathBuf) -> io::Result<Option<File>> {
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    let file = File::options().create(true).append(true).open(path)?;
    Ok(file.try_lock().is_ok().then_some(file))
}

/// Listens until the connection is lost: an error, which says whether anything was heard. Returns if there is no
/// LISTEN here.
fn follow(target: &Target) -> Result<(), bool> {
    let mut connection = Connection::open(&target.settings).map_err(|_| false)?;
    let channel = channel(target);
    let client = &mut connection.client;
    client.batch_execute(&format!("LISTEN {channel}")).map_err(|_| false)?;
    // On another connection: a pooler passes on notices that arrive while this one is in use, and no others.
    let mut other = Connection::open(&target.settings).map_err(|_| false)?;
    other.client.batch_execute(&format!("NOTIFY {channel}")).map_err(|_| false)?;
    drop(other);
    let mut heard = false;
    loop {
        let limit = if heard { CHECK_EVERY } else { OWN_NOTICE };
        let next = client.notifications().timeout_iter(limit).next();
        match next {
            Ok(Some(notice)) => {
                heard = true;
                pass_on(target, notice.payload());
            }
            Ok(None) if !heard => return Ok(()),
            Ok(None) => client.is_valid(OWN_NOTICE).map_err(|_| heard)?,
            Err(_) => return Err(heard),
        }
    }
}

/// Touches the files that waiters on this machine watch.
fn pass_on(target: &Target, payload: &str) {
    let Some(what) = payload.chars().next() else { return };
    let file = if what == letter(Notice::Asked) { CONTROL } else { COMMIT };
    if let Ok(base) = target.base_of(&payload[what.len_utf8()..])
        && let Ok(file) = File::options().write(true).open(base.join(file))
    {
        drop(file.set_modified(SystemTime::now()));
    }
}
