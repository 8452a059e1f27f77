//! What must hold in every schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use thread::After;
use thread_conversation::{Entry, Priority, Record, is_ending};
use thread_testkit::say;
use thread_testkit::simulation::clock::{self, MILLISECOND, SECOND};

use super::programs::Kind;
use super::world::World;

/// A message, and what the thread says of its run.
#[derive(Debug, Clone)]
struct Asked {
    priority: Priority,
    run_id: String,
    /// The event that cancels it, and since when that is known.
    cancelled: Option<(i64, u64)>,
    /// How many attempts have begun, and how many of them do not count.
    attempts: u64,
    interrupted: u64,
    in_attempt: bool,
    open_calls: BTreeSet<String>,
    is_ended: bool,
    /// How often an adapter had waited by then.
    ended_at: u32,
    /// How often it was given to a program.
    given: u64,
    /// Up to which event the adapter had read when the last attempt began.
    known: i64,
}

/// What is known from the events, and from the programs.
#[derive(Debug, Default)]
pub struct Rules {
    messages: BTreeMap<i64, Asked>,
    /// Events up to this one are known.
    pub upto: i64,
    /// The messages that programs have said to be answered, with their answers.
    pub finished: Vec<(i64, String)>,
    /// Those that programs have said to be in vain.
    pub hopeless: Vec<i64>,
    /// Requests for permission.
    pub asked: Vec<String>,
    /// A program could not be started, or was given too much.
    pub cannot_start: bool,
}

/// How many attempts each message has.
pub const ATTEMPTS: u64 = 3;

/// How long a program may be quiet, and how long one that is kept has nothing to do.
pub const QUIET: u64 = 20 * SECOND;
pub const IDLE: u64 = 5 * SECOND;

/// How long it may take until a program is gone that does not want to end: while it answers, and then.
const TO_STOP: u64 = 5 * SECOND;
const TO_END: u64 = 4 * SECOND + 100 * MILLISECOND;

/// How long it may take until the adapter hears of what others have stored.
const TO_HEAR: u64 = 8 * SECOND;

/// How long others may be the reason that it takes longer.
const SLACK: u64 = 100 * MILLISECOND;

impl Rules {
    pub fn open(&self) -> Vec<i64> {
        self.messages.iter().filter(|(_, asked)| !asked.is_ended).map(|(id, _)| *id).collect()
    }

    pub fn run_id(&self, id: i64) -> String {
        self.messages[&id].run_id.clone()
    }

    fn with_run_id(&mut self, run_id: Option<&str>) -> Option<&mut Asked> {
        self.messages.values_mut().find(|asked| Some(&*asked.run_id) == run_id)
    }

