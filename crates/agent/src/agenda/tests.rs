use proptest::prelude::*;

use super::*;
use crate::conversation::{Answer, ToolCall, ToolResult};

/// An agenda, and a conversation that it is fed event by event.
#[derive(Default)]
struct Talk {
    agenda: Agenda,
    newest: i64,
}

impl Talk {
    fn note(&mut self, run_id: Option<String>, entry: Entry, is_pending: bool) -> i64 {
        self.newest += 1;
        let is_ending = entry.ends().is_some();
        let id = self.newest;
        let source = if is_pending { "them" } else { "self" };
        self.agenda.note(Noted { id, source, run_id, entry, is_pending, is_ending });
        id
    }

    fn say(&mut self, message: Message) -> i64 {
        let run_id = format!("run_{}", self.newest + 1);
        self.note(Some(run_id), Entry::Message(message), true)
    }

    fn message(&mut self, priority: Priority) -> i64 {
        self.say(Message { priority, ..Message::text("x") })
    }

    fn cancel(&mut self, of: i64) -> i64 {
        self.note(Some(format!("run_{of}")), Entry::Cancel { why: "enough".into() }, true)
    }

    fn begin(&mut self, of: i64) -> i64 {
        self.note(Some(format!("run_{of}")), Entry::RunStarted { attempt: 1, reply_to: of }, false)
    }

    fn fail(&mut self, of: i64, interrupted_by: Option<i64>) {
        let entry = Entry::Error { error: "x".into(), retryable: true, reply_to: Some(of), interrupted_by };
        self.note(Some(format!("run_{of}")), entry, false);
    }

    fn answer(&mut self, of: i64) {
        let entry = Entry::Answer { answer: Answer::default(), reply_to: Some(of) };
        self.note(Some(format!("run_{of}")), entry, false);
    }

    fn next(&self) -> Next {
        self.agenda.next(3)
    }
}

#[test]
fn now_comes_first_and_later_last() {
    let mut talk = Talk::default();
    let later = talk.message(Priority::Later);
    let next = talk.message(Priority::Next);
    let another = talk.message(Priority::Next);
    let now = talk.message(Priority::Now);
    for id in [now, next, another, later] {
        assert_eq!(talk.next(), Next::Run(id));
        talk.begin(id);
        assert_eq!(talk.agenda.verdict(id), None);
        talk.answer(id);
    }
    assert_eq!(talk.next(), Next::Nothing);
}

#[test]
fn now_interrupts_what_began_before_it() {
    let mut talk = Talk::default();
    let first = talk.message(Priority::Next);
    talk.begin(first);
    let now = talk.message(Priority::Now);
    let source = "them".to_owned();
    let verdict = Verdict::Interrupted { by: now, source, resume: false };
    assert_eq!(talk.agenda.verdict(first), Some(verdict.clone()));
    assert_eq!(talk.next(), Next::End(first, verdict));
}

#[test]
fn now_interrupts_what_began_before_it_was_known() {
    let mut talk = Talk::default();
    let first = talk.message(Priority::Next);
    let now = talk.message(Priority::Now);
    talk.begin(first);
    assert!(matches!(talk.agenda.verdict(first), Some(Verdict::Interrupted { by, .. }) if by == now));
}

#[test]
fn the_second_now_waits_if_it_was_there_and_interrupts_if_it_was_not() {
    let mut talk = Talk::default();
    let (first, _second) = (talk.message(Priority::Now), talk.message(Priority::Now));
    talk.begin(first);
    assert_eq!(talk.agenda.verdict(first), None);
    let third = talk.message(Priority::Now);
    assert!(matches!(talk.agenda.verdict(first), Some(Verdict::Interrupted { by, .. }) if by == third));
}

#[test]
fn now_does_not_interrupt_what_has_not_begun() {
    let mut talk = Talk::default();
    let first = talk.message(Priority::Next);
    let now = talk.message(Priority::Now);
    assert_eq!(talk.agenda.verdict(first), None);
    assert_eq!(talk.next(), Next::Run(now));
}

