//! Handlers that a schedule stands for.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::rc::Rc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use thread_testkit::say;
use thread_testkit::simulation::clock;

use super::world::World;
use crate::files::simulated::Given;
use crate::model::run::{BAD_EVENT, Exit, NOT_NOW};
use crate::run::handler::Running;

pub struct Handler {
    pub pid: i32,
    /// The number of its supervisor, and whether that was killed.
    pub of: i64,
    pub is_orphan: bool,
    given: Given,
    _lock: File,
    /// The beginning of a line.
    line: Vec<u8>,
    /// Its stdin is at its end.
    is_at_end: bool,
    /// The events that it has.
    pub has: BTreeSet<i64>,
    /// What it says counts no more: the cursor was moved.
    pub is_void: bool,
    /// Nothing waits because of it: its subscription was replaced, or the cursor was moved.
    pub is_without_wait: bool,
    /// A signal, and when it is killed.
    pub ends: Option<(i32, u64)>,
}

/// What a handler that is kept says of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    Ack,
    Nack,
    Later,
    Reject,
}

impl Handler {
    pub fn new(pid: i32, of: i64, given: Given, lock: File) -> Handler {
        if let Given::Pipes([stdin, ..]) = &given {
            let flags = fcntl_getfl(stdin).unwrap();
            fcntl_setfl(stdin, flags | OFlags::NONBLOCK).unwrap();
        }
        Handler {
            pid,
            of,
            is_orphan: false,
            given,
            _lock: lock,
            line: Vec::new(),
            is_at_end: false,
            has: BTreeSet::new(),
            is_void: false,
            is_without_wait: false,
            ends: None,
        }
    }

    pub fn is_kept(&self) -> bool {
        matches!(self.given, Given::Pipes(_))
    }

    /// Reads what is there on stdin. Returns the events.
    fn read(&mut self) -> Vec<i64> {
        let mut bytes = std::mem::take(&mut self.line);
        match &mut self.given {
            Given::Stdin(stdin) => {
                let mut stdin = stdin.take().unwrap();
                stdin.read_to_end(&mut bytes).unwrap();
            }
            Given::Pipes([stdin, ..]) => {
                let mut chunk = [0; 4096];
                while let Ok(read) = stdin.read(&mut chunk) {
                    self.is_at_end = read == 0;
                    if read == 0 {
                        break;
                    }
                    bytes.extend_from_slice(&chunk[..read]);
                }
            }
        }
        let (mut ids, mut rest) = (Vec::new(), &bytes[..]);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let id = std::str::from_utf8(&rest[..end]).unwrap().strip_prefix("{\"id\":").unwrap();
            ids.push(id[..id.find(',').unwrap()].parse().unwrap());
            rest = &rest[end + 1..];
        }
        self.line = rest.to_vec();
        ids
    }

    fn print(&mut self, text: &str) {
        if let Given::Pipes([_, stdout, _]) = &mut self.given {
            // Its supervisor may be gone.
            drop(stdout.write_all(text.as_bytes()));
        }
    }

    fn say(&mut self, id: i64, says: Says) {
        let line = match says {
            Says::Ack => format!("{{\"ack\":{id}}}\n"),
            Says::Nack => format!("{{\"nack\":{id}}}\n"),
            Says::Later => format!("{{\"nack\":{id},\"delay\":2,\"attempt\":false}}\n"),
            Says::Reject => format!("{{\"reject\":{id}}}\n"),
        };
        self.print(&line);
    }
}

impl World {
    pub fn begins(self: &Rc<Self>, mut handler: Handler) {
        let ids = if handler.is_kept() { Vec::new() } else { handler.read() };
        let pid = handler.pid;
        say!("handler {pid} begins");
        self.state.borrow_mut().handlers.push(handler);
        self.others(|world| world.are_given(pid, &ids));
    }

    /// Handlers that are kept take what their supervisor has written.
    pub fn take_from_supervisor(self: &Rc<Self>) {
        let taken: Vec<(i32, Vec<i64>)> = {
            let mut state = self.state.borrow_mut();
            let kept = state.handlers.iter_mut().filter(|handler| handler.is_kept());
            kept.map(|handler| (handler.pid, handler.read())).collect()
        };
        for (pid, ids) in taken.into_iter().filter(|(_, ids)| !ids.is_empty()) {
            self.others(|world| world.are_given(pid, &ids));
        }
    }

