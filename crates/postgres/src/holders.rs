//! The leases that processes of this machine hold. One of the processes renews them all, and asks for all whether the rows
//! of their consumers have changed.
//!
//! Each holder has a file with its lease in a folder of the schema, and the lock of that file. What is found for it is
//! written to a file beside it. Which process does so, a lock decides; the others take over within a second. Nothing
//! depends on it: a holder whose lease is not renewed in time does that itself. Until the holder has noted a renewal, its
//! lease is not renewed again, so that one which is suspended loses it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use postgres::types::Type;
use serde::{Deserialize, Serialize};
use thread::Result;
use thread::files::boot_id;
use thread::model::run::StopRequest;

use crate::clock::now;
use crate::connection::Turn;
use crate::json::to_json;
use crate::link::{Link, Param, lock_key};
use crate::location::Target;

/// The number of the next renewal.
pub const NEXT: &str = "greatest(l.renewal + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)";

/// How often to ask for changes, and to try to become the one that does.
const EVERY: Duration = Duration::from_secs(1);
const ASK_AFTER: i64 = 950;

/// How long not to try that after a failure, so that another process can.
const AFTER_FAILURE: Duration = Duration::from_secs(3);

/// After so many milliseconds without a sign of the one that renews, holders do without it,
const HEARD_FOR: i64 = 3000;

/// and after so many, another takes its place, though it has its lock: it may be suspended.
const MISSED_FOR: i64 = 5000;

/// The locks of the one that renews, and of the one that does so in its place.
const LOCKS: [&str; 2] = ["elected-0", "elected-1"];

/// The last sign of it.
const SIGN: &str = "elected";

/// A file without a line for so long is that of a process which was killed just then.
const EMPTY_FOR: Duration = Duration::from_secs(60);

/// With which processes this one shares the clock.
static CLOCK: LazyLock<String> = LazyLock::new(|| {
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    format!("{}{}", boot_id(), namespace.display())
});

/// What is known of a consumer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Those of its row.
    pub token: String,
    pub revision: i64,
    /// The request to end its run.
    pub stop: Option<StopRequest>,
    /// The newest event of the thread.
    pub newest: i64,
}

/// What was found for a holder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// When its last renewal was sent, if it was successful; 0 if there was none.
    pub sent: i64,
    /// When its row was asked for; 0 if it was not.
    pub asked: i64,
    /// `None` if there is no such consumer.
    pub row: Option<Row>,
}

fn dir_of(target: &Target) -> Result<PathBuf> {
    // The empty name is no thread's.
    Ok(target.base_of("")?.with_extension("leases"))
}

/// A lease, as its holder shows it to the one that renews.
#[derive(Debug, PartialEq)]
struct Entry {
    thread: i64,
    /// That of the lease: the consumer's, and of a pool a tilde and the machine.
    name: String,
    epoch: i64,
    length_ms: i64,
    /// When the last renewal was sent of which the holder knows.
    renewed: i64,
}

impl Entry {
    /// Always of the same length, so that a change leaves nothing of the line before.
    fn line(&self) -> String {
        let Entry { thread, name, epoch, length_ms, renewed } = self;
        format!("{} {thread} {epoch} {length_ms} {renewed:>20} {name}\n", *CLOCK)
    }

    /// `None` if it is not complete, or the clock another.
    fn of_line(line: &str) -> Option<Entry> {
        let mut words = line.strip_suffix('\n')?.split_whitespace();
        if words.next()? != *CLOCK {
            return None;
        }
        let mut number = || words.next()?.parse::<i64>().ok();
        let (thread, epoch, length_ms, renewed) = (number()?, number()?, number()?, number()?);
        Some(Entry { thread, name: words.next()?.to_owned(), epoch, length_ms, renewed })
    }
}

/// The entry of a holder, as long as it holds the lease.
pub struct Registered {
    entry: Entry,
    file: File,
    path: PathBuf,
    since: i64,
}

