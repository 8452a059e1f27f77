use super::*;
use crate::model::run::Crew;

/// One with a handler and nothing special.
pub fn subscription() -> Subscription {
    Subscription {
        consumer: ConsumerId::stored("c"),
        handler_cmd: "true".into(),
        filter: None,
        cwd: None,
        token: "t".into(),
        revision: 1,
        watermark: None,
        filter_errors: 0,
        filter_error_id: 0,
        options: Options::default(),
        state: RunState::default(),
        dead: 0,
        dead_to_retry: 0,
        last_acked_id: 0,
        rewinds: 0,
        updated_at: None,
        held_by: None,
        ran_on: None,
        leases: Vec::new(),
        elsewhere: Vec::new(),
    }
}

fn new(other: &Subscription) -> NewSubscription {
    NewSubscription {
        consumer: other.consumer.clone(),
        handler_cmd: other.handler_cmd.clone(),
        filter: other.filter.clone(),
        cwd: other.cwd.clone(),
        options: other.options.clone(),
        from: None,
        replace: true,
    }
}

#[test]
fn file_names_are_distinct_and_of_plain_characters() {
    let stem = |id: &str, ignores_case| ConsumerId::stored(id).file_stem(ignores_case);
    assert_eq!(stem("Bot.1_a-b:c@d", false), "Bot.1_a-b:c@d");
    assert_eq!(stem("Bot", true), "%%42ot");
    assert_eq!(stem("bot", true), "bot");
    assert_eq!(stem("a b", false), "%a%20b");
    assert_eq!(stem(".a", false), "%.a");
    assert_eq!(stem("", false), "%");
    // As long as they may be, and longer.
    let long = |count| format!(" {}", "a".repeat(count));
    assert_eq!(stem(&long(176), false), format!("%%20{}", "a".repeat(176)));
    let (one, other) = (stem(&long(177), false), stem(&long(178), false));
    assert_eq!((one.len(), &one[..122]), (162, &*format!("%%20{}%%", "a".repeat(116))));
    assert_ne!(one, other);
    assert_eq!(
        (ConsumerId::stored("a b").as_str(), ConsumerId::stored("a b").to_string()),
        ("a b", "a b".into())
    );
}

#[test]
fn subscriptions_are_alike_if_what_is_asked_for_is() {
    let old = Subscription { filter: Some("id > 5".into()), cwd: Some("/a".into()), ..subscription() };
    assert!(new(&old).is_like(&old));
    assert!(new(&subscription()).is_like(&Subscription { filter: Some(" ".into()), ..subscription() }));
    for other in [
        Subscription { handler_cmd: "false".into(), ..old.clone() },
        Subscription { filter: None, ..old.clone() },
        Subscription { cwd: None, ..old.clone() },
        Subscription { options: Options { clear_env: true, ..Options::default() }, ..old.clone() },
    ] {
        assert!(!new(&old).is_like(&other), "{other:?}");
    }
    assert!(old.is_same(&Subscription { last_acked_id: 7, ..old.clone() }));
    assert!(!old.is_same(&Subscription { token: "u".into(), ..old.clone() }));
    assert!(!old.is_same(&Subscription { handler_cmd: "false".into(), ..old.clone() }));
}

#[test]
fn only_numbers_and_durations_of_what_finishes_singly_are_adjusted() {
    let pool = Options { deliver: Deliver::Stdin, concurrency: Some(2), ..Options::default() };
    let old = Subscription { options: pool.clone(), ..subscription() };
    let adjusts = |options: Options| NewSubscription { options, ..new(&old) }.adjusts(&old);
    let second = Duration::from_secs(1);
    for options in [
        Options { concurrency: Some(3), ..pool.clone() },
        Options { batch_size: 7, ..pool.clone() },
        Options { ahead: 7, ..pool.clone() },
        Options { max_attempts: 7, ..pool.clone() },
        Options { stall_after: None, ..pool.clone() },
        Options { probe: None, ..pool.clone() },
        Options { backoff: vec![second], ..pool.clone() },
        Options { idle: second, ..pool.clone() },
        Options { timeout: Some(second), ..pool.clone() },
    ] {
        assert!(adjusts(options.clone()), "{options:?}");
    }
    for options in [
        Options { concurrency: None, ..pool.clone() },
        Options { concurrency: None, deliver: Deliver::Ndjson, ..pool.clone() },
        Options { key: Some("source".into()), ..pool.clone() },
        Options { clear_env: true, ..pool.clone() },
    ] {
        assert!(!adjusts(options.clone()), "{options:?}");
    }
    assert!(!NewSubscription { handler_cmd: "false".into(), ..new(&old) }.adjusts(&old));
    let batches = Subscription { options: Options { concurrency: None, ..pool.clone() }, ..subscription() };
    let larger = Options { batch_size: 7, ..batches.options.clone() };
    assert!(!NewSubscription { options: larger, ..new(&batches) }.adjusts(&batches));
    let kept = Options { deliver: Deliver::Ndjson, concurrency: None, ..pool };
    assert!(!NewSubscription { options: kept, ..new(&batches) }.adjusts(&batches));
    // A pool whose handlers are kept, and one such handler.
    let options = Options { deliver: Deliver::Ndjson, ..old.options.clone() };
    let many = Subscription { options: options.clone(), ..subscription() };
    let one = Options { concurrency: None, ..options };
    assert!(!NewSubscription { options: one, ..new(&many) }.adjusts(&many));
}