    fn note(&mut self, record: &Record, is_ending: bool, (known, now, waits): (i64, u64, u32)) {
        let id = record.id();
        let run_id = record.run_id.as_deref();
        match &record.entry {
            Entry::Message(message) if record.event.source != "self" => {
                let asked = Asked {
                    priority: message.priority,
                    run_id: run_id.unwrap().to_owned(),
                    cancelled: None,
                    attempts: 0,
                    interrupted: 0,
                    in_attempt: false,
                    open_calls: BTreeSet::new(),
                    is_ended: false,
                    ended_at: 0,
                    given: 0,
                    known: 0,
                };
                self.messages.insert(id, asked);
            }
            Entry::Cancel { .. } => {
                if let Some(asked) = self.with_run_id(run_id) {
                    asked.cancelled.get_or_insert((id, now));
                }
            }
            Entry::RunStarted { reply_to: Some(of), .. } => {
                let others = self.messages.iter().filter(|(other, asked)| *other != of && asked.in_attempt);
                let others: Vec<&i64> = others.map(|(id, _)| id).collect();
                assert!(others.is_empty(), "an attempt at {of} begins, and {others:?} are under way");
                let asked = self.messages.get_mut(of).unwrap();
                assert!(!asked.is_ended, "an attempt begins at {of}, which is ended");
                assert!(!asked.in_attempt, "an attempt at {of} begins before the one before has an end");
                assert!(asked.open_calls.is_empty(), "calls of {of} are left open: {:?}", asked.open_calls);
                (asked.in_attempt, asked.known) = (true, known);
                asked.attempts += 1;
                let counted = asked.attempts - asked.interrupted;
                assert!(counted <= ATTEMPTS, "attempt {counted} at {of} begins");
            }
            Entry::Error { retryable: true, reply_to: Some(of), interrupted_by, .. } => {
                let asked = self.messages.get_mut(of).unwrap();
                assert!(asked.open_calls.is_empty(), "calls of {of} are left open: {:?}", asked.open_calls);
                asked.in_attempt = false;
                asked.interrupted += u64::from(interrupted_by.is_some());
            }
            Entry::ToolCall(call) => {
                if let Some(asked) = self.with_run_id(run_id) {
                    assert!(asked.in_attempt, "a call is stored of a run that is not under way");
                    asked.open_calls.insert(call.call_id.clone());
                }
            }
            Entry::ToolResult(result) => {
                if let Some(asked) = self.with_run_id(run_id) {
                    asked.open_calls.remove(&result.call_id);
                }
            }
            Entry::Permission(asked) => self.asked.push(asked.request_id.clone()),
            Entry::Token { .. } | Entry::Thinking { .. } => {
                if let Some(asked) = self.with_run_id(run_id) {
                    assert!(asked.in_attempt, "a piece is stored of a run that is not under way");
                }
            }
            entry => {
                let Some(of) = entry.ends().filter(|of| self.messages.contains_key(of)) else { return };
                assert!(is_ending, "event {id} looks like an ending of {of}, and is none");
                let text = entry.ending().unwrap().text.to_owned();
                let is_finished = self.finished.contains(&(of, text.clone()));
                let is_hopeless = self.hopeless.contains(&of) || self.cannot_start;
                let asked = self.messages.get_mut(&of).unwrap();
                assert!(!asked.is_ended, "{of} has two endings");
                assert!(asked.open_calls.is_empty(), "calls of {of} are left open: {:?}", asked.open_calls);
                (asked.is_ended, asked.in_attempt, asked.ended_at) = (true, false, waits);
                match entry {
                    Entry::Cancelled { .. } => {}
                    Entry::Error { .. } => {
                        let is_over = asked.attempts - asked.interrupted >= ATTEMPTS;
                        assert!(is_over || is_hopeless, "{of} is given up too early");
                    }
                    _ => assert!(is_finished, "{of} is answered by {text:?}, and no program has said so"),
                }
            }
        }
    }

    /// Whether each message has its ending.
    pub fn is_done(&self) -> bool {
        self.messages.values().all(|asked| asked.is_ended)
    }
}

fn log(Record { event, run_id, .. }: &Record) {
    let (subtype, content) = (event.subtype.as_deref().unwrap_or("message"), &event.content);
    let run = match run_id.as_deref() {
        // Random, and used for nothing else.
        Some(id) if id.len() >= 20 => "an agent's own run",
        id => id.unwrap_or_default(),
    };
    say!("  event {}: {subtype} of {run}: {content}", event.id);
}

impl World {
    /// What is stored is what may be.
    pub fn check(self: &Rc<Self>) {
        let mut queue = self.queue();
        let upto = self.state.borrow().rules.upto;
        for event in queue.read(After(upto), None).unwrap() {
            let id = event.id;
            let record = Record::of(event);
            let is_ending = is_ending(&mut queue, id, &record.entry).unwrap();
            let mut state = self.state.borrow_mut();
            log(&record);
            state.rules.upto = id;
            let known = (state.known, clock::now(), state.waits);
            state.rules.note(&record, is_ending, known);
        }
        let cursor = queue.subscription(&self.consumer).unwrap().last_acked_id;
        let state = self.state.borrow();
        let open = state.rules.messages.iter().find(|(id, asked)| **id <= cursor && !asked.is_ended);
        assert!(open.is_none(), "the cursor is at {cursor}, and a message is open: {open:?}");
    }

