use thread_conversation::ToolResult;
use thread_sessions::events::LARGE;
use thread_sessions::open_runs;

use super::*;
use crate::session::cursor::Cursor;
use crate::session::fixture::{Fixture, LIMIT, advance, call, drain, event, now, present, run};

/// The order of the runs, as readers get it and as one finds it who reads the thread now.
fn order(fixture: &mut Fixture, live: &LiveSession) -> Vec<i64> {
    let order = present(live, 0).0.order.to_vec();
    let (_, runs, _) = open_runs(&mut fixture.queue).unwrap();
    assert_eq!(order, runs.in_order());
    order
}

#[tokio::test]
async fn the_open_runs_are_those_of_the_agent_that_is_there() {
    let mut fixture = Fixture::new();
    let first = fixture.say("a");
    let (live, reader) = fixture.live().await;
    assert_eq!(order(&mut fixture, &live), [0; 0], "there is no agent");
    let second = fixture.say("b");
    let reader = advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live), [0; 0]);

    fixture.subscribe(None, Some(0));
    let reader = advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live), [first, second], "it was subscribed later");
    let third = fixture.say("c");
    let reader = advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live), [first, second, third]);

    fixture.subscribe(Some("content <> 'b'"), None);
    let reader = advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live), [first, third], "another filter");
    let fourth = fixture.say("d");
    fixture.say("b");
    let reader = advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live), [first, third, fourth]);

    fixture.answer(first, "done");
    fixture.subscribe(Some("content <> 'b'"), Some(third));
    fixture.say("b");
    let reader = advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live), [fourth], "its cursor was set forward");
    fixture.subscribe(Some("content <> 'b'"), Some(0));
    let reader = advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live), [third, fourth], "its cursor was moved back");

    fixture.queue.unsubscribe(&crate::agents::seating::consumer()).unwrap();
    fixture.say("e");
    let reader = advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live), [0; 0], "it is gone");
    fixture.subscribe(None, Some(fourth));
    advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live).len(), 3, "another agent");
}

#[tokio::test]
async fn runs_that_were_read_further_than_the_events_are_right_in_the_end() {
    let mut fixture = Fixture::new();
    let (live, reader) = fixture.live().await;
    // Several pages, of which the first brings the agent.
    let mut last = 0;
    for number in 0..12 {
        last = fixture.say("x".repeat(60_000));
        fixture.begin(last);
        if number % 2 == 0 {
            fixture.answer(last, "done");
        }
    }
    fixture.subscribe(None, Some(0));
    let (reader, more) = live.advance(reader).await.unwrap();
    assert!(more);
    let reader = advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live).len(), 6);
    assert!(order(&mut fixture, &live).contains(&last));
    drop(reader);
}

#[tokio::test]
async fn the_ring_has_the_newest_events_up_to_its_size() {
    let mut fixture = Fixture::new();
    let (live, mut reader) = fixture.live().await;
    let length = 40_000;
    let in_ring =
        |live: &LiveSession| -> Vec<i64> { live.state().ring.iter().map(|event| event.id()).collect() };
    for id in 1..=10 {
        fixture.say("x".repeat(length));
        reader = advance(&live, reader).await;
        // Each takes three times its content and something beside.
        let most = (RING_BYTES / (3 * length + 512)) as i64;
        assert_eq!(in_ring(&live), Vec::from_iter((id - most).max(0) + 1..=id));
        let state = live.state();
        let bytes: usize = state.ring.iter().map(|event| event.size()).sum();
        assert!(state.ring_bytes == bytes && bytes <= RING_BYTES);
    }
    // One that just has room is in it alone,
    let exact = fixture.say("x".repeat((RING_BYTES - 512) / 3));
    reader = advance(&live, reader).await;
    assert_eq!((in_ring(&live), live.state().ring_bytes), (vec![exact], RING_BYTES));
    // and one that has not, is not.
    let large = fixture.say("x".repeat(RING_BYTES));
    reader = advance(&live, reader).await;
    let ring = |live: &LiveSession| {
        let state = live.state();
        (state.ring.len(), state.ring_bytes, state.ring_from)
    };
    assert_eq!(ring(&live), (0, 0, large));
    let small = fixture.say("x");
    advance(&live, reader).await;
    assert_eq!(in_ring(&live), [small]);
    live.clear_ring();
    assert_eq!(ring(&live), (0, 0, small));
}