impl Registered {
    pub fn new(link: &Link, name: &str, epoch: i64, length_ms: i64, renewed: i64) -> io::Result<Registered> {
        let dir = dir_of(&link.target).map_err(io::Error::other)?;
        std::fs::create_dir_all(&dir)?;
        let entry = Entry { thread: link.thread, name: name.to_owned(), epoch, length_ms, renewed };
        // No epoch is given twice.
        let key = lock_key(&[&entry.thread.to_string(), name, &epoch.to_string()]);
        let path = dir.join(format!("{key:016x}.lease"));
        let file = File::options().create(true).write(true).truncate(true).open(&path)?;
        // Before there is a line: an empty file is left alone.
        file.try_lock()?;
        let registered = Registered { entry, file, path, since: now() };
        registered.write()?;
        Ok(registered)
    }

    fn write(&self) -> io::Result<()> {
        self.file.write_all_at(self.entry.line().as_bytes(), 0)
    }

    /// Notes a renewal.
    pub fn note(&mut self, renewed: i64) {
        self.entry.renewed = renewed;
        // If that fails, the lease is not renewed by others.
        drop(self.write());
    }

    /// What was found for it.
    pub fn answer(&self) -> Option<Answer> {
        serde_json::from_slice(&std::fs::read(answer_path(&self.path)).ok()?).ok()
    }

    /// Whether there is a process that renews the leases of this machine.
    pub fn is_attended(&self) -> bool {
        let dir = self.path.parent().unwrap_or(&self.path);
        heard(dir).is_some_and(|(age, _)| age < HEARD_FOR)
    }

    /// Whether that process may not know of this holder yet.
    pub fn is_new(&self) -> bool {
        now() - self.since < HEARD_FOR
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn answer_path(path: &Path) -> PathBuf {
    path.with_extension("answer")
}

fn remove(path: &Path) {
    drop(std::fs::remove_file(path));
    drop(std::fs::remove_file(answer_path(path)));
}

/// How long ago the one that renews gave a sign, in milliseconds, and its process.
fn heard(dir: &Path) -> Option<(i64, u32)> {
    let text = std::fs::read_to_string(dir.join(SIGN)).ok()?;
    let mut words = text.split_whitespace();
    if words.next()? != *CLOCK {
        return None;
    }
    let (at, process) = (words.next()?.parse::<i64>().ok()?, words.next()?.parse().ok()?);
    Some((now() - at, process)).filter(|(age, _)| *age >= 0)
}

/// Makes this process one of those that may renew the leases of others, as long as it lives.
pub fn attend(link: &Link) {
    static ALREADY: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);
    let Ok(dir) = dir_of(&link.target) else { return };
    let mut already = ALREADY.lock().unwrap_or_else(PoisonError::into_inner);
    if already.get_or_insert_default().insert(dir.clone()) {
        let mut link = link.again(EVERY);
        // It serves many, who would each need one.
        link.turn = Turn::Free;
        // Without it, each holder renews its own lease.
        drop(std::thread::Builder::new().name("renew".to_owned()).spawn(move || run(&mut link, &dir)));
    }
}

fn run(link: &mut Link, dir: &Path) -> ! {
    loop {
        std::thread::sleep(match elected(dir) {
            Some((lock, in_place)) => {
                let mut renewer = Renewer { dir, known: HashMap::new(), asked: None };
                while !(in_place && is_back(dir))
                    && let Ok(pause) = renewer.round(link)
                {
                    std::thread::sleep(pause);
                }
                link.close();
                drop(lock);
                AFTER_FAILURE
            }
            None => EVERY,
        });
    }
}

/// The lock of the one that renews, if it is free, and whether it is that of one in its place.
fn elected(dir: &Path) -> Option<(File, bool)> {
    let is_missed = || heard(dir).is_none_or(|(age, _)| age >= MISSED_FOR);
    LOCKS.iter().enumerate().filter(|(at, _)| *at == 0 || is_missed()).find_map(|(at, name)| {
        let file = File::options().create(true).append(true).open(dir.join(name)).ok()?;
        file.try_lock().is_ok().then_some((file, at > 0))
    })
}

/// Whether there is a sign of another process.
fn is_back(dir: &Path) -> bool {
    heard(dir).is_some_and(|(age, process)| age < HEARD_FOR && process != std::process::id())
}

/// Renews the leases of all holders.
struct Renewer<'d> {
    dir: &'d Path,
    /// What was found for each.
    known: HashMap<PathBuf, Answer>,
    /// When the rows were asked for.
    asked: Option<i64>,
}

