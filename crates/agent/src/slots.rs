//! Slots for agent programs: at most so many run at once in the threads of one folder.
//!
//! The folder `.agents` next to the threads has a file for each slot, locked by the adapter whose program runs, and
//! in `waiting` a file for each adapter that waits for one, locked while it waits, and named so that the oldest
//! message is first. Only the first takes a slot. `wanted` asks one idle adapter to give its slot up. Locks end
//! with their process, so nothing is left to clean up when one is killed.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::sub_agent::is_sub_agent;

/// How often waiting adapters look: the first, and the others.
const FIRST_LOOKS: Duration = Duration::from_millis(100);
const OTHERS_LOOK: Duration = Duration::from_millis(500);

/// How often the first asks idle adapters to give way, and how long that is remembered.
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
        DirBuilder::new().recursive(true).mode(0o700).create(&waiting)?;
        let pid = std::process::id();
        // Locked before it gets its name: other processes remove files that are not locked.
        let new = waiting.join(format!(".{pid}"));
        let lock = open(&new)?;
        lock.try_lock().map_err(io::Error::from)?;
        let path = waiting.join(format!("{created_at} {id:020} {pid}"));
        std::fs::rename(new, &path)?;
        Ok(Waiter { id, path, _lock: lock, asked: None })
    }

    /// Takes a slot if one is free and no other has waited longer.
    ///
    /// # Errors
    ///
    /// The folder cannot be read or written.
    pub fn take(&self, waiter: &mut Waiter) -> io::Result<Turn> {
        if !self.is_first(waiter)? {
            return Ok(Turn::Wait(OTHERS_LOOK));
        }
        for number in 1..=self.most {
            let lock = open(&self.dir.join(format!("place-{number}")))?;
            if is_locked(lock.try_lock())? {
                return Ok(Turn::Taken(Slot { _lock: lock }));
            }
        }
        if waiter.asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
            File::create(self.dir.join("wanted"))?;
            waiter.asked = Some(Instant::now());
        }
        Ok(Turn::Wait(FIRST_LOOKS))
    }

    fn is_first(&self, waiter: &Waiter) -> io::Result<bool> {
        let mut before: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(self.dir.join("waiting"))? {
            let path = entry?.path();
            let is_named = path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."));
            if is_named && path < waiter.path {
                before.push(path);
            }
        }
        before.sort_unstable();
        for path in before {
            // It may have its slot already.
            let Ok(file) = File::open(&path) else { continue };
            if !is_locked(file.try_lock())? {
                return Ok(false);
            }
            // The adapter that waited there was killed.
            std::fs::remove_file(path).ok();
        }
        Ok(true)
    }

    /// Whether an adapter waits for a slot, so that this one, which is idle, should give way. Asking consumes the
    /// request: no other adapter sees it.
    pub fn is_wanted(&self) -> bool {
        let path = self.dir.join("wanted");
        let asked = path.metadata().and_then(|about| about.modified());
        let is_recent = asked.is_ok_and(|at| at.elapsed().is_ok_and(|ago| ago < REMEMBERED));
        is_recent && std::fs::remove_file(path).is_ok()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
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
        let wanted = File::create(root.path().join(".agents/wanted")).unwrap();
        wanted.set_modified(std::time::SystemTime::now() - 2 * REMEMBERED).unwrap();
        assert!(!slots.is_wanted(), "that was long ago");
    }

    #[test]
    fn without_a_limit_and_for_sub_agents_there_are_no_slots() {
        let root = tempfile::tempdir().unwrap();
        assert!(AgentSlots::of(&root.path().join("talk"), 0).is_none());
        std::fs::write(root.path().join("events.db"), "").unwrap();
        assert!(AgentSlots::of(&root.path().join("agents/sub"), 1).is_none());
    }
}