#[test]
fn a_resumable_turn_comes_after_now_and_before_the_others() {
    let mut talk = Talk::default();
    let first = talk.say(Message { resume: true, priority: Priority::Later, ..Message::default() });
    talk.begin(first);
    let next = talk.message(Priority::Next);
    let now = talk.message(Priority::Now);
    assert!(matches!(talk.next(), Next::End(id, Verdict::Interrupted { resume: true, .. }) if id == first));
    talk.fail(first, Some(now));
    assert_eq!(talk.agenda.turn(first).unwrap().attempts, 0);
    for id in [now, first, next] {
        assert_eq!(talk.next(), Next::Run(id));
        talk.begin(id);
        talk.answer(id);
    }
}

#[test]
fn a_cancel_ends_running_and_queued_runs_and_no_others() {
    let mut talk = Talk::default();
    let (done, running) = (talk.message(Priority::Next), talk.message(Priority::Next));
    let (queued, other) = (talk.message(Priority::Next), talk.message(Priority::Next));
    talk.begin(done);
    talk.answer(done);
    talk.begin(running);
    for id in [done, running, queued] {
        talk.cancel(id);
    }
    let why = || Verdict::Cancelled("cancelled by them: enough".into());
    assert_eq!(talk.agenda.verdict(running), Some(why()));
    assert_eq!(talk.agenda.cancelled(running), Some((queued, why())));
    assert_eq!(talk.next(), Next::End(running, why()));
    let entry = Entry::Cancelled { why: "x".into(), reply_to: Some(running) };
    talk.note(None, entry, false);
    assert_eq!(talk.next(), Next::End(queued, why()));
    let entry = Entry::Cancelled { why: "x".into(), reply_to: Some(queued) };
    talk.note(None, entry, false);
    assert_eq!(talk.next(), Next::Run(other));
}

#[test]
fn a_cancel_does_not_apply_to_a_later_run_with_the_same_id() {
    let mut talk = Talk::default();
    let cancelled = talk.cancel(2);
    assert_eq!(cancelled, 1);
    let message = talk.message(Priority::Next);
    assert_eq!(talk.next(), Next::Run(message));
}

#[test]
fn a_turn_is_given_up_after_its_last_attempt() {
    let mut talk = Talk::default();
    let id = talk.message(Priority::Next);
    for _ in 0..3 {
        assert_eq!(talk.next(), Next::Run(id));
        talk.begin(id);
        talk.fail(id, None);
    }
    assert_eq!(talk.next(), Next::GiveUp(id));
}

#[test]
fn a_begun_turn_continues_before_others_start() {
    let mut talk = Talk::default();
    let later = talk.message(Priority::Later);
    talk.begin(later);
    talk.message(Priority::Next);
    talk.fail(later, None);
    assert_eq!(talk.next(), Next::Run(later));
}

#[test]
fn calls_are_open_until_their_result_or_the_end_of_the_attempt() {
    let mut talk = Talk::default();
    let id = talk.message(Priority::Next);
    let run = Some(format!("run_{id}"));
    let call = |n: &str| {
        Entry::ToolCall(ToolCall { call_id: n.into(), name: "t".into(), arguments: Default::default() })
    };
    talk.note(run.clone(), call("before"), false);
    talk.begin(id);
    talk.note(run.clone(), call("a"), false);
    talk.note(run.clone(), call("b"), false);
    talk.note(Some("another".into()), call("c"), false);
    let result = ToolResult { call_id: "a".into(), name: "t".into(), outcome: Err("x".into()) };
    talk.note(run, Entry::ToolResult(result), false);
    assert_eq!(talk.agenda.turn(id).unwrap().open_calls, [("b".to_owned(), "t".to_owned())]);
    talk.fail(id, None);
    assert_eq!(talk.agenda.turn(id).unwrap().open_calls, []);
}

#[test]
fn the_cursor_stops_before_the_oldest_unfinished_message() {
    let mut talk = Talk::default();
    let (later, next) = (talk.message(Priority::Later), talk.message(Priority::Next));
    talk.begin(next);
    talk.answer(next);
    assert_eq!(talk.agenda.acknowledge(), None);
    talk.begin(later);
    talk.answer(later);
    assert_eq!(talk.agenda.acknowledge(), Some(next));
    talk.agenda.acknowledged(next);
    assert_eq!(talk.agenda.acknowledge(), None);
    let cancel = talk.cancel(99);
    assert_eq!(talk.agenda.acknowledge(), Some(cancel));
}

