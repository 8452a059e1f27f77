use thread_conversation::Message;

use super::*;
use crate::session::fixture::{Fixture, THEM, run};

const MIB: usize = 1024 * 1024;

/// The next page, with room for a long ending of so many bytes.
fn page(fixture: &mut Fixture, after: i64, room: u64) -> Page {
    match read(&mut fixture.queue, after, room, None).unwrap() {
        (Reading::Page(page), pending) => {
            assert_eq!(pending, vec![true; page.events.len()], "without a filter, all are for the agent");
            page
        }
        (Reading::LongEnding(bytes), _) => panic!("an ending of {bytes} bytes"),
    }
}

fn ids(page: &Page) -> Vec<i64> {
    page.events.iter().map(|event| event.id()).collect()
}

#[tokio::test]
async fn a_page_has_at_most_a_thousand_events_and_so_many_bytes() {
    let mut fixture = Fixture::new();
    let mut batch = Vec::from_iter((0..1001).map(|_| Message::text("x").event(THEM).unwrap())).into_iter();
    fixture
        .queue
        .push_all(&mut |put| batch.by_ref().try_for_each(|event| put(std::slice::from_ref(&event)).map(drop)))
        .unwrap();
    let first = page(&mut fixture, 0, 0);
    assert_eq!((ids(&first), first.upto, first.more), ((1..=1000).collect(), 1000, true));
    let second = page(&mut fixture, 1000, 0);
    assert_eq!((ids(&second), second.upto, second.more), (vec![1001], 1001, false));
    let nothing = page(&mut fixture, 1001, 0);
    assert_eq!((ids(&nothing), nothing.upto, nothing.more), (vec![], 1001, false));

    for _ in 0..4 {
        fixture.say("x".repeat(PAGE_BYTES / 2));
    }
    let third = page(&mut fixture, 1001, 0);
    assert_eq!((ids(&third), third.upto, third.more), (vec![1002, 1003], 1003, true));
    let last = page(&mut fixture, 1004, 0);
    assert_eq!((ids(&last), last.upto, last.more), (vec![1005], 1005, false));
}

#[tokio::test]
async fn a_long_ending_comes_whole_and_alone_once_there_is_room() {
    let mut fixture = Fixture::new();
    let message = fixture.say("x");
    let long = "a".repeat(MIB + 1);
    let answer = fixture.answer(message, long.clone());
    let after = fixture.say("y");
    let before = page(&mut fixture, 0, LONGEST);
    assert_eq!((ids(&before), before.upto, before.more), (vec![message], message, true));
    for room in [LARGE, LARGE - 1] {
        let (reading, _) = read(&mut fixture.queue, message, room, None).unwrap();
        assert!(matches!(reading, Reading::LongEnding(bytes) if bytes == LARGE + 1));
    }
    let alone = page(&mut fixture, message, LARGE + 1);
    assert_eq!((ids(&alone), alone.upto, alone.more), (vec![answer], answer, true));
    let ending = &alone.events[0];
    assert_eq!((&ending.record.event.content, ending.large, ending.ends), (&long, None, Some(message)));
    assert_eq!(ids(&page(&mut fixture, answer, LARGE)), [after]);
}

#[tokio::test]
async fn what_is_long_and_no_ending_is_there_without_its_content() {
    let mut fixture = Fixture::new();
    let whole = fixture.say("w".repeat(MIB));
    let cut = fixture.say("c".repeat(MIB + 1));
    let message = fixture.say("m");
    let token = fixture.push(&run(message).token("m", "t".repeat(MIB + 1)));
    // Looks like an ending, but has not its key.
    let mut unkeyed = run(message).answer(&Default::default());
    (unkeyed.idempotency_key, unkeyed.content) = (None, "u".repeat(MIB + 1).into());
    let unkeyed = fixture.push(&unkeyed);
    let mut got = Vec::new();
    let mut after = 0;
    loop {
        let page = page(&mut fixture, after, LARGE);
        got.extend(page.events.iter().map(|e| (e.id(), e.record.event.content.len(), e.large, e.ends)));
        after = page.upto;
        if !page.more {
            break;
        }
    }
    let large = Some(LARGE + 1);
    let expected = [
        (whole, MIB, None, None),
        (cut, 0, large, None),
        (message, 1, None, None),
        (token, 0, large, None),
        (unkeyed, 0, large, None),
    ];
    assert_eq!(got, expected);
}

#[tokio::test]
async fn what_is_for_the_agent_is_known_of_long_events_too() {
    let mut fixture = Fixture::new();
    let message = fixture.say("x");
    fixture.say("x".repeat(MIB + 1));
    for length in [1, MIB + 1] {
        fixture.push(&run(message).token("m", "x".repeat(length)));
    }
    let filter = Filter::new("source <> 'self'", thread::model::filter::Scope::Reading).unwrap().unwrap();
    let (reading, pending) = read(&mut fixture.queue, 0, LARGE, Some(&filter)).unwrap();
    assert!(matches!(reading, Reading::Page(page) if page.events.len() == 4));
    assert_eq!(pending, [true, true, false, false]);
}

#[tokio::test]
async fn frames_are_made_once_and_differ_for_the_sender_alone() {
    let event = SessionEvent::stored(7, &Message::text("x").event(THEM).unwrap());
    let frames = event.frames(|event| {
        assert_eq!(event.id(), 7);
        Some(Frames::new("others".into(), Some(("me".into(), "own".into()))))
    });
    let frames = frames.unwrap();
    assert_eq!(
        [frames.for_client("me"), frames.for_client("x")].map(|text| text.as_str()),
        ["own", "others"]
    );
    assert!(event.frames(|_| panic!("they are there")).is_some());
    let all = Frames::new("all".into(), None);
    assert_eq!(all.for_client("me").as_str(), "all");
}

#[tokio::test]
async fn the_size_covers_the_content_and_its_frames() {
    let event = Message { message_id: Some("m".into()), ..Message::text("x".repeat(100)) };
    let event = SessionEvent::stored(7, &event.event(THEM).unwrap());
    assert_eq!(event.size(), 300 + r#"{"message_id":"m"}"#.len() + 512);
    let bare = SessionEvent::stored(7, &Message::text("x").event(THEM).unwrap());
    assert_eq!(bare.size(), 3 + bare.record.event.metadata.as_ref().map_or(0, String::len) + 512);
}

#[tokio::test]
async fn metadata_counts_as_well() {
    let mut fixture = Fixture::new();
    for _ in 0..4 {
        let message = fixture.say("x");
        fixture.push(&run(message).cancelled("x", &"p".repeat(PAGE_BYTES / 2)));
    }
    let first = page(&mut fixture, 0, 0);
    assert_eq!((ids(&first), first.more), (vec![1, 2, 3, 4], true));
}

#[tokio::test]
async fn an_ending_that_is_too_long_to_be_read_ends_its_run_all_the_same() {
    let mut fixture = Fixture::new();
    let message = fixture.say("x");
    let answer = fixture.answer(message, "a".repeat(LONGEST as usize + 1));
    let page = page(&mut fixture, 0, LARGE);
    assert_eq!(ids(&page), [message, answer]);
    assert_eq!((page.events[1].large, page.events[1].ends), (Some(LONGEST + 1), Some(message)));
    assert!(page.events[1].noted(false).is_ending);
}
