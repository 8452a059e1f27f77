use proptest::prelude::*;
use thread_conversation::{Message, ToolResult};
use thread_sessions::{Kind, open_runs};
use tokio_tungstenite::tungstenite::Utf8Bytes;

use super::*;
use crate::session::budget::PAGE;
use crate::session::fixture::{Fixture, Seen, THEM, advance, drain, event, now, present, run};
use crate::session::page_reader::Reader;

/// So long that four of them do not fit into the ring, nor five into a page.
const LONG: usize = 60_000;

fn after(position: i64, newest: i64) -> Vec<i64> {
    (position.max(0) + 1..=newest).collect()
}

#[tokio::test]
async fn from_any_position_and_with_any_ring_the_rest_comes_once_and_in_order() {
    let mut fixture = Fixture::new();
    for number in 0..8 {
        fixture.say("x".repeat(if number % 2 == 0 { LONG } else { 1 }));
    }
    // What was stored before is on disk alone, what comes now is in the ring, as far as it has room there.
    let (live, reader) = fixture.live().await;
    for number in 0..8 {
        fixture.say("x".repeat(if number % 2 == 0 { LONG } else { 1 }));
    }
    let newest = 16;
    assert!(matches!(live.following(8, 0), Following::Nothing(..)), "nothing is read yet");
    let reader = advance(&live, reader).await;
    assert!(matches!(live.following(8, 0), Following::OnDisk), "the ring has overflowed");
    assert!(matches!(live.following(10, 0), Following::OnDisk));
    assert!(
        matches!(live.following(11, 0), Following::Events(events, 16) if events.len() == 5),
        "all of the ring"
    );
    assert!(matches!(live.following(12, 0), Following::Events(events, 16) if events.len() == 4));
    for cleared in [false, true] {
        for position in -1..=newest {
            let mut cursor = Cursor::new(live.clone(), position);
            assert_eq!(drain(&mut cursor).await.0, after(position, newest), "after {position}");
            assert_eq!(cursor.position(), newest);
        }
        if !cleared {
            live.clear_ring();
            assert!(matches!(live.following(15, 0), Following::OnDisk));
        }
    }
    drop(reader);
}

#[tokio::test]
async fn whatever_is_stored_between_any_two_steps_of_entering_comes_once_and_in_order() {
    let mut fixture = Fixture::new();
    let (root, session) = (fixture.context.root.clone(), fixture.session);
    let steps = 8;
    for stored_after in 0..1 << steps {
        let first = fixture.say("before");
        let mut step = 0;
        let mut newest = first;
        let mut next_step = |fixture: &mut Fixture| {
            if stored_after & 1 << step != 0 {
                newest = fixture.say("meanwhile");
            }
            step += 1;
            newest
        };
        next_step(&mut fixture);
        let mut queue = root.queue(session).unwrap();
        next_step(&mut fixture);
        let watch = fixture.context.watcher.watch(&queue);
        let (agent, runs, upto) = open_runs(&mut queue).unwrap();
        next_step(&mut fixture);
        let live = Arc::new(LiveSession::new(session, fixture.context.clone(), watch, runs, upto));
        let position = next_step(&mut fixture);
        // One enters before the session is read on, one after it, and one comes back.
        let mut early = Cursor::new(live.clone(), position).of_client();
        next_step(&mut fixture);
        let reader = advance(&live, Reader { queue: Some(queue), agent: Some(agent), once: false }).await;
        let mut late = Cursor::new(live.clone(), position);
        let mut back = Cursor::new(live.clone(), first);
        next_step(&mut fixture);
        let mut got = [&mut early, &mut late, &mut back].map(|cursor| (Vec::new(), cursor));
        for (got, cursor) in &mut got {
            got.append(&mut drain(cursor).await.0);
        }
        next_step(&mut fixture);
        let reader = advance(&live, reader).await;
        if stored_after % 2 == 0 {
            live.clear_ring();
        }
        next_step(&mut fixture);
        advance(&live, reader).await;
        for (got, cursor) in &mut got {
            // If nothing was stored, there is nothing to wait for.
            cursor.seek(cursor.position());
            got.append(&mut drain(cursor).await.0);
        }
        let newest = fixture.queue.newest().unwrap().0;
        let [early, late, back] = got.map(|(got, _)| got);
        assert_eq!(early, after(position, newest), "{stored_after:b}");
        assert_eq!(late, after(position, newest), "{stored_after:b}");
        assert_eq!(back, after(first, newest), "{stored_after:b}");
    }
}

