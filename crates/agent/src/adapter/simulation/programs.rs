//! Agent programs that a schedule stands for.

use std::collections::VecDeque;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, TryRecvError};

use rustix::process::Signal;
use thread_testkit::simulation::clock::{self, MILLISECOND, SECOND};
use thread_testkit::{Dice, say};

use super::state::{State, What};
use super::world::World;
use crate::program::ProgramEvent;
use crate::simulated::Report;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Exec,
    Ndjson,
    Talks,
}

/// A message that a program works on.
#[derive(Debug)]
pub struct Job {
    pub id: i64,
    said: String,
    /// Its calls without a result, and how many there were.
    calls: Vec<String>,
    made: u32,
    /// A request for permission that has no answer.
    pub asked: Option<String>,
}

pub struct Program {
    pub pid: i32,
    pub kind: Kind,
    /// The adapter that has started it.
    pub of: u32,
    pub variables: Vec<Vec<u8>>,
    report: Report,
    stdin: Option<Receiver<Vec<u8>>>,
    line: Vec<u8>,
    pub jobs: VecDeque<Job>,
    /// What is reported as soon as there is room.
    pub reports: VecDeque<ProgramEvent>,
    /// When it does the next thing.
    acts: Option<u64>,
    /// With which code it exits, and when.
    pub ends: Option<(u64, i32)>,
    pub exited: Option<i32>,
    pub is_reaped: bool,
    pub is_hanging: bool,
    /// It does not end for signals or the end of its input.
    pub is_stubborn: bool,
    /// When it last printed something, or was given a message.
    pub last_output: u64,
    requests: u32,
}

impl Program {
    pub fn new(
        (pid, kind, of): (i32, Kind, u32),
        variables: Vec<Vec<u8>>,
        report: Report,
        stdin: Option<Receiver<Vec<u8>>>,
        dice: &mut Dice,
        is_calm: bool,
    ) -> Program {
        let is_stubborn = !is_calm && dice.one_in(4);
        Program {
            pid,
            kind,
            of,
            variables,
            report,
            stdin,
            line: Vec::new(),
            jobs: VecDeque::new(),
            reports: VecDeque::new(),
            acts: None,
            ends: None,
            exited: None,
            is_reaped: false,
            is_hanging: false,
            is_stubborn,
            last_output: 0,
            requests: 0,
        }
    }

    fn print(&mut self, text: &str, dice: &mut Dice, now: u64) {
        self.last_output = now;
        let (first, second) = text.as_bytes().split_at(dice.up_to(text.len() as u64) as usize);
        for bytes in [first, second].into_iter().filter(|bytes| !bytes.is_empty()) {
            self.reports.push_back(ProgramEvent::Output(bytes.to_vec()));
        }
    }

    /// What it does, in the words of its protocol.
    fn says(&mut self, word: &str, text: &str, dice: &mut Dice, now: u64) {
        let mut line = String::new();
        match self.kind {
            Kind::Exec => line.push_str(text),
            Kind::Talks => writeln!(line, "{word} {text}").unwrap(),
            Kind::Ndjson => {
                let (event, key) = match word {
                    "t" => ("token", "content"),
                    "h" => ("thinking", "content"),
                    "c" => ("tool_call", "call_id"),
                    "r" => ("tool_result", "call_id"),
                    "d" => ("final", "stage"),
                    "D" => ("final", "content"),
                    "f" => ("error\",\"retryable\":true,\"x\":\"", "error"),
                    "F" => ("error", "error"),
                    _ => ("nothing", "x"),
                };
                writeln!(line, "{{\"event\":\"{event}\",\"{key}\":\"{text}\"}}").unwrap();
            }
        }
        self.print(&line, dice, now);
    }

    /// Reports what there is room for, and so many things at the most. Returns whether something was reported.
    pub fn deliver(&mut self, most: u64) -> bool {
        let mut delivered = false;
        for _ in 0..most {
            let Some(event) = self.reports.pop_front() else { break };
            let copy = match &event {
                ProgramEvent::Output(bytes) => ProgramEvent::Output(bytes.clone()),
                ProgramEvent::StdoutClosed => ProgramEvent::StdoutClosed,
                ProgramEvent::Exited => ProgramEvent::Exited,
                ProgramEvent::StderrDone => ProgramEvent::StderrDone,
            };
            if !(self.report)(event) {
                self.reports.push_front(copy);
                break;
            }
            delivered = true;
        }
        delivered
    }

    pub fn exit(&mut self, code: i32) {
        if self.exited.is_none() {
            self.exited = Some(code);
            self.jobs.clear();
            self.reports.extend([ProgramEvent::StdoutClosed, ProgramEvent::Exited, ProgramEvent::StderrDone]);
        }
    }

    pub fn is_alive(&self) -> bool {
        self.exited.is_none()
    }

