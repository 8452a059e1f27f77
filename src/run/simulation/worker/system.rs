//! What the worker sees of a schedule.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use rustix::process::Signal;
use thread_testkit::simulation::clock::{self, SECOND, nanoseconds};

use super::places::THREADS;
use super::world::{World, world};
use crate::error::{DatabaseErrorKind, Result, database};
use crate::files::simulated::System;
use crate::files::stamp::Stamp;
use crate::files::watch::Notice;
use crate::files::{COMMIT, Files};
use crate::model::location::Location;
use crate::model::run::ProcessId;
use crate::queue::locations::{Scheme, add};
use crate::store::Store;

/// So often the worker may wait in a schedule.
const MOST_WAITS: u32 = 20_000;

/// The pids of simulated processes begin here, where no real one is.
const FIRST_PID: i64 = 1 << 23;

/// The location that names all threads of the server.
pub const SERVER: &str = "followed://all";

fn base(location: &Location) -> Result<PathBuf> {
    Ok(PathBuf::from(location.as_os_str().to_str().unwrap().replace("followed://", "")))
}

fn threads(location: &Location) -> Option<Result<Vec<Location>>> {
    if location.as_os_str() != SERVER {
        return None;
    }
    let world = world().unwrap();
    let mut state = world.state.borrow_mut();
    if state.is_away {
        let now = clock::now();
        state.threads.iter_mut().for_each(|thread| thread.failed = Some(now));
        return Some(Err(database(DatabaseErrorKind::Unreachable, "listing threads", "it is away")));
    }
    drop(state);
    Some(Ok((0..THREADS).filter_map(|thread| world.location_of(thread)).collect()))
}

/// Makes the scheme of the server's threads known.
pub fn add_scheme() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        add(Scheme {
            name: "followed",
            base,
            open: |location, _| unreachable!("{location} is opened"),
            init: |_| Ok(()),
            threads,
            changes: |_| Vec::new(),
            listen: |_| {},
            leave: || {},
            spare: || {},
        });
    });
}

impl System for World {
    fn wait(&self, timeout: Duration) {
        let world = world().unwrap();
        let end = {
            let mut state = self.state.borrow_mut();
            state.waits += 1;
            assert!(state.waits < MOST_WAITS, "it waits again and again");
            if let Some(worker) = &mut state.worker {
                worker.has_waited |= !worker.asked.is_empty() && !worker.is_nudged;
            }
            clock::now() + nanoseconds(timeout).min(3600 * SECOND)
        };
        loop {
            world.check_calm();
            world.others(World::check_due);
            if world.others(World::is_done) {
                world.is_over();
            }
            if world.is_woken() {
                return;
            }
            if !world.next_happens(end) {
                clock::pass_until(end);
                return world.others(World::check_due);
            }
        }
    }

    fn sleep(&self, time: Duration) {
        self.state.borrow_mut().busy += nanoseconds(time);
        clock::pass(nanoseconds(time));
    }