#[tokio::test]
async fn to_forget_what_was_read_ahead_loses_nothing() {
    let mut fixture = Fixture::new();
    fixture.say_times(6);
    let (live, _reader) = fixture.live_from_start().await;
    for on_disk in [false, true] {
        for taken in 0..=6 {
            let mut cursor = Cursor::new(live.clone(), 0);
            for _ in 0..taken {
                event(&mut cursor).await;
            }
            assert_eq!(cursor.has_more(), (1..6).contains(&taken));
            cursor.forget();
            assert!(!cursor.has_more());
            cursor.forget();
            assert_eq!(drain(&mut cursor).await.0, after(taken, 6));
        }
        if !on_disk {
            live.clear_ring();
        }
    }
}

#[tokio::test]
async fn a_cursor_that_seeks_gets_what_follows_there_and_is_told_again() {
    let mut fixture = Fixture::new();
    fixture.say_times(4);
    let (live, _reader) = fixture.live_from_start().await;
    let mut cursor = Cursor::new(live.clone(), 2);
    event(&mut cursor).await;
    for position in [0, 4, 3, 1] {
        cursor.seek(position);
        assert_eq!((cursor.position(), cursor.has_more()), (position, false));
        assert_eq!(drain(&mut cursor).await.0, after(position, 4));
        assert!(now(cursor.next()).is_none(), "it was told already");
    }
    assert!(cursor.is_in(&live) && cursor.session() == live.session);
    assert!(!cursor.is_in(&fixture.live().await.0));
}

#[tokio::test]
async fn whoever_has_caught_up_is_told_once_after_each_change() {
    let mut fixture = Fixture::new();
    fixture.subscribe(None, None);
    let first = fixture.say("a");
    let (live, reader) = fixture.live().await;
    let mut cursor = Cursor::new(live.clone(), 0).of_client();
    let (ids, present) = drain(&mut cursor).await;
    assert_eq!((ids, &*present.order, present.upto, present.clients), (vec![first], &vec![first], first, 1));
    assert!(now(cursor.next()).is_none());

    let second = fixture.say("b");
    assert!(now(cursor.next()).is_none(), "it is not read yet");
    let reader = advance(&live, reader).await;
    let (ids, present) = drain(&mut cursor).await;
    assert_eq!((ids, &*present.order, present.upto), (vec![second], &vec![first, second], second));

    let other = Cursor::new(live.clone(), 0).of_client();
    let reading = Cursor::new(live.clone(), 0);
    assert_eq!(drain(&mut cursor).await.1.clients, 2, "who only reads is no client");
    assert_eq!(live.clients(), 2);
    drop((other, reading));
    assert_eq!(drain(&mut cursor).await.1.clients, 1);
    assert_eq!(live.clients(), 1);
    assert!(now(cursor.next()).is_none());

    // Two changes, and the state after both.
    let third = fixture.say("c");
    let ended = fixture.answer(first, "done");
    advance(&live, reader).await;
    drop(Cursor::new(live.clone(), 0).of_client());
    let (ids, present) = drain(&mut cursor).await;
    assert_eq!((ids, &*present.order), (vec![third, ended], &vec![second, third]));
    assert!(now(cursor.next()).is_none());
}

#[tokio::test]
async fn a_cursor_that_waits_is_woken_by_a_change() {
    let mut fixture = Fixture::new();
    let (live, reader) = fixture.live().await;
    let mut cursor = Cursor::new(live.clone(), 0);
    drain(&mut cursor).await;
    let waiting = tokio::spawn(async move { event(&mut cursor).await.id() });
    // It waits by the time that this has run on another thread.
    tokio::task::yield_now().await;
    let id = fixture.say("x");
    advance(&live, reader).await;
    assert_eq!(tokio::time::timeout(crate::session::fixture::LIMIT, waiting).await.unwrap().unwrap(), id);
}

fn output(call: &str, text: &str) -> (String, Utf8Bytes) {
    (call.to_owned(), text.to_owned().into())
}