    /// It works on something, and waits for nobody.
    fn is_at_work(&self) -> bool {
        self.jobs.front().is_some_and(|job| job.asked.is_none())
    }
}

impl State {
    /// A program does the next thing after a time, if not before.
    pub fn acts_after(&mut self, at: usize, after: u64) {
        let program = &mut self.programs[at];
        let when = clock::now() + after;
        if program.acts.is_none_or(|before| when < before) {
            program.acts = Some(when);
            let pid = program.pid;
            self.agenda.plan(after, What::Program(pid));
        }
    }

    /// A program does the next thing when it wants to.
    fn acts_soon(&mut self, at: usize) {
        let soon: &[u64] = &[5 * MILLISECOND, 100 * MILLISECOND, 2 * SECOND];
        // One that has nothing to do seldom prints something all the same.
        let seldom: &[u64] = &[2 * SECOND, 30 * SECOND];
        let most = *self.dice.pick(if self.programs[at].is_at_work() { soon } else { seldom });
        let after = self.dice.below(most);
        self.acts_after(at, after);
    }

    /// A program ends after a time.
    fn ends_within(&mut self, at: usize, most: u64, code: i32) {
        let after = self.dice.below(most);
        let program = &mut self.programs[at];
        let when = clock::now() + after;
        if program.ends.is_none_or(|(before, _)| when < before) {
            program.ends = Some((when, code));
            self.acts_after(at, after);
        }
    }

    pub fn is_signalled(&mut self, pid: i32, signal: Signal) {
        let Some(at) = self.programs.iter().position(|program| program.pid == pid) else { return };
        if !self.programs[at].is_alive() {
            return;
        }
        say!("program {pid} gets {signal:?}");
        match signal {
            Signal::KILL => {
                self.programs[at].exit(137);
                self.acts_after(at, 0);
            }
            _ if self.programs[at].is_stubborn => {}
            _ => self.ends_within(at, 300 * MILLISECOND, 128 + signal.as_raw()),
        }
    }

    /// A program has a message from its beginning.
    pub fn begins(&mut self, at: usize, id: i64) {
        let now = clock::now();
        let program = &mut self.programs[at];
        program.last_output = now;
        program.jobs.push_back(Job { id, said: String::new(), calls: Vec::new(), made: 0, asked: None });
    }

    fn has_job(&mut self, at: usize) -> Option<&mut Job> {
        self.programs[at].jobs.front_mut()
    }

    /// A program says how the message that it works on has ended.
    fn is_done(&mut self, at: usize, word: &str, content: Option<&str>) {
        let now = clock::now();
        let State { programs, dice, .. } = self;
        let program = &mut programs[at];
        let Some(job) = program.jobs.pop_front() else { return };
        program.says(word, content.unwrap_or_default(), dice, now);
        let pid = program.pid;
        let said = content.map_or(job.said, str::to_owned);
        say!("program {pid} is done with {}: {word} {said:?}", job.id);
        match word {
            "d" | "D" => self.rules.finished.push((job.id, said)),
            "F" => self.rules.hopeless.push(job.id),
            _ => {}
        }
    }

    /// Something that a program does.
    fn program_does(&mut self, at: usize) {
        let (now, is_calm) = (clock::now(), self.is_calm);
        let program = &mut self.programs[at];
        let (kind, pid, of) = (program.kind, program.pid, program.of);
        let State { programs, dice, .. } = self;
        let program = &mut programs[at];
        let Some(job) = program.jobs.front_mut() else {
            if !is_calm && kind != Kind::Exec && of == self.adapters && dice.one_in(30) {
                program.says("t", "stray", dice, now);
                say!("program {pid} prints something unasked");
            }
            return;
        };
        if job.asked.is_some() {
            return;
        }
        let roll = if is_calm { 20 + dice.below(50) } else { dice.below(100) };
        match (roll, kind) {
            (..35, _) => {
                let piece = *dice.pick(&["x", "yz", "é"]);
                job.said.push_str(piece);
                program.says("t", piece, dice, now);
            }
            (35..40, Kind::Ndjson | Kind::Talks) if !is_calm => program.says("h", "hm", dice, now),
            (40..46, Kind::Ndjson | Kind::Talks) if !is_calm => {
                // Each attempt counts from the beginning.
                let call = format!("c{}", job.made);
                job.made += 1;
                job.calls.push(call.clone());
                program.says("c", &call, dice, now);
            }
            (46..50, Kind::Ndjson | Kind::Talks) if !job.calls.is_empty() => {
                let call = job.calls.remove(0);
                program.says("r", &call, dice, now);
            }
            (50..54, Kind::Talks) if !is_calm => {
                let id = format!("p{}", program.requests);
                program.requests += 1;
                program.jobs[0].asked = Some(id.clone());
                program.says("a", &id, dice, now);
                say!("program {pid} asks {id}");
            }
            (54..57, Kind::Ndjson | Kind::Talks) if is_calm || dice.one_in(2) => {
                self.is_done(at, "D", Some("all of it"));
            }
            (..70, Kind::Exec) => {
                let Some(job) = program.jobs.pop_front() else { return };
                self.rules.finished.push((job.id, job.said));
                say!("program {pid} is done with {}", job.id);
                self.programs[at].exit(0);
            }
            (..70, _) => self.is_done(at, "d", None),
            (70..76, Kind::Ndjson | Kind::Talks) => self.is_done(at, "f", Some("no")),
            (76..79, Kind::Ndjson | Kind::Talks) => self.is_done(at, "F", Some("never")),
            (79..82, Kind::Ndjson | Kind::Talks) => program.says("?", "", dice, now),
            (82..86, _) => {
                say!("program {pid} dies");
                self.programs[at].exit(1);
            }
            (86..90, _) => {
                program.is_hanging = true;
                say!("program {pid} hangs");
            }
            _ => {}
        }
    }
}

