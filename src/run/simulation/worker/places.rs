//! Where the threads of a schedule are.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use thread_testkit::say;
use thread_testkit::simulation::clock::{self, MILLISECOND};
use thread_testkit::simulation::{clear, directory};

use super::state::{State, What};
use super::world::World;
use crate::files::watch::Notice;
use crate::files::{COMMIT, DB};
use crate::model::location::Location;

/// How many threads there are, and places for them: one that the worker is told by name, and two in its root.
pub const THREADS: usize = 3;
pub const NAMED: usize = 2;

pub struct Places {
    _dir: TempDir,
    pub root: PathBuf,
    /// Where threads are that were moved away.
    away: [PathBuf; THREADS],
    pub all: [PathBuf; THREADS],
    pub homes: [(u64, u64); THREADS],
    bases: [PathBuf; THREADS],
    pub base_homes: [(u64, u64); THREADS],
}

fn identity(path: &Path) -> (u64, u64) {
    let about = fs::metadata(path).unwrap();
    (about.dev(), about.ino())
}

impl Places {
    pub fn new() -> Places {
        let dir = directory();
        let (root, path) = (dir.path().join("root"), |name: &str| dir.path().join(name));
        fs::create_dir(&root).unwrap();
        let away = [path("away0"), path("away1"), path("away2")];
        let bases = [path("base0"), path("base1"), path("base2")];
        for base in away.iter().chain(&bases) {
            fs::create_dir_all(base.join("logs/handlers")).unwrap();
            fs::create_dir(base.join("run")).unwrap();
        }
        away.iter().for_each(|path| fs::write(path.join(DB), "").unwrap());
        Places {
            homes: [0, 1, 2].map(|at: usize| identity(&away[at].join(DB))),
            base_homes: [0, 1, 2].map(|at: usize| identity(&bases[at])),
            away,
            all: [root.join("a"), root.join("b"), path("named")],
            bases,
            root,
            _dir: dir,
        }
    }
}

impl World {
    /// Puts the threads back to where they are before a schedule, without files of the one before.
    pub fn clear(&self) {
        let mut state = self.state.borrow_mut();
        let is_server = state.is_server;
        for (at, thread) in state.threads.iter_mut().enumerate().filter(|_| !is_server) {
            if let Some(place) = thread.place.take() {
                fs::rename(&self.places.all[place], &self.places.away[at]).unwrap();
            }
        }
        // So that locks are free.
        state.processes.clear();
        state.worker = None;
        for base in if is_server { &self.places.bases } else { &self.places.away } {
            clear(base, DB);
            clear(&base.join("run"), "");
        }
    }

    /// A worker does not begin if a thread that it is given by name is not there.
    pub fn is_named(&self) {
        let mut state = self.state.borrow_mut();
        if state.is_server || state.threads.iter().any(|thread| thread.place == Some(NAMED)) {
            return;
        }
        let at = state.threads.iter().position(|thread| thread.place.is_none()).unwrap_or(0);
        if state.threads[at].place.is_some() {
            self.has_moved_away(&mut state, at);
        }
        drop(state);
        self.moves_to(at, NAMED);
    }

    pub fn location_of(&self, thread: usize) -> Option<Location> {
        let (place, is_server) = {
            let state = self.state.borrow();
            (state.threads[thread].place?, state.is_server)
        };
        Some(match is_server {
            true => Location::from(format!("followed://{}", self.places.bases[place].display())),
            false => Location::from(&self.places.all[place]),
        })
    }

    /// The thread that has its files here.
    pub fn at(&self, path: &Path) -> Option<usize> {
        let state = self.state.borrow();
        let paths = if state.is_server { &self.places.bases } else { &self.places.all };
        let place = paths.iter().position(|place| place == path);
        state.threads.iter().position(|thread| place.is_some() && thread.place == place)
    }

    /// A thread is moved away, or is removed.
    pub fn moves_away(&self, thread: usize) {
        let mut state = self.state.borrow_mut();
        let place = state.threads[thread].place.unwrap();
        let is_removed = state.dice.one_in(2);
        say!("thread {thread} is moved away: removed={is_removed}");
        if !is_removed {
            return self.has_moved_away(&mut state, thread);
        }
        drop(fs::remove_file(self.places.all[place].join(COMMIT)));
        if let Some(watch) = state.threads[thread].watch.take() {
            state.notices.push(Notice::Gone(watch));
        }
        state.threads[thread].leaves = true;
        let after = state.dice.below(50 * MILLISECOND);
        state.agenda.plan(after, What::Removed(thread));
    }

    fn has_moved_away(&self, state: &mut State, thread: usize) {
        let place = state.threads[thread].place.take().unwrap();
        state.threads[thread].leaves = false;
        state.fails_if_used(thread);
        fs::rename(&self.places.all[place], &self.places.away[thread]).unwrap();
    }

    /// All of a thread is removed.
    pub fn removed(&self, thread: usize) {
        let mut state = self.state.borrow_mut();
        if !state.threads[thread].leaves {
            return;
        }
        let place = state.threads[thread].place.unwrap();
        self.has_moved_away(&mut state, thread);
        let is_calm = state.is_calm;
        drop(state);
        if is_calm {
            self.moves_to(thread, place);
        }
    }

    pub fn moves_to(&self, thread: usize, place: usize) {
        fs::rename(&self.places.away[thread], &self.places.all[place]).unwrap();
        let commit = self.places.all[place].join(COMMIT);
        if !commit.exists() {
            File::create(commit).unwrap();
        }
        let mut state = self.state.borrow_mut();
        (state.threads[thread].place, state.threads[thread].moved) = (Some(place), Some(clock::now()));
        say!("thread {thread} is at place {place}");
    }
}