    fn ends_with(&self, pid: i32, exit: Exit) {
        let mut state = self.state.borrow_mut();
        let Some(at) = state.handlers.iter().position(|handler| handler.pid == pid) else { return };
        let ended = state.handlers.remove(at);
        say!("handler {pid} ends with {:?}: {exit}", ended.has);
        if ended.is_orphan {
            state.needs_dispatch = true;
        } else {
            state.has_ended(&ended, exit);
            Running::has_ended(pid, exit);
        }
    }

    fn end_all(&self, which: impl Fn(&Handler, u64) -> bool) {
        let pids: Vec<i32> = {
            let state = self.state.borrow();
            let which = |handler: &&Handler| which(handler, clock::now());
            state.handlers.iter().filter(which).map(|handler| handler.pid).collect()
        };
        pids.into_iter().for_each(|pid| self.ends_with(pid, Exit::Signal(libc::SIGKILL)));
    }

    /// The time of those is over that were to end.
    pub fn kill_overdue(&self) {
        self.end_all(|handler, now| handler.ends.is_some_and(|(_, at)| at <= now));
    }

    /// Those end whose supervisor was killed.
    pub fn orphans_end(&self) {
        self.end_all(|handler, _| handler.is_orphan);
    }

    /// A handler does something, if there is one.
    pub fn one_acts(self: &Rc<Self>) {
        self.take_from_supervisor();
        let ends = {
            let mut state = self.state.borrow_mut();
            let count = state.handlers.len() as u64;
            let at = if count == 0 { return } else { state.dice.below(count) as usize };
            let (roll, fails) = (state.dice.below(100), state.may.fail);
            let handler = &state.handlers[at];
            let (pid, ids) = (handler.pid, handler.has.iter().copied().collect::<Vec<_>>());
            let exit = match handler.ends {
                // A guard kills it with its supervisor.
                _ if handler.is_orphan && handler.is_kept() => Some(Exit::Signal(libc::SIGKILL)),
                Some((signal, _)) if roll < 50 => Some(Exit::Signal(signal)),
                _ if !handler.is_kept() => Some(match roll {
                    0..50 => Exit::Code(0),
                    _ if !fails => Exit::Code(0),
                    50..70 => Exit::Code(1),
                    70..80 => Exit::Code(NOT_NOW),
                    80..88 => Exit::Code(BAD_EVENT),
                    88..90 => Exit::Code(127),
                    _ => Exit::Signal(libc::SIGSEGV),
                }),
                _ if handler.is_at_end && (ids.is_empty() || roll < 10) => Some(Exit::Code(0)),
                _ if fails && roll >= 90 => {
                    let exits = [0, 1, NOT_NOW].map(Exit::Code);
                    Some(*state.dice.pick(&exits))
                }
                _ => None,
            };
            if exit.is_none() && roll >= 85 {
                state.handlers[at].print("\nnothing that matters\n{\"ack\":\"?\"}\n{\"ack\":999999}\n");
            } else if exit.is_none() && !ids.is_empty() {
                let id = *state.dice.pick(&ids);
                let says = match roll {
                    60..72 if fails => Says::Nack,
                    72..79 if fails => Says::Later,
                    79..85 if fails => Says::Reject,
                    _ => Says::Ack,
                };
                state.handlers[at].say(id, says);
                say!("handler {pid} says {says:?} of {id}");
                state.has_answered(at, id, says);
            }
            exit.map(|exit| (pid, exit))
        };
        if let Some((pid, exit)) = ends {
            self.ends_with(pid, exit);
        }
    }

    /// Each handler does what it should. Returns whether any did something.
    pub fn all_act(self: &Rc<Self>) -> bool {
        let pids: Vec<i32> = self.state.borrow().handlers.iter().map(|handler| handler.pid).collect();
        let mut any = false;
        for pid in pids {
            let mut state = self.state.borrow_mut();
            let Some(at) = state.handlers.iter().position(|handler| handler.pid == pid) else { continue };
            let handler = &state.handlers[at];
            let ids: Vec<i64> = handler.has.iter().copied().collect();
            let exit = match handler.ends {
                Some((signal, _)) => Some(Exit::Signal(signal)),
                None if !handler.is_kept() || (handler.is_at_end && ids.is_empty()) => Some(Exit::Code(0)),
                None => None,
            };
            any |= exit.is_some() || !ids.is_empty();
            if exit.is_none() {
                for id in ids {
                    state.handlers[at].say(id, Says::Ack);
                    say!("handler {pid} says Ack of {id}");
                    state.has_answered(at, id, Says::Ack);
                }
            }
            drop(state);
            if let Some(exit) = exit {
                self.ends_with(pid, exit);
            }
        }
        any
    }
}
