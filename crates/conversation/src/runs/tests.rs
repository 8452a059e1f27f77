use proptest::prelude::*;
use thread::Event;

use super::*;
use crate::{Answer, Choice, Message, Permission, PermissionAnswer, ToolCall, ToolResult};

/// An event as it is fed to [`Runs`].
#[derive(Debug, Clone)]
struct Stored {
    record: Record,
    is_pending: bool,
    is_ending: bool,
}

fn feed(runs: &mut Runs, events: &[Stored]) {
    for Stored { record, is_pending, is_ending } in events {
        runs.note(Noted { record, is_pending: *is_pending, is_ending: *is_ending });
    }
}

/// A conversation, and the runs that are open in it.
#[derive(Default)]
struct Talk {
    runs: Runs,
    events: Vec<Stored>,
}

impl Talk {
    fn newest(&self) -> i64 {
        self.events.last().map_or(0, |event| event.record.id())
    }

    fn note(&mut self, run_id: Option<String>, entry: Entry, is_pending: bool) -> i64 {
        let is_ending = entry.ends().is_some();
        self.store(run_id, entry, is_pending, is_ending)
    }

    fn store(&mut self, run_id: Option<String>, entry: Entry, is_pending: bool, is_ending: bool) -> i64 {
        let id = self.newest() + 1;
        let event = Event {
            id,
            created_at: format!("second {id}"),
            source: if is_pending { "them" } else { "self" }.to_owned(),
            kind: "record".into(),
            subtype: None,
            content: String::new(),
            metadata: None,
        };
        let record = Record { run_id, entry, ..Record::of(event) };
        self.events.push(Stored { record, is_pending, is_ending });
        feed(&mut self.runs, &self.events[self.events.len() - 1..]);
        id
    }

    fn say(&mut self, message: Message) -> i64 {
        let run_id = format!("run_{}", self.newest() + 1);
        self.note(Some(run_id), Entry::Message(message), true)
    }

    fn message(&mut self, priority: Priority) -> i64 {
        self.say(Message { priority, ..Message::text("x") })
    }

    fn cancel(&mut self, of: i64) -> i64 {
        self.note(Some(format!("run_{of}")), Entry::Cancel { why: "enough".into() }, true)
    }

    fn begin(&mut self, of: i64) -> i64 {
        self.note(Some(format!("run_{of}")), Entry::RunStarted { attempt: 1, reply_to: Some(of) }, false)
    }

    fn fail(&mut self, of: i64, interrupted_by: Option<i64>) {
        let entry = error(of, true, interrupted_by);
        self.note(Some(format!("run_{of}")), entry, false);
    }

    fn answer(&mut self, of: i64) {
        let entry = Entry::Answer { answer: Answer::default(), reply_to: Some(of), began: None };
        self.note(Some(format!("run_{of}")), entry, false);
    }

    fn next(&self) -> Next {
        self.runs.next(3)
    }
}

