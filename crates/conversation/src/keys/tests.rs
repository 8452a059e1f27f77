use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::{Answer, Moved, SubAgent, ToolResult};

struct World {
    _dir: TempDir,
    queue: Queue,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        Queue::init(dir.path()).unwrap();
        World { queue: Queue::open(dir.path()).unwrap(), _dir: dir }
    }

    fn push(&mut self, event: &NewEvent<'_>) -> Event {
        let id = self.queue.push(event).unwrap().id;
        self.queue.event(id).unwrap().unwrap()
    }
}

/// Under which of the keys of an event something is stored.
#[derive(Debug, Clone, Copy)]
enum Under {
    Own,
    Spare,
    /// That of earlier versions.
    Before,
    None,
}
use Under::{Before, Own, Spare};

fn under(event: NewEvent<'static>, key: IdempotencyKey<'static>, under: Under) -> NewEvent<'static> {
    let before = key.before_reserved().unwrap().to_owned();
    match under {
        Own => event.keyed(key),
        Spare => event.keyed(IdempotencyKey::reserved("taken", before).unwrap()),
        Before => event.keyed(IdempotencyKey::from_user(before).unwrap()),
        Under::None => NewEvent { idempotency_key: None, ..event },
    }
}

fn run(reply_to: i64) -> Run {
    Run { run_id: "r".into(), reply_to, attempt: 1, is_own: false }
}

fn answer(content: &str) -> Answer {
    Answer { content: content.to_owned(), ..Answer::default() }
}

fn other() -> NewEvent<'static> {
    NewEvent::message("x", "other").unwrap()
}

fn result(call_id: &str) -> NewEvent<'static> {
    run(1).tool_result(&ToolResult::new(call_id, "ls", Ok("a".into())))
}

#[test]
fn the_ending_of_a_run_is_the_first_one_under_any_of_its_keys() {
    const OTHER: i64 = 0;
    // What is stored in turn: under which key, and the ending of which run. Last, which of them is that of run 3.
    for (stored, ending) in [
        (&[(Own, 3)][..], Some(0)),
        (&[(Spare, 3)], Some(0)),
        (&[(Before, 3)], Some(0)),
        (&[(Under::None, 3)], None),
        (&[(Under::None, 3), (Own, 3)], Some(1)),
        (&[(Own, OTHER), (Spare, 3)], Some(1)),
        (&[(Own, 2), (Before, OTHER), (Spare, 3)], Some(2)),
        (&[(Own, 2)], None),
        (&[(Spare, 3), (Own, 3)], Some(0)),
        (&[(Before, 3), (Spare, 3), (Own, 3)], Some(0)),
        (&[(Spare, OTHER), (Before, 3), (Own, 3)], Some(1)),
    ] {
        let mut world = World::new();
        for _ in 0..3 {
            world.push(&other());
        }
        let ids = Vec::from_iter(stored.iter().map(|(key, of)| {
            let event = if *of == OTHER { other() } else { run(*of).failed("killed", "") };
            world.push(&under(event, end_key(3), *key)).id
        }));
        let ending = ending.map(|at: usize| ids[at]);
        let found = ending_of(&mut world.queue, 3).unwrap().map(|event| event.id);
        assert_eq!(found, ending, "{stored:?}");
        for (id, (_, of)) in ids.iter().zip(stored) {
            let entry = Entry::of(&world.queue.event(*id).unwrap().unwrap());
            // One under the key of another run's ending is that of none.
            let is_one = *of == 3 && Some(*id) == ending;
            assert_eq!(is_ending(&mut world.queue, *id, &entry).unwrap(), is_one, "{stored:?}: {id}");
        }
    }
}

#[test]
fn what_was_stored_before_a_message_is_not_the_end_of_its_run() {
    let mut world = World::new();
    for _ in 0..2 {
        world.push(&other());
    }
    // At once, so that it would answer itself, and earlier.
    for of in [3, 9] {
        let event = world.push(&run(of).failed("killed", ""));
        assert!(!is_ending(&mut world.queue, event.id, &Entry::of(&event)).unwrap());
        assert_eq!(ending_of(&mut world.queue, of).unwrap(), None);
    }
    while world.push(&other()).id < 9 {}
    let event = world.push(&under(run(9).failed("killed", ""), end_key(9), Spare));
    assert!(is_ending(&mut world.queue, event.id, &Entry::of(&event)).unwrap());
    assert_eq!(ending_of(&mut world.queue, 9).unwrap(), Some(event));
}

#[test]
fn the_result_of_a_call_is_the_newest_under_any_of_its_keys() {
    for (stored, found) in [
        (&[(Own, "c")][..], Some(0)),
        (&[(Spare, "c")], Some(0)),
        (&[(Before, "c"), (Own, "c")], Some(1)),
        (&[(Own, "c"), (Before, "c")], Some(1)),
        (&[(Own, "c"), (Before, "d")], Some(0)),
        (&[(Own, "d")], None),
        (&[(Under::None, "c")], None),
        (&[(Own, "")], None),
    ] {
        let mut world = World::new();
        let ids = Vec::from_iter(stored.iter().map(|(key, call)| {
            let event = if call.is_empty() { other() } else { result(call) };
            world.push(&under(event, result_key("c").unwrap(), *key)).id
        }));
        let result = result_of(&mut world.queue, &result_key("c").unwrap(), "c").unwrap();
        assert_eq!(result, found.map(|at: usize| ids[at]), "{stored:?}");
    }
}