#[test]
fn an_ending_without_its_key_ends_nothing() {
    let mut talk = Talk::default();
    let id = talk.message(Priority::Next);
    let entry = Entry::Answer { answer: Answer::default(), reply_to: Some(id) };
    talk.agenda.note(Noted {
        id: 2,
        source: "self",
        run_id: None,
        entry,
        is_pending: false,
        is_ending: false,
    });
    assert_eq!(talk.next(), Next::Run(id));
}

/// What can happen at any moment.
#[derive(Debug, Clone)]
enum Act {
    Say(Priority, bool),
    /// Cancel the message this many before the last one.
    Cancel(usize),
    /// The adapter takes a step; an attempt in it ends like this.
    Step(Outcome),
}

#[derive(Debug, Clone, Copy)]
enum Outcome {
    Answered,
    Failed,
    /// The adapter is killed during the attempt.
    Killed,
}

fn act() -> impl Strategy<Value = Act> {
    let priority = prop_oneof![Just(Priority::Now), Just(Priority::Next), Just(Priority::Later)];
    let outcome =
        prop_oneof![3 => Just(Outcome::Answered), 1 => Just(Outcome::Failed), 1 => Just(Outcome::Killed)];
    prop_oneof![
        2 => (priority, any::<bool>()).prop_map(|(priority, resume)| Act::Say(priority, resume)),
        1 => (0..4usize).prop_map(Act::Cancel),
        4 => outcome.prop_map(Act::Step),
    ]
}

/// Simulates one step of an adapter. Returns whether there was something to do.
fn step(talk: &mut Talk, outcome: Outcome, order: &mut Vec<i64>) -> bool {
    let cancelled = |talk: &mut Talk, id: i64| {
        let entry = Entry::Cancelled { why: String::new(), reply_to: Some(id) };
        talk.note(None, entry, false);
    };
    match talk.next() {
        Next::Nothing => return false,
        Next::End(id, Verdict::Interrupted { by, resume: true, .. }) => talk.fail(id, Some(by)),
        Next::End(id, _) => cancelled(talk, id),
        Next::GiveUp(id) => {
            let (error, reply_to) = (String::new(), Some(id));
            let entry = Entry::Error { error, retryable: false, reply_to, interrupted_by: None };
            talk.note(None, entry, false);
        }
        Next::Run(id) => {
            talk.begin(id);
            order.push(id);
            match outcome {
                Outcome::Answered => talk.answer(id),
                Outcome::Failed => talk.fail(id, None),
                Outcome::Killed => {}
            }
        }
    }
    true
}

proptest! {
    #[test]
    fn every_message_ends_and_in_order_within_a_priority(acts in prop::collection::vec(act(), 0..40)) {
        let mut talk = Talk::default();
        let (mut said, mut begun) = (Vec::new(), Vec::new());
        for act in acts {
            match act {
                Act::Say(priority, resume) => {
                    let id = talk.say(Message { priority, resume, ..Message::default() });
                    said.push((id, priority));
                }
                Act::Cancel(back) => {
                    if let Some((id, _)) = said.iter().rev().nth(back) {
                        talk.cancel(*id);
                    }
                }
                Act::Step(outcome) => drop(step(&mut talk, outcome, &mut begun)),
            }
        }
        let mut steps = 0;
        while step(&mut talk, Outcome::Answered, &mut begun) {
            steps += 1;
            prop_assert!(steps < 1000, "there is always something to do");
        }
        prop_assert_eq!(talk.agenda.turns().count(), 0);
        let last = said.iter().map(|(id, _)| *id).max();
        prop_assert!(talk.agenda.acknowledge() >= last);
        for priority in [Priority::Now, Priority::Next, Priority::Later] {
            let mut firsts: Vec<i64> = Vec::new();
            for id in begun.iter().filter(|id| said.contains(&(**id, priority))) {
                if !firsts.contains(id) {
                    firsts.push(*id);
                }
            }
            prop_assert!(firsts.is_sorted(), "{:?}: {:?}", priority, firsts);
        }
    }
}