#[tokio::test]
async fn output_of_sub_agents_comes_once_and_never_after_the_result_of_its_call() {
    let (mut fixture, message) = Fixture::with_calls(&["a", "b"]);
    let (live, reader) = fixture.live().await;
    let newest = fixture.queue.newest().unwrap().0;
    let notices = |present: Present| -> Vec<String> {
        present.notices.iter().map(|notice| notice.to_string()).collect()
    };
    let mut early = Cursor::new(live.clone(), newest).of_client();
    let mut slow = Cursor::new(live.clone(), 0);
    live.relay(vec![output("a", "a1"), output("b", "b1"), output("none", "x1")]);
    let mut late = Cursor::new(live.clone(), newest);
    assert_eq!(notices(drain(&mut early).await.1), ["a1", "b1"]);
    assert_eq!(notices(drain(&mut late).await.1), [""; 0], "it was said before it came");
    live.relay(vec![output("a", "a2"), output("b", "b2")]);
    assert_eq!(notices(drain(&mut early).await.1), ["a2", "b2"]);

    // The result is read; from then on nobody gets output of its call, whatever it had.
    let done = ToolResult::new("a", "t", Ok("x".into()));
    let result = fixture.push(&run(message).tool_result(&done));
    advance(&live, reader).await;
    live.relay(vec![output("a", "a3"), output("b", "b3")]);
    let (ids, present) = drain(&mut late).await;
    assert_eq!((ids, notices(present)), (vec![result], vec!["b2".to_owned(), "b3".to_owned()]));
    let (ids, present) = drain(&mut slow).await;
    assert_eq!(ids, after(0, result));
    assert_eq!(notices(present), ["b1", "b2", "b3"]);
    assert_eq!(notices(drain(&mut early).await.1), ["b3"]);
    // Nothing new is no change.
    live.relay(Vec::new());
    assert!(now(early.next()).is_none());
}

#[tokio::test]
async fn a_session_that_is_gone_is_gone_for_each_reader_wherever_it_is() {
    let mut fixture = Fixture::new();
    fixture.say_times(3);
    let (live, reader) = fixture.live_from_start().await;
    let (mut behind, mut ahead) = (Cursor::new(live.clone(), 0), Cursor::new(live.clone(), 0));
    event(&mut behind).await;
    drain(&mut ahead).await;
    assert!(now(ahead.next()).is_none());
    // Its files are gone, and no task has noticed.
    live.clear_ring();
    behind.forget();
    fixture.remove();
    assert!(matches!(behind.next().await, Next::Gone));
    assert!(matches!(live.advance(reader).await, Err(RequestError::UnknownSession(_))));
    assert!(!live.is_gone());
    live.removed();
    assert!(live.is_gone());
    assert!(matches!(ahead.next().await, Next::Gone));
    assert!(matches!(ahead.next().await, Next::Gone));
}

#[tokio::test]
async fn what_is_read_ahead_is_within_the_budget_until_it_is_taken_or_forgotten() {
    let mut fixture = Fixture::new();
    fixture.say_times(3);
    let (live, _reader) = fixture.live().await;
    let all = || now(fixture.context.budget.share(64)).is_some();
    let rest = || now(fixture.context.budget.share(64 - PAGE)).is_some();
    assert!(all());
    let mut cursor = Cursor::new(live.clone(), 0);
    event(&mut cursor).await;
    assert!(!all() && rest());
    cursor.forget();
    assert!(all(), "forgotten");
    event(&mut cursor).await;
    cursor.seek(0);
    assert!(all(), "it is elsewhere");
    event(&mut cursor).await;
    assert!(!all());
    drain(&mut cursor).await;
    assert!(all(), "taken");
    let mut cursor = Cursor::new(live.clone(), 0);
    event(&mut cursor).await;
    drop(cursor);
    assert!(all(), "the reader has left");
}

#[tokio::test]
async fn who_reads_the_same_page_at_the_same_time_reads_it_once() {
    let mut fixture = Fixture::new();
    fixture.say_times(3);
    let (live, _reader) = fixture.live().await;
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let held = move || {
        ended.recv().ok();
        Ok(())
    };
    let mut other = Box::pin(live.context.pool.run(live.session, Kind::Read, held));
    assert!(now(other.as_mut()).is_none(), "all wait for this one");
    let mut pages = [0, 0, 1, 0].map(|after| Box::pin(live.page(after)));
    assert!(pages.iter_mut().all(|page| now(page.as_mut()).is_none()));
    let [leaving, a, c, b] = pages;
    // A reader that leaves while it reads takes nothing from the others.
    drop((leaving, end));
    let (_, a, b, c) = tokio::join!(other, a, b, c);
    let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
    assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &c));
    assert_eq!((a.events.len(), c.events.len()), (3, 2));
    assert_eq!((a.upto, a.more, c.upto), (3, false, 3));
}