#[test]
fn a_result_that_a_model_got_resets_the_count_of_its_attempts() {
    for (is_models, unreported, is_over, expected) in
        [(true, false, false, 1), (false, false, false, 3), (true, true, false, 3), (true, false, true, 3)]
    {
        let mut talk = Talk::default();
        let of = talk.message(Priority::Next);
        let run_id = Some(format!("run_{of}"));
        for _ in 0..2 {
            talk.begin(of);
            talk.fail(of, None);
        }
        talk.begin(of);
        if is_models {
            let turn = crate::ModelTurn::default();
            talk.note(run_id.clone(), Entry::Model { turn, message_id: None }, false);
        }
        if is_over {
            talk.fail(of, None);
        }
        let result = Entry::ToolResult(ToolResult::new("c", "t", Ok("r".into())));
        let id = talk.newest() + 1;
        let event = Event {
            id,
            created_at: String::new(),
            source: "self".into(),
            kind: "record".into(),
            subtype: None,
            content: String::new(),
            metadata: None,
        };
        let record = Record { run_id, entry: result, unreported, ..Record::of(event) };
        feed(&mut talk.runs, &[Stored { record, is_pending: false, is_ending: false }]);
        assert_eq!(talk.runs.get(of).unwrap().attempts, expected);
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
        assert_eq!(talk.runs.verdict(id), None);
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
    assert_eq!(talk.runs.verdict(first), Some(verdict.clone()));
    assert_eq!(talk.next(), Next::End(first, verdict));
}

#[test]
fn now_interrupts_what_began_before_it_was_known() {
    let mut talk = Talk::default();
    let first = talk.message(Priority::Next);
    let now = talk.message(Priority::Now);
    talk.begin(first);
    assert!(matches!(talk.runs.verdict(first), Some(Verdict::Interrupted { by, .. }) if by == now));
}

#[test]
fn the_second_now_waits_if_it_was_there_and_interrupts_if_it_was_not() {
    let mut talk = Talk::default();
    let (first, _second) = (talk.message(Priority::Now), talk.message(Priority::Now));
    talk.begin(first);
    assert_eq!(talk.runs.verdict(first), None);
    let third = talk.message(Priority::Now);
    assert!(matches!(talk.runs.verdict(first), Some(Verdict::Interrupted { by, .. }) if by == third));
}

#[test]
fn now_does_not_interrupt_what_has_not_begun() {
    let mut talk = Talk::default();
    let first = talk.message(Priority::Next);
    let now = talk.message(Priority::Now);
    assert_eq!(talk.runs.verdict(first), None);
    assert_eq!(talk.next(), Next::Run(now));
}

#[test]
fn a_cancel_says_by_whom_and_why_if_it_says_why() {
    for (why, told) in
        [("", "cancelled by them"), (" \n", "cancelled by them"), (" enough ", "cancelled by them: enough")]
    {
        let mut talk = Talk::default();
        let message = talk.message(Priority::Next);
        talk.note(Some(format!("run_{message}")), Entry::Cancel { why: why.into() }, true);
        assert_eq!(talk.runs.verdict(message), Some(Verdict::Cancelled(told.into())));
    }
}

#[test]
fn a_resumable_run_comes_after_now_and_before_the_others() {
    let mut talk = Talk::default();
    let first = talk.say(Message { resume: true, priority: Priority::Later, ..Message::default() });
    talk.begin(first);
    let next = talk.message(Priority::Next);
    let now = talk.message(Priority::Now);
    assert!(matches!(talk.next(), Next::End(id, Verdict::Interrupted { resume: true, .. }) if id == first));
    talk.fail(first, Some(now));
    assert_eq!(talk.runs.get(first).unwrap().attempts, 0);
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
    assert_eq!(talk.runs.verdict(running), Some(why()));
    assert_eq!(talk.runs.cancelled(running), Some((queued, why())));
    assert_eq!(talk.next(), Next::End(running, why()));
    let entry = cancelled(running);
    talk.note(None, entry, false);
    assert_eq!(talk.next(), Next::End(queued, why()));
    let entry = cancelled(queued);
    talk.note(None, entry, false);
    assert_eq!((talk.next(), talk.runs.cancelled(0)), (Next::Run(other), None));
    let last = talk.message(Priority::Next);
    talk.cancel(last);
    assert_eq!(talk.runs.cancelled(0), Some((last, why())));
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
fn a_run_is_given_up_after_its_last_attempt() {
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
fn a_begun_run_continues_before_others_start() {
    let mut talk = Talk::default();
    let later = talk.message(Priority::Later);
    talk.begin(later);
    talk.message(Priority::Next);
    talk.fail(later, None);
    assert_eq!(talk.next(), Next::Run(later));
}

fn open_calls(talk: &Talk, id: i64) -> Vec<(String, String)> {
    talk.runs.get(id).unwrap().open_calls.clone().into_iter().collect()
}

#[test]
fn calls_are_open_until_their_result_or_the_end_of_the_attempt() {
    let mut talk = Talk::default();
    let id = talk.message(Priority::Next);
    let run = Some(format!("run_{id}"));
    let call = |n: &str| Entry::ToolCall(ToolCall::new(n, "t", Default::default()));
    talk.note(run.clone(), call("before"), false);
    talk.begin(id);
    talk.note(run.clone(), call("a"), false);
    talk.note(run.clone(), call("b"), false);
    talk.note(Some("another".into()), call("c"), false);
    let result = ToolResult::new("a", "t", Err("x".into()));
    talk.note(run, Entry::ToolResult(result), false);
    assert_eq!(open_calls(&talk, id), [("b".to_owned(), "t".to_owned())]);
    talk.fail(id, None);
    assert_eq!(open_calls(&talk, id), Vec::new());
}

#[test]
fn the_cursor_stops_before_the_oldest_unfinished_message() {
    let mut talk = Talk::default();
    let (later, next) = (talk.message(Priority::Later), talk.message(Priority::Next));
    talk.begin(next);
    talk.answer(next);
    assert_eq!(talk.runs.acknowledge(), None);
    talk.begin(later);
    talk.answer(later);
    assert_eq!(talk.runs.acknowledge(), Some(next));
    talk.runs.acknowledged(next);
    assert_eq!(talk.runs.acknowledge(), None);
    let cancel = talk.cancel(99);
    assert_eq!(talk.runs.acknowledge(), Some(cancel));
}

#[test]
fn an_ending_without_its_key_ends_nothing() {
    let mut talk = Talk::default();
    let id = talk.message(Priority::Next);
    talk.store(
        None,
        Entry::Answer { answer: Answer::default(), reply_to: Some(id), began: None },
        false,
        false,
    );
    assert_eq!(talk.next(), Next::Run(id));
}

#[test]
fn a_now_message_that_was_interrupted_comes_after_the_one_that_interrupted_it() {
    let mut talk = Talk::default();
    let first = talk.say(Message { resume: true, priority: Priority::Now, ..Message::default() });
    talk.begin(first);
    let second = talk.message(Priority::Now);
    talk.fail(first, Some(second));
    assert_eq!(talk.next(), Next::Run(second));
    assert_eq!(talk.runs.in_order(), [second, first]);
}

#[test]
fn readers_learn_what_is_active_and_what_waits() {
    let mut talk = Talk::default();
    let (first, later) = (talk.message(Priority::Next), talk.message(Priority::Later));
    assert_eq!((talk.runs.active(), talk.runs.queued()), (None, 2));
    assert_eq!(talk.runs.oldest_queued(), Some("second 1"));
    talk.begin(first);
    let next = talk.message(Priority::Next);
    let now = talk.message(Priority::Now);
    let active = talk.runs.active().unwrap();
    assert_eq!((active.id(), active.since.as_deref(), active.run.attempt), (first, Some("second 3"), 1));
    assert_eq!(talk.runs.in_order(), [first, now, next, later]);
    assert_eq!(
        [first, now, next, later, 99].map(|id| talk.runs.position(id)),
        [Some(0), Some(1), Some(2), Some(3), None]
    );
    assert_eq!((talk.runs.queued(), talk.runs.oldest_queued()), (3, Some("second 2")));
    let ids: Vec<i64> = talk.runs.with_run_id("run_4").map(OpenRun::id).collect();
    assert_eq!(ids, [next]);

    talk.fail(first, None);
    assert_eq!(talk.runs.active().map(OpenRun::id), Some(first), "it waits for its next attempt");
    let again = talk.begin(first);
    let active = talk.runs.active().unwrap();
    assert_eq!(
        (active.since.as_deref(), active.run.attempt, active.last_begun),
        (Some("second 3"), 2, again)
    );
    talk.fail(first, Some(now));
    assert_eq!(talk.runs.active(), None, "it was interrupted, and is queued again");
    assert_eq!(talk.runs.in_order(), [now, first, next, later]);
}

#[test]
fn a_request_for_permission_is_open_until_its_answer_or_the_end_of_the_attempt() {
    let mut talk = Talk::default();
    let id = talk.message(Priority::Next);
    let run = Some(format!("run_{id}"));
    let ask = |talk: &mut Talk, request_id: &str| {
        let choices = vec![Choice { id: "yes".into(), name: "Yes".into(), kind: "allow_once".into() }];
        let asked = Permission {
            request_id: request_id.into(),
            title: "may I".into(),
            call_id: None,
            arguments: Default::default(),
            details: String::new(),
            choices,
            wait_ms: None,
        };
        talk.note(run.clone(), Entry::Permission(asked), false)
    };
    let answer = |talk: &mut Talk, request_id: &str, choice: &str| {
        let (request_id, choice) = (request_id.to_owned(), choice.to_owned());
        talk.note(None, Entry::PermissionAnswer(PermissionAnswer { request_id, choice }), false);
    };
    let open = |talk: &Talk| -> Vec<i64> {
        talk.runs.active().unwrap().open_permissions.iter().map(|asked| asked.event_id).collect()
    };
    ask(&mut talk, "before the attempt");
    talk.begin(id);
    let (first, second) = (ask(&mut talk, "a"), ask(&mut talk, "b"));
    answer(&mut talk, "a", "maybe");
    answer(&mut talk, "c", "yes");
    assert_eq!(open(&talk), [first, second]);
    answer(&mut talk, "a", "yes");
    assert_eq!(open(&talk), [second]);
    let third = ask(&mut talk, "c");
    answer(&mut talk, "b", "");
    assert_eq!(open(&talk), [third], "the agent has withdrawn the other");
    talk.fail(id, None);
    assert_eq!(open(&talk), Vec::<i64>::new());
}

#[test]
fn records_belong_to_the_run_whose_attempt_began_last() {
    let mut talk = Talk::default();
    let first = talk.say(Message { resume: true, ..Message::default() });
    talk.begin(first);
    let now = talk.message(Priority::Now);
    talk.fail(first, Some(now));
    talk.begin(now);
    for id in [first, now] {
        let call = ToolCall::new("c", "t", Default::default());
        talk.note(Some(format!("run_{id}")), Entry::ToolCall(call), false);
    }
    assert_eq!([first, now].map(|id| open_calls(&talk, id).len()), [0, 1]);
}

#[test]
fn a_message_that_the_filter_leaves_out_begins_no_run() {
    let mut talk = Talk::default();
    talk.note(Some("run_1".into()), Entry::Message(Message::text("x")), false);
    assert_eq!((talk.next(), talk.runs.in_order()), (Next::Nothing, Vec::new()));
}

#[test]
fn a_call_that_is_corrected_is_one_call() {
    let mut talk = Talk::default();
    let id = talk.message(Priority::Next);
    talk.begin(id);
    for name in ["Terminal", "ls -la"] {
        let call = ToolCall::new("c", name, Default::default());
        talk.note(Some(format!("run_{id}")), Entry::ToolCall(call), false);
    }
    assert_eq!(open_calls(&talk, id), [("c".to_owned(), "ls -la".to_owned())]);
}

#[test]
fn a_message_that_is_not_for_the_consumer_begins_no_run() {
    let mut talk = Talk::default();
    talk.note(Some("run_1".into()), Entry::Message(Message::text("x")), false);
    assert_eq!((talk.next(), talk.runs.acknowledge()), (Next::Nothing, None));
}

#[test]
fn a_cursor_that_is_set_forward_ends_runs() {
    let mut talk = Talk::default();
    let (first, second) = (talk.message(Priority::Next), talk.message(Priority::Next));
    talk.begin(first);
    assert!(talk.runs.acknowledged(first));
    assert_eq!((talk.runs.active(), talk.next()), (None, Next::Run(second)));
    assert!(!talk.runs.acknowledged(first), "it is there already");
    assert!(talk.runs.acknowledged(100) && !talk.runs.acknowledged(101));
    assert!(!talk.runs.acknowledged(1), "it is past that");
    talk.message(Priority::Next);
    assert_eq!((talk.next(), talk.runs.acknowledge()), (Next::Nothing, None));
}

fn error(of: i64, retryable: bool, interrupted_by: Option<i64>) -> Entry {
    Entry::Error {
        error: "x".into(),
        retryable,
        reply_to: Some(of),
        began: None,
        interrupted_by,
        partial: None,
    }
}

fn cancelled(of: i64) -> Entry {
    Entry::Cancelled { why: "x".into(), reply_to: Some(of), began: None, partial: None }
}

/// What can happen at any moment.
#[derive(Debug, Clone)]
enum Act {
    Say(Priority, bool),
    /// Cancel the message this many before the last one.
    Cancel(usize),
    /// The adapter takes a step; an attempt in it ends like this.
    Step(Outcome),
    /// Somebody else writes what looks like an ending of the message this many before the last one.
    Pretend(usize),
}

#[derive(Debug, Clone, Copy)]
enum Outcome {
    Answered,
    Failed,
    /// The adapter is killed during the attempt.
    Killed,
}

fn act() -> impl Strategy<Value = Act> {
    let priority =
        prop_oneof![Just(Priority::Now), Just(Priority::Steer), Just(Priority::Next), Just(Priority::Later)];
    let outcome =
        prop_oneof![3 => Just(Outcome::Answered), 1 => Just(Outcome::Failed), 1 => Just(Outcome::Killed)];
    prop_oneof![
        2 => (priority, any::<bool>()).prop_map(|(priority, resume)| Act::Say(priority, resume)),
        1 => (0..4usize).prop_map(Act::Cancel),
        4 => outcome.prop_map(Act::Step),
        1 => (0..4usize).prop_map(Act::Pretend),
    ]
}

impl Talk {
    /// Lets something happen. `said` and `begun` are the messages so far, and those of all attempts.
    fn act(&mut self, act: Act, said: &mut Vec<(i64, Priority)>, begun: &mut Vec<i64>) {
        let back = |n: usize| said.iter().rev().nth(n).map(|(id, _)| *id);
        match act {
            Act::Say(priority, resume) => {
                said.push((self.say(Message { priority, resume, ..Message::default() }), priority));
            }
            Act::Cancel(n) => {
                let _ = back(n).map(|id| self.cancel(id));
            }
            Act::Step(outcome) => drop(step(self, outcome, begun)),
            Act::Pretend(n) => {
                let endings = [cancelled, |id| error(id, false, None)];
                let _ = back(n).map(|id| self.store(None, endings[n % 2](id), false, false));
            }
        }
    }
}

/// Simulates one step of an adapter. Returns whether there was something to do.
fn step(talk: &mut Talk, outcome: Outcome, order: &mut Vec<i64>) -> bool {
    match talk.next() {
        Next::Nothing => return false,
        Next::End(id, Verdict::Interrupted { by, resume: true, .. }) => talk.fail(id, Some(by)),
        Next::End(id, _) => {
            talk.note(None, cancelled(id), false);
        }
        Next::GiveUp(id) => {
            talk.note(None, error(id, false, None), false);
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
            talk.act(act, &mut said, &mut begun);
        }
        let mut steps = 0;
        while step(&mut talk, Outcome::Answered, &mut begun) {
            steps += 1;
            prop_assert!(steps < 1000, "there is always something to do");
        }
        prop_assert_eq!(talk.runs.iter().count(), 0);
        let last = said.iter().map(|(id, _)| *id).max();
        prop_assert!(talk.runs.acknowledge() >= last);
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

    #[test]
    fn what_is_read_in_pages_or_from_the_cursor_on_gives_the_same_answers(
        acts in prop::collection::vec(act(), 0..40),
        sizes in prop::collection::vec(1..6usize, 200),
        acknowledged in prop::collection::vec(0..4usize, 200),
    ) {
        let mut talk = Talk::default();
        let (mut said, mut begun) = (Vec::new(), Vec::new());
        for act in acts {
            talk.act(act, &mut said, &mut begun);
        }
        let (mut paged, mut cursor, mut rest) = (Runs::default(), 0, &talk.events[..]);
        for (size, acknowledge) in sizes.into_iter().zip(acknowledged) {
            let (page, after) = rest.split_at(size.min(rest.len()));
            feed(&mut paged, page);
            rest = after;
            // The agent moves the cursor, or somebody sets it forward.
            cursor = match (acknowledge, page.last()) {
                (0, Some(last)) => last.record.id(),
                (1 | 2, _) => paged.acknowledge().unwrap_or(cursor),
                _ => cursor,
            };
            paged.acknowledged(cursor);
            let mut restored = Runs::after(cursor);
            let upto = talk.events.len() - rest.len();
            feed(&mut restored, &talk.events[..upto]);
            prop_assert_eq!(&restored, &paged);
            let mut from_there = Runs::after(cursor);
            feed(&mut from_there, &talk.events[usize::try_from(cursor).unwrap()..upto]);
            prop_assert_eq!(&from_there, &paged);
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn only_keyed_endings_end_runs_and_the_first_in_order_is_next(
        acts in prop::collection::vec(act(), 0..60),
    ) {
        let mut talk = Talk::default();
        let (mut said, mut begun) = (Vec::new(), Vec::new());
        for act in acts {
            talk.act(act, &mut said, &mut begun);
            let keyed = |id: i64| talk.events.iter().any(|e| e.is_ending && e.record.entry.ends() == Some(id));
            for (id, _) in &said {
                prop_assert_eq!(talk.runs.get(*id).is_none(), keyed(*id));
            }
            let order = talk.runs.in_order();
            match talk.next() {
                Next::Run(id) | Next::GiveUp(id) => prop_assert_eq!(order[0], id),
                Next::Nothing => prop_assert!(order.is_empty()),
                Next::End(id, _) => prop_assert!(order.contains(&id)),
            }
            for (at, id) in order.iter().enumerate() {
                prop_assert_eq!(talk.runs.position(*id), Some(at));
            }
            if let Some(active) = talk.runs.active().filter(|active| active.in_attempt) {
                prop_assert_eq!(order[0], active.id());
            }
            prop_assert_eq!(talk.runs.queued() + usize::from(talk.runs.active().is_some()), order.len());
        }
    }
}

#[test]
fn a_run_that_the_agent_began_itself_is_under_way_and_given_up_without_another_attempt() {
    let mut talk = Talk::default();
    let own = talk.note(Some("o".into()), Entry::RunStarted { attempt: 1, reply_to: None }, false);
    let next = talk.message(Priority::Next);
    let active = talk.runs.active().unwrap();
    assert_eq!((active.id(), active.since.as_deref()), (own, Some("second 1")));
    assert!(active.run.is_own && active.in_attempt);
    assert_eq!((active.attempts, active.last_begun, active.priority), (1, own, Priority::Later));
    assert_eq!((talk.next(), talk.runs.in_order()), (Next::GiveUp(own), vec![own, next]));
    talk.note(None, error(own, false, None), false);
    assert_eq!(talk.next(), Next::Run(next));
}

#[test]
fn a_message_steers_the_run_under_way_until_it_has_begun_or_was_cancelled() {
    let mut talk = Talk::default();
    let first = talk.message(Priority::Next);
    talk.message(Priority::Now);
    talk.begin(first);
    assert_eq!(talk.runs.steers(), None);
    let (steers, another) = (talk.message(Priority::Steer), talk.message(Priority::Steer));
    assert_eq!(talk.runs.steers().map(OpenRun::id), Some(steers));
    talk.cancel(steers);
    assert_eq!(talk.runs.steers().map(OpenRun::id), Some(another));
    talk.begin(another);
    assert_eq!(talk.runs.steers(), None);
}

#[test]
fn what_the_cursor_is_past_begins_no_run() {
    let mut talk = Talk { runs: Runs::after(2), ..Talk::default() };
    let ids = [(); 3].map(|()| talk.message(Priority::Next));
    assert_eq!((ids, talk.runs.in_order()), ([1, 2, 3], vec![3]));
    assert!(!talk.runs.acknowledged(2) && talk.runs.acknowledged(3));
}

#[test]
fn a_now_message_that_has_failed_is_tried_again_before_the_next() {
    let mut talk = Talk::default();
    let (first, _second) = (talk.message(Priority::Now), talk.message(Priority::Now));
    talk.begin(first);
    talk.fail(first, None);
    assert_eq!(talk.next(), Next::Run(first));
}

#[test]
fn what_comes_after_the_end_of_an_attempt_does_not_count_as_its() {
    let mut talk = Talk::default();
    let id = talk.message(Priority::Next);
    talk.begin(id);
    talk.begin(id);
    for _ in 0..2 {
        talk.fail(id, Some(99));
        let run = talk.runs.get(id).unwrap();
        assert_eq!((run.attempts, run.run.attempt), (1, 2));
    }
    let asked = serde_json::json!({ "request_id": "a", "title": "t", "choices": [] });
    let asked: Permission = serde_json::from_value(asked).unwrap();
    talk.note(Some(format!("run_{id}")), Entry::Permission(asked), false);
    assert!(talk.runs.get(id).unwrap().open_permissions.is_empty());
}