impl World {
    /// Programs read what they were sent.
    pub fn programs_read(self: &Rc<Self>) {
        let count = self.state.borrow().programs.len();
        for at in 0..count {
            let (given, is_stopped) = {
                let mut state = self.state.borrow_mut();
                let now = clock::now();
                let program = &mut state.programs[at];
                if !program.is_alive() {
                    continue;
                }
                let Some(stdin) = &program.stdin else { continue };
                let mut is_closed = false;
                loop {
                    match stdin.try_recv() {
                        Ok(bytes) => program.line.extend(bytes),
                        Err(TryRecvError::Empty) => break,
                        Err(TryRecvError::Disconnected) => {
                            is_closed = true;
                            break;
                        }
                    }
                }
                let (mut given, mut is_stopped, was_at_work) = (Vec::new(), false, program.is_at_work());
                while let Some(end) = program.line.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = program.line.drain(..=end).collect();
                    let line = String::from_utf8(line).unwrap();
                    if let Some(rest) = line.strip_prefix("{\"id\":") {
                        given.push(rest[..rest.find(',').unwrap()].parse::<i64>().unwrap());
                    } else if let Some(id) = line.strip_prefix("permitted ") {
                        program.last_output = now;
                        for job in &mut program.jobs {
                            job.asked = job.asked.take().filter(|asked| asked != id.trim());
                        }
                    } else if line == "stop\n" {
                        is_stopped = true;
                    }
                }
                for &id in &given {
                    program.last_output = now;
                    program.jobs.push_back(Job {
                        id,
                        said: String::new(),
                        calls: Vec::new(),
                        made: 0,
                        asked: None,
                    });
                }
                if !was_at_work && state.programs[at].is_at_work() && !state.programs[at].is_hanging {
                    state.acts_soon(at);
                }
                if is_closed && !state.programs[at].is_stubborn {
                    state.ends_within(at, 500 * MILLISECOND, 0);
                }
                (given, is_stopped)
            };
            given.into_iter().for_each(|id| self.is_given(at, id));
            let mut state = self.state.borrow_mut();
            if !is_stopped {
                continue;
            }
            // What it was given ahead is cancelled in any case.
            state.programs[at].jobs.truncate(1);
            if !state.programs[at].is_stubborn && state.has_job(at).is_some() {
                if state.dice.one_in(2) {
                    state.is_done(at, "x", None);
                } else {
                    state.is_done(at, "d", None);
                }
            }
        }
    }

    /// A program does something, and plans when it does the next thing.
    pub fn program_acts(&self, pid: i32) {
        let mut state = self.state.borrow_mut();
        let Some(at) = state.programs.iter().position(|program| program.pid == pid) else { return };
        let now = clock::now();
        if state.programs[at].acts.take_if(|when| *when <= now).is_none() {
            return;
        }
        if let Some((when, code)) = state.programs[at].ends
            && when <= now
        {
            state.programs[at].exit(code);
        }
        if state.programs[at].is_alive() && !state.programs[at].is_hanging {
            state.program_does(at);
        }
        // Its end may be known before all that it has printed.
        let most = if state.dice.one_in(2) { 64 } else { 1 };
        let was_delivered = state.programs[at].deliver(most);
        state.is_woken |= was_delivered && state.programs[at].of == state.adapters;
        let is_full = !state.programs[at].reports.is_empty();
        let is_alive = state.programs[at].is_alive();
        if is_full {
            state.acts_after(at, MILLISECOND);
        } else if is_alive && !state.programs[at].is_hanging {
            state.acts_soon(at);
        }
        if let Some((when, _)) = state.programs[at].ends.filter(|_| is_alive) {
            state.acts_after(at, when.saturating_sub(now));
        }
    }
}