#[tokio::test]
async fn pages_that_nobody_reads_any_more_are_forgotten() {
    let mut fixture = Fixture::new();
    fixture.say_times(3);
    let (live, _reader) = fixture.live().await;
    for after in [0, 1, 2, 0] {
        drop(live.page(after).await.unwrap());
    }
    assert_eq!(live.pages.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_long_answer_waits_for_room_and_comes_whole() {
    let mut fixture = Fixture::new();
    let message = fixture.say("x");
    let (live, reader) = fixture.live().await;
    let long = "a".repeat(2 * LARGE as usize);
    let answer = fixture.answer(message, long.clone());
    let rest = fixture.say("y");
    let reader = advance(&live, reader).await;
    live.clear_ring();
    drop(reader);
    let mut cursor = Cursor::new(live.clone(), message);
    {
        // It takes six MiB, so it has to give back the one that it began with.
        let others = fixture.context.budget.share(58).await;
        let first = tokio::time::timeout(LIMIT, event(&mut cursor)).await.expect("there is room");
        drop(others);
        assert_eq!((first.id(), &first.record.event.content), (answer, &long));
        assert!(now(fixture.context.budget.share(58)).is_some());
        assert!(now(fixture.context.budget.share(59)).is_none());
    }
    assert!(!cursor.has_more(), "it is alone");
    assert_eq!(drain(&mut cursor).await.0, [rest]);
    assert!(now(fixture.context.budget.share(64)).is_some());
}

fn set(ids: &[&str]) -> HashSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[tokio::test]
async fn the_relay_runs_while_there_are_open_calls_and_clients() {
    let (mut fixture, message) = Fixture::with_calls(&["old"]);
    let (live, reader) = fixture.live().await;
    assert!(!live.claim_relay() && live.calls_to_relay().is_none(), "there is no client");
    live.count_client(true);
    assert!(live.claim_relay());
    assert!(!live.claim_relay(), "it is running");
    fixture.push(&run(message).tool_call(&call("new")));
    let reader = advance(&live, reader).await;
    assert_eq!(live.calls_to_relay(), Some((set(&["old", "new"]), set(&["old"]))));
    live.count_client(false);
    assert_eq!(live.calls_to_relay(), None);
    live.count_client(true);
    assert!(live.claim_relay(), "it has ended, and is needed again");

    let done = |id: &str| ToolResult::new(id, "t", Err("x".into()));
    fixture.push(&run(message).tool_result(&done("old")));
    let reader = advance(&live, reader).await;
    // An id that comes again is a new call.
    fixture.push(&run(message).tool_call(&call("old")));
    let reader = advance(&live, reader).await;
    assert_eq!(live.calls_to_relay(), Some((set(&["old", "new"]), set(&[]))));
    fixture.answer(message, "done");
    advance(&live, reader).await;
    assert!(live.calls_to_relay().is_none() && !live.claim_relay());
}

#[tokio::test]
async fn a_relay_of_a_session_that_is_gone_ends() {
    let (fixture, _message) = Fixture::with_calls(&["a"]);
    let (live, _reader) = fixture.live().await;
    live.count_client(true);
    assert!(live.calls_to_relay().is_some());
    live.removed();
    assert!(live.calls_to_relay().is_none());
}

#[tokio::test]
async fn so_many_pieces_of_output_are_kept_and_no_more() {
    let (fixture, _message) = Fixture::with_calls(&["a"]);
    let (live, _reader) = fixture.live().await;
    let output = |from: usize, to: usize| {
        (from..to).map(|number| ("a".to_owned(), number.to_string().into())).collect()
    };
    let kept = |from: u64| {
        let (present, next) = present(&live, from);
        (present.notices.first().map(|text| text.to_string()), present.notices.len(), next)
    };
    live.relay(output(0, MAX_NOTICES));
    assert_eq!(kept(0), (Some("0".into()), MAX_NOTICES, MAX_NOTICES as u64));
    live.relay(output(MAX_NOTICES, MAX_NOTICES + 3));
    assert_eq!(kept(0), (Some("3".into()), MAX_NOTICES, MAX_NOTICES as u64 + 3));
    assert_eq!(
        kept(MAX_NOTICES as u64 + 2),
        (Some((MAX_NOTICES + 2).to_string()), 1, MAX_NOTICES as u64 + 3)
    );
}

#[tokio::test]
async fn each_change_rouses_the_readers_and_the_task() {
    let mut fixture = Fixture::new();
    let (live, reader) = fixture.live().await;
    let (mut changed, _) = live.subscribe();
    let mut has_changed = || std::mem::replace(&mut changed, live.subscribe().0).has_changed().unwrap();
    assert!(!has_changed());
    live.count_client(true);
    assert!(has_changed() && !has_changed());
    fixture.say("x");
    let reader = advance(&live, reader).await;
    assert!(has_changed());
    fixture.push(&run(1).token("m", "x"));
    let reader = advance(&live, reader).await;
    assert!(has_changed(), "a client that waits for a token is notified");
    advance(&live, reader).await;
    assert!(!has_changed(), "nothing is new");
    live.relay(Vec::new());
    live.clear_ring();
    assert!(!has_changed(), "nobody has to know");
    live.removed();
    assert!(has_changed());
    let watch = live.watch.clone();
    assert!(now(watch.changed.notified()).is_some(), "the task ends");
    drop(live);
    assert!(now(watch.changed.notified()).is_some(), "the task ends");
}

#[tokio::test]
async fn a_database_that_was_locked_takes_nothing_from_what_is_known_of_the_agent() {
    let mut fixture = Fixture::new();
    fixture.subscribe(Some("content <> 'no'"), Some(0));
    let yes = fixture.say("yes");
    let (live, Reader { queue, agent, once }) = fixture.live().await;
    fixture.say("no");
    // Exclusive use of a thread needs the only reference to it.
    let path = fixture.context.root.path_of(fixture.session);
    drop((queue, std::mem::replace(&mut fixture.queue, Fixture::new().queue)));
    let other = rusqlite::Connection::open(path.join(thread::files::DB)).unwrap();
    other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT").unwrap();
    let mut advancing = Box::pin(live.advance(Reader { queue: None, agent, once }));
    assert!(now(advancing.as_mut()).is_none());
    // It is tried once before this job has its turn.
    tokio::select! {
        _ = &mut advancing => panic!("it is locked"),
        done = fixture.context.pool.run(fixture.session, thread_sessions::Kind::Read, || Ok(())) => done.unwrap(),
    }
    drop(other);
    let (reader, more) = tokio::time::timeout(LIMIT, advancing).await.unwrap().unwrap();
    assert!(!more && reader.agent.is_some());
    fixture.queue = fixture.context.root.queue(fixture.session).unwrap();
    assert_eq!(order(&mut fixture, &live), [yes]);
}

#[tokio::test]
async fn a_cursor_that_is_set_forward_by_hand_ends_runs_at_once() {
    let mut fixture = Fixture::new();
    fixture.subscribe(None, Some(0));
    let (first, second) = (fixture.say("a"), fixture.say("b"));
    let (live, reader) = fixture.live().await;
    assert_eq!(order(&mut fixture, &live), [first, second]);
    fixture.subscribe(None, Some(first));
    let reader = advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live), [second]);
    fixture.queue.acknowledge(&crate::agents::seating::consumer(), second).unwrap();
    advance(&live, reader).await;
    assert_eq!(order(&mut fixture, &live), [0; 0]);
}
