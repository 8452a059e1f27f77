//! The rule for runs, case by case.

use std::time::Duration;

use thread::model::run::{
    Action, Deliver, Ended, Exit, Options, Phase, RunState, STOPPED, Task, apply_outcome, decide,
};
use thread::model::time::{self, Time};

fn now() -> Time {
    time::parse("2026-03-18T10:30:00.000Z").unwrap()
}

fn running(attempts: u32) -> RunState {
    RunState { phase: Phase::Running, attempts, start_cursor: 10, start_newest: 20, ..RunState::default() }
}

fn ended(task: Task, exit: Exit, cursor: i64, pending: bool) -> Ended {
    let (stopped, interrupted) = (false, false);
    Ended { task, exit, stopped, interrupted, cursor, rewound: cursor < 10, pending, now: now() }
}

fn stdin() -> Options {
    Options { deliver: Deliver::Stdin, ..Options::default() }
}

#[test]
fn nothing_pending_or_progress_resets_the_attempts() {
    for (cursor, pending) in [(10, false), (11, true), (11, false), (5, false)] {
        let outcome = apply_outcome(
            &running(3),
            &Options::default(),
            &ended(Task::Wake, Exit::Code(1), cursor, pending),
        );
        assert_eq!((outcome.state.phase, outcome.state.attempts), (Phase::Idle, 0));
    }
}

#[test]
fn each_failed_attempt_waits_longer_and_the_last_stalls() {
    let options = Options::default();
    for (attempt, wait) in [(1, 1), (2, 5), (3, 30), (4, 120)] {
        let outcome = apply_outcome(&running(attempt), &options, &ended(Task::Wake, Exit::Code(0), 10, true));
        assert_eq!(outcome.state.phase, Phase::Waiting);
        assert_eq!(outcome.state.next_try, Some(now() + Duration::from_secs(wait)));
        assert_eq!(outcome.state.attempts, attempt);
    }
    let outcome = apply_outcome(&running(5), &options, &ended(Task::Wake, Exit::Code(0), 10, true));
    assert_eq!(
        (outcome.state.phase, outcome.state.reason.as_deref()),
        (Phase::Stalled, Some("out of attempts"))
    );
}

#[test]
fn a_missing_program_stalls_at_once() {
    for code in [126, 127] {
        let ended = ended(Task::Single(11), Exit::Code(code), 10, true);
        let outcome = apply_outcome(&running(1), &stdin(), &ended);
        assert_eq!((outcome.state.phase, outcome.dead_letter), (Phase::Stalled, None));
    }
}

#[test]
fn a_stopped_run_costs_no_attempt() {
    let stopped = Ended { stopped: true, ..ended(Task::Wake, Exit::Signal(15), 10, true) };
    let state = apply_outcome(&running(2), &Options::default(), &stopped).state;
    assert_eq!((state.phase, state.attempts), (Phase::Stalled, 1));
    assert_eq!(state.reason.as_deref(), Some(STOPPED));
    assert_eq!(decide(&state, &Options::default(), false, now()), Action::None);
    assert_eq!(decide(&state, &Options::default(), true, now()), Action::Start);
}

#[test]
fn a_failed_batch_is_delivered_one_by_one_and_attempts_count_from_there() {
    let state = apply_outcome(&running(1), &stdin(), &ended(Task::Batch(20), Exit::Code(1), 10, true)).state;
    assert_eq!((state.phase, state.attempts, state.single_upto), (Phase::Waiting, 0, 20));
    let state = apply_outcome(&running(1), &stdin(), &ended(Task::Batch(20), Exit::Code(1), 12, true)).state;
    assert_eq!((state.phase, state.single_upto), (Phase::Idle, 20));
}

#[test]
fn an_event_that_failed_alone_stays_alone_and_keeps_its_attempts() {
    let single = ended(Task::Single(12), Exit::Code(1), 10, true);
    let state = apply_outcome(&running(2), &stdin(), &single).state;
    assert_eq!((state.phase, state.attempts, state.single_upto), (Phase::Waiting, 2, 12));
    let before = RunState { single_upto: 20, ..running(2) };
    assert_eq!(apply_outcome(&before, &stdin(), &single).state.single_upto, 20);
}

#[test]
fn a_second_dead_letter_needs_a_success_in_between() {
    let single = |exit, cursor| ended(Task::Single(11), exit, cursor, true);
    let outcome = apply_outcome(&running(5), &stdin(), &single(Exit::Code(1), 10));
    assert_eq!((outcome.dead_letter, outcome.state.phase), (Some((11, 5)), Phase::Idle));
    assert!(outcome.state.dead_streak);
    let streak = RunState { dead_streak: true, ..running(5) };
    let outcome = apply_outcome(&streak, &stdin(), &single(Exit::Code(1), 10));
    assert_eq!((outcome.dead_letter, outcome.state.phase), (None, Phase::Stalled));
    let outcome = apply_outcome(&streak, &stdin(), &single(Exit::Code(0), 11));
    assert!(!outcome.state.dead_streak);
}

#[test]
fn a_stalled_consumer_gets_one_more_run_after_the_longest_wait() {
    let stalled = RunState { phase: Phase::Stalled, attempts: 5, ended: Some(now()), ..RunState::default() };
    let due = now() + Duration::from_secs(600);
    assert_eq!(decide(&stalled, &Options::default(), true, now()), Action::WaitUntil(due));
    assert_eq!(decide(&stalled, &Options::default(), false, now()), Action::None);
    assert_eq!(decide(&stalled, &Options::default(), false, due), Action::None);
    let outcome =
        apply_outcome(&running(6), &Options::default(), &ended(Task::Wake, Exit::Code(1), 10, true));
    assert_eq!(outcome.state.phase, Phase::Stalled);
}

#[test]
fn an_interrupted_run_costs_no_attempt_and_is_due_again() {
    let interrupted = Ended { interrupted: true, ..ended(Task::Batch(12), Exit::Signal(15), 10, true) };
    let state = apply_outcome(&running(5), &stdin(), &interrupted).state;
    assert_eq!((state.phase, state.attempts, state.single_upto), (Phase::Idle, 4, 0));
    assert_eq!((state.succeeded, state.failed), (0, 0));
    assert_eq!(decide(&state, &stdin(), false, now()), Action::Start);
}

#[test]
fn retrying_a_dead_letter_is_not_an_attempt_at_the_next_event() {
    let retry = ended(Task::DeadLetter(3), Exit::Code(1), 10, true);
    let state = apply_outcome(&running(4), &stdin(), &retry).state;
    assert_eq!((state.phase, state.attempts), (Phase::Idle, 4));
    let state = apply_outcome(&running(4), &stdin(), &Ended { stopped: true, ..retry }).state;
    assert_eq!((state.phase, state.attempts), (Phase::Stalled, 4));
}

#[test]
fn setting_the_clock_back_does_not_prolong_a_wait() {
    let next_try = Some(now() + Duration::from_secs(86_400));
    let waiting = RunState { phase: Phase::Waiting, next_try, ..RunState::default() };
    let due = now() + Duration::from_secs(600);
    assert_eq!(decide(&waiting, &Options::default(), false, now()), Action::WaitUntil(due));
    let since = Some(now() + Duration::from_secs(86_397));
    let known = RunState { since, ..waiting.clone() };
    let due = now() + Duration::from_secs(3);
    assert_eq!(decide(&known, &Options::default(), false, now()), Action::WaitUntil(due));
    let paused = RunState { paused: true, ..waiting };
    assert_eq!(decide(&paused, &Options::default(), true, now()), Action::None);
}
