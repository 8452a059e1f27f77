//! Slots for agent programs: at most so many run at once in the threads of one folder.
//!
//! The folder `.agents` next to the threads has a file for each slot, locked by the adapter whose program runs, and
//! in `waiting` a file for each adapter that waits for one, locked while it waits, and named so that the oldest
//! message is first. One that has N others before it takes a slot only if there are N more for those. Each file in
//! `asked` asks one idle adapter to give its slot up. Locks end with their process, so nothing is left to clean up when
//! one is killed.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::sub_agent::is_sub_agent;

/// How often waiting adapters look: the first ones, and the others.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const OTHERS_LOOK: Duration = Duration::from_millis(500);

/// How many are the first ones: so many can take slots at once.
const FIRST: usize = 16;

/// How often one of these asks idle adapters to give way, and how long that is remembered.
const ASK_AGAIN: Duration = Duration::from_secs(5);
const REMEMBERED: Duration = Duration::from_secs(10);

/// The slots in a folder.
#[derive(Debug)]
pub struct AgentSlots {
    dir: PathBuf,
    most: u32,
}

/// A slot that is taken; given up when dropped.
#[derive(Debug)]
pub struct Slot {
    _lock: File,
}

/// Waits for a slot, in the order of messages; gives up when dropped.
#[derive(Debug)]
pub struct Waiter {
    /// The message to be answered.
    pub id: i64,
    path: PathBuf,
    /// The file that asks an idle adapter to give way.
    wanted: PathBuf,
    _lock: File,
    asked: Option<Instant>,
}

/// The result of trying to take a slot.
#[derive(Debug)]
pub enum Turn {
    Taken(Slot),
    /// Not yet; try again after this.
    Wait(Duration),
}

impl AgentSlots {
    /// The slots for the programs of the thread at `dir`; `None` if there is no limit. A sub-agent works in its
    /// parent's slot, or parents would wait for their own.
    pub fn of(dir: &Path, most: u32) -> Option<AgentSlots> {
        let root = dir.parent().filter(|_| most > 0 && !is_sub_agent(dir))?;
        Some(AgentSlots { dir: root.join(".agents"), most })
    }

    /// Waits for a slot for the answer to a message, stored at that time (in RFC 3339).
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn wait(&self, created_at: &str, id: i64) -> io::Result<Waiter> {
        let waiting = self.dir.join("waiting");
        for dir in [&waiting, &self.dir.join("asked")] {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let pid = std::process::id();
        // Locked before it gets its name: other processes remove files that are not locked.
        let new = waiting.join(format!(".{pid}"));
        let lock = open(&new)?;
        lock.try_lock().map_err(io::Error::from)?;
        let path = waiting.join(format!("{created_at} {id:020} {pid}"));
        std::fs::rename(new, &path)?;
        Ok(Waiter { id, path, wanted: self.dir.join(format!("asked/{pid}")), _lock: lock, asked: None })
    }

    /// Takes a slot if one is free, and there are more for those that have waited longer.
    ///
    /// # Errors
    ///
    /// The folder cannot be read or written.
    pub fn take(&self, waiter: &mut Waiter) -> io::Result<Turn> {
        let before = self.waiting_before(waiter)?;
        if before >= FIRST {
            return Ok(Turn::Wait(OTHERS_LOOK));
        }
        let mut free = Vec::new();
        for number in 1..=self.most {
            let lock = open(&self.dir.join(format!("place-{number}")))?;
            if is_locked(lock.try_lock())? {
                free.push(lock);
            }
            if free.len() > before
                && let Some(lock) = free.pop()
            {
                return Ok(Turn::Taken(Slot { _lock: lock }));
            }
        }
        if waiter.asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
            File::create(&waiter.wanted)?;
            waiter.asked = Some(Instant::now());
        }
        Ok(Turn::Wait(FIRST_LOOK))
    }

    /// How many have waited longer; of more than [`FIRST`], about that many.
    fn waiting_before(&self, waiter: &Waiter) -> io::Result<usize> {
        let mut before: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(self.dir.join("waiting"))? {
            let path = entry?.path();
            let is_named = path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."));
            if is_named && path < waiter.path {
                before.push(path);
            }
        }
        before.sort_unstable();
        let mut count = 0;
        for path in before {
            // It may have its slot already.
            let Ok(file) = File::open(&path) else { continue };
            if !is_locked(file.try_lock())? {
                count += 1;
                if count >= FIRST {
                    break;
                }
                continue;
            }
            // The adapter that waited there was killed.
            std::fs::remove_file(path).ok();
        }
        Ok(count)
    }