#[test]
fn a_watermark_holds_for_its_filter_from_its_cursor_on() {
    let watermark = ScanWatermark { filter: "id > 5".into(), from: 10, upto: 20 };
    let marked = Subscription { filter: Some("id > 5".into()), watermark: Some(watermark), ..subscription() };
    assert_eq!([9, 10, 15, 20, 25].map(|cursor| marked.scanned_upto(cursor)), [9, 20, 20, 20, 25]);
    assert_eq!((marked.filter_text(), subscription().filter_text()), (Some("id > 5"), None));
    let other = Subscription { filter: Some("id > 6".into()), ..marked.clone() };
    let blank = Subscription { filter: Some(" \n".into()), ..marked.clone() };
    assert_eq!((other.scanned_upto(15), blank.scanned_upto(15), blank.filter_text()), (15, 15, None));
    assert_eq!(subscription().scanned_upto(15), 15);
}

#[test]
fn a_handler_that_pops_and_ends_well_without_an_acknowledgement_is_noticed() {
    let state = RunState {
        phase: Phase::Waiting,
        attempts: 1,
        last_exit: Some(Exit::Code(0)),
        start_cursor: 5,
        ..RunState::default()
    };
    let forgets = Subscription { last_acked_id: 5, state, ..subscription() };
    assert!(forgets.acknowledged_nothing());
    let with = |state| Subscription { state, ..forgets.clone() };
    let state = || forgets.state.clone();
    for other in [
        Subscription {
            options: Options { deliver: Deliver::Stdin, ..Options::default() },
            ..forgets.clone()
        },
        Subscription { last_acked_id: 6, ..forgets.clone() },
        with(RunState { phase: Phase::Running, ..state() }),
        with(RunState { attempts: 0, ..state() }),
        with(RunState { last_exit: Some(Exit::Code(1)), ..state() }),
    ] {
        assert!(!other.acknowledged_nothing(), "{other:?}");
    }
}

#[test]
fn a_command_that_does_nothing_may_be_a_handler() {
    let of = |no_handler, command: &str| {
        let options = Options { no_handler, ..Options::default() };
        Subscription { handler_cmd: command.into(), options, ..subscription() }.has_handler()
    };
    assert!(of(false, "true") && of(false, NO_HANDLER) && of(true, "true"));
    assert!(!of(true, NO_HANDLER));
}

#[test]
fn dead_letters_are_retried_if_they_can_be_given() {
    let of = |deliver, dead_to_retry| {
        let options = Options { deliver, ..Options::default() };
        Subscription { dead: 3, dead_to_retry, options, ..subscription() }.has_retry()
    };
    assert!(of(Deliver::Stdin, 1));
    assert!(!of(Deliver::Stdin, 0) && !of(Deliver::Wake, 1));
}

#[test]
fn a_rewind_ends_the_delivery_of_events_alone() {
    let state = RunState { single_upto: 8, start_rewinds: 2, ..RunState::default() };
    let single = Subscription { rewinds: 2, state, ..subscription() };
    assert_eq!((single.single_upto(), Subscription { rewinds: 3, ..single }.single_upto()), (8, 0));
}

#[test]
fn a_lease_of_a_pool_has_the_places_of_its_machine() {
    let crew = Crew { places: 3, ..Crew::default() };
    let state = RunState { crews: [("m".to_owned(), crew)].into(), ..RunState::default() };
    let pool = Subscription { state, ..subscription() };
    let of = |machine: Option<&str>| {
        let machine = machine.map(str::to_owned);
        pool.places_of(&HeldLease {
            host: "h".into(),
            machine,
            renewed: Time::default(),
            age: Duration::ZERO,
        })
    };
    assert_eq!([of(Some("m")), of(Some("n")), of(None)], [Some(3), None, None]);
}