impl Renewer<'_> {
    /// Renews what is due, and asks for changes once a second. Returns how long until the next round.
    fn round(&mut self, link: &mut Link) -> Result<Duration> {
        let holders = holders(self.dir);
        let paths: HashSet<&PathBuf> = holders.iter().map(|(path, _)| path).collect();
        self.known.retain(|path, _| paths.contains(path));
        for (path, _) in &holders {
            if !self.known.contains_key(path) {
                // That of the one before.
                let answer = std::fs::read(answer_path(path)).ok();
                let answer = answer.and_then(|json| serde_json::from_slice(&json).ok());
                self.known.insert(path.clone(), answer.unwrap_or_default());
            }
        }
        let mut changed = self.renew(link, &holders)?;
        if self.asked.is_none_or(|at| now() - at >= ASK_AFTER) {
            changed.extend(self.ask(link, &holders)?);
        }
        let write = |path: &PathBuf| {
            replace(&answer_path(path), &to_json(&self.known[path]))?;
            if !path.exists() {
                // It was given back just then.
                remove(path);
            }
            Ok(())
        };
        changed.iter().try_for_each(write).map_err(failed)?;
        let sign = format!("{} {:>20} {:>10}\n", *CLOCK, now(), std::process::id());
        let file = File::options().create(true).truncate(false).write(true).open(self.dir.join(SIGN));
        file.and_then(|file| file.write_all_at(sign.as_bytes(), 0)).map_err(failed)?;
        let shortest = holders.iter().map(|(_, entry)| entry.length_ms / 16).min().unwrap_or(i64::MAX);
        Ok(EVERY.min(Duration::from_millis(shortest.max(1).unsigned_abs())))
    }

    fn renew(&mut self, link: &mut Link, holders: &[(PathBuf, Entry)]) -> Result<HashSet<PathBuf>> {
        let sent = now();
        let is_due = |(path, entry): &&(PathBuf, Entry)| {
            sent - entry.renewed >= entry.length_ms / 4 && self.known[path].sent <= entry.renewed
        };
        let due: Vec<&(PathBuf, Entry)> = holders.iter().filter(is_due).collect();
        if due.is_empty() {
            return Ok(HashSet::new());
        }
        // A statement, not a transaction of several, which would keep the rows locked if this process was suspended. One
        // that is locked now is left to the next round. Synced: after a crash, others must not see an earlier renewal
        // again.
        let sql = format!(
            "UPDATE @leases AS l SET renewal = {NEXT} FROM (\
               SELECT l.thread, l.consumer_id FROM @leases AS l JOIN unnest($1, $2, $3) AS h (thread, name, epoch) \
               ON l.thread = h.thread AND l.consumer_id = h.name AND l.epoch = h.epoch \
               WHERE l.holder IS NOT NULL FOR UPDATE OF l SKIP LOCKED) AS h \
             WHERE l.thread = h.thread AND l.consumer_id = h.consumer_id \
             RETURNING l.thread, l.consumer_id, l.epoch, CASE current_setting('synchronous_commit') \
               WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
        );
        let threads: Vec<i64> = due.iter().map(|(_, entry)| entry.thread).collect();
        let names: Vec<&str> = due.iter().map(|(_, entry)| entry.name.as_str()).collect();
        let epochs: Vec<i64> = due.iter().map(|(_, entry)| entry.epoch).collect();
        let values: [Param<'_>; 3] =
            [(&threads, Type::INT8_ARRAY), (&names, Type::TEXT_ARRAY), (&epochs, Type::INT8_ARRAY)];
        let rows = link.at_once("renewing leases", &sql, &values)?;
        let renewed: HashSet<(i64, &str, i64)> =
            rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        // Who is not among them finds out when it renews its lease itself.
        let is_renewed = |entry: &Entry| renewed.contains(&(entry.thread, &entry.name, entry.epoch));
        let renewed = due.into_iter().filter(|(_, entry)| is_renewed(entry)).map(|(path, _)| path.clone());
        let renewed: HashSet<PathBuf> = renewed.collect();
        for path in &renewed {
            self.known.entry(path.clone()).or_default().sent = sent;
        }
        Ok(renewed)
    }

    /// Asks for the rows of all consumers.
    fn ask(&mut self, link: &mut Link, holders: &[(PathBuf, Entry)]) -> Result<HashSet<PathBuf>> {
        let asked = now();
        self.asked = Some(asked);
        if holders.is_empty() {
            return Ok(HashSet::new());
        }
        let sql = "SELECT c.thread, c.consumer_id, c.token, c.revision, (c.run::json -> 'stop')::text, n.newest \
                   FROM @consumers AS c JOIN unnest($1, $2) AS h (thread, consumer) \
                   ON c.thread = h.thread AND c.consumer_id = h.consumer \
                   JOIN @counters AS n ON n.thread IN (c.thread, -c.thread)";
        let consumer = |entry: &Entry| entry.name.split('~').next().unwrap_or_default().to_owned();
        let threads: Vec<i64> = holders.iter().map(|(_, entry)| entry.thread).collect();
        let consumers: Vec<String> = holders.iter().map(|(_, entry)| consumer(entry)).collect();
        let values: [Param<'_>; 2] = [(&threads, Type::INT8_ARRAY), (&consumers, Type::TEXT_ARRAY)];
        let rows = link.at_once("asking for changes", sql, &values)?;
        let stop = |json: Option<&str>| json.and_then(|json| serde_json::from_str(json).ok());
        let mut found: HashMap<(i64, String), Row> = HashMap::new();
        for row in &rows {
            let (token, revision, newest) = (row.get(2), row.get(3), row.get(5));
            found.insert((row.get(0), row.get(1)), Row { token, revision, stop: stop(row.get(4)), newest });
        }
        let mut changed = HashSet::new();
        for ((path, entry), consumer) in holders.iter().zip(consumers) {
            let row = found.remove(&(entry.thread, consumer));
            let known = self.known.entry(path.clone()).or_default();
            if known.asked == 0 || known.row != row {
                (known.asked, known.row) = (asked, row);
                changed.insert(path.clone());
            }
        }
        Ok(changed)
    }
}

/// Those that hold leases now. The files of others are removed.
fn holders(dir: &Path) -> Vec<(PathBuf, Entry)> {
    let mut all = Vec::new();
    for path in std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let extension = path.extension().and_then(|extension| extension.to_str());
        if extension == Some("answer") && !path.with_extension("lease").exists() {
            drop(std::fs::remove_file(&path));
        }
        if extension != Some("lease") {
            continue;
        }
        let Ok(mut file) = File::open(&path) else { continue };
        let mut line = String::new();
        if file.read_to_string(&mut line).is_err() {
            continue;
        }
        if file.try_lock_shared().is_ok() {
            let is_old = |file: &File| {
                let modified = file.metadata().and_then(|about| about.modified()).ok()?;
                Some(SystemTime::now().duration_since(modified).ok()? >= EMPTY_FOR)
            };
            if !line.is_empty() || is_old(&file) == Some(true) {
                remove(&path);
            }
            continue;
        }
        all.extend(Entry::of_line(&line).map(|entry| (path, entry)));
    }
    all
}

/// The extension of files that are to replace others.
pub const NEW: &str = "new";

/// Replaces a file, so that others see the text before or this one.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let new = path.with_extension(format!("{}-{number}.{NEW}", std::process::id()));
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

fn failed(error: io::Error) -> thread::Error {
    thread::Error::Other(format!("cannot write about leases: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written_and_only_as_a_whole() {
        let entry = Entry { thread: 7, name: "bot~ab".to_owned(), epoch: 3, length_ms: 4000, renewed: 12 };
        let line = entry.line();
        assert_eq!(Entry::of_line(&line), Some(entry));
        for end in 0..line.len() {
            assert_eq!(Entry::of_line(&line[..end]), None, "{end}");
        }
        assert_eq!(Entry::of_line(&format!("another{line}")), None);
    }
}