    fn process(&self, subcommand: &str, args: &[&str], path: &Path, lock: File) -> io::Result<u32> {
        let thread = self.at(path).ok_or(io::ErrorKind::WouldBlock)?;
        {
            let mut state = self.state.borrow_mut();
            if state.spawn_fails > 0 {
                state.spawn_fails -= 1;
                state.threads[thread].failed = Some(clock::now());
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        let number = self.starts(subcommand, args, thread, lock);
        Ok(u32::try_from(FIRST_PID + number).unwrap())
    }

    fn own(&self) -> ProcessId {
        let state = self.state.borrow();
        let number = state.role.or(state.worker.as_ref().map(|worker| worker.number)).unwrap_or(0);
        ProcessId { pid: 1, start: number, boot: String::new(), namespace: 0 }
    }

    fn is_alive(&self, process: &ProcessId) -> bool {
        self.state.borrow().is_alive(process.start)
    }

    fn process_of(&self, pid: u32) -> Option<ProcessId> {
        let start = i64::from(pid) - FIRST_PID;
        Some(ProcessId { pid, start, boot: String::new(), namespace: 0 })
    }

    fn background(&self) -> Vec<ProcessId> {
        let state = self.state.borrow();
        let worker = state.worker.as_ref().map(|worker| worker.number);
        let alive = state.processes.iter().filter(|process| !process.was_killed && process.parent == worker);
        alive
            .filter_map(|process| self.process_of(u32::try_from(FIRST_PID + process.number).unwrap()))
            .collect()
    }

    fn signal(&self, process: &ProcessId, signal: Signal) {
        self.is_signalled(process.start, signal);
    }

    fn is_asked_to_end(&self) -> bool {
        self.state.borrow().worker.as_ref().is_none_or(|worker| !worker.asked.is_empty())
    }

    fn home(&self, path: &Path) -> Option<Option<(u64, u64)>> {
        let thread = self.at(path);
        Some(thread.map(|thread| self.state.borrow().threads[thread].home))
    }

    fn files(&self, location: &Location) -> Option<Files> {
        let path = base(location).unwrap();
        let thread = self.at(&path)?;
        let mut files = self.files.borrow_mut();
        let open = || match location.scheme() {
            None => Files::open(&path).unwrap(),
            Some(_) => Files::at_base(location, &path).unwrap(),
        };
        Some(files.entry((thread, location.clone())).or_insert_with(open).clone())
    }

    fn store(&self, location: &Location) -> Option<Result<Box<dyn Store>>> {
        let path = base(location).unwrap();
        let thread = self.at(&path);
        let mut state = self.state.borrow_mut();
        let now = clock::now();
        let locked = || Some(Err(database(DatabaseErrorKind::Locked, "opening", "others have it")));
        let Some(thread) = thread else { return locked() };
        if !state.is_busy {
            state.open = thread;
            let is_away = state.is_away && state.is_server;
            let found = &mut state.threads[thread];
            if found.fails > 0 || is_away {
                found.fails = found.fails.saturating_sub(1);
                found.failed = Some(now);
                return locked();
            }
            found.failed = None;
        }
        Some(Ok(Box::new(state.threads[thread].store.clone())))
    }

    fn stamp(&self, path: &Path) -> Option<Option<Stamp>> {
        if self.state.borrow().is_server {
            return None;
        }
        let thread = self.at(path);
        let state = self.state.borrow();
        Some(thread.map(|at| {
            let thread = &state.threads[at];
            Stamp::simulated(thread.home, thread.wal, thread.touched)
        }))
    }

    fn watch(&self, path: &Path, name: &str) -> Option<Option<i32>> {
        assert_eq!(name, COMMIT);
        let Some(thread) = self.at(path) else { return Some(None) };
        let mut state = self.state.borrow_mut();
        if let Some(watch) = state.threads[thread].watch {
            return Some(Some(watch));
        }
        if state.dice.one_in(6) {
            return Some(None);
        }
        drop(File::create(path.join(COMMIT)));
        state.watches += 1;
        let watch = state.watches;
        state.threads[thread].watch = Some(watch);
        Some(Some(watch))
    }

    fn unwatch(&self, watch: i32) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if let Some(thread) = state.threads.iter_mut().find(|thread| thread.watch == Some(watch)) {
            thread.watch = None;
            state.notices.push(Notice::Gone(watch));
        }
    }

    fn take_notices(&self) -> Option<Vec<Notice>> {
        let taken = std::mem::take(&mut self.state.borrow_mut().notices);
        let watches = taken.iter().filter_map(|notice| match notice {
            Notice::Touched(watch) => Some(*watch),
            _ => None,
        });
        self.notices_are_taken(&watches.collect::<Vec<_>>());
        Some(taken)
    }

    fn touch(&self, path: &Path, name: &Path) -> bool {
        if let (Some(thread), Some(name)) = (self.at(path), name.to_str()) {
            self.touched(thread, name);
        }
        true
    }
}