    /// Whether an adapter waits for a slot, so that this one, which is idle, should give way. Asking consumes the
    /// request: no other adapter sees it.
    pub fn is_wanted(&self) -> bool {
        let asked = std::fs::read_dir(self.dir.join("asked")).into_iter().flatten().flatten();
        let is_recent = |path: &Path| {
            let asked = path.metadata().and_then(|about| about.modified());
            asked.is_ok_and(|at| at.elapsed().is_ok_and(|ago| ago < REMEMBERED))
        };
        asked.map(|entry| entry.path()).any(|path| {
            let is_recent = is_recent(&path);
            std::fs::remove_file(path).is_ok() && is_recent
        })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
        // Nobody need give way any more.
        std::fs::remove_file(&self.wanted).ok();
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn is_locked(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(most: u32) -> (tempfile::TempDir, AgentSlots) {
        let root = tempfile::tempdir().unwrap();
        let slots = AgentSlots::of(&root.path().join("talk"), most).unwrap();
        (root, slots)
    }

    fn take(slots: &AgentSlots, waiter: &mut Waiter) -> Option<Slot> {
        match slots.take(waiter).unwrap() {
            Turn::Taken(slot) => Some(slot),
            Turn::Wait(_) => None,
        }
    }

    #[test]
    fn the_oldest_message_is_first_and_a_slot_is_free_again_when_given_up() {
        let (_root, slots) = slots(1);
        let mut newer = slots.wait("2026-03-18T10:30:00.124Z", 1).unwrap();
        let mut older = slots.wait("2026-03-18T10:30:00.123Z", 200).unwrap();
        assert!(take(&slots, &mut newer).is_none(), "there is an older one");
        let slot = take(&slots, &mut older).unwrap();
        drop(older);
        assert!(take(&slots, &mut newer).is_none(), "it is taken");
        drop(slot);
        assert!(take(&slots, &mut newer).is_some());
    }

    #[test]
    fn whoever_was_killed_while_waiting_is_not_waited_for() {
        let (root, slots) = slots(2);
        let mut waiter = slots.wait("2026-03-18T10:30:00.123Z", 1).unwrap();
        let dead = root.path().join(".agents/waiting/2026-03-18T10:30:00.000Z 1 1");
        std::fs::write(&dead, "").unwrap();
        assert!(take(&slots, &mut waiter).is_some());
        assert!(!dead.exists());
    }

    #[test]
    fn one_idle_adapter_gives_way_for_one_that_waits() {
        let (root, slots) = slots(1);
        let mut first = slots.wait("2026-03-18T10:30:00.123Z", 1).unwrap();
        let _slot = take(&slots, &mut first).unwrap();
        drop(first);
        assert!(!slots.is_wanted());
        let mut second = slots.wait("2026-03-18T10:30:00.124Z", 2).unwrap();
        assert!(take(&slots, &mut second).is_none());
        assert!(slots.is_wanted() && !slots.is_wanted());
        let wanted = File::create(root.path().join(".agents/asked/1")).unwrap();
        wanted.set_modified(std::time::SystemTime::now() - 2 * REMEMBERED).unwrap();
        assert!(!slots.is_wanted(), "that was long ago");
    }

    #[test]
    fn several_take_slots_at_once_but_none_that_is_for_an_older_message() {
        let (_root, slots) = slots(2);
        let [mut first, mut second, mut third] =
            [1, 2, 3].map(|id| slots.wait("2026-03-18T10:30:00.124Z", id).unwrap());
        assert!(take(&slots, &mut third).is_none(), "there are two older ones");
        let slot = take(&slots, &mut second).unwrap();
        assert!(take(&slots, &mut second).is_none(), "that is for the first");
        let other = take(&slots, &mut first).unwrap();
        drop((first, second, slot));
        assert!(take(&slots, &mut third).is_some());
        drop(other);
    }

    #[test]
    fn without_a_limit_and_for_sub_agents_there_are_no_slots() {
        let root = tempfile::tempdir().unwrap();
        assert!(AgentSlots::of(&root.path().join("talk"), 0).is_none());
        std::fs::write(root.path().join("events.db"), "").unwrap();
        assert!(AgentSlots::of(&root.path().join("agents/sub"), 1).is_none());
    }
}