/// What can happen to a session and its readers.
#[derive(Debug, Clone)]
enum Act {
    /// An event is stored: of a kind, and so long.
    Push(u8, usize),
    /// The session is read on, by one page.
    Advance,
    ClearRing,
    /// A reader takes up to so many events.
    Take(usize, usize),
    Forget(usize),
    /// A reader goes back by so many events.
    Seek(usize, i64),
    /// It leaves, and comes back with its position.
    Return(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let length = prop_oneof![3 => 0..50usize, 2 => Just(LONG), 1 => Just(200_000)];
    let reader = 0..3usize;
    prop_oneof![
        6 => (0..6u8, length).prop_map(|(kind, length)| Act::Push(kind, length)),
        3 => Just(Act::Advance),
        1 => Just(Act::ClearRing),
        5 => (reader.clone(), 1..8usize).prop_map(|(reader, most)| Act::Take(reader, most)),
        1 => reader.clone().prop_map(Act::Forget),
        1 => (reader.clone(), 0..5i64).prop_map(|(reader, by)| Act::Seek(reader, by)),
        1 => reader.prop_map(Act::Return),
    ]
}

fn push(fixture: &mut Fixture, kind: u8, length: usize, message: &mut i64) {
    let text = "x".repeat(length);
    let client = Some("me".to_owned());
    match kind {
        0 => *message = fixture.push(&Message { client, ..Message::text(text) }.event(THEM).unwrap()),
        1 => *message = fixture.say(text),
        2 => drop(fixture.begin(*message)),
        3 => drop(fixture.push(&run(*message).token("m", text))),
        // The second answer of a message is the first one again.
        4 => drop(fixture.answer(*message, "done")),
        _ => drop(fixture.push(&thread::NewEvent::message("self", text).unwrap())),
    };
}

async fn play(acts: Vec<Act>) {
    let mut fixture = Fixture::new();
    fixture.subscribe(None, None);
    let mut message = fixture.say("first");
    let (live, reader) = fixture.live().await;
    let mut reader = Some(reader);
    let mut seen = Seen::default();
    let mut cursors: Vec<(Cursor, i64)> = (0..3).map(|_| (Cursor::new(live.clone(), 0), 0)).collect();
    for act in acts {
        match act {
            Act::Push(kind, length) => push(&mut fixture, kind, length, &mut message),
            Act::Advance => reader = Some(live.advance(reader.take().unwrap()).await.unwrap().0),
            Act::ClearRing => live.clear_ring(),
            Act::Take(of, most) => {
                let (cursor, at) = &mut cursors[of];
                for _ in 0..most {
                    if !cursor.has_more() && matches!(live.following(*at, 0), Following::Nothing(..)) {
                        break;
                    }
                    match cursor.next().await {
                        Next::Event(event) => {
                            *at += 1;
                            // Ids have no gaps here, so this is every event, once, in order.
                            assert_eq!(event.id(), *at);
                            seen.check(cursor, &event);
                        }
                        Next::CaughtUp(present) => {
                            assert!(*at == present.upto && cursor.position() == *at);
                            break;
                        }
                        Next::Gone => panic!("gone"),
                    }
                }
            }
            Act::Forget(of) => cursors[of].0.forget(),
            Act::Seek(of, by) => {
                let (cursor, at) = &mut cursors[of];
                *at = (*at - by).max(0);
                cursor.seek(*at);
            }
            Act::Return(of) => {
                let at = cursors[of].1;
                cursors[of].0 = Cursor::new(live.clone(), at);
            }
        }
    }
    advance(&live, reader.take().unwrap()).await;
    let newest = fixture.queue.newest().unwrap().0;
    for (mut cursor, mut at) in cursors {
        cursor.seek(at);
        while let Next::Event(event) = cursor.next().await {
            at += 1;
            assert_eq!(event.id(), at);
            seen.check(&cursor, &event);
        }
        assert_eq!(at, newest);
    }
    let (_, runs, _) = open_runs(&mut fixture.queue).unwrap();
    assert_eq!(*present(&live, 0).0.order, runs.in_order());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn each_reader_gets_every_event_after_its_place_once_in_order_and_as_the_same_bytes(
        acts in prop::collection::vec(act(), 1..60),
    ) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(play(acts));
    }
}