#[test]
fn only_the_key_of_earlier_versions_has_what_was_stored_before() {
    let key = moved_key("m").unwrap();
    for (at, is_found) in [(Own, false), (Spare, false), (Before, true)] {
        let mut world = World::new();
        let stored = world.push(&under(other(), key.clone(), at));
        assert_eq!(stored_before(&mut world.queue, &key).unwrap(), is_found.then_some(stored), "{at:?}");
    }
}

#[test]
fn an_event_stands_for_those_that_would_say_the_same() {
    let answered = |of, content: &str| run(of).answer(&answer(content));
    let sub = |name: &str, sub_event_id| {
        let (parent_call_id, sub_agent, event) = ("c".into(), name.to_owned(), "status".to_owned());
        let payload = Value::Null;
        crate::sub_agent(&SubAgent { parent_call_id, attempt: 1, sub_agent, sub_event_id, event, payload })
    };
    let moved = |to: &str| crate::moved("x", "m", &Moved { name: to.into(), ..Moved::default() }).unwrap();
    let message = |content: &str| NewEvent::message("x", content.to_owned()).unwrap();
    // Each stands for those of its group, and for none of another.
    let groups = [
        vec![answered(3, "a"), answered(3, "b"), run(3).failed("killed", ""), run(3).cancelled("by x", "")],
        vec![answered(4, "a")],
        vec![result("c"), result("c")],
        vec![result("d")],
        vec![sub("s", 1), sub("s", 1)],
        vec![sub("s", 2)],
        vec![sub("t", 1)],
        vec![run(3).summary(7, "a"), run(3).summary(7, "b")],
        vec![run(3).summary(8, "a")],
        vec![message("a"), message("a")],
        vec![message("b")],
        vec![moved("a"), moved("b")],
    ];
    let all = || groups.iter().enumerate().flat_map(|(group, all)| all.iter().map(move |it| (group, it)));
    for (group, stored) in all() {
        let stored = stored_as(stored, 100);
        for (other, event) in all() {
            assert_eq!(stands_for(&stored, event), group == other, "{stored:?} {event:?}");
        }
    }
    // Of these there may be several.
    assert!(!stands_for(&stored_as(&run(3).started(), 100), &run(3).started()));
}

fn stored_as(event: &NewEvent<'_>, id: i64) -> Event {
    event.row(id, "2026-03-18T10:30:00.123Z").to_event()
}

#[test]
fn what_several_processes_tell_is_stored_once() {
    let (parent_call_id, sub_agent, event) = ("c".into(), "s".into(), "status".into());
    let told =
        SubAgent { parent_call_id, attempt: 1, sub_agent, sub_event_id: 4, event, payload: Value::Null };
    let moved = Moved { name: "b".into(), ..Moved::default() };
    let mut world = World::new();
    for event in [crate::sub_agent(&told), crate::moved("x", "m", &moved).unwrap()] {
        assert_eq!([(); 2].map(|()| world.queue.push(&event).unwrap().repeated), [false, true]);
    }
}

#[test]
fn what_finds_its_key_taken_is_stored_under_another_and_a_run_ends_with_what_had_been_said() {
    let holder = stored_as(&other(), 9);
    let instead = |event: &NewEvent<'static>| instead(event.clone(), &holder);
    let is_refused = |event: &NewEvent<'static>| match instead(event) {
        Err(Error::KeyConflict { key, id }) => Some(&*key) == event.idempotency_key.as_deref() && id == 9,
        _ => false,
    };

    let result = result("c");
    assert_eq!(instead(&result).unwrap(), Some(result.clone()));
    let keyed = result.clone().keyed(result_key("c").unwrap());
    let spare = under(result.clone(), result_key("c").unwrap(), Spare);
    assert_eq!(instead(&keyed).unwrap(), Some(spare.clone()));
    assert!(is_refused(&spare));
    // A spare key would be too long.
    assert!(is_refused(&result.clone().keyed(result_key(&"c".repeat(1010)).unwrap())));
    // Keys of earlier versions have one, too.
    let before = under(result.clone(), result_key("c").unwrap(), Before);
    assert_eq!(instead(&before).unwrap(), Some(spare));

    let error = "the idempotency key 'thread:end:3' belongs to event 9, which is not the end of this run";
    for is_own in [false, true] {
        let run = Run { is_own, ..run(3) };
        for (ending, said) in [
            (run.answer(&answer("all")), "all"),
            (run.failed("killed", "so far"), "so far"),
            (run.cancelled("by x", "so far"), "so far"),
            (run.cancelled("by x", ""), ""),
        ] {
            let failed = under(run.failed(error, said), end_key(3), Spare);
            assert_eq!(instead(&ending).unwrap(), Some(failed));
        }
        let ended = stored_as(&run.cancelled("by x", ""), 9);
        assert_eq!(super::instead(run.answer(&answer("all")), &ended).unwrap(), None);
    }
}