    /// A program is given a message.
    pub fn is_given(self: &Rc<Self>, at: usize, id: i64) {
        self.others(World::check);
        let mut state = self.state.borrow_mut();
        let pid = state.programs[at].pid;
        say!("program {pid} is given {id}");
        let alive: Vec<i32> = {
            let others = state.programs.iter().filter(|other| other.pid != pid && other.is_alive());
            others.map(|other| other.pid).collect()
        };
        assert!(alive.is_empty(), "program {pid} is given {id} while {alive:?} work");
        let is_ahead = state.programs[at].jobs.len() > 1;
        let waits = state.waits;
        let rules = &mut state.rules;
        let asked = rules.messages[&id].clone();
        let known = asked.known;
        // One that steers may be cancelled when it is sent, and not yet read.
        let is_on_its_way = asked.priority == Priority::Steer && asked.ended_at + 1 >= waits;
        assert!(!asked.is_ended || is_on_its_way, "{id} is given to a program, and is ended");
        if is_ahead {
            return;
        }
        // Of a message that was given ahead, the attempt may begin later.
        let is_steered = asked.priority == Priority::Steer;
        assert!(asked.in_attempt || is_steered, "{id} is given to a program before that is stored");
        assert!(asked.given < asked.attempts || is_steered, "{id} is given twice in one attempt");
        assert!(
            asked.cancelled.is_none_or(|(cancel, _)| cancel > known),
            "{id} is given to a program, and was cancelled"
        );
        let rank = |priority: Priority| match priority {
            Priority::Now => 0,
            Priority::Steer => 1,
            Priority::Next => 2,
            Priority::Later => 3,
        };
        let own = (rank(asked.priority), id);
        let mut before = rules.messages.iter().filter(|(other, asked)| {
            let is_known = **other <= known && asked.cancelled.is_none();
            !asked.is_ended && is_known && asked.attempts == 0 && (rank(asked.priority), **other) < own
        });
        if asked.attempts == 1 {
            let first = before.next();
            assert!(first.is_none(), "{id} is given to a program before {first:?}");
        }
        rules.messages.get_mut(&id).unwrap().given += 1;
    }

    /// Nothing takes longer than it may. Called when time has passed.
    pub fn check_times(&self) {
        let state = self.state.borrow();
        let (now, slept) = (clock::now(), state.slept);
        if let Some(stopped) = state.stopped {
            let took = (now - stopped).saturating_sub(slept);
            assert!(took <= TO_STOP + TO_END + SLACK, "it takes {} ms to stop", took / MILLISECOND);
        }
        let cancelled = state.rules.messages.iter().filter(|(_, asked)| !asked.is_ended);
        for (id, (_, at)) in cancelled.filter_map(|(id, asked)| Some((id, asked.cancelled?))) {
            let took = (now - at.max(state.began)).saturating_sub(slept);
            let most = TO_HEAR + TO_STOP + TO_END + SLACK;
            assert!(took <= most, "{id} is cancelled, and open {} ms later", took / MILLISECOND);
        }
        if state.is_calm {
            let took = now - state.calm_since;
            assert!(took < 900 * SECOND, "it takes too long until nothing is left");
        }
        for program in
            state.programs.iter().filter(|program| program.is_alive() && program.of == state.adapters)
        {
            let Some(job) = program.jobs.front() else { continue };
            let is_quiet = job.asked.is_none() && state.stopped.is_none();
            let quiet = now.saturating_sub(program.last_output).saturating_sub(slept);
            assert!(
                !is_quiet || quiet <= QUIET + TO_STOP + SLACK,
                "program {} has been quiet for {} ms, and nobody ends it",
                program.pid,
                quiet / MILLISECOND
            );
        }
        let is_kept = state.kind != Kind::Exec;
        if let Some(done) = state.done_since {
            let most = if is_kept { IDLE } else { 0 } + TO_END + SLACK;
            assert!(now - done <= most.max(TO_HEAR + SECOND), "all is done, and the adapter stays");
        }
    }
}
