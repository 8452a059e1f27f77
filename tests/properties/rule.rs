//! The rule for runs, case by case.

use std::time::Duration;

use thread::model::ledger::Sleep;
use thread::model::run::{
    AHEAD, Action, BAD_EVENT, Crew, Crews, Deliver, Ended, Exit, Held, MAX_JUDGED, Options, Outcome, Phase,
    ProcessId, Run, RunResult, RunState, STOPPED, Span, StopRequest, Task, apply_outcome, decide,
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
    Ended {
        task,
        exit,
        stopped,
        interrupted,
        cursor,
        rewound: cursor < 10,
        pending,
        asleep: None,
        now: now(),
    }
}

fn stdin() -> Options {
    Options { deliver: Deliver::Stdin, ..Options::default() }
}

/// A state in which no field has its default.
fn full() -> RunState {
    let process = ProcessId { pid: 7, start: 8, boot: "b".into(), namespace: 9 };
    RunState {
        phase: Phase::Running,
        paused: true,
        reason: Some("why".into()),
        attempts: 1,
        deferred: 12,
        next_try: Some(now()),
        supervisor: Some(process.clone()),
        handler: Some(process),
        home: Some((1, 2)),
        since: Some(now()),
        began: Some(now()),
        ended: Some(now()),
        last_exit: Some(Exit::Code(3)),
        task: Some(Task::Wake),
        batch: 11,
        start_cursor: 2,
        start_rewinds: 3,
        start_newest: 4,
        single_upto: 5,
        dead_streak: 6,
        judged_streak: 7,
        stop: Some(StopRequest::default()),
        succeeded: 8,
        failed: 9,
        dead_lettered: 10,
        asleep: [(13, Sleep { until: now(), awaits: true })].into(),
        held: Some(Held { upto: 15, ..Held::default() }),
        expired: 13,
        given_upto: 14,
        crews: [("m".to_owned(), Crew::default())].into(),
    }
}

#[test]
fn an_idle_state_has_nothing_of_the_run_and_all_that_outlives_it() {
    let idle = RunState {
        began: Some(now()),
        ended: Some(now()),
        last_exit: Some(Exit::Code(3)),
        paused: true,
        attempts: 1,
        deferred: 12,
        batch: 11,
        start_cursor: 2,
        start_rewinds: 3,
        start_newest: 4,
        single_upto: 5,
        dead_streak: 6,
        judged_streak: 7,
        succeeded: 8,
        failed: 9,
        dead_lettered: 10,
        expired: 13,
        given_upto: 14,
        held: Some(Held { upto: 15, ..Held::default() }),
        crews: full().crews,
        ..RunState::default()
    };
    assert_eq!(full().idle(), idle);
}

#[test]
fn a_replaced_subscription_keeps_its_pause_and_its_counters() {
    let kept = RunState {
        paused: true,
        succeeded: 8,
        failed: 9,
        dead_lettered: 10,
        expired: 13,
        given_upto: 14,
        crews: full().crews,
        ..RunState::default()
    };
    assert_eq!(full().replaced(), kept);
}

#[test]
fn changed_numbers_end_waits_and_stalls_and_forget_failures_but_end_no_run() {
    let adjusted = RunState {
        reason: None,
        attempts: 0,
        deferred: 0,
        next_try: None,
        dead_streak: 0,
        judged_streak: 0,
        held: None,
        ..full()
    };
    assert_eq!(full().adjusted(), adjusted);
    for phase in [Phase::Waiting, Phase::Stalled, Phase::Idle] {
        assert_eq!(
            RunState { phase, ..full() }.adjusted(),
            RunState { phase: Phase::Idle, ..adjusted.clone() }
        );
    }
}

#[test]
fn a_copy_stays_stalled_and_knows_of_no_machine_and_nothing_held_back() {
    let stalled = RunState { phase: Phase::Stalled, paused: false, ..full() };
    let copy = RunState {
        phase: Phase::Stalled,
        paused: true,
        reason: Some("why".into()),
        held: None,
        crews: Crews::new(),
        ..full().idle()
    };
    assert_eq!(stalled.of_copy(), copy);
}

#[test]
fn all_of_a_state_is_stored_but_what_is_as_usual() {
    let stored = serde_json::to_string(&full()).unwrap();
    assert_eq!(serde_json::from_str::<RunState>(&stored).unwrap(), full());
    let usual = serde_json::to_value(RunState::default()).unwrap();
    for name in ["deferred", "asleep", "held", "expired", "given_upto", "crews"] {
        assert_eq!(usual.get(name), None);
    }
    let ahead = |ahead| serde_json::to_value(Options { ahead, ..Options::default() }).unwrap();
    assert_eq!((ahead(AHEAD).get("ahead"), ahead(5)["ahead"].as_u64()), (None, Some(5)));
}

#[test]
fn ways_of_delivery_have_the_names_of_the_option() {
    assert_eq!([Deliver::Wake, Deliver::Stdin].map(Deliver::as_str), ["wake", "stdin"]);
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
        assert_eq!((outcome.state.attempts, outcome.state.since), (attempt, Some(now())));
    }
    for (attempts, wait) in [(0, 1), (5, 600), (6, 600), (u32::MAX, 600)] {
        assert_eq!(options.wait_after(attempts), Duration::from_secs(wait));
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

/// Runs an event that was delivered alone, and is at its last attempt.
fn last_attempt(before: &RunState, options: &Options, exit: i32) -> Outcome {
    let before = RunState { attempts: 5, ..before.clone() };
    apply_outcome(
        &before,
        options,
        &ended(Task::Single(11), Exit::Code(exit), 10 + i64::from(exit == 0), true),
    )
}

#[test]
fn an_event_out_of_attempts_becomes_a_dead_letter() {
    let outcome = last_attempt(&running(5), &stdin(), 1);
    assert_eq!((outcome.dead_letter, outcome.state.phase), (Some((11, 5)), Phase::Idle));
    assert_eq!((outcome.state.attempts, outcome.state.dead_lettered), (0, 1));
    // Not if the cursor was moved back in the meantime: the event may no longer be the next one.
    let rewound = Ended { cursor: 9, rewound: true, ..ended(Task::Single(11), Exit::Code(1), 10, true) };
    let outcome = apply_outcome(&running(5), &stdin(), &rewound);
    assert_eq!((outcome.dead_letter, outcome.state.phase), (None, Phase::Stalled));
}

#[test]
fn dead_letters_without_a_success_between_them_end_in_a_stall() {
    for (stall_after, most) in [(Some(1), 1), (Some(3), 3), (Options::default().stall_after, 10)] {
        let options = Options { stall_after, ..stdin() };
        let mut state = running(5);
        for _ in 0..most {
            let outcome = last_attempt(&state, &options, 1);
            assert_eq!((outcome.dead_letter, outcome.state.phase), (Some((11, 5)), Phase::Idle));
            state = outcome.state;
        }
        // An event judged bad neither counts towards the row of dead letters nor ends it.
        let judged = last_attempt(&state, &options, BAD_EVENT);
        assert_eq!((judged.dead_letter, judged.state.dead_streak), (Some((11, 5)), most));
        let outcome = last_attempt(&judged.state, &options, 1);
        assert_eq!((outcome.dead_letter, outcome.state.phase), (None, Phase::Stalled));
        let letters = if stall_after == Some(1) { "letter" } else { "letters" };
        let reason = format!("out of attempts after {most} dead {letters} without a success");
        assert_eq!(outcome.state.reason, Some(reason));
        let success = last_attempt(&state, &options, 0);
        assert_eq!(success.state.dead_streak, 0);
        assert!(last_attempt(&success.state, &options, 1).dead_letter.is_some());
    }
}

#[test]
fn it_is_recorded_when_a_run_began_and_ended_and_how() {
    let since = Some(now() - Duration::from_secs(9));
    let before = RunState { since, succeeded: 2, failed: 3, ..running(1) };
    for (exit, said, counts) in [
        (Exit::Code(0), "exit=0", (3, 3)),
        (Exit::Code(7), "exit=7", (2, 4)),
        (Exit::Signal(9), "exit=137 signal=9", (2, 4)),
        (Exit::TimedOut, "timed out", (2, 4)),
        (Exit::Unknown, "exit=unknown", (2, 4)),
    ] {
        let state = apply_outcome(&before, &stdin(), &ended(Task::Wake, exit, 11, false)).state;
        assert_eq!((state.began, state.ended, state.last_exit), (since, Some(now()), Some(exit)));
        assert_eq!((exit.to_string().as_str(), (state.succeeded, state.failed)), (said, counts));
    }
}

#[test]
fn only_a_success_on_stdin_ends_a_row_of_dead_letters() {
    let before = RunState { dead_streak: 3, judged_streak: 4, ..running(1) };
    let success = ended(Task::Single(11), Exit::Code(0), 11, false);
    for (ended, streaks, succeeded) in [
        (success, (0, 0), 1),
        (Ended { rewound: true, ..success }, (3, 4), 1),
        (Ended { task: Task::Wake, ..success }, (3, 4), 1),
        (Ended { stopped: true, ..success }, (3, 4), 0),
        (Ended { interrupted: true, ..success }, (3, 4), 0),
    ] {
        let state = apply_outcome(&before, &stdin(), &ended).state;
        assert_eq!((state.dead_streak, state.judged_streak), streaks, "{ended:?}");
        assert_eq!((state.succeeded, state.failed), (succeeded, 0), "{ended:?}");
    }
}

#[test]
fn a_run_is_kept_with_its_result_and_what_it_was_given() {
    let output = Some(Span { file: 1, offset: 2, length: 3 });
    let before = RunState { since: Some(now() - Duration::from_secs(9)), batch: 7, ..running(2) };
    let failed = ended(Task::Single(11), Exit::Code(1), 10, true);
    let of = |ended: Ended, dead| Run::of(&before, &ended, dead, ("x", output));
    let run = of(failed, false);
    assert_eq!(
        (run.attempt, run.exit, run.output, run.duration()),
        (2, Some(1), output, Duration::from_secs(9))
    );
    for (ended, dead, result, exit) in [
        (failed, false, RunResult::Failed, Some(1)),
        (failed, true, RunResult::Dead, Some(1)),
        (Ended { task: Task::DeadLetter(3), ..failed }, false, RunResult::Dead, Some(1)),
        (Ended { exit: Exit::Code(0), ..failed }, false, RunResult::Succeeded, Some(0)),
        (Ended { exit: Exit::Signal(15), ..failed }, false, RunResult::Failed, Some(143)),
        (Ended { exit: Exit::TimedOut, ..failed }, false, RunResult::TimedOut, Some(124)),
        (Ended { exit: Exit::Unknown, ..failed }, false, RunResult::Unknown, None),
        (Ended { interrupted: true, ..failed }, false, RunResult::Interrupted, Some(1)),
        (Ended { stopped: true, interrupted: true, ..failed }, true, RunResult::Stopped, Some(1)),
    ] {
        let run = of(ended, dead);
        assert_eq!((run.result, run.exit), (result, exit), "{ended:?}");
    }
    for (task, events, upto) in [
        (Task::Wake, None, 10),
        (Task::Batch(18), Some(7), 18),
        (Task::Single(11), Some(1), 11),
        (Task::DeadLetter(3), Some(1), 3),
    ] {
        let run = of(Ended { task, ..failed }, false);
        assert_eq!((run.events, run.upto), (events, upto), "{task:?}");
    }
}

#[test]
fn dead_letters_may_be_made_without_end() {
    let options = Options { stall_after: None, ..stdin() };
    let streak = RunState { dead_streak: 1_000_000, ..running(5) };
    assert!(last_attempt(&streak, &options, 1).dead_letter.is_some());
}

#[test]
fn an_event_judged_bad_becomes_a_dead_letter_at_its_first_run() {
    let judged = ended(Task::Single(11), Exit::Code(BAD_EVENT), 10, true);
    let outcome = apply_outcome(&running(1), &stdin(), &judged);
    assert_eq!((outcome.dead_letter, outcome.state.phase), (Some((11, 1)), Phase::Idle));
    assert_eq!((outcome.state.attempts, outcome.state.dead_streak), (0, 0));
    // Not if the cursor was moved back in the meantime: the event may no longer be the next one.
    let rewound = apply_outcome(&running(1), &stdin(), &Ended { rewound: true, ..judged });
    assert_eq!((rewound.dead_letter, rewound.state.phase), (None, Phase::Waiting));
    // Nor if the handler has acknowledged it, or pops for itself.
    let acknowledged = apply_outcome(&running(1), &stdin(), &Ended { cursor: 11, ..judged });
    assert_eq!((acknowledged.dead_letter, acknowledged.state.phase), (None, Phase::Idle));
    let wake = apply_outcome(&running(1), &Options::default(), &Ended { task: Task::Wake, ..judged });
    assert_eq!((wake.dead_letter, wake.state.phase), (None, Phase::Waiting));
}

#[test]
fn a_batch_judged_bad_is_delivered_one_by_one_at_once() {
    let judged = ended(Task::Batch(20), Exit::Code(BAD_EVENT), 10, true);
    let state = apply_outcome(&running(1), &stdin(), &judged).state;
    assert_eq!((state.phase, state.attempts, state.single_upto), (Phase::Idle, 0, 20));
}

#[test]
fn a_retried_dead_letter_judged_bad_stays_one() {
    let judged = ended(Task::DeadLetter(3), Exit::Code(BAD_EVENT), 10, true);
    let outcome = apply_outcome(&running(1), &stdin(), &judged);
    assert_eq!((outcome.dead_letter, outcome.state.phase), (None, Phase::Idle));
}

#[test]
fn a_hundred_judgments_in_a_row_stall() {
    let mut state = running(5);
    for _ in 0..MAX_JUDGED {
        let outcome = last_attempt(&state, &stdin(), BAD_EVENT);
        assert!(outcome.dead_letter.is_some());
        state = outcome.state;
    }
    let outcome = last_attempt(&state, &stdin(), BAD_EVENT);
    assert_eq!((outcome.dead_letter, outcome.state.phase), (None, Phase::Stalled));
    assert_eq!(last_attempt(&state, &stdin(), 0).state.judged_streak, 0);
}

#[test]
fn a_stalled_consumer_gets_one_more_run_after_the_longest_wait() {
    let stalled = RunState { phase: Phase::Stalled, attempts: 5, ended: Some(now()), ..RunState::default() };
    let due = now() + Duration::from_secs(600);
    assert_eq!(decide(&stalled, &Options::default(), true, now()), Action::WaitUntil(due));
    // Without anything newer it probes, unless it was stopped or is never to.
    let slow = Options { probe: Some(Duration::from_secs(700)), ..Options::default() };
    let probes = now() + Duration::from_secs(700);
    assert_eq!(decide(&stalled, &slow, true, now()), Action::WaitUntil(due));
    assert_eq!(decide(&stalled, &slow, false, now()), Action::WaitUntil(probes));
    assert_eq!(decide(&stalled, &slow, false, probes), Action::Start);
    let never = Options { probe: None, ..Options::default() };
    assert_eq!(decide(&stalled, &never, false, due), Action::None);
    assert_eq!(decide(&stalled.clone().stalled(STOPPED), &slow, false, probes), Action::None);
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
    let over = RunState { next_try: Some(now()), ..known };
    assert_eq!(decide(&over, &Options::default(), false, now()), Action::Start);
    let paused = RunState { paused: true, ..waiting };
    assert_eq!(decide(&paused, &Options::default(), true, now()), Action::None);
}

#[test]
fn a_deferred_run_waits_and_is_no_attempt() {
    let options = Options { backoff: [1, 5].map(Duration::from_secs).to_vec(), max_attempts: 1, ..stdin() };
    let mut state = RunState { attempts: 0, ..running(1) };
    for (times, wait) in [(1, 1), (2, 5), (3, 5), (4, 5)] {
        state.attempts = 1;
        let outcome = apply_outcome(&state, &options, &ended(Task::Single(11), Exit::Code(75), 10, true));
        assert_eq!((outcome.dead_letter, outcome.state.phase), (None, Phase::Waiting));
        assert_eq!((outcome.state.attempts, outcome.state.deferred, outcome.state.failed), (0, times, 0));
        assert_eq!(outcome.state.next_try, Some(now() + Duration::from_secs(wait)));
        state = outcome.state;
    }
    state.attempts = 1;
    let failed = apply_outcome(&state, &options, &ended(Task::Single(11), Exit::Code(1), 10, true));
    assert_eq!((failed.dead_letter, failed.state.deferred), (Some((11, 1)), 0));
}

/// Whatever the exit code was, it is recorded as that of a run that was deferred.
#[test]
fn an_event_that_sleeps_costs_no_attempt_and_waits_as_long_as_it_says() {
    let until = now() + Duration::from_secs(7200);
    let sleep = Sleep { until, awaits: true };
    for task in [Task::Single(11), Task::Batch(13), Task::DeadLetter(3)] {
        let before = RunState { deferred: 3, asleep: [(11, sleep)].into(), ..running(4) };
        let slept = Ended { asleep: Some((11, sleep)), ..ended(task, Exit::Code(75), 10, true) };
        let Outcome { state, dead_letter } = apply_outcome(&before, &stdin(), &slept);
        let attempts = if task == Task::DeadLetter(3) { 4 } else { 3 };
        assert_eq!((state.phase, state.attempts, state.deferred), (Phase::Waiting, attempts, 0));
        assert_eq!((state.next_try, state.since, dead_letter), (Some(until), Some(now()), None));
        assert_eq!(state.asleep, [(11, sleep)].into());
        assert_eq!(decide(&state, &stdin(), false, now()), Action::WaitUntil(until));
        assert_eq!(decide(&state, &stdin(), false, until), Action::Start);
        // Setting the clock back prolongs it by no more than its length.
        let back = now() - Duration::from_secs(86_400);
        assert_eq!(
            decide(&state, &stdin(), false, back),
            Action::WaitUntil(back + Duration::from_secs(7200))
        );
        assert!(state.idle().asleep.is_empty());
        // Stopped, it does not sleep.
        let stopped = Ended { stopped: true, ..slept };
        let Outcome { state, .. } = apply_outcome(&before, &stdin(), &stopped);
        assert_eq!((state.phase, state.asleep.len()), (Phase::Stalled, 0));
        // Somebody has acknowledged it, and nothing else is pending.
        let Outcome { state, .. } = apply_outcome(&before, &stdin(), &Ended { pending: false, ..slept });
        assert_eq!((state.phase, state.asleep.len()), (Phase::Idle, 0));
    }
}
